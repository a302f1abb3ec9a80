"""Focus and colour warnings, against real fields of several scanners and blurred copies of them."""

from __future__ import annotations

import io
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from metaphase.images.inspection import Quality, inspect_slide, quality_warnings, sharpness, slide_quality
from metaphase.images.stain.deconvolution import stained_density
from metaphase.images.tissue.finding import TissueMask
from metaphase.slides.arrays import ArraySlide

FIELDS = {
    "icpr2012-aperio/A00_01.jpg": 0.2456,
    "icpr2012-hamamatsu-painted/H00_01.jpg": 0.2275,
    "midesec/P0_00.jpg": 0.25,
}


def _mask(side: int, *, filled: bool = True) -> TissueMask:
    return TissueMask(np.full((side // 32, side // 32), filled), 8.0, 0.0, 0.0, 32.0)


@pytest.mark.parametrize("name", FIELDS)
def test_real_fields_are_sharp_until_blurred(real_data: Path, name: str) -> None:
    mpp = FIELDS[name]
    rgb = np.asarray(Image.open(real_data / name).convert("RGB"))[:640, :640]
    assert quality_warnings(slide_quality(ArraySlide(rgb, mpp=mpp), _mask(640), fields=12)) == ()
    for blur_um in (0.3, 0.6, 1.5):
        blurred = ArraySlide(cv2.GaussianBlur(rgb, (0, 0), blur_um / mpp), mpp=mpp)
        (focus,) = quality_warnings(slide_quality(blurred, _mask(640), fields=12))
        assert focus.code == "out-of-focus"


@pytest.mark.parametrize("name", FIELDS)
def test_strong_compression_of_real_fields_is_told(real_data: Path, name: str) -> None:
    rgb = np.asarray(Image.open(real_data / name).convert("RGB"))[:640, :640]
    data = io.BytesIO()
    Image.fromarray(rgb).save(data, "JPEG", quality=8)
    pressed = ArraySlide(np.asarray(Image.open(data)), mpp=FIELDS[name])
    warnings = quality_warnings(slide_quality(pressed, _mask(640), fields=12))
    assert "strong-compression" in {warning.code for warning in warnings}


def test_sharpness_falls_with_blur() -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 255, (128, 128, 3), np.uint8)
    values = [sharpness(cv2.GaussianBlur(image, (0, 0), sigma)) for sigma in (0.5, 1.0, 2.0, 4.0)]
    assert values == sorted(values, reverse=True)
    assert sharpness(np.full((64, 64, 3), 200, np.uint8)) == 0.0


def test_no_tissue_is_not_judged() -> None:
    slide = ArraySlide(np.full((512, 512, 3), 240, np.uint8), mpp=0.25)
    quality = slide_quality(slide, _mask(512, filled=False))
    assert quality.fields == 0
    assert quality_warnings(quality, (0.1, 0.4, 0.3)) == ()


def test_warnings_name_focus_and_stain() -> None:
    assert quality_warnings(Quality(10, 0.1, (0.1, 0.4, 0.3)), (0.12, 0.4, 0.3)) == ()
    (focus,) = quality_warnings(Quality(10, 0.6, (0.1, 0.4, 0.3)))
    assert focus.code == "out-of-focus"
    assert "60% of the sampled tissue" in focus.text
    assert "scan the slide again" in focus.next_step
    (stain,) = quality_warnings(Quality(10, 0.0, (0.3, 0.4, 0.3)), (0.1, 0.4, 0.3))
    assert stain.code == "far-stain"
    assert "differs 3.0 times" in stain.text
    assert "look at the gallery" in stain.next_step


def test_stained_density_leaves_glass_out() -> None:
    image = np.full((10, 10, 3), 250, np.uint8)
    image[:5] = (127, 63, 127)
    np.testing.assert_allclose(stained_density(image), np.log10([2, 4, 2]), atol=1e-6)
    assert stained_density(np.full((4, 4, 3), 255, np.uint8)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("level", [0, 128])
def test_half_a_picture_in_black_or_grey_is_told(level: int) -> None:
    rng = np.random.default_rng(0)
    pixels = cv2.GaussianBlur(rng.integers(60, 255, (512, 512, 3), np.uint8), (0, 0), 2)
    assert inspect_slide(ArraySlide(pixels, mpp=0.25)).warnings == ()
    pixels[256:] = level
    (warning,) = inspect_slide(ArraySlide(pixels, mpp=0.25)).warnings
    assert (warning.code, warning.text[:3]) in (("plain-area", "50%"), ("plain-area", "49%"))
