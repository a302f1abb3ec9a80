"""The streaming detector of minima against the plain greedy one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaphase.base.arrays import Integers
from metaphase.learn.mining.candidates import EXCLUDED, DarkestFirst, Values, ordered

SEEDS = st.integers(0, 2**32 - 1)


def greedy(values: Values, radius_px: float, limit: int) -> Integers:
    """Lowest pixel of all, suppress its circle, again: in the plainest words."""
    left = values.astype(np.int64)
    y, x = np.mgrid[: values.shape[0], : values.shape[1]]
    found = []
    while left.min() < limit:
        row, column = np.unravel_index(left.argmin(), left.shape)
        found.append((column, row, left[row, column]))
        left[(x - column) ** 2 + (y - row) ** 2 <= radius_px**2] = limit
    return ordered(np.array(found, np.int64).reshape(-1, 3))


def darkest_points(values: Values, radius_px: float, limit: int) -> Integers:
    """The same by the stream, all rows at once."""
    stream = DarkestFirst(values.shape[1], radius_px, limit)
    return ordered(np.concatenate([stream.push(values), stream.finish()]))


@st.composite
def images(draw: st.DrawFn) -> Values:
    """Noise with many or few ties, ramps (the longest chains of decisions there are), flat areas."""
    height, width, levels = draw(st.integers(1, 40)), draw(st.integers(1, 40)), draw(st.integers(1, 300))
    rng = np.random.default_rng(draw(SEEDS))
    values = rng.integers(0, levels, (height, width))
    slope_y, slope_x = draw(st.integers(-20, 20)), draw(st.integers(-20, 20))
    ramp = slope_y * np.arange(height)[:, None] + slope_x * np.arange(width)
    image: Values = (values + ramp - ramp.min()).astype(np.uint16)
    image[rng.random(image.shape) < draw(st.sampled_from([0.0, 0.3, 0.9]))] = EXCLUDED
    return image


RADII = st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.3, 5.0, 8.5, 20.0])


@given(images(), RADII, st.integers(1, 500))
def test_equals_greedy(image: Values, radius_px: float, limit: int) -> None:
    np.testing.assert_array_equal(darkest_points(image, radius_px, limit), greedy(image, radius_px, limit))


@given(images(), RADII, st.lists(st.integers(0, 12), min_size=1, max_size=60))
def test_bands_do_not_matter(image: Values, radius_px: float, heights: list[int]) -> None:
    stream, top, found = DarkestFirst(image.shape[1], radius_px, 200), 0, []
    for height in heights:
        found.append(stream.push(image[top : top + height]))
        top += height
    found += [stream.push(image[top:]), stream.finish()]
    np.testing.assert_array_equal(ordered(np.concatenate(found)), darkest_points(image, radius_px, 200))


def test_rows_are_let_go() -> None:
    """On ordinary noise the window stays a few blocks high, however long the slide."""
    rng = np.random.default_rng(1)
    stream = DarkestFirst(100, 5.0, 200)
    highest = 0
    for _ in range(100):
        stream.push(rng.integers(0, 300, (20, 100)).astype(np.uint16))
        highest = max(highest, len(stream._pixels))
    assert highest < 200


@pytest.mark.parametrize(("width", "band", "bands"), [(400_000, 60, 1), (60, 40_000, 10)])
def test_large_slides_keep_their_places(width: int, band: int, bands: int) -> None:
    """Ranks are packed integers: a point far right or far down must come back exactly."""
    stream = DarkestFirst(width, 50.0, 459)
    blank = np.full((band, width), EXCLUDED)
    for _ in range(bands):
        stream.push(blank)
    row = blank[:1].copy()
    row[0, [width - 40, width - 1]] = 458, 457
    found = [stream.push(row), stream.finish()]
    assert np.concatenate(found).tolist() == [[width - 1, band * bands, 457]]


@pytest.mark.parametrize("limit", [0, 100])
def test_nothing_below_the_limit(limit: int) -> None:
    assert len(darkest_points(np.full((30, 30), 100, np.uint16), 5.0, limit)) == 0
