"""Counting in circles, against plain counting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaphase.base.errors import UsageError
from metaphase.counting.hotspot import (
    Lattice,
    busiest_circle,
    filled_percentile,
    lattice_around,
    lattice_counts,
)
from metaphase.counting.specimen import CountConfig
from tests.counting.scenes import Floats, most_in_a_circle, positions_um

RADIUS = CountConfig().radius_um


def plain_counts(points_um: Floats, lattice: Lattice, radius_um: float) -> np.ndarray:
    x, y = np.meshgrid(lattice.xs_um, lattice.ys_um)
    distance = np.hypot(x[..., None] - points_um[:, 0], y[..., None] - points_um[:, 1])
    return (distance <= radius_um).sum(axis=-1)


def test_radius_of_two_square_millimetres() -> None:
    assert math.isclose(math.pi * RADIUS**2, 2e6)


@given(positions_um, st.floats(40, 400), st.floats(30, 900))
def test_lattice_counts_are_exact(points: Floats, step: float, radius: float) -> None:
    lattice = lattice_around(points, radius, step)
    assert np.array_equal(lattice_counts(points, lattice, radius), plain_counts(points, lattice, radius))


@given(positions_um, st.integers(-40, 40), st.integers(1, 30))
def test_any_window_of_the_lattice_has_the_same_counts(points: Floats, corner: int, size: int) -> None:
    window = Lattice(100.0, corner, corner // 2, size, 2 * size)
    assert np.array_equal(lattice_counts(points, window, RADIUS), plain_counts(points, window, RADIUS))


@given(positions_um, st.floats(40, 400))
def test_no_position_outside_the_window_holds_a_point(points: Floats, step: float) -> None:
    window = lattice_around(points, RADIUS, step)
    wider = Lattice(step, window.column - 2, window.row - 2, window.columns + 4, window.rows + 4)
    assert lattice_counts(points, window, RADIUS).sum() == lattice_counts(points, wider, RADIUS).sum()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.floats(0, 100))
def test_percentile_is_that_of_numpy(counts: list[int], percentile: float) -> None:
    filled = [count for count in counts if count]
    expected = np.percentile(filled, percentile) if filled else 0.0
    assert filled_percentile(np.array(counts), percentile) == pytest.approx(expected)


@given(positions_um, st.floats(100, 2000))
def test_no_circle_is_busier(points: Floats, radius: float) -> None:
    x, y, count = busiest_circle(points, radius)
    inside = np.hypot(points[:, 0] - x, points[:, 1] - y) <= radius
    assert inside.sum() == count
    assert most_in_a_circle(points, radius - 0.015) <= count <= most_in_a_circle(points, radius)


def test_busiest_of_many_points() -> None:
    points = np.random.default_rng(0).uniform(0, 6000, (150, 2))
    assert busiest_circle(points, RADIUS)[2] == most_in_a_circle(points, RADIUS)


def test_hotspot_is_centred_on_what_it_holds() -> None:
    corners = np.array([(100.0, 100), (100, 300), (300, 100), (300, 300), (9000, 9000)])
    x, y, count = busiest_circle(corners, RADIUS)
    assert (count, x, y) == (4, pytest.approx(200), pytest.approx(200))


def test_points_on_a_regular_grid_do_not_stall_the_search() -> None:
    xs = np.arange(20) * 100.0
    grid = np.stack(np.meshgrid(xs, xs), axis=-1).reshape(-1, 2)
    assert busiest_circle(grid, 500.0)[2] == 81


def test_impossible_scale_is_refused() -> None:
    with pytest.raises(UsageError, match="micrometres per pixel"):
        lattice_around(np.array([(0.0, 0.0), (1e9, 1e9)]), RADIUS, 50.0)
