"""`metaphase score`, and what `metaphase evaluate` makes of its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from metaphase.base.errors import MetaphaseError
from metaphase.base.tables import read_table, write_table
from metaphase.cli.detect import score
from metaphase.cli.options import Command
from metaphase.evaluation.grades import evaluate_scores
from metaphase.evaluation.tuning import tune_count
from metaphase.slides.writer import PyramidFormat, write_pyramid

MPP = 0.25
SIZES = {"01": 2, "02": 9, "03": 30, "04": 0}
GRADES = {"01": 1, "02": 2, "03": 3, "04": 1}


def call(*arguments: str | Path) -> Any:
    app = typer.Typer()
    app.command(cls=Command)(score)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def results(*arguments: str | Path) -> list[dict[str, object]]:
    done = call(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    """Detections in groups of known size, a slide without any, and a manifest."""
    generator = np.random.default_rng(0)
    parts = [pd.DataFrame({"slide": ["04"], "x": [np.nan], "y": [np.nan], "probability": [np.nan]})]
    for slide, size in SIZES.items():
        part = pd.DataFrame(generator.uniform(4000, 4400, (size, 2)), columns=["x", "y"])
        parts.append(part.assign(slide=slide, probability=np.linspace(0.85, 0.99, size)))
    write_table(tmp_path / "detections.csv", pd.concat(parts, ignore_index=True))
    manifest = pd.DataFrame({"case": list(SIZES), "mpp": MPP, "split": "tune"})
    manifest["grade"], manifest["proliferation"] = GRADES.values(), [0.1, 0.5, 0.9, 0.0]
    write_table(tmp_path / "manifest.csv", manifest)
    return tmp_path


def test_table_for_people(cohort: Path) -> None:
    plain = call(cohort / "detections.csv", "--mpp", "0.25")
    assert "withheld" in plain.stdout
    done = call(cohort / "detections.csv", "--mpp", "0.25", "--set", "theta1=6", "--set", "theta2=20")
    assert done.exit_code == 0, done.stderr
    rows = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert rows["03"].split()[:3] == ["03", "30", "30"]
    assert "3 (9" in rows["03"]
    assert rows["04"].split()[-1] == "-"
    assert "no detection is below the threshold" in done.stderr


def test_table_is_what_the_evaluation_reads(cohort: Path) -> None:
    output = cohort / "out" / "scores.csv"
    call(cohort / "detections.csv", "--manifest", cohort / "manifest.csv", "-o", output)
    table = read_table(output)
    assert dict(zip(table["case"], table["grade"], strict=True)) == GRADES
    assert evaluate_scores("grade", cohort / "manifest.csv", output).overall.value == 1
    assert evaluate_scores("proliferation", cohort / "manifest.csv", output).overall.value == 1
    assert tune_count(cohort / "manifest.csv", output, parts=("grade",)).kappa == 1


def test_several_thresholds_are_what_tuning_reads(cohort: Path) -> None:
    output = cohort / "counts.parquet"
    thresholds = [part for value in ("0.5", "0.9", "1") for part in ("--threshold", value)]
    done = call(cohort / "detections.csv", "--mpp", "0.25", "-o", output, *thresholds, "--set", "draws=0")
    assert "threshold" in done.stdout.splitlines()[0]
    assert len(read_table(output)) == 3 * len(SIZES)
    assert tune_count(cohort / "manifest.csv", output).numbers == {"delta": 0.9, "theta1": 1, "theta2": 6}


def test_thetas_decide_the_grade(cohort: Path) -> None:
    rows = results(cohort / "detections.csv", "--mpp", MPP, "--set", "theta1=1", "--set", "theta2=8")
    assert {str(row["case"]): row["grade"] for row in rows} == {"01": 2, "02": 3, "03": 3, "04": 1}


def test_files_and_folders_together(cohort: Path) -> None:
    folder = cohort / "folder"
    for slide in ("a", "b"):
        write_table(folder / f"{slide}.csv", pd.DataFrame({"x": [10.0], "y": [20.0]}))
    rows = results(folder, cohort / "detections.csv", "--mpp", "0.25", "--set", "draws=0")
    assert {row["case"] for row in rows} == {"a", "b", *SIZES}
    assert call(folder, folder / "a.csv", "--mpp", "0.25").exit_code == 1


def test_slide_gives_scale_and_tissue(tmp_path: Path) -> None:
    pixels = np.full((800, 800, 3), 245, np.uint8)
    pixels[100:700, 100:700] = np.random.default_rng(0).integers(
        (150, 80, 140), (210, 140, 200), (600, 600, 3)
    )
    write_pyramid(tmp_path / "field.tif", [pixels], 800, 800, PyramidFormat(mpp=1.0, tile_px=800))
    write_table(tmp_path / "field.csv", pd.DataFrame({"x": [300.0, 310.0], "y": [300.0, 300.0]}))
    (row,) = results(tmp_path / "field.csv", "--slide", tmp_path / "field.tif")
    assert row["area_mm2"] == pytest.approx(0.36, rel=0.1)
    assert "less than the 2 mm2" in str(row["warnings"])
    (row,) = results(tmp_path / "field.csv", "--slide", tmp_path / "field.tif", "--no-tissue", "--area", "9")
    assert row["area_mm2"] == 9


def test_one_bad_slide_does_not_stop_the_others(cohort: Path) -> None:
    (cohort / "broken.svs").write_bytes(b"not a slide")
    manifest = read_table(cohort / "manifest.csv")
    manifest["he"] = ["", "broken.svs", "", ""]
    write_table(cohort / "manifest.csv", manifest)
    done = call(cohort / "detections.csv", "--manifest", cohort / "manifest.csv", "-o", cohort / "scores.csv")
    assert done.exit_code == 1
    assert "02: " in done.stderr
    assert list(read_table(cohort / "scores.csv")["case"]) == ["04", "01", "03"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "--mpp"),
        (["--mpp", "-1"], "-1 um/px is not the resolution"),
        (["--mpp", "1e-9"], "1e-09 um/px is not the resolution"),
        (["--mpp", "0.25", "--area", "nan"], "--area is nan. Give a finite number"),
        (["--mpp", "0.25", "--threshold", "7"], "threshold is 7"),
        (["--mpp", "0.25", "--set", "theta1=30"], "theta2"),
        (["--mpp", "0.25", "--slide", "absent.svs"], "4 slides"),
        (["--manifest", "absent.csv"], "no such file"),
    ],
)
def test_wrong_use_is_explained(cohort: Path, arguments: list[str], problem: str) -> None:
    done = call(cohort / "detections.csv", *arguments)
    assert isinstance(done.exception, MetaphaseError)
    assert problem in str(done.exception)


def test_missing_file(tmp_path: Path) -> None:
    done = call(tmp_path / "absent.csv", "--mpp", "0.25")
    assert "no such file" in str(done.exception)
