from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage import measure

from metaphase.detections.matching import components, suppress

POINTS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 40), st.sampled_from([0.2, 0.5, 0.9, 1.0])), max_size=60
)


def one_by_one(x: np.ndarray, y: np.ndarray, score: np.ndarray, distance: float) -> list[int]:
    kept: list[int] = []
    for index in np.lexsort((x, y, -score)):
        squares = [(x[index] - x[other]) ** 2 + (y[index] - y[other]) ** 2 for other in kept]
        if all(square >= distance**2 for square in squares):
            kept.append(int(index))
    return kept


@given(POINTS, st.sampled_from([0.0, 0.5, 3.0, 5.0, 13.0, 100.0]))
def test_equals_taking_points_one_by_one(points: list[tuple[int, int, float]], distance: float) -> None:
    x, y, score = np.array(points, float).reshape(-1, 3).T
    assert suppress(x, y, score, distance).tolist() == one_by_one(x, y, score, distance)


@given(POINTS, st.randoms(use_true_random=False))
def test_the_order_of_points_does_not_matter(points: list[tuple[int, int, float]], random: object) -> None:
    table = np.array(points, float).reshape(-1, 3)
    shuffled = table[np.random.default_rng(len(points)).permutation(len(table))]
    kept = [rows[suppress(*rows.T, distance=7.0)] for rows in (table, shuffled)]
    np.testing.assert_array_equal(kept[0], kept[1])


def test_many_points_far_from_the_origin() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.uniform(-5e4, 1e5, (2, 700))
    score = generator.random(700)
    assert suppress(x, y, score, 6000.0).tolist() == one_by_one(x, y, score, 6000.0)


def test_points_exactly_at_the_distance_stay() -> None:
    x, y, score = np.array([0.0, 3.0, 0.0]), np.array([0.0, 4.0, 0.0]), np.array([0.5, 0.4, 0.5])
    assert suppress(x, y, score, 5.0).tolist() == [0, 1]


@pytest.mark.parametrize("count", [0, 1])
def test_few_points(count: int) -> None:
    assert len(suppress(np.zeros(count), np.zeros(count), np.ones(count), 10.0)) == count


# ---- touching points as one


@given(
    st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 12), st.floats(0.8, 1.0)),
        unique_by=lambda point: point[:2], max_size=60,
    ),
    st.sampled_from([1.0, 4.0, 7.3]),
)  # fmt: skip
def test_components_are_those_of_scikit_image(points: list[tuple[int, int, float]], step: float) -> None:
    column, row, probability = np.array(points, float).reshape(-1, 3).T
    image = np.zeros((13, 13))
    image[row.astype(int), column.astype(int)] = probability
    regions = measure.regionprops(measure.label(image > 0, connectivity=2), image)
    expected = sorted((one.centroid[1] * step, one.centroid[0] * step, one.intensity_max) for one in regions)
    found = sorted(zip(*components(column * step, row * step, probability, step), strict=True))
    np.testing.assert_allclose(np.array(found).reshape(-1, 3), np.array(expected).reshape(-1, 3), atol=1e-9)
