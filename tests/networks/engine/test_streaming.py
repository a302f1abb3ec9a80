from __future__ import annotations

import dataclasses
import math

import cv2
import numpy as np
import pytest
import torch
from skimage import measure

from metaphase.base.errors import ModelError, UsageError
from metaphase.detections.table import PeakMethod
from metaphase.networks.engine.engine import Engine
from metaphase.networks.engine.settings import EngineConfig, PeakConfig
from metaphase.networks.engine.streaming import (
    Detections,
    detect_tiles,
    find_detections,
    inside,
    plan_detection,
)
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.tiles import MaskGrid
from tests.networks.engine.networks_made import (
    assert_same,
    darkness_network,
    plain_probabilities,
    random_network,
    texture,
)

CLOSE = PeakConfig(floor=0.2, suppress_um=3.0)
HIGH = 0.98
"""Here the map of a random network falls into many components."""


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine([random_network()], EngineConfig(device="cpu", workers=1))


@pytest.fixture(scope="module")
def dark() -> Engine:
    return Engine([darkness_network()], EngineConfig(device="cpu", workers=1))


@pytest.mark.parametrize("tile_px", [96, 180, 300])
@pytest.mark.parametrize(("smooth_um", "method"), [(0.0, "maxima"), (2.5, "maxima"), (0.0, "components")])
def test_detections_do_not_depend_on_the_tiling(
    engine: Engine, tile_px: int, smooth_um: float, method: PeakMethod
) -> None:
    slide = ArraySlide(texture(310, 361), 0.25)
    floor = CLOSE.floor if method == "maxima" else HIGH
    config = dataclasses.replace(CLOSE, floor=floor, smooth_um=smooth_um, method=method)
    whole = find_detections(engine, slide, config)
    assert len(whole.x) > (20 if smooth_um == 0 else 2)
    assert_same(find_detections(engine, slide, config, tile_px=tile_px), whole, by=0.02)


def test_detections_equal_those_of_one_large_map(engine: Engine) -> None:
    image = texture(300, 340)
    framed = cv2.copyMakeBorder(image, 54, 60, 54, 60, cv2.BORDER_CONSTANT, value=(255, 255, 255))
    expected = plain_probabilities(random_network(), framed).numpy()
    for result in detect_tiles(
        engine, ArraySlide(image, 0.25), plan_detection(ArraySlide(image, 0.25), engine), CLOSE
    ):
        assert len(result.points.x) > 10
        for x, y, p in zip(result.points.x, result.points.y, result.points.probability, strict=True):
            row, column = round(y / 4) + 1, round(x / 4) + 1
            assert math.isclose(expected[row - 1 : row + 2, column - 1 : column + 2].max(), p, abs_tol=1e-4)


def test_components_are_those_of_the_whole_map(engine: Engine) -> None:
    image = texture(300, 340)
    framed = cv2.copyMakeBorder(image, 50, 60, 50, 60, cv2.BORDER_CONSTANT, value=(255, 255, 255))
    expected = plain_probabilities(random_network(), framed).numpy()[:75, :85]
    regions = measure.regionprops(measure.label(expected >= HIGH, connectivity=2), expected)
    config = PeakConfig(floor=HIGH, suppress_um=0.0, method="components")
    found = find_detections(engine, ArraySlide(image, 0.25), config, tile_px=120)
    y, x = 4 * np.array([one.centroid for one in regions]).T
    assert len(regions) > 10
    assert_same(found, Detections(x, y, np.array([one.intensity_max for one in regions])), by=1e-3)


def test_smoothing_does_not_move_a_detection(dark: Engine) -> None:
    image = np.full((400, 400, 3), 230, np.uint8)
    cv2.circle(image, (203, 151), 12, (60, 40, 80), -1)
    slide = ArraySlide(image, 0.25)
    sharp, soft = (
        find_detections(dark, slide, PeakConfig(floor=0.01, suppress_um=25, smooth_um=um))
        for um in (0.0, 2.5)
    )
    assert len(sharp.x) == len(soft.x) == 1
    assert math.hypot(soft.x[0] - sharp.x[0], soft.y[0] - sharp.y[0]) < 4
    assert soft.probability[0] < sharp.probability[0]


def test_maps_join_to_the_map_of_the_whole(engine: Engine) -> None:
    image = texture(200, 310)
    slide = ArraySlide(image, 0.25)
    joined = np.full((50, 78), np.nan, np.float32)
    plan = plan_detection(slide, engine, tile_px=120)
    for result in detect_tiles(engine, slide, plan, maps=True):
        assert result.probabilities is not None
        row, column = result.tile.core.y // 4, result.tile.core.x // 4
        height, width = result.probabilities.shape
        joined[row : row + height, column : column + width] = result.probabilities
    framed = cv2.copyMakeBorder(image, 50, 60, 50, 60, cv2.BORDER_CONSTANT, value=(255, 255, 255))
    np.testing.assert_allclose(
        joined, plain_probabilities(random_network(), framed).numpy()[:50, :78], atol=1e-4
    )


@pytest.mark.parametrize(("length", "breadth"), [(80, 24), (30, 30), (60, 40)])
@pytest.mark.parametrize("mpp", [0.25, 0.2])
def test_one_figure_gives_one_detection_at_its_middle(
    dark: Engine, length: int, breadth: int, mpp: float
) -> None:
    image = np.full((600, 700, 3), 235, np.uint8)
    scale = 0.25 / mpp
    axes = (round(length / 2 * scale), round(breadth / 2 * scale))
    cv2.ellipse(image, (333, 290), axes, 30, 0, 360, (20, 10, 30), -1)
    engine = Engine([darkness_network(threshold=0.2)], EngineConfig(device="cpu", workers=1))
    points = find_detections(engine, ArraySlide(image, mpp), PeakConfig(floor=0.5), tile_px=160)
    assert len(points.x) == 1
    np.testing.assert_allclose([points.x[0], points.y[0]], [333.5, 290.5], atol=6)


def test_mask_limits_the_work_and_the_points(engine: Engine) -> None:
    slide = ArraySlide(texture(400, 400), 0.25)
    grid = np.zeros((8, 8), bool)
    grid[2:5, 1:4] = True
    mask = MaskGrid(grid, 0.0, 0.0, 50.0)
    everything = find_detections(engine, slide, dataclasses.replace(CLOSE, suppress_um=0))
    for tile_px in (64, 128):
        plan = plan_detection(slide, engine, tile_px=tile_px, mask=mask)
        assert len(plan.tiles) < len(plan_detection(slide, engine, tile_px=tile_px).tiles)
        points = find_detections(
            engine, slide, dataclasses.replace(CLOSE, suppress_um=0), tile_px=tile_px, mask=mask
        )
        assert np.all((points.x >= 50) & (points.x < 200) & (points.y >= 100) & (points.y < 250))
        assert_same(points, inside(everything, mask), by=0.02)


def test_points_outside_the_mask_grid_are_outside() -> None:
    points = Detections(np.array([-1.0, 5.0, 25.0]), np.array([5.0, 5.0, 5.0]), np.ones(3, np.float32))
    assert inside(points, MaskGrid(np.ones((2, 2), bool), 0, 0, 10)).x.tolist() == [5.0]


def test_nothing_found_is_an_answer(dark: Engine) -> None:
    points = find_detections(dark, ArraySlide(np.full((150, 150, 3), 255, np.uint8), 0.25))
    assert len(points.x) == len(points.y) == len(points.probability) == 0


def test_too_many_peaks_are_an_error(engine: Engine) -> None:
    with pytest.raises(ModelError, match="floor"):
        find_detections(engine, ArraySlide(texture(300, 300), 0.25), PeakConfig(floor=0.01, max_peaks=3))


def test_nan_is_an_error(dark: Engine) -> None:
    engine = Engine([darkness_network()], EngineConfig(device="cpu"))

    class Broken:
        def logits(self, image: torch.Tensor) -> torch.Tensor:
            return torch.full((len(image), 60, 60), math.nan)

    engine._detectors = [Broken()]
    with pytest.raises(ModelError, match="NaN"):
        find_detections(engine, ArraySlide(texture(150, 150), 0.25))


def test_settings_are_checked(engine: Engine) -> None:
    with pytest.raises(UsageError, match="multiple of 4"):
        plan_detection(ArraySlide(texture(100, 100), 0.25), engine, tile_px=201)
    for floor, distance in ((0.0, 25.0), (1.0, 25.0), (0.5, -1.0), (0.5, math.nan)):
        with pytest.raises(UsageError):
            PeakConfig(floor=floor, suppress_um=distance)


def test_batches_of_several_tiles_give_the_same(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    from metaphase.networks.engine import streaming

    slide = ArraySlide(texture(330, 270), 0.25)
    single = find_detections(engine, slide, CLOSE, tile_px=100)
    original = streaming._batches
    monkeypatch.setattr(streaming, "_batches", lambda tiles, _: original(tiles, 3))
    assert_same(find_detections(engine, slide, CLOSE, tile_px=100), single, px=1e-6, by=1e-6)
