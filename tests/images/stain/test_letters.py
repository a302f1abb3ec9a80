"""Each letter does what it says over its whole range, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance
from scipy import ndimage, stats

from metaphase.images.stain.augmentation import (
    LETTERS,
    Augmentation,
    AugmentationConfig,
    displacement,
    node_spread,
    normal_quantiles,
    standard_normal,
)
from metaphase.images.stain.deconvolution import HED, combine, separate

from .samples import tissue

CONFIG = AugmentationConfig()
CENTRED = replace(CONFIG, translation_px=0)
PATCH = tissue(side=128)
CROP = PATCH[14:114, 14:114]
BATCH = torch.from_numpy(PATCH)[None]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def augmented(letters, batch=BATCH, config=CENTRED, **numbers):
    """Apply a recipe with some of its random numbers replaced; (n, size, size, 3) in [0, 1]."""
    augment = Augmentation(letters, config)
    drawn = augment.draw(len(batch), seeded())
    tensors = {name: torch.as_tensor([value], dtype=torch.float32) for name, value in numbers.items()}
    out = augment.apply_draw(batch, replace(drawn, **tensors))
    return out.permute(0, 2, 3, 1).numpy()


@pytest.mark.parametrize("letters", ["", *LETTERS])
def test_draws_fill_the_stated_range_and_stay_within(letters):
    drawn = Augmentation(letters).draw(2000, seeded())
    for name in ("scale", "stain_factor", "stain_bias", "colour", "contrast", "brightness", "blur_sigma_px"):
        low, high = (1, 1) if name == "scale" and letters != "S" else getattr(CONFIG, name)
        values = getattr(drawn, name)
        margin = 0.01 * (high - low)
        assert low <= values.min() <= low + margin, name
        assert high - margin <= values.max() <= high + 1e-6, name
    assert set(drawn.shift_px.flatten().tolist()) == set(range(-14, 15))
    assert set(drawn.flip.flatten().tolist()) == ({-1, 1} if letters == "R" else {1})
    assert (drawn.angle.max() > 6.2) == (letters == "R")
    assert (drawn.nodes is not None) == (letters == "E")
    assert (drawn.noise is not None) == (letters == "G")


@pytest.mark.parametrize("letter", "RSE")
@given(seed=st.integers(0, 2**31))
def test_geometry_moves_pixels_and_leaves_colours(letter, seed):
    plain = torch.full((1, 128, 128, 3), 90, dtype=torch.uint8)
    out = Augmentation(letter)(plain, seeded(seed))
    torch.testing.assert_close(out, torch.full_like(out, 90 / 255))


@pytest.mark.parametrize("letter", "CH")
@given(seed=st.integers(0, 2**31))
def test_colour_leaves_pixels_where_they_are(letter, seed):
    """Two pixels of one colour keep one colour, wherever they are: shuffling commutes."""
    augment = Augmentation(letter, CENTRED)
    drawn = augment.draw(1, seeded(seed))
    order = torch.randperm(100 * 100, generator=seeded(seed))
    crop = torch.from_numpy(CROP.copy()).reshape(-1, 3)
    straight = augment.apply_draw(crop.view(1, 100, 100, 3), drawn)
    shuffled = augment.apply_draw(crop[order].view(1, 100, 100, 3), drawn)
    torch.testing.assert_close(straight.flatten(2)[..., order], shuffled.flatten(2), atol=1e-4, rtol=0)


def test_quarter_turns_give_exactly_the_eight_orientations():
    config = replace(CENTRED, quarter_turns=True)
    out = Augmentation("R", config)(BATCH.expand(200, -1, -1, -1), seeded())
    seen = {tuple(p.flatten().tolist()) for p in (out * 255).round().to(torch.uint8).permute(0, 2, 3, 1)}
    turned = [np.rot90(mirrored, k) for mirrored in (CROP, CROP[:, ::-1]) for k in range(4)]
    assert seen == {tuple(t.ravel().tolist()) for t in turned}


@given(angle=st.floats(0, 6.28), scale=st.floats(0.75, 1.25), flip=st.tuples(*[st.sampled_from([-1, 1])] * 2))
def test_rotation_and_scaling_agree_with_scipy(angle, scale, flip):
    smooth = ndimage.gaussian_filter(PATCH.astype(float), (2, 2, 0)).astype(np.uint8)
    ours = augmented("RS", torch.from_numpy(smooth)[None], angle=angle, scale=scale, flip=flip)[0]
    c, s = np.cos(angle), np.sin(angle)
    turn = np.array([[c, -s], [s, c]]) @ np.diag(flip) / scale  # in (x, y)
    matrix = turn[::-1, ::-1]  # in (y, x)
    offset = 63.5 - matrix @ [49.5, 49.5]
    theirs = np.stack(
        [
            ndimage.affine_transform(plane, matrix, offset, (100, 100), order=1, mode="reflect")
            for plane in smooth.transpose(2, 0, 1).astype(float)
        ],
        axis=-1,
    )
    assert np.abs(ours * 255 - theirs).max() < 0.1


@given(shift=st.tuples(st.integers(-14, 14), st.integers(-14, 14)))
def test_shift_moves_the_crop(shift):
    out = augmented("", config=CONFIG, shift_px=shift)[0]
    x, y = 14 + shift[0], 14 + shift[1]
    np.testing.assert_array_equal((out * 255).round(), PATCH[y : y + 100, x : x + 100])


def test_elastic_field_has_the_statistics_of_smoothed_noise():
    spread = node_spread(100, 10)
    nodes = torch.randn((400, 2, spread.shape[1], spread.shape[1]), generator=seeded())
    ours = displacement(nodes, spread, 100).flatten(0, 1).numpy()
    noise = np.random.default_rng(0).uniform(-1, 1, (200, 180, 180))
    theirs = 100 * np.stack([ndimage.gaussian_filter(n, 10)[40:140, 40:140] for n in noise])
    assert ours.mean() == pytest.approx(0, abs=0.1)
    assert ours.std() == pytest.approx(theirs.std(), rel=0.05)
    for distance in (5, 10, 20):
        expected = np.exp(-(distance**2) / (4 * 10**2))
        for axis in (1, 2):
            a, b = (np.take(ours, r, axis=axis) for r in (range(distance, 100), range(100 - distance)))
            assert (a * b).mean() / ours.var() == pytest.approx(expected, abs=0.06)
    edge, middle = ours[:, 0].std(), ours[:, 50].std()
    assert edge == pytest.approx(middle, rel=0.15)


def test_elastic_moves_by_its_field():
    nodes = torch.zeros(1, 2, *[node_spread(100, 10).shape[1]] * 2)
    augment = Augmentation("E", CENTRED)
    drawn = replace(augment.draw(1, seeded()), nodes=nodes)
    still = augment.apply_draw(BATCH, drawn)[0].permute(1, 2, 0).numpy()
    np.testing.assert_array_equal((still * 255).round(), CROP)
    moved = Augmentation("E", CENTRED)(BATCH, seeded())[0].permute(1, 2, 0).numpy()
    difference = np.abs(moved * 255 - CROP).mean()
    assert 1 < difference < 25


@given(
    factor=st.tuples(*[st.floats(0.95, 1.05)] * 3),
    bias=st.tuples(*[st.floats(-0.05, 0.05)] * 3),
)
def test_stain_letter_is_the_appendix(factor, bias):
    ours = augmented("C", stain_factor=factor, stain_bias=bias)[0]
    epsilon = CONFIG.stain_epsilon
    amounts = separate(CROP, HED, epsilon=epsilon) * np.array(factor) + np.array(bias)
    np.testing.assert_allclose(ours, combine(amounts, HED, epsilon=epsilon), atol=1e-5)


ENHANCERS = {
    "colour": ImageEnhance.Color,
    "contrast": ImageEnhance.Contrast,
    "brightness": ImageEnhance.Brightness,
}


@pytest.mark.parametrize("name", ENHANCERS)
@given(factor=st.floats(0.75, 1.5))
def test_each_part_of_the_colour_letter_is_pillows(name, factor):
    numbers = dict.fromkeys(ENHANCERS, 1.0) | {name: factor}
    ours = augmented("H", **numbers)[0] * 255
    theirs = np.asarray(ENHANCERS[name](Image.fromarray(CROP)).enhance(factor))
    assert np.abs(ours - theirs).max() < 1.6  # Pillow rounds the grey, and the result towards 0


@given(colour=st.floats(0.75, 1.5), contrast=st.floats(0.75, 1.5), brightness=st.floats(0.75, 1.25))
def test_colour_letter_is_pillows_in_order(colour, contrast, brightness):
    factors = {"colour": colour, "contrast": contrast, "brightness": brightness}
    image = Image.fromarray(CROP)
    for name, factor in factors.items():
        image = ENHANCERS[name](image).enhance(factor)
    ours = augmented("H", **factors)[0] * 255
    assert np.abs(ours - np.asarray(image)).max() < 5  # three roundings, stretched by the factors after


@given(sigma=st.floats(0, 2))
def test_blur_agrees_with_scipy(sigma):
    ours = augmented("B", blur_sigma_px=sigma)[0]
    theirs = ndimage.gaussian_filter(CROP / 255, (sigma, sigma, 0), mode="reflect", truncate=8)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@given(sigma=st.floats(0, 0.1))
def test_noise_has_its_sigma_and_no_drift(sigma):
    grey = torch.full((1, 128, 128, 3), 128, dtype=torch.uint8)
    noise = augmented("G", grey, noise_sigma=sigma)[0] - 128 / 255
    assert noise.mean() == pytest.approx(0, abs=0.03 * sigma + 1e-6)
    assert noise.std() == pytest.approx(sigma, rel=0.02, abs=1e-6)


def test_fast_normal_numbers_are_normal_and_independent():
    numbers = standard_normal((3, 100_001), normal_quantiles(), seeded()).numpy()
    assert stats.kstest(numbers.ravel(), "norm").pvalue > 0.01
    assert stats.kurtosis(numbers.ravel()) == pytest.approx(0, abs=0.03)
    for lag in (1, 2, 3, 4, 8):
        assert np.corrcoef(numbers[0, lag:], numbers[0, :-lag])[0, 1] == pytest.approx(0, abs=0.015)
