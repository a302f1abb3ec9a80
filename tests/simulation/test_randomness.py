import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaphase.base.arrays import Box
from metaphase.simulation.randomness import (
    COARSE_STEP,
    Noise,
    Texture,
    coarse_grid,
    derived_seed,
    generator,
    interpolate,
    sample_at,
)

positions = st.integers(-3000, 100_000)


def test_seeds_of_neighbouring_places_are_unrelated():
    seeds = {derived_seed(1, x, y) for x in range(-20, 20) for y in range(-20, 20)}
    assert len(seeds) == 1600
    bits = np.array([[(seed >> bit) & 1 for bit in range(64)] for seed in seeds])
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.08


def test_the_same_place_gives_the_same_numbers():
    assert generator(5, -3, 8).integers(0, 2**60) == generator(5, -3, 8).integers(0, 2**60)
    assert derived_seed(5, 1, 2) != derived_seed(5, 2, 1)


@given(x=positions, y=positions, dx=st.integers(0, 40), dy=st.integers(0, 30))
def test_a_box_of_noise_agrees_with_a_larger_one(x, y, dx, dy):
    noise = Noise(7, 33.0, 3)
    large = noise.over(Box(x, y, 90, 80))
    small = noise.over(Box(x + dx, y + dy, 50, 50))
    np.testing.assert_allclose(small, large[dy : dy + 50, dx : dx + 50], atol=2e-4)


@pytest.mark.parametrize("octaves", [1, 3])
def test_noise_has_mean_zero_and_unit_spread(octaves):
    field = Noise(3, 20.0, octaves).over(Box(0, 0, 2000, 2000))
    assert abs(field.mean()) < 0.05
    assert field.std() == pytest.approx(1, abs=0.05)


@given(x=positions, y=positions, dx=st.integers(0, 40), dy=st.integers(0, 30))
def test_interpolated_fields_agree_where_boxes_overlap(x, y, dx, dy):
    noise = Noise(9, 120.0)
    large = noise.smoothly_over(Box(x, y, 90, 80))
    small = noise.smoothly_over(Box(x + dx, y + dy, 50, 50))
    np.testing.assert_allclose(small, large[dy : dy + 50, dx : dx + 50], atol=2e-4)


def test_points_and_pixels_see_the_same_field():
    box = Box(1001, -77, 200, 150)
    coarse = Noise(2, 90.0).over(coarse_grid(box), COARSE_STEP)
    pixels = interpolate(box, coarse)
    column, row = np.array([3, 100, 180]), np.array([9, 60, 140])
    points = sample_at(box, coarse, box.x + column + 0.5, box.y + row + 0.5)
    np.testing.assert_allclose(points, pixels[row, column], atol=0.01)


@given(x=positions, y=positions)
def test_a_texture_repeats_without_a_seam(x, y):
    texture = Texture(1, coarse=30, fine=4, side=64)
    cut = texture.over(Box(x, y, 150, 140))
    np.testing.assert_array_equal(cut[:76], cut[64:])
    np.testing.assert_array_equal(cut[:, :86], cut[:, 64:])
    assert cut[0, 0] == texture.picture[y % 64, x % 64]
