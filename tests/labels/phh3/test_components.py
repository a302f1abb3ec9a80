"""Stitched components are those of the whole plane, whatever the tiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage
from skimage.measure import regionprops

from metaphase.base.arrays import Box
from metaphase.labels.phh3.components import Components, Stitcher, ellipse_axes, label_tile
from metaphase.slides.tiles import plan_tiles

EIGHT = np.ones((3, 3), int)


@st.composite
def planes(draw: st.DrawFn) -> np.ndarray:
    """Blobs, branches and specks: noise of any density."""
    shape = draw(st.tuples(st.integers(1, 30), st.integers(1, 30)))
    noise = np.random.default_rng(draw(st.integers(0, 10**6))).random(shape)
    return noise < draw(st.floats(0, 1))


def stitched(brown: np.ndarray, tile_px: int, *, smallest: int = 1, shift: int = 0) -> tuple[Components, int]:
    """Components of a plane seen in tiles, sorted by position; amounts are made from coordinates."""
    height, width = brown.shape
    rows, columns = np.indices(brown.shape)
    dab = ((rows * 31 + columns * 17) % 200 + 300).astype(np.int16)
    stitcher = Stitcher(smallest)
    for tile in plan_tiles(Box(0, 0, width, height), 1.0, mpp=1.0, tile_px=tile_px).tiles:
        box = tile.core
        part = np.s_[box.y : box.bottom, box.x : box.right]
        here = np.ascontiguousarray(brown[part])
        if here.any():  # tiles without brown may be left out
            amounts = dab[part]
            stitcher.add(label_tile(box.moved(shift, 0), here, amounts, (amounts + 1)[here]))
    found = stitcher.finish()
    order = np.lexsort((found["x"], found["minus_left"], found["minus_top"]))
    return found[order], stitcher.specks


@given(planes(), st.integers(2, 13))
def test_tiles_change_nothing(brown: np.ndarray, tile_px: int) -> None:
    whole, _ = stitched(brown, 64)
    tiled, _ = stitched(brown, tile_px)
    np.testing.assert_array_equal(tiled, whole)


@given(planes(), st.integers(2, 9))
def test_equal_to_scipy_and_skimage(brown: np.ndarray, tile_px: int) -> None:
    labels, count = ndimage.label(brown, structure=EIGHT)
    regions = sorted(regionprops(labels), key=lambda r: (-r.bbox[0], -r.bbox[1], r.centroid[1] * r.area))
    found, _ = stitched(brown, tile_px)
    assert len(found) == count
    np.testing.assert_array_equal(found["area"], [r.area for r in regions])
    np.testing.assert_array_equal(-found["minus_top"], [r.bbox[0] for r in regions])
    np.testing.assert_array_equal(found["right"], [r.bbox[3] for r in regions])
    np.testing.assert_allclose(found["y"] / found["area"], [r.centroid[0] for r in regions], atol=1e-9)
    major, minor = ellipse_axes(found)
    for i, region in enumerate(regions):
        central = region.moments_central
        covariance = np.array([[central[2, 0], central[1, 1]], [central[1, 1], central[0, 2]]]) / region.area
        axes = 4 * np.sqrt(np.linalg.eigvalsh(covariance + np.eye(2) / 12))
        np.testing.assert_allclose((minor[i], major[i]), axes, rtol=1e-6)


@given(planes(), st.integers(2, 9), st.integers(2, 6))
def test_specks_are_counted(brown: np.ndarray, tile_px: int, smallest: int) -> None:
    every, _ = stitched(brown, tile_px)
    kept, specks = stitched(brown, tile_px, smallest=smallest)
    assert len(kept) == int((every["area"] >= smallest).sum())
    assert specks == len(every) - len(kept)


def test_shape_is_exact_far_from_the_origin() -> None:
    brown = np.zeros((40, 60), bool)
    brown[10:20, 5:45] = True
    near, _ = stitched(brown, 16)
    far, _ = stitched(brown, 16, shift=3_000_000)
    np.testing.assert_array_equal(ellipse_axes(near), ellipse_axes(far))
    major, minor = ellipse_axes(far)
    assert major[0] == pytest.approx(4 * np.sqrt(40**2 / 12))
    assert minor[0] == pytest.approx(4 * np.sqrt(10**2 / 12))


def test_diagonal_neighbours_across_four_tiles_are_one() -> None:
    brown = np.zeros((8, 8), bool)
    brown[3, 3] = brown[4, 4] = brown[3, 5] = True
    found, _ = stitched(brown, 4)
    assert found["area"].tolist() == [3]


def test_an_empty_plane_has_no_components() -> None:
    found, specks = stitched(np.zeros((5, 5), bool), 2)
    assert (len(found), specks) == (0, 0)
