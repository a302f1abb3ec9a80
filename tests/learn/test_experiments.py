"""Experiments 1 to 7: which networks, what they are compared with, and tables that grow."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metaphase.base.errors import UsageError
from metaphase.base.settings import config_files
from metaphase.base.stages import run_stages
from metaphase.evaluation.metrics import BootstrapConfig
from metaphase.evaluation.operating_points import GRID
from metaphase.learn.chain import Chain
from metaphase.learn.comparison import (
    baselines,
    easy_networks,
    experiments,
    f1_of,
    label_students,
    laboratory_table,
    markdown,
    questions,
    summarise,
    tables_of,
)
from metaphase.learn.config import members, read_run_config, students
from metaphase.learn.experiments import Experiments
from tests.learn.run_samples import finished_workspace, tiny_config

PAPER = read_run_config(config_files()["paper"])
TRAINED_ON = {"home", "without test slides"}


def result(rng: np.random.Generator, quality: float, parameters: int = 9_500_000) -> dict[str, Any]:
    """Measured values of an invented network on seven slides; a share `quality` of the mitoses is found."""
    truths = np.full(7, 20)
    true = rng.binomial(20, quality, 7)
    steps = np.sort(rng.binomial(20, quality, (7, len(GRID))), axis=1)[:, ::-1]
    slides = {"case": list("abcdefg"), "patient": list("abcdefg"), "centre": ["home"] * 2 + ["away"] * 5}
    slides |= {"truths": truths.tolist(), "true": true.tolist(), "false": (20 - true).tolist()}
    return {
        "threshold": 0.5, "validation_f1": quality, "parameters": parameters, "slides": slides,
        "curve_true": steps.tolist(), "curve_false": (20 - steps).tolist(),
    }  # fmt: skip


def test_the_papers_rows() -> None:
    rows = experiments(PAPER)
    assert [row.number for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert [row.augment for row in rows] == ["RSEB", "RCSEB", *["RCSEHBG"] * 5]
    assert [row.distilled for row in rows[4:]] == ["gamma 1", "gamma 0.8", "gamma 0.6"]
    assert all(len(row.networks) == 3 for row in rows[:3])


def test_every_network_named_in_a_table_is_trained_once() -> None:
    trained = [
        *members(PAPER), *baselines(PAPER), *students(PAPER), *label_students(PAPER), *easy_networks(PAPER),
    ]  # fmt: skip
    names = [task.name for task in trained]
    assert len(names) == len(set(names)) == 10 + 6 + 3 + 2 + 2
    known = {*names, "cnn3", "ensemble"}
    for row in experiments(PAPER):
        assert set(row.networks) <= known
    for question in questions(PAPER):
        assert set(question.networks_without) | set(question.networks_with) <= known


def test_compared_networks_differ_in_one_thing() -> None:
    tasks = {task.name: task for task in (*members(PAPER), *baselines(PAPER))}
    for seed in (1, 2, 3):
        single, basic = tasks[f"cnn4-{seed}"], tasks[f"exp1-{seed}"]
        assert (single.seed, single.hard_set, single.gamma) == (basic.seed, basic.hard_set, basic.gamma)
        assert (single.augment, basic.augment) == (None, "RSEB")
    soft = {task.gamma: task for task in students(PAPER)}
    for task in label_students(PAPER):
        other = soft[task.gamma]
        assert (task.seed, task.hard_set, task.target, other.target) == (other.seed, 0, "label", "ensemble")
    assert 1.0 not in {task.gamma for task in label_students(PAPER)}, "the members are of this width"


def test_tables_show_what_is_there() -> None:
    rng = np.random.default_rng(0)
    measured: dict[str, Any] = {}
    assert summarise(PAPER, measured, ()).rows == ()
    measured["exp1-1"] = result(rng, 0.3)
    first = summarise(PAPER, measured, TRAINED_ON)
    assert [(row.experiment.number, len(row.each)) for row in first.rows] == [(1, 1)]
    assert first.held_out == {"away"}
    assert first.contributions == ()
    measured |= {f"cnn4-{seed}": result(rng, 0.8) for seed in (1, 2, 3)} | {"cnn3": result(rng, 0.5)}
    later = summarise(PAPER, measured, TRAINED_ON)
    assert [row.experiment.number for row in later.rows] == [1, 3]
    mining = next(part for part in later.contributions if part.question.part == "mining")
    assert mining.difference.value == pytest.approx(mining.f1_with - mining.f1_without)
    assert mining.difference.low < mining.difference.value < mining.difference.high
    assert mining.difference.low > 0
    text = markdown(later)
    assert "5 slides with 100 mitoses of away" in text
    assert text.count("| mining |") == 1
    assert "9.5 M" in text


def test_networks_that_hardly_learnt_are_compared_with_a_warning() -> None:
    tiny = read_run_config(config_files()["experiments-tiny"])
    measured = {"exp1-1": result(np.random.default_rng(0), 0.3)}
    summary = summarise(tiny, measured, TRAINED_ON)
    (warning,) = summary.warnings
    assert "each network saw 6,000 patches" in warning.text
    assert str(warning) in markdown(summary)
    assert str(warning) in tables_of(summary)[0].caption
    for name in ("paper", "experiments", "icpr"):
        assert summarise(read_run_config(config_files()[name]), {}, ()).warnings == ()


def test_other_seeds_are_shown_in_the_same_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for run, quality in (("0", 0.3), ("1", 0.6)):
        folder = tmp_path / run / "results" / "networks"
        folder.mkdir(parents=True)
        for name in ("ensemble", "cnn4-1"):
            (folder / f"{name}.json").write_text(json.dumps(result(rng, quality)))
    job = Experiments(Chain(PAPER, tmp_path / "0", "cpu"))
    alone, both = (
        summarise(PAPER, job.measured_values(others), TRAINED_ON) for others in ([], [tmp_path / "1"])
    )
    assert [len(row.each) for row in alone.rows] == [1, 1]
    assert [len(row.each) for row in both.rows] == [2, 2]
    assert both.rows[1].each[0] == alone.rows[1].each[0]
    assert both.rows[1].at_validation.value == pytest.approx(np.mean(both.rows[1].each))
    with pytest.raises(UsageError, match="no network was tested there"):
        job.measured_values([tmp_path / "nowhere"])


def test_a_networks_f1_counts_only_laboratories_held_out() -> None:
    values = result(np.random.default_rng(1), 0.6)
    values["slides"]["true"][:2] = [0, 0]
    row = summarise(PAPER, {"exp1-1": values}, TRAINED_ON).rows[0]
    away = 2 * sum(values["slides"]["true"][2:]) / (5 * 20 + 5 * 20)
    assert row.at_validation.value == pytest.approx(away)
    assert f1_of(row.networks, {"home"}) == "0.000"
    table = laboratory_table({"1": row.networks}, {"home"})
    assert table.headings[1:] == ["away", "home (trained on)"]
    assert table.rows == [["1", f"{away:.3f}", "0.000"]]


@pytest.mark.slow
def test_experiments_go_on_from_a_finished_run_and_leave_a_small_folder(tmp_path: Path) -> None:
    workspace = Path(shutil.copytree(finished_workspace(), tmp_path / "workspace"))
    job = Experiments(Chain(tiny_config(), workspace, "cpu"))
    states = run_stages(job.stages(), workspace)
    trained = {state.stage.name for state in states if state.status == "done" and "exp" in state.stage.name}
    assert {"exp1-1", "exp2-1", "test exp1-1"} <= trained
    assert {s.status for s in states if s.stage.name in ("candidates", "cnn3", "cnn4-1", "cnn5-0p04")} == {
        "kept"
    }
    measured = job.measured_values()
    assert {"cnn3", "cnn4-1", "cnn4-2", "exp1-1", "exp2-1", "ensemble", "cnn5-0p04"} <= set(measured)
    summary = summarise(job.chain.config, measured, job.chain.homes)
    assert [row.experiment.number for row in summary.rows] == [1, 2, 3, 4, 5]
    assert summary.home == set(), "aldgate has no test slide"
    assert "birch" in summary.held_out
    _agrees_with_the_run(measured, workspace)
    assert sum(path.stat().st_size for path in job.results.rglob("*") if path.is_file()) < 1_000_000


@pytest.mark.slow
def test_side_by_side_from_nothing(tmp_path: Path) -> None:
    job = Experiments(Chain(tiny_config(), tmp_path, "cpu"))
    states = run_stages(job.stages(), tmp_path, at_once=2)
    assert {state.status for state in states} == {"done"}
    assert {"cnn3", "cnn4-1", "cnn4-2", "ensemble", "cnn5-0p04"} <= set(job.measured_values())


def _agrees_with_the_run(measured: dict[str, Any], workspace: Path) -> None:
    """Slides in memory and slides from disk give the same counts."""
    for name, values in json.loads((workspace / "results.json").read_text())["networks"].items():
        assert measured[name]["slides"] == values["slides"]
        assert measured[name]["threshold"] == pytest.approx(values["threshold"], abs=1e-5)


def test_more_seeds_than_members_are_refused() -> None:
    with pytest.raises(UsageError, match="3 seeds and an ensemble of 2"):
        Experiments(Chain(tiny_config(experiments={"seeds": 3}), Path("nowhere")))


def test_no_bootstrap_gives_no_intervals() -> None:
    config = tiny_config(test={"bootstrap": 0})
    rng = np.random.default_rng(2)
    summary = summarise(config, {"cnn4-1": result(rng, 0.5), "cnn3": result(rng, 0.5)}, TRAINED_ON)
    assert np.isnan(summary.rows[0].at_validation.low)
    assert np.isnan(summary.contributions[0].difference.low)
    assert BootstrapConfig(samples=0).samples == 0
