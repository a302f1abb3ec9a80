from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.ndimage import gaussian_filter
from scipy.stats import norm

from metaphase.networks.engine.peaks import collect, smoothed
from metaphase.networks.engine.positions import is_peak, reaches, smoothing_reach

MAPS = arrays(
    np.float32,
    st.tuples(st.just(1), st.integers(3, 9), st.integers(3, 9)),
    elements=st.sampled_from([-3, 0, 1, 2]),
)


def by_hand(logits: np.ndarray, floor: float) -> set[tuple[int, int]]:
    found = set()
    for row in range(1, logits.shape[0] - 1):
        for column in range(1, logits.shape[1] - 1):
            others = [
                (logits[r, c], (-r, -c))
                for r in range(row - 1, row + 2)
                for c in range(column - 1, column + 2)
                if (r, c) != (row, column)
            ]
            if 1 / (1 + np.exp(-logits[row, column])) >= floor and max(others) < (
                logits[row, column],
                (-row, -column),
            ):
                found.add((row, column))
    return found


@given(MAPS)
def test_peaks_beat_their_neighbours(logits: np.ndarray) -> None:
    peak = is_peak(torch.from_numpy(logits), 0.4)
    assert {(int(r), int(c)) for _, r, c in peak.nonzero()} == by_hand(logits[0], 0.4)


@given(MAPS)
def test_what_reaches_a_floor_lies_within_the_border(logits: np.ndarray) -> None:
    expected = np.pad(1 / (1 + np.exp(-logits[:, 1:-1, 1:-1])) >= 0.4, ((0, 0), (1, 1), (1, 1)))
    np.testing.assert_array_equal(reaches(logits, 0.4), expected)
    np.testing.assert_array_equal(reaches(torch.from_numpy(logits), 0.4), expected)


def test_a_parabola_is_found_between_outputs() -> None:
    rows, columns = torch.meshgrid(torch.arange(11.0), torch.arange(13.0), indexing="ij")
    logits = 5 - (rows - 4.3) ** 2 - 2 * (columns - 6.8) ** 2
    peaks = collect(logits[None], is_peak(logits[None], 0.5))
    np.testing.assert_allclose(peaks.row, [4.3], atol=1e-5)
    np.testing.assert_allclose(peaks.column, [6.8], atol=1e-5)
    np.testing.assert_allclose(peaks.probability, torch.sigmoid(logits.max()), atol=1e-6)


def test_certain_places_do_not_merge_into_plateaus() -> None:
    logits = torch.full((1, 5, 5), 30.0)
    logits[0, 3, 2] = 31.0
    peaks = collect(logits, is_peak(logits, 0.5))
    assert (round(float(peaks.row[0])), round(float(peaks.column[0]))) == (3, 2)
    assert peaks.probability.tolist() == [1.0]


@given(MAPS.map(lambda m: np.pad(m, ((0, 0), (9, 9), (9, 9)), mode="wrap")), st.sampled_from([0.3, 1.0, 2.5]))
def test_smoothing_is_the_gaussian_mean_of_probabilities(logits: np.ndarray, sigma: float) -> None:
    reach = smoothing_reach(sigma)
    found = torch.sigmoid(smoothed(torch.from_numpy(logits), sigma))[0].numpy()
    probabilities = 1 / (1 + np.exp(-logits[0].astype(np.float64)))
    expected = gaussian_filter(probabilities, sigma, radius=reach)[reach:-reach, reach:-reach]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("sigma", [0.7, 1.0, 1.75, 2.5])
def test_smoothing_reaches_as_far_as_a_gaussian_matters(sigma: float) -> None:
    reach = smoothing_reach(sigma)
    kernel = norm.pdf(np.arange(-reach, reach + 1), scale=sigma)
    assert 0.997 < kernel.sum() < 1.003


def test_no_smoothing_leaves_the_map_as_it_is() -> None:
    logits = torch.randn(1, 6, 7)
    assert smoothed(logits, 0.0) is logits
    assert smoothing_reach(0.0) == 0


def test_certain_places_stay_apart_when_smoothed() -> None:
    logits = torch.full((1, 21, 21), 30.0)
    logits[0, 10, 10] = 40.0
    middle = smoothed(logits, 1.0)[0]
    assert torch.isfinite(middle).all()
    assert middle.argmax() == middle.numel() // 2
    assert middle.min() == pytest.approx(30.0, abs=1e-3)
