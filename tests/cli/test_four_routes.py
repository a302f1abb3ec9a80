"""One count for one slide, whichever way it is asked for."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from metaphase.base.tables import read_table
from metaphase.cli.main import app
from metaphase.counting import count_slide
from metaphase.evaluation.operating_points import save_point
from metaphase.images.tissue import load_tissue
from metaphase.networks.points import OperatingPoint
from tests.jobs.conftest import he_slide, tiny_model  # noqa: F401

DOCS = Path(__file__).parents[2] / "docs" / "grading.md"


def call(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_four_routes_one_count(
    tmp_path: Path,
    he_slide: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`detect`, `score` on any of its files, Python, and the example of the docs, word for word."""
    model = tiny_model(tmp_path / "own.safetensors")
    point = OperatingPoint(
        name="count", delta=0.93, theta1=3.0, theta2=9.0, kappa=0.7, false_per_mm2=2.0, source="graded slides"
    )
    save_point(model.with_suffix(".json"), point)
    slide = Path(shutil.copy(he_slide, tmp_path / "slide.tif"))
    monkeypatch.chdir(tmp_path)
    common = ("detect", slide, "-o", "results", "--model", model, "--device", "cpu", "--tissue", "whole")
    (found,) = json.loads(call(*common, "--format", "csv", "--format", "qupath", "--json"))["slides"]
    expected = found["score"]["count"]
    assert 0 < expected < len(read_table("results/slide/candidates.parquet"))
    folder = Path("results/slide")
    files = ("", "candidates.parquet", "detections.parquet", "detections.csv", "detections.geojson")
    for file in files:
        (scored,) = json.loads(call("score", folder / file, "--json"))
        assert (scored["count"], scored["config"]["threshold"]) == (expected, 0.93), file
        assert scored["grade_shown"]["text"] == found["score"]["grade_shown"]["text"]
        assert "0.93" in call("score", folder / file)
    table, tissue = read_table(folder / "candidates.parquet"), load_tissue(folder / "slide.tissue.png")
    assert count_slide(table, mpp=0.25, tissue=tissue).count == expected
    (example,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    capsys.readouterr()
    exec(compile(example, str(DOCS), "exec"), {})  # noqa: S102
    assert float(capsys.readouterr().out.split()[0]) == expected
