"""What a recipe promises as a whole; each letter by itself is in test_letters.py."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metaphase.base.errors import UsageError
from metaphase.images.stain.augmentation import (
    LETTERS,
    Augmentation,
    AugmentationConfig,
    parse_recipe,
)

from .samples import tissue

RECIPES = ("RSEB", "RCSEB", "RCSEHBG")
"""The three recipes that the paper compares."""
STILL = AugmentationConfig(
    translation_px=0,
    mirror=False,
    rotation_degrees=(0, 0),
    scale=(1, 1),
    elastic_alpha_px=0,
    stain_factor=(1, 1),
    stain_bias=(0, 0),
    colour=(1, 1),
    contrast=(1, 1),
    brightness=(1, 1),
    blur_sigma_px=(0, 0),
    noise_sigma=(0, 0),
)
RANDOM = np.random.default_rng(0).integers(0, 256, (4, 128, 128, 3), dtype=np.uint8)
PATCHES = torch.from_numpy(RANDOM)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def levels(batch):
    return (batch * 255).round().to(torch.uint8).permute(0, 2, 3, 1)


@pytest.mark.parametrize("letters", ["", *LETTERS, *RECIPES])
def test_zero_ranges_are_the_identity_apart_from_the_crop(letters):
    out = levels(Augmentation(letters, STILL)(PATCHES, seeded()))
    assert torch.equal(out, PATCHES[:, 14:114, 14:114])


@pytest.mark.parametrize(("side", "size"), [(128, 99), (101, 100), (100, 100), (127, 100)])
def test_crops_of_any_parity_hit_whole_pixels(side, size):
    out = levels(Augmentation("RCSEHBG", replace(STILL, size_px=size))(PATCHES[:, :side, :side], seeded()))
    start = (side - size) // 2
    assert torch.equal(out, PATCHES[:, start : start + size, start : start + size])


@pytest.mark.parametrize("letters", RECIPES)
def test_same_seed_same_batch_and_each_sample_its_own(letters):
    same = PATCHES[:1].expand(4, -1, -1, -1)
    augment = Augmentation(letters)
    first, again, other = (augment(same, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert all(not torch.equal(first[0], sample) for sample in first[1:])


def test_a_sample_depends_on_its_own_pixels_only():
    augment = Augmentation("RCSEHBG")
    drawn = augment.draw(4, seeded())
    changed = PATCHES.clone()
    changed[1:] = 0
    whole, part = augment.apply_draw(PATCHES, drawn), augment.apply_draw(changed, drawn)
    torch.testing.assert_close(whole[0], part[0])


def test_order_of_letters_does_not_matter():
    a, b = Augmentation("RCSEHBG")(PATCHES, seeded()), Augmentation("GBHESCR")(PATCHES, seeded())
    assert torch.equal(a, b)


def test_output_is_ready_for_a_network():
    out = Augmentation("RCSEHBG")(PATCHES, seeded())
    assert out.shape == (4, 3, 100, 100)
    assert out.dtype == torch.float32
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert 0 <= out.min() < out.max() <= 1


def test_layouts_and_types_agree():
    augment = Augmentation("RCSEHBG")
    planes = PATCHES.permute(0, 3, 1, 2).contiguous()
    torch.testing.assert_close(augment(planes / 255, seeded()), augment(PATCHES, seeded()))


@pytest.mark.parametrize("value", [0, 128, 255])
@pytest.mark.parametrize("side", [1, 2, 50, 128])
def test_plain_and_tiny_patches_stay_finite(value, side):
    out = Augmentation("RCSEHBG")(torch.full((2, side, side, 3), value, dtype=torch.uint8), seeded())
    assert torch.isfinite(out).all()


def test_strong_ranges_on_black_and_white_stay_finite():
    strong = AugmentationConfig(
        stain_factor=(0, 5), stain_bias=(-2, 2), blur_sigma_px=(0, 30), scale=(0.01, 9)
    )
    out = Augmentation("RCSEHBG", strong)(torch.stack([PATCHES[0] * 0, PATCHES[0] * 0 + 255]), seeded())
    assert torch.isfinite(out).all()


def test_tissue_keeps_its_look():
    """Over many draws the mean colour stays near the original: no letter drifts."""
    patch = torch.from_numpy(tissue(side=128))[None].expand(64, -1, -1, -1)
    out = Augmentation("RCSEB")(patch, seeded())
    plain = Augmentation("")(patch, seeded())
    assert (out.mean(dim=(0, 2, 3)) - plain.mean(dim=(0, 2, 3))).abs().max() < 0.02


@pytest.mark.parametrize("letters", ["X", "RCX", "rc", "RR", "R C"])
def test_unknown_or_double_letters_are_refused(letters):
    with pytest.raises(UsageError, match="hoose from R rotation"):
        Augmentation(letters)


@given(st.lists(st.sampled_from(list(LETTERS)), unique=True))
def test_any_set_of_letters_is_a_recipe(letters):
    assert parse_recipe("".join(letters)) == frozenset(letters)


@pytest.mark.parametrize(
    "wrong",
    [
        {"scale": (1.2, 0.8)},
        {"scale": (0, 1)},
        {"blur_sigma_px": (-1, 1)},
        {"noise_sigma": (0, float("nan"))},
        {"size_px": 0},
        {"translation_px": -1},
        {"elastic_sigma_px": 0.5},
        {"stain_epsilon": 0},
    ],
)
def test_senseless_ranges_are_refused(wrong):
    with pytest.raises(UsageError):
        AugmentationConfig(**wrong)
