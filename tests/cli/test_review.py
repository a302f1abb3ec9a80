"""`metaphase review` as a user meets it: from answers and edited files to new files."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from metaphase.labels.observers.positions import PositionLog, position_name
from tests.cli.running import run
from tests.web.results import spread_positions, write_result, write_sparse_slide

WIDTH, HEIGHT = 3000, 2200
PLACES = spread_positions(12, WIDTH, HEIGHT)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    slide = write_sparse_slide(tmp_path / "one.tif", WIDTH, HEIGHT, PLACES)
    formats = ("qupath", "asap")
    write_result(tmp_path / "results" / "one", slide, WIDTH, HEIGHT, PLACES, formats=formats)
    return tmp_path / "results"


def test_apply_import_and_export(results: Path, tmp_path: Path) -> None:
    nobody = run("review", "apply", results)
    assert nobody.returncode == 2
    assert "Run metaphase view on it first" in nobody.stderr
    with PositionLog(results / "one", WIDTH, HEIGHT) as log:
        log.record("Anna", position_name(*PLACES[0]), "not")
    applied = run("review", "apply", results, "--json")
    assert applied.returncode == 0, applied.stderr
    (described,) = json.loads(applied.stdout)
    assert described["machine"]["counted"] - described["counted"] == 1
    assert "Anna: 1 of 6" in (results / "one" / "report.html").read_text()
    taken = run(
        "review", "import", results / "one", "--from", results / "one" / "detections.geojson",
        "--observer", "Ben", "--complete",
    )  # fmt: skip
    assert taken.returncode == 0, taken.stderr
    assert (
        "one: 0 rejected, 0 added, 0 moved, 0 accepted below the threshold; mitoses listed now: 5"
        in taken.stdout
    )
    exported = run("review", "export", results, "-o", tmp_path / "truth.csv")
    assert exported.returncode == 0, exported.stderr
    labels = pd.read_csv(tmp_path / "truth.csv")["label"].value_counts()
    assert labels.to_dict() == {"mitosis": 5, "lookalike": 1}
    withdrawn = run("review", "withdraw", results, "--observer", "Ben")
    assert (withdrawn.returncode, withdrawn.stdout) == (0, "one: 5 answers withdrawn\n"), withdrawn.stderr


@pytest.mark.parametrize("file", ["detections.geojson", "detections.xml"])
def test_the_circle_that_other_programs_show_is_no_figure(results: Path, file: str) -> None:
    folder = results / "one"
    assert "Hotspot" in (folder / file).read_text()
    taken = run("review", "import", folder, "--from", folder / file, "--observer", "Ben", "--complete")
    assert taken.returncode == 0, taken.stderr
    assert "one: 0 rejected, 0 added, 0 moved, 0 accepted below the threshold" in taken.stdout


def test_view_names_the_next_step(tmp_path: Path) -> None:
    shown = run("view", tmp_path)
    assert shown.returncode == 2
    assert "holds no results" in shown.stderr
    assert run("view", tmp_path / "absent.svs").returncode == 1
