"""Results as other programs' objects: napari's layers and SpatialData."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely

import metaphase
from metaphase.analysis.layers import reader
from metaphase.analysis.record import load_result
from metaphase.analysis.review import log_of
from metaphase.analysis.slide import apply_answers
from metaphase.analysis.spatial import spatial_data
from metaphase.api import detect
from metaphase.base.errors import MetaphaseError
from metaphase.counting.regions import Place
from metaphase.detections.files import convert_detections
from metaphase.labels.observers.positions import PLACE
from metaphase.labels.observers.store import Entry
from metaphase.slides.contract import Box
from metaphase.slides.opening import open_slide
from tests.analysis.conftest import write_slide
from tests.slides.images import noise_image

MANIFEST = Path(metaphase.__file__).parent / "napari.yaml"


@pytest.fixture(scope="module")
def results(he_slide: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    detect(he_slide, folder, model=model, tissue="whole", threshold=0.7)
    return folder


Layers = Callable[[Path], dict[str, tuple[Any, dict[str, Any]]]]


@pytest.fixture
def layers() -> Iterator[Layers]:
    """What the reader gives, by kind and name; napari keeps its slides open."""
    images = []

    def read(path: Path) -> dict[str, tuple[Any, dict[str, Any]]]:
        opened = reader(str(path))
        assert opened is not None
        found = opened(str(path))
        images.extend(data for data, _, kind in found if kind == "image")
        return {f"{kind} {known['name']}": (data, known) for data, known, kind in found}

    yield read
    for levels in images:
        levels[0].slide.close()


def test_napari_shows_a_result_in_micrometres(results: Path, he_slide: Path, layers: Layers) -> None:
    result = load_result(results / "he")
    found = layers(results)
    assert found.keys() == layers(results / "he" / "summary.json").keys()
    (levels, image), (points, shown) = found["image he.tif"], found["points he: detections"]
    assert image["scale"] == shown["scale"] == (0.25, 0.25)
    assert points.tolist() == result.table[["y", "x"]].to_numpy().tolist()
    assert len(points) > 5
    assert shown["features"]["probability"].tolist() == result.table["probability"].tolist()
    ((corners,), _), spot = found["shapes he: hotspot"], result.record.hotspot
    np.testing.assert_allclose(corners.mean(axis=0), (spot.y, spot.x))
    np.testing.assert_allclose(np.ptp(corners, axis=0), 2 * spot.radius_px)
    outlines, _ = found["shapes he: tissue"]
    assert shapely.Polygon(outlines[0]).area == 500 * 400
    with open_slide(he_slide) as slide:
        assert [one.shape for one in levels] == [(one.height, one.width, 3) for one in slide.levels]


def test_ten_fields_are_ten_circles(results: Path, tmp_path: Path, layers: Layers) -> None:
    shutil.copytree(results, tmp_path / "out")
    folder = tmp_path / "out" / "he"
    place = Place(x=300.0, y=200.0, field_diameter_mm=0.4)
    with log_of(load_result(folder)) as log:
        log.record_many([Entry("Anna", PLACE, place.model_dump_json())])
    result = apply_answers(folder)
    fields = place.fields_px(result.mpp)
    squares, _ = layers(folder)["shapes he: hotspot"]
    np.testing.assert_allclose([np.ptp(one, axis=0) for one in squares], 2 * fields[0][2])
    np.testing.assert_allclose([one.mean(axis=0) for one in squares], [(y, x) for x, y, _ in fields])
    (shape,) = result.geo("circle").geometry
    assert shape.area == pytest.approx(10 * np.pi * fields[0][2] ** 2, rel=0.01)
    here = result.table.loc[result.table["counted"], ["x", "y"]].to_numpy()
    assert 0 < result.count == shapely.contains_xy(shape, here).sum() < len(here)


def test_napari_reads_only_what_it_shows(tmp_path: Path, layers: Layers) -> None:
    path = write_slide(tmp_path / "s.tif", noise_image(600, 500))
    ((levels, _),) = layers(path).values()
    with open_slide(path) as slide:
        whole = slide.read_level(0, Box(0, 0, 600, 500))
    first = levels[0]
    assert (first.ndim, first.dtype) == (3, np.uint8)
    np.testing.assert_array_equal(np.asarray(first), whole)
    np.testing.assert_array_equal(first[10:90, 20:300], whole[10:90, 20:300])
    np.testing.assert_array_equal(first[10:90:4, -50:, :2], whole[10:90:4, -50:, :2])
    assert first[400:300, :].shape == whole[400:300, :].shape


def test_napari_reads_anybodys_detections(results: Path, tmp_path: Path, layers: Layers) -> None:
    _, (path,) = convert_detections([results / "he"], tmp_path / "he.db", "tiatoolbox")
    ((points, _),) = layers(path).values()
    assert points.tolist() == load_result(results / "he").table[["y", "x"]].to_numpy().tolist()
    assert reader(str(tmp_path)) is None
    assert reader(str(tmp_path / "absent.svs")) is None


def test_the_manifest_names_what_is_there() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["entry-points"]["napari.manifest"] == {"metaphase": "metaphase:napari.yaml"}
    yaml = pytest.importorskip("yaml")
    stated = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    (command,) = stated["contributions"]["commands"]
    module, _, name = command["python_name"].partition(":")
    assert getattr(import_module(module), name) is reader
    assert [one["command"] for one in stated["contributions"]["readers"]] == [command["id"]]
    npe2 = pytest.importorskip("npe2", reason="npe2 is not installed")
    assert npe2.PluginManifest.from_file(MANIFEST).name == "metaphase"


def test_spatialdata_without_the_extra_says_what_to_install(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "spatialdata", None)
    with pytest.raises(MetaphaseError, match=r"needs the package spatialdata.*metaphase\[spatialdata\]"):
        spatial_data(load_result(results / "he"))


def test_spatialdata_holds_the_result(results: Path, tmp_path: Path) -> None:
    sd = pytest.importorskip("spatialdata", reason="spatialdata is not installed")
    result = load_result(results / "he")
    made = spatial_data(result)
    made.write(tmp_path / "he.zarr")
    again = sd.read_zarr(tmp_path / "he.zarr")
    points = again.points["detections"].compute()
    assert points["probability"].tolist() == result.table["probability"].tolist()
    moved = sd.transform(again.shapes["hotspot"], to_coordinate_system="um")
    spot = result.record.hotspot
    assert moved["radius"].iloc[0] == pytest.approx(spot.radius_px * result.mpp)
    assert moved.geometry.iloc[0].x == pytest.approx(spot.x * result.mpp)
    assert again.shapes["tissue"].area.sum() == 500 * 400
    assert again.attrs["metaphase"]["count"] == result.record.count
