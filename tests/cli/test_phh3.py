"""`metaphase phh3` from slides to mitoses, and what it says about bad slides."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.provenance import write_note
from metaphase.cli.phh3 import phh3
from tests.labels.phh3.slides import draw_slide, spread_points, write_slide


def run(*arguments: str | Path, code: int = 0) -> str:
    """Standard output of a command that must end with `code`."""
    result = CliRunner().invoke(phh3, [str(argument) for argument in arguments])
    if isinstance(result.exception, MetaphaseError):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two good cases, one more for testing, an H&E slide and a missing one."""
    folder = tmp_path_factory.mktemp("cohort")
    for number in range(3):
        pixels = draw_slide(700, spread_points(14, 700, seed=number), seed=number)
        write_slide(folder / f"{number}.tif", pixels)
    write_slide(folder / "he.tif", draw_slide(700, he=True))
    rows = ["01,0.tif,train", "02,1.tif,validation", "03,2.tif,test", "bad,he.tif,train", "gone,no.tif,train"]
    (folder / "manifest.csv").write_text("case,phh3,split\n" + "\n".join(rows) + "\n")
    return folder / "manifest.csv"


@pytest.fixture(scope="module")
def workspace(manifest: Path) -> Path:
    folder = manifest.parent / "workspace"
    results = json.loads(run("candidates", "--manifest", manifest, "-o", folder, "--json", code=1))
    assert [row["candidates"] for row in results] == [14, 14, 14]
    return folder


def write_labels(project: Path, labels: list[str]) -> None:
    items = pd.read_csv(project / "items.csv", dtype=str)
    items = items.sort_values(["split", "item"])  # both splits get all labels
    chosen = [labels[n % len(labels)] for n in range(len(items))]
    pd.DataFrame({"item": items["item"], "label": chosen, "agreed": True}).to_csv(
        project / "labels.csv", index=False
    )


def test_bad_slides_do_not_stop_the_others_and_finished_ones_are_kept(
    manifest: Path, workspace: Path
) -> None:
    log = (workspace / "errors.log").read_text()
    assert "looks like H&E" in log
    assert "no.tif" in log
    assert (workspace / "bad" / "candidates.png").is_file()
    again = json.loads(run("candidates", "--manifest", manifest, "-o", workspace, "--json", code=1))
    assert all(row["reused"] for row in again)


@pytest.mark.slow
def test_from_candidates_to_mitoses(manifest: Path, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text("epochs = 1\nbatch = 4\nsamples_per_epoch = 4\n")
    small = ("--config", tmp_path / "small.toml", "--device", "cpu")
    first, second = tmp_path / "p1", tmp_path / "p2"
    with pytest.raises(MetaphaseError, match="classify"):
        run("sample", "--manifest", manifest, "-w", workspace, "-o", second, "--for", "cnn2")
    run(
        "sample",
        "--manifest",
        manifest,
        "-w",
        workspace,
        "-o",
        first,
        "--count",
        "8",
        "--set",
        "per_case=true",
    )
    items = pd.read_csv(first / "items.csv", dtype=str)
    assert set(items["case"]) == {"01", "02"}  # neither the test case nor those that failed
    assert not {"cnn1", "dab_peak", "probability"} & set(items.columns)
    write_labels(first, ["artefact", "mitosis"])
    run("train-cnn1", first, "-o", tmp_path / "m1", *small)
    cnn1 = tmp_path / "m1" / "cnn1.safetensors"
    run("classify", "--manifest", manifest, "-o", workspace, "--cnn1", cnn1, "--device", "cpu", code=1)
    _keep_all(workspace)
    run("sample", "--manifest", manifest, "-w", workspace, "-o", second, "--for", "cnn2", "--exclude", first)
    drawn = pd.read_csv(second / "items.csv", dtype=str)
    assert len(drawn) == 20
    assert not set(drawn["item"]) & set(items["item"])
    write_labels(second, ["mitosis", "not"])
    run("train-cnn2", second, "-o", tmp_path / "m2", "--artefacts", first, *small)
    cnn2 = tmp_path / "m2" / "cnn2.safetensors"
    results = json.loads(
        run(
            "classify",
            "--manifest",
            manifest,
            "-o",
            workspace,
            "--cnn2",
            cnn2,
            "--device",
            "cpu",
            "--json",
            code=1,
        )
    )
    assert [row["case"] for row in results] == ["01", "02", "03"]
    mitoses = pd.read_parquet(workspace / "03" / "mitoses.parquet")
    assert len(mitoses) == results[2]["mitoses"]
    assert list(mitoses.columns[:5]) == ["slide", "x", "y", "probability", "label"]


def _keep_all(workspace: Path) -> None:
    """A network of one step calls anything an artefact: lower its decision line."""
    for path in workspace.glob("*/classified.json"):
        record = json.loads(path.read_text())
        record["facts"]["decisions"]["cnn1"] = 0.0
        write_note(path, record["made_from"], record["facts"])


def test_the_bundled_networks_classify_where_none_is_given(
    manifest: Path, workspace: Path, tmp_path: Path
) -> None:
    own = shutil.copytree(workspace, tmp_path / "work")
    results = json.loads(
        run("classify", "--manifest", manifest, "-o", own, "--device", "cpu", "--json", code=1)
    )
    assert all({"objects", "mitoses"} <= set(one) for one in results)


def test_wrong_use(manifest: Path, workspace: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cnn1 or cnn2"):
        run("sample", "--manifest", manifest, "-w", workspace, "-o", tmp_path / "p", "--for", "cnn3")
    (tmp_path / "settings.toml").write_text("threshold = 1\n")
    with pytest.raises(UsageError, match=r"settings\.toml: the file has no setting threshold"):
        run("candidates", "--manifest", manifest, "-o", workspace, "--config", tmp_path / "settings.toml")
    (tmp_path / "none.csv").write_text("case,phh3\na,\n")
    with pytest.raises(UsageError, match="no case has a PHH3 slide"):
        run("candidates", "--manifest", tmp_path / "none.csv", "-o", workspace)
