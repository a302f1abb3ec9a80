"""Tile plans and the reader that follows them."""

from __future__ import annotations

import math
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

from metaphase.base.arrays import RGB, Box
from metaphase.base.errors import SlideError, UsageError
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.tiles import MaskGrid, plan_tiles, read_tiles
from tests.slides.images import blob_image, noise_image, with_halo

regions = st.builds(Box, st.integers(0, 500), st.integers(0, 500), st.integers(1, 2000), st.integers(1, 2000))


@given(bounds=regions, tile=st.integers(20, 700), mpp=st.floats(0.1, 2))
def test_cores_partition_the_region(bounds: Box, tile: int, mpp: float) -> None:
    plan = plan_tiles(bounds, 0.25, mpp=mpp, tile_px=tile)
    covered = np.zeros((plan.height, plan.width), np.uint8)
    for piece in plan.tiles:
        core = piece.core
        covered[core.y : core.bottom, core.x : core.right] += 1
        assert piece.outer == core
    assert (covered == 1).all()
    right, bottom = plan.to_level0(plan.width, plan.height)
    assert bounds.right <= right + 1e-3 <= bounds.right + plan.scale + 2e-3
    assert bounds.bottom <= bottom + 1e-3 <= bounds.bottom + plan.scale + 2e-3


@given(
    bounds=regions,
    tile=st.integers(50, 700),
    mpp=st.floats(0.2, 1),
    scale=st.floats(4, 64),
    corner=st.tuples(st.integers(-300, 300), st.integers(-300, 300)),
    seed=st.integers(0, 99),
)
def test_mask_keeps_exactly_the_tiles_that_touch_it(
    bounds: Box, tile: int, mpp: float, scale: float, corner: tuple[int, int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random((40, 40)) < 0.03
    plan = plan_tiles(bounds, 0.25, mpp=mpp, tile_px=tile)
    kept = plan_tiles(bounds, 0.25, mpp=mpp, tile_px=tile, mask=MaskGrid(mask, *corner, scale))
    rows, columns = np.nonzero(mask)
    expected = []
    for piece in plan.tiles:
        x0, y0 = plan.to_level0(piece.core.x, piece.core.y)
        x1, y1 = plan.to_level0(piece.core.right, piece.core.bottom)
        across = (corner[0] + columns * scale < x1) & (corner[0] + (columns + 1) * scale > x0)
        down = (corner[1] + rows * scale < y1) & (corner[1] + (rows + 1) * scale > y0)
        if (across & down).any():
            expected.append(piece)
    assert list(kept.tiles) == expected


grids = st.builds(
    lambda mask, corner, scale: MaskGrid(mask, *corner, scale),
    st_np.arrays(np.bool_, st_np.array_shapes(min_dims=2, max_dims=2, max_side=8)),
    st.tuples(st.floats(-60, 60), st.floats(-60, 60)),
    st.floats(0.5, 40),
)


def judged(grid: MaskGrid, x: float, y: float) -> bool:
    """The map at one level-0 point, looked up by hand."""
    rows, columns = grid.mask.shape
    column, row = math.floor((x - grid.x) / grid.scale), math.floor((y - grid.y) / grid.scale)
    return 0 <= row < rows and 0 <= column < columns and bool(grid.mask[row, column])


@given(grid=grids, points=st.lists(st.tuples(st.floats(-400, 400), st.floats(-400, 400)), max_size=20))
def test_a_map_holds_the_points_on_its_true_pixels(grid: MaskGrid, points: list[tuple[float, float]]) -> None:
    found = grid.contains(np.array(points, float).reshape(-1, 2))
    assert found.tolist() == [judged(grid, x, y) for x, y in points]


@given(grid=grids)
def test_a_pixel_of_a_map_has_its_left_and_top_edge_and_not_the_others(grid: MaskGrid) -> None:
    whole = MaskGrid(np.ones_like(grid.mask), 0, 0, 4)
    rows, columns = grid.mask.shape
    corners = np.array([(0, 0), (4 * columns, 0), (0, 4 * rows), (-1e-9, 0)])
    assert whole.contains(corners).tolist() == [True, False, False, False]


@given(
    grid=grids,
    bounds=regions,
    mpp=st.floats(0.1, 8),
    corner=st.tuples(st.integers(-9, 30), st.integers(-9, 30)),
    size=st.tuples(st.integers(1, 12), st.integers(1, 12)),
)
def test_a_map_under_a_box_is_the_map_at_each_pixels_centre(
    grid: MaskGrid, bounds: Box, mpp: float, corner: tuple[int, int], size: tuple[int, int]
) -> None:
    plan, box = plan_tiles(bounds, 0.25, mpp=mpp, tile_px=4096), Box(*corner, *size)
    grid = MaskGrid(grid.mask, grid.x + bounds.x, grid.y + bounds.y, grid.scale)
    before = grid.mask.copy()
    expected = [
        [judged(grid, *plan.to_level0(column + 0.5, row + 0.5)) for column in range(box.x, box.right)]
        for row in range(box.y, box.bottom)
    ]
    found = grid.under(plan, box)
    np.testing.assert_array_equal(found, expected)
    found[:] = True
    np.testing.assert_array_equal(grid.mask, before, "what is returned is a copy")


def test_nothing_to_plan_is_refused() -> None:
    with pytest.raises(UsageError, match="tiles"):
        plan_tiles(Box(0, 0, 10, 10), 0.25, tile_px=0)
    with pytest.raises(UsageError, match="not empty"):
        plan_tiles(Box(0, 0, 0, 10), 0.25)


def test_tiles_reassemble_to_the_slide() -> None:
    slide = ArraySlide(blob_image(), mpp=0.25)
    for mpp in (0.25, 0.4):
        plan = with_halo(plan_tiles(slide.bounds, slide.mpp, mpp=mpp, tile_px=64), 7)
        whole = slide.read(0, 0, plan.width, plan.height, mpp).astype(int)
        for tile, pixels in read_tiles(slide, plan, threads=3):
            core = tile.core
            inner = pixels[7 : 7 + core.height, 7 : 7 + core.width]
            assert np.abs(whole[core.y : core.bottom, core.x : core.right] - inner).max() <= 1


class CountingSlide(ArraySlide):
    """Counts reads; one position can be made to fail."""

    def __init__(self, pixels: RGB, fails_at_x: int | None = None) -> None:
        super().__init__(pixels, mpp=0.25)
        self.reads = 0
        self.fails_at_x = fails_at_x
        self.lock = threading.Lock()

    def read_level(self, level: int, box: Box) -> RGB:
        with self.lock:
            self.reads += 1
        if box.x == self.fails_at_x:
            raise SlideError("damaged tile", path="slide.svs")
        return super().read_level(level, box)


def test_reader_stays_within_its_bound() -> None:
    slide = CountingSlide(noise_image(640, 64))
    plan = plan_tiles(slide.bounds, slide.mpp, tile_px=32)
    for taken, _ in enumerate(read_tiles(slide, plan, threads=2, ahead=4), start=1):
        time.sleep(0.002)
        assert slide.reads <= taken + 4
    assert slide.reads == len(plan.tiles) == 40


def test_reader_reports_a_damaged_tile_in_its_turn() -> None:
    slide = CountingSlide(noise_image(640, 32), fails_at_x=320)
    plan = plan_tiles(slide.bounds, slide.mpp, tile_px=32)
    good = []
    with pytest.raises(SlideError, match="damaged tile"):  # noqa: PT012 -- the loop is what is tested
        for tile, _ in read_tiles(slide, plan, threads=2):
            good.append(tile.core.x)
    assert good == list(range(0, 320, 32))


def test_reader_can_be_left_early() -> None:
    slide = CountingSlide(noise_image(640, 64))
    before = set(threading.enumerate())  # a network of another test may still have its own
    reader = read_tiles(slide, plan_tiles(slide.bounds, slide.mpp, tile_px=32), threads=2, ahead=2)
    next(reader)
    assert set(threading.enumerate()) > before
    reader.close()
    assert slide.reads < 10
    assert set(threading.enumerate()) <= before


@given(width=st.integers(1, 300), height=st.integers(1, 300), mpp=st.sampled_from([0.2, 0.31, 0.5, 0.77]))
def test_the_shape_of_a_read_leaves_pixels_alone(width: int, height: int, mpp: float) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (600, 600, 3), np.uint8)
    slide = ArraySlide(pixels, mpp=0.25)
    whole = slide.read(10, 20, 300, 300, mpp).astype(int)
    part = slide.read(10, 20, width, height, mpp)
    assert abs(whole[:height, :width] - part).max() <= 2  # each of the two passes may round the other way
