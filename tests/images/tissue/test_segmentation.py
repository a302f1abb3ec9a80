"""Segmentation against drawn slides, whose tissue is known to the pixel, and against real ones."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaphase.base.errors import UsageError
from metaphase.images.tissue.finding import TissueConfig, segment_tissue
from tests.images.tissue.drawing import MPP, SLIDES, DrawnSlide, draw, everywhere, noisy, section

Mask = npt.NDArray[np.bool_]


def drawn(name: str, seed: int = 0) -> DrawnSlide:
    return draw(SLIDES[name], seed, width_um=3600, height_um=2600)


def iou(mask: Mask, truth: Mask) -> float:
    union = np.count_nonzero(mask | truth)
    return np.count_nonzero(mask & truth) / union if union else 1.0


TWICE = pytest.mark.slow  # what is drawn in H&E is drawn in PHH3, too


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=TWICE if name.endswith(", PHH3") else ()) for name in SLIDES]
)
def test_drawn_slides(name: str) -> None:
    slide = drawn(name)
    assert iou(segment_tissue(slide.rgb, MPP), slide.truth) >= 0.95


def test_finer_input_gives_the_same_tissue_and_area() -> None:
    slide = drawn("half fat, H&E")
    for factor in (2, 3, 4):
        size = (slide.rgb.shape[1] // factor, slide.rgb.shape[0] // factor)
        coarse = cv2.resize(slide.rgb, size, interpolation=cv2.INTER_AREA)
        truth = cv2.resize(slide.truth.astype(np.uint8), size, interpolation=cv2.INTER_NEAREST) > 0
        mask = segment_tissue(coarse, MPP * factor)
        assert iou(mask, truth) >= 0.95
        area = np.count_nonzero(mask) * (MPP * factor) ** 2
        assert area == pytest.approx(np.count_nonzero(slide.truth) * MPP**2, rel=0.05)


@pytest.mark.parametrize("mpp", [4.0, 6.0, 10.0])
def test_other_working_resolutions_agree(mpp: float) -> None:
    slide = drawn("PHH3")
    reference = segment_tissue(slide.rgb, MPP)
    assert iou(segment_tissue(slide.rgb, MPP, TissueConfig(mpp=mpp)), reference) >= 0.97


def test_flipping_the_slide_flips_the_mask() -> None:
    rgb = drawn("coverslip edge, dust").rgb[:1296, :1792]
    assert iou(segment_tissue(rgb[::-1, ::-1].copy(), MPP)[::-1, ::-1], segment_tissue(rgb, MPP)) > 0.99


@given(
    level=st.integers(185, 255),
    tint=st.integers(-12, 0),
    noise=st.floats(0, 8),
    quality=st.integers(40, 95),
    seed=st.integers(0, 1000),
)
def test_blank_glass_has_no_tissue(level: int, tint: int, noise: float, quality: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    light = np.array([level, level, level + tint]) + noise * rng.standard_normal((400, 500, 3))
    glass = np.clip(light, 0, 255).astype(np.uint8)
    _, jpeg = cv2.imencode(".jpg", glass, [cv2.IMWRITE_JPEG_QUALITY, quality])
    assert not segment_tissue(cv2.imdecode(jpeg, cv2.IMREAD_COLOR), 8.0).any()


@pytest.mark.parametrize("level", [0, 128, 254, 255])
def test_constant_images_have_no_tissue(level: int) -> None:
    assert not segment_tissue(np.full((300, 300, 3), level, np.uint8), 8.0).any()


@pytest.mark.parametrize("stain", ["H&E", "PHH3"])
def test_noise_does_not_turn_a_full_slide_into_glass(stain: str) -> None:
    slide = draw((section(stain, shape=everywhere), noisy), 5, width_um=1600, height_um=1200)
    assert segment_tissue(slide.rgb, MPP).mean() > 0.99


def painted(*discs: tuple[int, int, float]) -> npt.NDArray[np.uint8]:
    """Speckled pink discs (x, y, radius, in pixels of 8 um) on glass."""
    rgb = np.full((300, 300, 3), 240, np.uint8)
    rng = np.random.default_rng(0)
    for x, y, radius in discs:
        disc = cv2.circle(np.zeros((300, 300), np.uint8), (x, y), round(radius), 1, -1) > 0
        rgb[disc] = np.array([210, 130, 170]) + rng.integers(-15, 15, (np.count_nonzero(disc), 1))
    return rgb


def test_small_objects_go_by_their_area_in_um2() -> None:
    rgb = painted((80, 80, 20), (220, 220, 40))  # 0.08 mm2 and 0.32 mm2
    assert segment_tissue(rgb, 8.0)[80, 80]
    pruned = segment_tissue(rgb, 8.0, TissueConfig(min_object_um2=200_000))
    assert not pruned[80, 80]
    assert pruned[220, 220]


@pytest.mark.parametrize("side_um", [60, 100, 160, 300])
@pytest.mark.parametrize("stain", ["H&E", "PHH3"])
def test_a_small_field_full_of_tissue_is_tissue(stain: str, side_um: int) -> None:
    slide = draw((section(stain, shape=everywhere),), 5, width_um=800, height_um=800)
    side = round(side_um / MPP)
    assert segment_tissue(slide.rgb[:side, :side].copy(), MPP).mean() > 0.9


def test_dust_in_a_small_field_of_glass_is_none() -> None:
    rgb = painted((20, 20, 2))[:60, :60].copy()  # 0.0008 mm2 in 0.23 mm2
    assert not segment_tissue(rgb, 8.0).any()


def test_holes_go_by_their_area_in_um2() -> None:
    rgb = painted((150, 150, 100))
    cv2.circle(rgb, (150, 150), 30, (240, 240, 240), -1)  # 0.18 mm2
    assert not segment_tissue(rgb, 8.0)[150, 150]
    assert segment_tissue(rgb, 8.0, TissueConfig(min_hole_um2=250_000))[150, 150]
    assert segment_tissue(rgb, 2.0)[150, 150], "the same pixels four times smaller are a hole of 0.01 mm2"


def test_tiny_images_do_not_fail() -> None:
    for shape in [(1, 1), (1, 50), (3, 2)]:
        assert segment_tissue(np.full((*shape, 3), 200, np.uint8), 0.25).shape == shape


def test_the_input_is_left_alone() -> None:
    rgb = painted((150, 150, 60))
    before = rgb.copy()
    segment_tissue(rgb, 8.0)
    np.testing.assert_array_equal(rgb, before)


@pytest.mark.parametrize(
    ("rgb", "mpp"),
    [
        (np.zeros((5, 5), np.uint8), 8.0),
        (np.zeros((5, 5, 4), np.uint8), 8.0),
        (np.zeros((5, 5, 3), np.float32), 8.0),
        (np.zeros((0, 5, 3), np.uint8), 8.0),
        (np.zeros((5, 5, 3), np.uint8), 0.0),
        (np.zeros((5, 5, 3), np.uint8), float("nan")),
    ],
)
def test_wrong_input_is_explained(rgb: npt.NDArray[np.uint8], mpp: float) -> None:
    with pytest.raises(UsageError, match="Give"):
        segment_tissue(rgb, mpp)


@pytest.mark.parametrize(
    "setting", [{"mpp": 0.0}, {"mpp": float("inf")}, {"min_hole_um2": -1.0}, {"bridge_um": float("nan")}]
)
def test_wrong_settings_are_explained(setting: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(setting))):
        TissueConfig(**setting)
