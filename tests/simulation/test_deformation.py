import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from metaphase.base.arrays import Box
from metaphase.simulation.config import Displacement, random_displacement

SIZE = (40_000, 30_000)


def displacement(seed: int) -> Displacement:
    return random_displacement(seed, *SIZE, shift_px=2000, rotation_deg=1.0, local_px=12)


@given(seed=st.integers(0, 10**6))
def test_there_and_back_is_the_identity(seed):
    points = np.random.default_rng(seed).uniform((0, 0), SIZE, (50, 2))
    field = displacement(seed)
    back = field.phh3_to_he(field.he_to_phh3(points))
    assert np.abs(back - points).max() < 1e-6


def test_a_pure_shift_moves_tissue_by_the_shift():
    field = Displacement(shift_x=120.0, shift_y=-40.0, rotation_rad=0.0, centre_x=500, centre_y=500)
    np.testing.assert_allclose(field.he_to_phh3([[10.0, 20.0]]), [[130.0, -20.0]])


@given(seed=st.integers(0, 10**6), x=st.integers(-100, 40_000), y=st.integers(-100, 30_000))
def test_pull_maps_equal_the_map_at_every_pixel(seed, x, y):
    field, box = displacement(seed), Box(x, y, 21, 17)
    map_x, map_y = field.pull_maps(box)
    columns, rows = np.meshgrid(x + 0.5 + np.arange(21), y + 0.5 + np.arange(17))
    expected = field.phh3_to_he(np.stack([columns, rows], axis=-1))
    np.testing.assert_allclose(np.stack([map_x, map_y], axis=-1), expected, atol=1e-6)


def test_local_deformation_has_the_asked_size_and_is_smooth():
    for seed in range(3):
        field = random_displacement(seed, *SIZE, shift_px=0, rotation_deg=0, local_px=10)
        moved = field.sample(*SIZE, 1000)
        assert moved.std() == pytest.approx(10, rel=0.6)
        dense = field.sample(1000, 500, 10)
        assert np.abs(np.diff(dense, axis=0)).max() < 2.0


def test_a_displacement_survives_json():
    field = displacement(3)
    assert TypeAdapter(Displacement).validate_json(json.dumps(asdict(field))) == field
