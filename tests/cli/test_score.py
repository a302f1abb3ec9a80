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
from metaphase.detections.points import OperatingPoint
from metaphase.evaluation.grades import evaluate_scores
from metaphase.evaluation.operating_points import save_point
from metaphase.evaluation.tuning import tune_count
from metaphase.slides.writer import PyramidFormat, write_pyramid

MPP = 0.25
SIZES = {"01": 2, "02": 9, "03": 30, "04": 0}
GRADES = {"01": 1, "02": 2, "03": 3, "04": 1}
NOTTINGHAM = {"01": 1, "02": 2, "03": 3, "04": 1}
"""With fields of 0.5 mm: up to 7 and up to 14 figures in 2 mm2."""


def call(*arguments: str | Path) -> Any:
    app = typer.Typer()
    app.command(cls=Command)(score)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def results(*arguments: str | Path) -> list[dict[str, object]]:
    done = call(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def scores(row: dict[str, object]) -> list[dict[str, Any]]:
    found: Any = row["scores"]
    return list(found)


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
    done = call(cohort / "detections.csv", "--mpp", "0.25")
    assert done.exit_code == 0, done.stderr
    heads, *lines = done.stdout.splitlines()
    assert heads.split() == ["slide", "counted", "count", "true", "figures", "kind", "score", "at", "x,", "y"]
    rows = {line.split()[0]: line.split() for line in lines if line}
    assert {name: rows[name][1:6] for name in SIZES} == {
        name: [str(size), str(size), "-", "model", str(NOTTINGHAM[name])] for name, size in SIZES.items()
    }
    assert rows["04"][-1] == "-"
    assert rows["03"][-1] != "-"


def test_a_table_of_anybody_has_no_interval_and_says_why(cohort: Path) -> None:
    done = call(cohort / "detections.csv", "--mpp", "0.25")
    reason = "nothing is known of how this model errs in other laboratories"
    assert f"by the model alone; no interval: {reason}" in done.stdout
    for row in results(cohort / "detections.csv", "--mpp", "0.25"):
        assert (row["likely"], row["interval_text"]) == (None, "")
        assert str(row["no_interval"]).startswith(reason)
    save_point(cohort / "card.json", OperatingPoint(name="count", delta=0.8, prior={}))
    call(cohort / "detections.csv", "--mpp", "0.25", "-o", cohort / "own.csv")
    for row in results(cohort / "detections.csv", "--mpp", "0.25", "--card", cohort / "card.json"):
        assert row["likely"] is None, "what is weaker may have been left out"
    table = read_table(cohort / "own.csv")
    assert table[["likely", "likely_low", "likely_high"]].isna().all(axis=None)


def test_all_that_a_model_found_has_an_interval(cohort: Path) -> None:
    """Of a table of all candidates, by the model's card: on the terminal, in JSON and in the table."""
    save_point(cohort / "card.json", OperatingPoint(name="count", delta=0.8, prior={}))
    write_table(cohort / "candidates.parquet", read_table(cohort / "detections.csv"))
    given = (cohort / "candidates.parquet", "--mpp", MPP, "--card", cohort / "card.json", "--area", "4")
    rows = {str(row["case"]): row for row in results(*given)}
    done = call(*given, "-o", cohort / "counts.csv")
    printed = {line.split()[0]: line for line in done.stdout.splitlines() if line}
    written = read_table(cohort / "counts.csv").set_index("case")
    for name, row in rows.items():
        likely: Any = row["likely"]
        low, high = likely["interval"]
        assert low <= likely["figures"] <= high
        assert row["interval_text"] == f"{low} to {high}"
        assert f" {low} to {high} " in printed[name]
        assert list(written.loc[name, ["likely", "likely_low", "likely_high"]]) == [
            likely["figures"], low, high,
        ]  # fmt: skip
    assert "95 % interval of the true mitotic figures in this circle" in done.stdout


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
    done = call(cohort / "detections.csv", "--mpp", "0.25", "-o", output, *thresholds)
    assert "threshold" in done.stdout.splitlines()[0]
    assert len(read_table(output)) == 3 * len(SIZES)
    assert tune_count(cohort / "manifest.csv", output).numbers == {"delta": 0.9, "theta1": 1, "theta2": 6}


def test_thetas_decide_the_grade_and_the_score_in_force(cohort: Path) -> None:
    given = ("--mpp", MPP, "--set", "theta1=1", "--set", "theta2=8")
    rows = results(cohort / "detections.csv", *given)
    expected = {"01": 2, "02": 3, "03": 3, "04": 1}
    assert {str(row["case"]): row["grade"] for row in rows} == expected
    for row in rows:
        own, other = scores(row)
        assert (own["rule"], own["most"], own["text"]) == (
            "theta1 and theta2", [1, 8], str(expected[str(row["case"])]),
        )  # fmt: skip
        assert (other["rule"], other["text"]) == (
            "Nottingham, fields of 0.5 mm", str(NOTTINGHAM[str(row["case"])]),
        )  # fmt: skip
    lines = call(cohort / "detections.csv", *given).stdout.splitlines()
    assert {line.split()[0]: line.split()[5] for line in lines[1:5]} == {
        name: str(score) for name, score in expected.items()
    }


def test_the_field_of_the_microscope_changes_the_score(tmp_path: Path) -> None:
    """Seven figures in 2 mm2 are few by ten fields of 0.5 mm, and some by smaller or larger ones."""
    generator, by_field = np.random.default_rng(0), {}
    write_table(tmp_path / "seven.csv", pd.DataFrame(generator.uniform(0, 400, (7, 2)), columns=["x", "y"]))
    for diameter, guideline in (("0.4", 4), ("0.5", 7), ("0.69", 13)):
        given = (tmp_path / "seven.csv", "--mpp", "0.25", "--set", f"field_diameter_mm={diameter}")
        (row,) = results(*given)
        (score,) = scores(row)
        fields_mm2 = 10 * np.pi / 4 * float(diameter) ** 2
        assert score["rule"] == f"Nottingham, fields of {diameter} mm"
        assert score["most"][0] == pytest.approx(guideline * 2 / fields_mm2)
        assert row["per_10_fields"] == pytest.approx(7 / 2 * fields_mm2)
        line = next(line for line in call(*given).stdout.splitlines() if line.startswith("seven"))
        by_field[diameter] = (score["text"], line.split()[5])
    assert by_field == {"0.4": ("2", "2"), "0.5": ("1", "1"), "0.69": ("2", "2")}


def test_files_and_folders_together(cohort: Path) -> None:
    folder = cohort / "folder"
    for slide in ("a", "b"):
        write_table(folder / f"{slide}.csv", pd.DataFrame({"x": [10.0], "y": [20.0]}))
    rows = results(folder, cohort / "detections.csv", "--mpp", "0.25")
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


@pytest.mark.parametrize("part", [{"mitoses": 5}, {"search": [1]}, {"search": {"floor": "a"}}])
def test_what_a_table_states_wrongly_breaks_nothing(tmp_path: Path, part: dict[str, object]) -> None:
    table = pd.DataFrame({"slide": ["a"], "x": [1.0], "y": [2.0], "probability": [0.9], "label": ["mitosis"]})
    table.attrs["operating_points"] = {"model": "theirs", "count": {"delta": 0.5}} | part
    table.to_parquet(tmp_path / "theirs.parquet")
    (row,) = results(tmp_path / "theirs.parquet", "--mpp", "0.25")
    assert (row["count"], row["to_look_at"], row["likely"]) == (1, 0, None)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "--mpp"),
        (["--mpp", "-1"], "-1 um/px is not the resolution"),
        (["--mpp", "1e-9"], "1e-09 um/px is not the resolution"),
        (["--mpp", "0.25", "--area", "nan"], "--area is nan. Give a finite number"),
        (["--mpp", "0.25", "--threshold", "7"], "threshold is 7"),
        (["--mpp", "0.25", "--set", "theta1=30"], "theta2"),
        (
            ["--mpp", "0.25", "--set", "field_diameter_mm=0.7"],
            "field_diameter_mm is 0.7. Give a number from 0.4",
        ),
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
