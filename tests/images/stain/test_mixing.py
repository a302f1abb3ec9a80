"""Mixed patches take on the colours of other slides, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metaphase.images.stain.augmentation import StainMixer, appearance_of
from metaphase.images.stain.deconvolution import optical_density
from tests.examples import FEW

RNG = np.random.default_rng(3)


def slide(mean: tuple[float, float, float], count: int = 40) -> np.ndarray:
    """Patches whose stained pixels spread around a density."""
    spread = np.array([[0.06, 0.0, 0.0], [0.03, 0.05, 0.0], [0.02, 0.01, 0.04]])
    density = np.array(mean) + RNG.normal(size=(count, 32, 32, 3)) @ spread.T
    return np.clip(256 * 10 ** -density.clip(0.02) - 1, 0, 255).round().astype(np.uint8)


PINK, BLUE = slide((0.15, 0.5, 0.3)), slide((0.4, 0.35, 0.12))
APPEARANCES = [appearance_of(PINK), appearance_of(BLUE)]


def mixed(mixer: StainMixer, pixels: np.ndarray, number: int, seed: int = 0) -> torch.Tensor:
    batch = torch.from_numpy(pixels)
    slides = torch.full((len(batch),), number)
    out: torch.Tensor = mixer(batch, slides, torch.Generator().manual_seed(seed))
    return out


def test_root_and_inverse_belong_together() -> None:
    found = appearance_of(PINK)
    assert found is not None
    np.testing.assert_allclose(found.root @ found.inverse, np.eye(3), atol=1e-9)
    density = optical_density(PINK).reshape(-1, 3)
    np.testing.assert_allclose(found.mean, density.mean(axis=0), atol=5e-3)
    np.testing.assert_allclose(found.root @ found.root, np.cov(density.T), atol=2e-3)


def test_glass_has_no_appearance() -> None:
    assert appearance_of(np.full((9, 64, 64, 3), 250, np.uint8)) is None


def test_without_a_share_nothing_changes() -> None:
    same = mixed(StainMixer(APPEARANCES, 0.0), PINK, 0)
    np.testing.assert_allclose(same.permute(0, 2, 3, 1).numpy() * 255, PINK, atol=0.01)


@given(seed=st.integers(0, 99))
@FEW
def test_colours_move_towards_the_other_slide(seed: int) -> None:
    light = mixed(StainMixer([APPEARANCES[0], APPEARANCES[1]], 1.0), PINK, 0, seed)
    pixels = (light.permute(0, 2, 3, 1) * 255).round().to(torch.uint8).numpy()
    means = np.array([optical_density(patch).reshape(-1, 3).mean(axis=0) for patch in pixels])
    pink, blue = (optical_density(one).reshape(-1, 3).mean(axis=0) for one in (PINK, BLUE))
    way = (means - pink) @ (blue - pink) / ((blue - pink) ** 2).sum()
    assert way.min() > -0.1
    assert way.max() < 1.1
    assert 0.1 < way.mean() < 0.4  # half of the patches imitate their own slide, the rest go half the way
    beside = means - pink - way[:, None] * (blue - pink)
    assert abs(beside).max() < 0.05


def test_the_whole_way_gives_the_other_appearance() -> None:
    mixer = StainMixer(APPEARANCES, 1.0)
    ends = torch.tensor([0]), torch.tensor([1]), torch.ones(1)
    matrix, offset = (part[0].double().numpy() for part in mixer._map(*ends))
    pink, blue = APPEARANCES
    assert pink is not None
    assert blue is not None
    np.testing.assert_allclose(matrix @ pink.mean + offset, blue.mean, atol=1e-5)
    np.testing.assert_allclose(matrix @ pink.root @ pink.root @ matrix.T, blue.root @ blue.root, atol=1e-5)


def test_slides_without_appearance_are_left_alone() -> None:
    mixer = StainMixer([None, APPEARANCES[1], None], 1.0)
    same = mixed(mixer, PINK, 0)
    np.testing.assert_allclose(same.permute(0, 2, 3, 1).numpy() * 255, PINK, atol=0.01)
    nobody = mixed(StainMixer([None], 1.0), PINK, 0)
    np.testing.assert_allclose(nobody.permute(0, 2, 3, 1).numpy() * 255, PINK, atol=0.01)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_numbers_give_the_same_patches(seed: int) -> None:
    mixer = StainMixer(APPEARANCES, 0.7)
    assert torch.equal(mixed(mixer, BLUE, 1, seed), mixed(mixer, BLUE, 1, seed))
    assert not torch.equal(mixed(mixer, BLUE, 1, seed), mixed(mixer, BLUE, 1, seed + 9))
