"""Correlation against independent implementations, and its peaks against known shifts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import fourier_shift, gaussian_filter
from skimage.feature import match_template

from metaphase.labels.registration.correlation import Image, correlate, correlate_masked, find_peak


def texture(seed: int, rows: int, columns: int) -> Image:
    noise = np.random.default_rng(seed).normal(size=(rows, columns))
    return np.asarray(gaussian_filter(noise, 2, mode="wrap"), np.float32)


def test_correlation_equals_template_matching_of_scikit_image() -> None:
    window = texture(0, 70, 90)
    template = window[11:43, 25:65] + texture(1, 32, 40) * np.float32(0.5)
    assert correlate(template, window) == pytest.approx(match_template(window, template), abs=1e-4)


def test_blank_areas_correlate_with_nothing() -> None:
    template, window = texture(0, 30, 30), np.zeros((50, 50), np.float32)
    assert not correlate(template, window).any()
    assert not correlate(np.full((30, 30), 3, np.float32), texture(1, 50, 50)).any()
    noise = np.random.default_rng(2).normal(0, 0.002, (50, 50)).astype(np.float32)
    assert np.abs(correlate(noise[10:40, 10:40], noise)).max() < 0.05


@given(st.floats(-4, 4), st.floats(-4, 4))
def test_peaks_are_found_to_a_fraction_of_a_pixel(dx: float, dy: float) -> None:
    image = texture(3, 96, 96)
    spectrum = fourier_shift(np.fft.fft2(image), (dy, dx))
    moved = np.real(np.fft.ifft2(spectrum)).astype(np.float32)
    peak = find_peak(correlate(image[24:72, 24:72], moved[16:80, 16:80]), exclusion_px=4)
    assert (peak.x, peak.y) == pytest.approx((dx, dy), abs=0.15)
    assert peak.height > 0.97
    assert peak.ratio > 1


def test_second_peak_lies_outside_the_exclusion() -> None:
    heat = np.zeros((21, 21), np.float32)
    heat[10, 10], heat[10, 12], heat[3, 4] = 0.8, 0.7, 0.4
    assert find_peak(heat, 5).ratio == pytest.approx(2)
    assert find_peak(heat, 1).ratio == pytest.approx(0.8 / 0.7)
    assert find_peak(np.zeros((5, 5), np.float32), 1).height == 0


def masked_by_hand(fixed: Image, moving: Image, mask: Image, dx: int, dy: int) -> float:
    """The coefficient over the common pixels at one offset."""
    a, b = [], []
    for row in range(moving.shape[0]):
        for column in range(moving.shape[1]):
            y, x = row + dy, column + dx
            if 0 <= y < fixed.shape[0] and 0 <= x < fixed.shape[1] and mask[row, column]:
                a.append(fixed[y, x])
                b.append(moving[row, column])
    return float(np.corrcoef(a, b)[0, 1])


@given(st.integers(0, 1000), st.integers(-6, 9), st.integers(-5, 7))
def test_masked_correlation_equals_brute_force(seed: int, dx: int, dy: int) -> None:
    fixed, moving = texture(seed, 20, 24), texture(seed + 1, 16, 18)
    mask = (np.random.default_rng(seed).random(moving.shape) < 0.8).astype(np.float32)
    heat = correlate_masked(fixed, moving, mask, 0.1)
    assert heat.shape == (35, 41)
    expected = masked_by_hand(fixed, moving, mask, dx, dy)
    assert heat[15 + dy, 17 + dx] == pytest.approx(expected, abs=0.02)
