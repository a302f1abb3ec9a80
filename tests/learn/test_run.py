"""The chain from slides to CNN5: complete, kept, resumed to the same weights, and honest about bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.stages import silent, stage_states
from metaphase.cli.options import Command
from metaphase.cli.run import experiments, run
from metaphase.learn.chain import NETWORKS, Chain, find_in_processes, source_stages
from metaphase.learn.config import run_config
from metaphase.learn.mining.candidates import CandidateError
from metaphase.learn.run import read_results, run_chain, run_table
from metaphase.learn.summary import example_groups
from metaphase.networks.checkpoints import load_model
from metaphase.simulation.cohort import simulate_cohort
from metaphase.simulation.config import SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region
from metaphase.slides.opening import open_slide
from tests.learn.run_samples import TINY, finished_workspace, tiny_config

STAGES = [
    "slides", "reference", "candidates", "easy set", "cnn3", "difficult sets", "cnn4-1", "cnn4-2",
    "soft targets", "cnn5-0p04", "test",
]  # fmt: skip


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(finished_workspace(), tmp_path / "workspace"))


def chain_in(workspace: Path, **tables: dict[str, Any]) -> Chain:
    return Chain(tiny_config(**tables), workspace, "cpu")


def statuses(chain: Chain) -> dict[str, str]:
    return {state.stage.name: state.status for state in stage_states(run_table(chain), chain.workspace)}


def forget(workspace: Path, *stages: str) -> None:
    for stage in stages:
        (workspace / "stages" / f"{stage}.json").unlink()
        shutil.rmtree(workspace / NETWORKS / stage, ignore_errors=True)


def checksum(workspace: Path, name: str) -> str:
    return load_model(workspace / NETWORKS / name / name)[1].weights_sha256


def test_a_run_ends_with_tested_networks(workspace: Path) -> None:
    assert list(statuses(chain_in(workspace))) == STAGES
    assert set(statuses(chain_in(workspace)).values()) == {"kept"}
    results = read_results(workspace)
    assert list(results["networks"]) == ["cnn3", "ensemble", "cnn5-0p04"]
    assert results["training_centres"] == ["aldgate"]
    assert set(results["networks"]["cnn3"]["slides"]["centre"]) == {"birch"}
    members = [results["networks"][name]["parameters"] for name in ("ensemble", "cnn3")]
    assert members[0] == 2 * members[1]
    card = load_model(workspace / NETWORKS / "cnn5-0p04" / "cnn5-0p04")[1]
    threshold = results["networks"]["cnn5-0p04"]["threshold"]
    operating = {"delta": threshold, "suppress_um": 12.5, "smooth_um": 0.0}
    assert card.thresholds["mitoses"].numbers == operating
    assert card.thresholds["mitoses"].laboratories == ("aldgate",)
    assert card.thresholds["mitoses"].cases == ("case001",)
    assert card.recipe["target"] == "ensemble"


def test_slides_are_those_of_the_simulator(workspace: Path) -> None:
    settings = tiny_config().simulate
    assert settings is not None
    case = cohort_cases(settings)[2]
    with open_slide(workspace / "slides" / case.name / "he.tif") as slide:
        shown = slide.read(0, 0, 200, 200).astype(int)
    drawn = render_region(case, "he", 0, 0, 200, 200).astype(int)
    assert np.abs(shown - drawn).mean() < 4  # JPEG


def test_a_finished_run_does_nothing(workspace: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in workspace.rglob("*") if path.is_file()}
    states = run_chain(chain_in(workspace))
    assert {state.status for state in states} == {"kept"}
    assert before == {path: path.stat().st_mtime_ns for path in workspace.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_run_that_was_killed_ends_with_the_same_weights(workspace: Path) -> None:
    forget(workspace, "cnn4-2", "soft targets", "cnn5-0p04", "test")
    wanted = checksum(finished_workspace(), "cnn5-0p04")

    def kill_at(text: str, share: float) -> Callable[[str, float, float], None]:
        def report(what: str, done: float, total: float) -> None:
            if text in what and done >= share * total:
                raise KeyboardInterrupt

        return report

    for report in (kill_at("cnn4-2", 0.5), kill_at("soft targets", 0.5), kill_at("cnn5", 1.0)):
        with pytest.raises(KeyboardInterrupt):
            run_chain(chain_in(workspace), report=report)
    assert statuses(chain_in(workspace))["cnn5-0p04"] == "interrupted"
    run_chain(chain_in(workspace))
    assert checksum(workspace, "cnn5-0p04") == wanted


@pytest.mark.parametrize(
    ("changed", "first"),
    [
        ({"students": {"gammas": [0.05]}}, "cnn5-0p05"),
        ({"test": {"floor": 0.2}}, "test"),
        ({"training": {"learning_rate": 0.01}}, "cnn3"),
        ({"sets": {"hard_negatives": 61}}, "difficult sets"),
        ({"sets": {"easy_negatives": 41}}, "easy set"),
        ({"candidates": {"threshold": 0.5}}, "candidates"),
        ({"simulate": {"seed": 6}}, "slides"),
    ],
)
def test_a_changed_setting_concerns_the_stages_that_follow(changed: dict[str, Any], first: str) -> None:
    found = statuses(chain_in(finished_workspace(), **changed))
    waiting = [name for name, status in found.items() if status == "waiting"]
    assert waiting[0] == first
    assert waiting == list(found)[list(found).index(first) :]


def test_another_number_of_processes_changes_nothing() -> None:
    assert set(statuses(chain_in(finished_workspace(), simulate={"workers": 8})).values()) == {"kept"}


def test_networks_of_other_settings_are_trained_anew(workspace: Path) -> None:
    chain = chain_in(workspace, students={"gammas": [0.04]}, training={"seed": 7})
    with pytest.raises(KeyboardInterrupt):
        run_chain(chain, report=_stop_at("probabilities"))
    assert checksum(workspace, "cnn3") != checksum(finished_workspace(), "cnn3")


def _stop_at(text: str) -> Callable[[str, float, float], None]:
    def report(what: str, done: float, total: float) -> None:
        if text in what:
            raise KeyboardInterrupt

    return report


@pytest.mark.slow
def test_candidates_found_in_several_processes_are_the_same(workspace: Path) -> None:
    chain = chain_in(workspace)
    known = {path.name: path.read_bytes() for path in (workspace / "mining/candidates").glob("*.parquet")}
    shutil.rmtree(workspace / "mining" / "candidates")
    seen: list[float] = []
    sources = [*chain.mining.train, *chain.mining.validation]
    find_in_processes(chain.mining, sources, 2, lambda _what, done, _total: seen.append(done))
    assert seen == [1, 2]
    found = {path.name: path.read_bytes() for path in (workspace / "mining/candidates").glob("*.parquet")}
    assert found == known


@pytest.mark.slow
def test_slides_rendered_in_several_processes_are_the_same(tmp_path: Path) -> None:
    settings = SimulationConfig(cases=2, centres=1, width=256, height=256, seed=4, workers=1)
    for workers in (1, 2):
        simulate_cohort(tmp_path / str(workers), replace(settings, workers=workers), frames=("he",))
    for name in ("case000/he.tif", "case001/he.tif", "case001/truth.parquet", "manifest.csv"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    before = (tmp_path / "1/case000/he.tif").stat().st_mtime_ns
    simulate_cohort(tmp_path / "1", replace(settings, workers=2), frames=("he",))
    assert (tmp_path / "1/case000/he.tif").stat().st_mtime_ns == before


def test_example_patches_are_sorted_by_the_ensemble(workspace: Path) -> None:
    groups = {
        group.title: np.array([float(caption.split()[0]) for caption in group.captions])
        for group in example_groups(chain_in(workspace).stores("positives", "hard"))
    }
    assert (np.diff(groups["Easiest mitoses"]) <= 0).all()
    assert (np.diff(groups["Suspects: no mitoses?"]) >= 0).all()
    assert groups["Suspects: missed mitoses?"][0] >= groups["Easiest negatives"].max()
    assert groups["Easiest mitoses"].max() >= groups["Suspects: no mitoses?"].min()


def with_manifest(folder: Path, points: pd.DataFrame, **changes: Any) -> Chain:
    """A run on the finished run's slides with a manifest and a reference table of its own."""
    slides = finished_workspace() / "slides"
    manifest = pd.read_csv(slides / "manifest.csv").assign(**changes)
    manifest["he"] = [str(slides / name) for name in manifest["he"]]
    folder.mkdir(exist_ok=True)
    manifest.to_csv(folder / "manifest.csv", index=False)
    points.to_csv(folder / "reference.csv", index=False)
    tables = {name: values for name, values in TINY.items() if name != "simulate"}
    tables["cohort"] = {"manifest": str(folder / "manifest.csv")}
    tables["reference"] = {"source": "phh3", "table": str(folder / "reference.csv")}
    return Chain(run_config(tables, folder), folder / "workspace", "cpu")


def truth() -> pd.DataFrame:
    return (
        pd.read_parquet(finished_workspace() / "reference.parquet")
        .drop(columns="label")
        .assign(accepted=True)
    )


def test_a_reference_table_gives_the_same_sets_as_the_truth(tmp_path: Path) -> None:
    chain = with_manifest(tmp_path, truth())
    with pytest.raises(KeyboardInterrupt):
        run_chain(chain, report=_stop_at("cnn3"))
    assert statuses(chain)["easy set"] == "kept"
    found = pd.read_parquet(tmp_path / "workspace/reference.parquet")
    known = pd.read_parquet(finished_workspace() / "reference.parquet")
    pd.testing.assert_frame_equal(found, known, check_exact=False, rtol=1e-9)


def test_a_slide_that_was_exchanged_is_noticed(tmp_path: Path) -> None:
    chain = with_manifest(tmp_path, truth())
    own = tmp_path / "own.tif"
    shutil.copyfile(finished_workspace() / "slides/case000/he.tif", own)
    manifest = pd.read_csv(tmp_path / "manifest.csv")
    manifest.loc[0, "he"] = str(own)
    manifest.to_csv(tmp_path / "manifest.csv", index=False)
    with pytest.raises(KeyboardInterrupt):
        run_chain(chain, report=_stop_at("candidates"))
    assert statuses(chain)["reference"] == "kept"
    shutil.copyfile(finished_workspace() / "slides/case001/he.tif", own)
    assert statuses(chain)["slides"] == "waiting"


def test_points_that_were_not_accepted_are_neither_positive_nor_negative(tmp_path: Path) -> None:
    points = truth()
    points["accepted"] = points.groupby("case").cumcount() > 0
    chain = with_manifest(tmp_path, points)
    chain.workspace.mkdir()
    _slides, reference = source_stages(chain)
    reference.work(silent)
    labels = chain.reference["label"].value_counts()
    assert labels["ignore"] == points["case"].nunique()
    assert labels["mitosis"] == len(points) - labels["ignore"]


@pytest.mark.parametrize(
    ("change", "points", "message"),
    [
        ({"split": "train"}, None, "no slide has the split validation"),
        ({"split": ["train", "validation", "tset"]}, None, "no slide has the split test"),
        ({"split": ["train", "validation", "test"], "patient": "p"}, None, "more than one split: p"),
        ({"he": "gone.tif"}, None, "no H&E slide is there for case000"),
        ({"repeat": 0}, None, "repeat = 0"),
        ({"repeat": 1.5}, None, "repeat = 1.5"),
        (
            {},
            pd.DataFrame({"case": ["case000"], "x": [10.0], "y": [10.0]}),
            "no mitosis on any slide of the split validation",
        ),
        ({}, pd.DataFrame({"x": [1.0], "y": [1.0]}), "no column case"),
    ],
)
def test_a_cohort_that_cannot_be_used_is_named(
    tmp_path: Path, change: dict[str, Any], points: pd.DataFrame | None, message: str
) -> None:
    chain = with_manifest(tmp_path, truth() if points is None else points, **change)
    with pytest.raises(MetaphaseError, match=message):
        run_chain(chain)


def test_a_reference_point_outside_its_slide_stops_the_run(tmp_path: Path) -> None:
    points = truth()
    points.loc[0, "x"] = 4000.0
    chain = with_manifest(tmp_path, points)
    with pytest.raises(CandidateError, match="outside the 640 x 640 px"):
        run_chain(chain)
    assert statuses(chain)["candidates"] == "failed"


def test_a_flood_of_candidates_stops_the_run(workspace: Path) -> None:
    shutil.rmtree(workspace / "mining" / "candidates")
    with pytest.raises(CandidateError, match="more than 5 candidates"):
        run_chain(chain_in(workspace, candidates={"max_candidates": 5}))


@pytest.fixture
def commands() -> typer.Typer:
    app = typer.Typer()
    app.command(cls=Command)(run)
    app.command(cls=Command)(experiments)
    return app


def test_the_command_shows_the_stages_and_writes_the_page(
    workspace: Path, commands: typer.Typer, tmp_path: Path
) -> None:
    config = tmp_path / "tiny.toml"
    config.write_text(_toml(TINY))
    options = ["run", str(config), "-o", str(workspace)]
    shown = CliRunner().invoke(commands, [*options, "--status"])
    assert shown.exit_code == 0
    assert "difficult sets" in shown.output
    assert not (workspace / "index.html").exists()
    done = CliRunner().invoke(commands, [*options, "--json", "--device", "cpu"])
    assert [state["status"] for state in json.loads(done.stdout)] == ["kept"] * len(STAGES)
    assert (workspace / "index.html").stat().st_size > 50_000


def test_a_misspelt_setting_is_named_with_its_file(commands: typer.Typer, tmp_path: Path) -> None:
    config = tmp_path / "wrong.toml"
    config.write_text("[training]\nepoch = 3\n")
    result = CliRunner().invoke(commands, ["run", str(config)])
    assert isinstance(result.exception, UsageError)
    assert "wrong.toml: [training] has no setting epoch" in str(result.exception)


def _toml(tables: dict[str, Any]) -> str:
    def line(key: str, value: Any) -> str:
        return f"{key} = {json.dumps(value)}"

    return "\n".join(
        f"[{name}]\n" + "\n".join(line(key, value) for key, value in values.items())
        for name, values in tables.items()
    )
