"""`metaphase register` on drawn pairs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from metaphase.base.errors import MetaphaseError
from metaphase.cli.options import Command
from metaphase.cli.phh3 import register
from metaphase.detections.files import read_detections
from metaphase.labels.registration.similarity import Similarity
from metaphase.labels.registration.transform import load_transform
from metaphase.slides.contract import Slide
from tests.labels.registration.slides import MPP, he_slide, moved, nuclei, phh3_slide

TRUE = Similarity(1.0, 0.0, 12.0, -8.0)
POINTS = np.array([[300.0, 250.0], [500.0, 400.0], [-40.0, 3.0]])
app = typer.Typer()
app.command(cls=Command)(register)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    tissue = nuclei(3, 620, 560)
    _save(he_slide(tissue), folder / "he.png")
    _save(phh3_slide(moved(tissue, TRUE)), folder / "phh3.png")
    _save(phh3_slide(np.zeros((400, 400), np.float32) - 0.05), folder / "empty.png")
    pd.DataFrame(POINTS, columns=["x", "y"]).assign(probability=0.9, note="k").to_csv(
        folder / "points.csv", index=False
    )
    ring = [[300, 250], [320, 250], [320, 280], [300, 250]]
    shape = {"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [ring]}, "properties": {}}
    (folder / "shapes.geojson").write_text(json.dumps([shape]))
    return folder


def _save(slide: Slide, path: Path) -> None:
    Image.fromarray(slide.read(0, 0, slide.width, slide.height, MPP)).save(path)


def test_register_writes_everything(folder: Path) -> None:
    files = [folder / "he.png", folder / "phh3.png", "-o", folder / "out", "--mpp", MPP, "--json"]
    more = ["--points", folder / "points.csv", "--annotations", folder / "shapes.geojson"]
    result = CliRunner().invoke(app, [str(argument) for argument in (*files, *more)])
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert (summary["verdict"], summary["points"], summary["points_accepted"]) == ("reliable", 3, 2)
    assert summary == json.loads((folder / "out" / "summary.json").read_text())
    true = POINTS[:2] + np.array([12, -8]) / MPP
    table = pd.read_parquet(folder / "out" / "points.parquet")
    assert table[["x", "y"]].to_numpy()[:2] == pytest.approx(true, abs=2)
    assert table["x"].isna().tolist() == [False, False, True]
    assert (table["slide"][0], table["probability"][0], table["note"][0]) == ("he", 0.9, "k")
    for ending in ("geojson", "csv", "parquet"):
        again = read_detections(folder / "out" / f"points.{ending}").table
        assert again[["x", "y"]].to_numpy() == pytest.approx(true, abs=2), ending
    transform = load_transform(folder / "out" / "transform.json")
    assert transform.phh3_to_he(POINTS[:2]) == pytest.approx(true, abs=2)
    shape = json.loads((folder / "out" / "annotations.geojson").read_text())[0]
    assert shape["geometry"]["coordinates"][0][0] == pytest.approx(true[0], abs=2)
    assert (folder / "out" / "registration.png").read_bytes().startswith(b"\x89PNG")


def test_the_papers_way_is_one_setting(folder: Path) -> None:
    files = [folder / "he.png", folder / "phh3.png", "-o", folder / "shifts", "--mpp", MPP, "--json"]
    more = ["--points", folder / "points.csv", "--set", "transform=shifts", "--set", "checks=20"]
    result = CliRunner().invoke(app, [str(argument) for argument in (*files, *more)])
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert (summary["verdict"], summary["points_accepted"]) == ("reliable", 2)
    assert (summary["config"]["transform"], summary["config"]["checks"]) == ("shifts", 20)
    assert (summary["scale"], summary["rotation_deg"]) == (1.0, 0.0)
    table = pd.read_parquet(folder / "shifts" / "points.parquet")
    assert table[["x", "y"]].to_numpy()[:2] == pytest.approx(POINTS[:2] + np.array([12, -8]) / MPP, abs=2)
    assert (folder / "shifts" / "registration.png").read_bytes().startswith(b"\x89PNG")
    refused = CliRunner().invoke(app, [str(argument) for argument in (*files, "--set", "tiles=1")])
    assert "--set tiles is 1. Give a number of at least 3." in str(refused.exception)


def test_failed_registration_has_exit_code_1_and_accepts_no_point(folder: Path) -> None:
    files = [folder / "he.png", folder / "empty.png", "-o", folder / "bad", "--mpp", MPP]
    more = ["--points", folder / "points.csv", "--annotations", folder / "shapes.geojson"]
    result = CliRunner().invoke(app, [str(argument) for argument in (*files, *more)])
    assert result.exit_code == 1
    assert "failed" in result.stdout
    assert not pd.read_csv(folder / "bad" / "points.csv")["accepted"].any()
    assert not (folder / "bad" / "annotations.geojson").exists()
    assert json.loads((folder / "bad" / "points.geojson").read_text())["features"] == []


def test_points_of_other_slides_are_refused_before_anything_is_computed(folder: Path) -> None:
    table = pd.DataFrame({"slide": ["a", "b"], "x": [1, 2], "y": [1, 2]})
    table.to_csv(folder / "other.csv", index=False)
    options = ["-o", folder / "no", "--mpp", MPP, "--points", folder / "other.csv"]
    arguments = [str(argument) for argument in (folder / "he.png", folder / "phh3.png", *options)]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, MetaphaseError)
    assert "none is called phh3" in str(result.exception)
    assert not list((folder / "no").glob("*.*"))
