"""Nuclei have a size, by which a wrong resolution shows; and a grey picture is called that."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from metaphase.base.errors import SlideError
from metaphase.images.nuclei import look_warnings, nuclear_diameter_px, nuclear_diameter_um
from metaphase.images.tissue.finding import TissueSource
from metaphase.slides.arrays import ArraySlide
from tests.cli.running import run


def stained(diameter_px: float, side: int = 800) -> np.ndarray:
    """Pink tissue with purple nuclei of about one size."""
    rng = np.random.default_rng(0)
    picture = np.full((side, side, 3), (236, 190, 214), np.uint8)
    step = 1.8 * diameter_px
    for x in np.arange(step, side - step, step):
        for y in np.arange(step, side - step, step):
            radius = diameter_px / 2 * rng.uniform(0.85, 1.15)
            middle = np.rint((x, y) + rng.uniform(-0.2, 0.2, 2) * diameter_px).astype(int).tolist()
            cv2.ellipse(
                picture, (middle, (2 * radius, 1.7 * radius), rng.uniform(0, 180)), (110, 60, 140), -1
            )
    noise = rng.normal(0, 6, picture.shape)
    return np.clip(cv2.GaussianBlur(picture, (0, 0), 1.0) + noise, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("diameter_px", [10.0, 16.0, 32.0])
def test_the_diameter_is_found_whatever_the_resolution(diameter_px: float) -> None:
    assert nuclear_diameter_px([stained(diameter_px, 500)]) == pytest.approx(0.95 * diameter_px, rel=0.15)


@pytest.mark.parametrize("stated", [0.12, 0.25, 0.5])
def test_a_wrong_resolution_is_told_with_the_one_that_would_fit(stated: float) -> None:
    """A field of 0.25 um/px counted 0 at 0.12, without a word."""
    slide = ArraySlide(stained(32.0), stated)
    assert nuclear_diameter_um(slide) == pytest.approx(30 * stated, rel=0.15)
    if stated == 0.25:
        assert look_warnings(slide) == ()
    else:
        (warning,) = look_warnings(slide)
        assert warning.code == "nuclear-size"
        fitting = float(warning.text.split("about ")[1].split()[0])
        assert fitting == pytest.approx(0.25, rel=0.2)


def test_a_picture_without_nuclei_says_nothing_of_its_resolution() -> None:
    rng = np.random.default_rng(1)
    smooth = cv2.GaussianBlur(rng.uniform(-1, 1, (600, 600)), (0, 0), 40) * 400
    pink = np.clip(np.array([225, 160, 195]) + smooth[..., None], 0, 255).astype(np.uint8)
    assert np.isnan(nuclear_diameter_um(ArraySlide(pink, 0.25)))
    assert look_warnings(ArraySlide(pink, 0.25)) == ()
    assert look_warnings(ArraySlide(np.full((300, 300, 3), 255, np.uint8), 0.25)) == ()


def test_a_grey_picture_is_called_that(tmp_path: Path) -> None:
    """It was called no tissue."""
    grey = np.repeat(cv2.cvtColor(stained(32.0), cv2.COLOR_RGB2GRAY)[..., None], 3, axis=2)
    (warning,) = look_warnings(ArraySlide(grey, 0.25))
    assert warning.code == "grey"
    with pytest.raises(SlideError, match=r"the picture is grey.*in colour"):
        TissueSource().of(ArraySlide(grey, 0.25))
    with pytest.raises(SlideError, match="no tissue was found"):
        TissueSource().of(ArraySlide(np.full((300, 300, 3), 245, np.uint8), 0.25))
    cv2.imwrite(str(tmp_path / "grey.png"), grey)
    told = run("info", tmp_path / "grey.png", "--mpp", "0.25")
    assert told.returncode == 0
    assert "the picture is grey" in " ".join(told.stderr.split())
