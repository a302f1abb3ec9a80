"""Squares around points: one rule, for one square and for many."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaphase.base.arrays import RGB, Box
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.tiles import cut_square, cut_squares, square_corners
from tests.slides.images import BLOBS, blob_image, noise_image

WIDTH, HEIGHT = 260, 300


class PartSlide(ArraySlide):
    """Noise, of which the scanner filled a part of the frame only."""

    def __init__(self, mpp: float = 0.25, corner: tuple[int, int] = (0, 0)) -> None:
        super().__init__(noise_image(WIDTH, HEIGHT), mpp=mpp)
        x, y = corner
        self.bounds = Box(x, y, WIDTH - x, HEIGHT - y)


def random_points(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform((0, 0), (WIDTH, HEIGHT), (count, 2))


def all_squares(
    slide: ArraySlide, points: np.ndarray, side_px: int, mpp: float = 0.25, **options: int
) -> RGB:
    """The squares in the order of their points; each comes once."""
    squares = np.zeros((len(points), side_px, side_px, 3), np.uint8)
    seen: list[int] = []
    for rows, part in cut_squares(slide, points, side_px, mpp, **options):
        squares[rows] = part
        seen += rows.tolist()
    assert sorted(seen) == list(range(len(points)))
    return squares


slides = st.builds(
    PartSlide,
    st.sampled_from([0.25, 0.23, 0.5]),
    st.tuples(st.integers(0, 90), st.integers(0, 90)),
)


@given(
    slide=slides,
    x=st.floats(0, WIDTH, exclude_max=True),
    y=st.floats(0, HEIGHT, exclude_max=True),
    side=st.integers(1, 64),
    mpp=st.sampled_from([0.25, 0.4, 1.0]),
)
def test_the_pixel_that_holds_a_point_lies_in_the_middle(
    slide: PartSlide, x: float, y: float, side: int, mpp: float
) -> None:
    (corner,) = square_corners(slide, np.array([[x, y]]), side, mpp)
    for position, first, start in zip((x, y), corner, (slide.bounds.x, slide.bounds.y), strict=True):
        scale = mpp / slide.mpp
        left, right = (start + (first + side // 2 + step) * scale for step in (0, 1))
        assert left - 1e-5 <= position < right + 1e-5


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 40),
    st.integers(1, 400),
    st.sampled_from([1, 8, 31]),
    st.tuples(st.integers(0, 90), st.integers(0, 90)),
)
def test_at_the_slides_own_resolution_squares_are_plain_copies(
    seed: int, count: int, block_px: int, side: int, corner: tuple[int, int]
) -> None:
    slide, points = PartSlide(corner=corner), random_points(seed, count)
    reach = side // 2 + 1
    padded = np.pad(noise_image(WIDTH, HEIGHT), ((reach, reach), (reach, reach), (0, 0)), constant_values=255)
    squares = all_squares(slide, points, side, block_px=block_px, threads=1)
    for (x, y), square in zip(points, squares, strict=True):
        left, top = math.floor(x) - side // 2 + reach, math.floor(y) - side // 2 + reach
        np.testing.assert_array_equal(square, padded[top : top + side, left : left + side])


@pytest.mark.parametrize("mpp", [0.25, 0.5])
def test_blocks_and_threads_do_not_matter(mpp: float) -> None:
    slide, points = PartSlide(mpp, (13, 7)), random_points(1, 50)
    first, *others = (
        all_squares(slide, points, 40, block_px=block_px, threads=threads)
        for block_px, threads in ((64, 1), (64, 3), (1, 2), (10_000, 1))
    )
    for other in others:
        np.testing.assert_array_equal(first, other)


@given(
    slide=slides,
    seed=st.integers(0, 999),
    side=st.sampled_from([1, 15, 32]),
    mpp=st.sampled_from([0.25, 0.31, 0.5]),
)
def test_many_squares_are_each_the_one(slide: PartSlide, seed: int, side: int, mpp: float) -> None:
    points = random_points(seed, 12)
    squares = all_squares(slide, points, side, mpp, block_px=100, threads=2).astype(int)
    for (x, y), square in zip(points, squares, strict=True):
        alone = cut_square(slide, float(x), float(y), side, mpp)
        assert np.abs(alone - square).max() <= (0 if mpp == slide.mpp else 2)


def test_squares_do_not_depend_on_the_points_beside_them() -> None:
    slide, points = PartSlide(0.5, (5, 9)), random_points(2, 30)
    together = all_squares(slide, points, 20)
    np.testing.assert_array_equal(together[::3], all_squares(slide, points[::3], 20))


def test_patches_are_centred_at_any_resolution() -> None:
    slide = ArraySlide(blob_image(), mpp=0.25)
    for mpp in (0.25, 0.2, 0.4):
        for patch in all_squares(slide, BLOBS, 32, mpp):
            darkest = 255.0 - patch[..., 1]
            weight = np.clip(darkest - 110, 0, None)
            rows, columns = np.indices(weight.shape)
            centre = np.array([(columns * weight).sum(), (rows * weight).sum()]) / weight.sum()
            assert np.abs(centre - 16).max() < 0.75, "the centre of the pixel that holds the point"


def test_patches_beyond_the_slide_are_white() -> None:
    slide = ArraySlide(np.zeros((50, 50, 3), np.uint8), mpp=0.25)
    for patch in (*all_squares(slide, np.array([[0.0, 0.0]]), 20), cut_square(slide, 0.0, 0.0, 20)):
        assert (patch[:10] == 255).all()
        assert (patch[:, :10] == 255).all()
        assert (patch[10:, 10:] == 0).all()
