"""Candidates of drawn, simulated and real PHH3 pictures."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from metaphase.base.arrays import RGB
from metaphase.base.errors import UsageError
from metaphase.base.settings import settings_of
from metaphase.images.stain.deconvolution import H_DAB_RESIDUAL, separate
from metaphase.labels.phh3.candidates import (
    UNIT,
    BrownCandidates,
    BrownConfig,
    BrownScale,
    amounts,
    estimate_threshold,
    find_brown_candidates,
    stained,
    survey_slide,
)
from metaphase.slides.contract import Slide
from tests.labels.phh3.slides import BROWN, array_slide, draw_slide, spread_points

COLUMNS = (
    "candidate", "x", "y", "area_um2", "left", "top", "right", "bottom", "dab_mean", "dab_peak",
    "haematoxylin_mean", "major_um", "minor_um", "eccentricity", "extent", "filling", "parts",
)  # fmt: skip
CONFIG = BrownConfig(fields=8)


def search(slide: Slide, config: BrownConfig = CONFIG, tile_px: int = 1024) -> BrownCandidates:
    survey = survey_slide(slide, config)
    assert survey.threshold is not None
    return find_brown_candidates(slide, survey.tissue, survey.threshold, config, tile_px=tile_px, threads=1)


@pytest.fixture(scope="module")
def points() -> list[tuple[int, int]]:
    return spread_points(40, 1200)


@pytest.fixture(scope="module")
def picture(points: list[tuple[int, int]]) -> RGB:
    return draw_slide(1200, points)


def test_every_brown_disc_and_no_blue_nucleus(picture: RGB, points: list[tuple[int, int]]) -> None:
    table = search(array_slide(picture)).table
    assert tuple(table.columns) == COLUMNS
    found = {(round(x), round(y)) for x, y in zip(table["x"] - 0.5, table["y"] - 0.5, strict=True)}
    assert found == set(points)
    np.testing.assert_allclose(table["area_um2"], np.pi * 4**2, rtol=0.25)
    assert (table["eccentricity"] < 0.4).all()
    np.testing.assert_allclose(table["filling"], 1, atol=0.05)


@pytest.mark.parametrize("tile_px", [97, 256, 640])
def test_identical_whatever_the_tile_size(picture: RGB, tile_px: int) -> None:
    slide = array_slide(picture, mpp=0.31)  # the plane is resampled, tiles start between pixels
    pd.testing.assert_frame_equal(search(slide, tile_px=tile_px).table, search(slide).table)


def test_the_plates_of_an_anaphase_are_one_candidate() -> None:
    picture = draw_slide(900, [(600, 600)])
    for y in (300, 314):
        cv2.ellipse(picture, (300, y), (9, 4), 0, 0, 360, BROWN, -1)
    table = search(array_slide(picture)).table
    assert table["parts"].tolist() == [2, 1]
    assert (table["x"][0], table["y"][0]) == pytest.approx((300.5, 307.5), abs=1)
    alone = search(array_slide(picture), BrownConfig(fields=8, join_um=0)).table
    assert len(alone) == 3


def test_two_mitoses_in_one_haze_are_two_candidates() -> None:
    picture = draw_slide(900, [(600, 600)])
    cv2.rectangle(picture, (280, 290), (350, 312), (190, 172, 165), -1)
    for x in (290, 340):
        cv2.circle(picture, (x, 300), 8, BROWN, -1)
    table = search(array_slide(picture)).table
    np.testing.assert_allclose(table["x"], [290.5, 340.5, 600.5], atol=1)
    assert (table["area_um2"] < 70).all()


def test_a_mitosis_that_touches_a_fibre_is_in_the_middle_of_its_candidate() -> None:
    picture = draw_slide(900, [])
    cv2.line(picture, (300, 300), (420, 300), (150, 120, 95), 7)
    cv2.circle(picture, (425, 300), 9, (70, 40, 25), -1)
    table = search(array_slide(picture)).table
    nearest = np.hypot(table["x"] - 425, table["y"] - 300).min()
    assert nearest < 3


def test_what_is_too_large_or_too_small_is_counted() -> None:
    picture = draw_slide(900, [(300, 300)])
    cv2.rectangle(picture, (500, 200), (640, 260), BROWN, -1)
    picture[700:702, 400:402] = BROWN
    found = search(array_slide(picture))
    assert (len(found.table), found.too_large) == (1, 1)
    assert found.too_small >= 1


def test_brown_outside_the_tissue_is_no_candidate() -> None:
    picture = draw_slide(900, [(300, 300)])
    cv2.circle(picture, (30, 30), 6, BROWN, -1)
    assert len(search(array_slide(picture)).table) == 1


def test_amounts_are_those_of_colour_deconvolution(picture: RGB) -> None:
    expected = separate(np.maximum(picture, 1), H_DAB_RESIDUAL)
    scale = BrownScale.of(0.2)
    found = amounts(scale.dab, picture) * UNIT
    np.testing.assert_allclose(found, expected[..., 1] - 0.2 * expected[..., 0], atol=3 * UNIT)
    np.testing.assert_allclose(amounts(scale.haematoxylin, picture) * UNIT, expected[..., 0], atol=3 * UNIT)


def test_the_threshold_does_not_feel_some_brown(points: list[tuple[int, int]]) -> None:
    without = estimate_threshold(stained(draw_slide(1200).reshape(-1, 3)), CONFIG)
    many = estimate_threshold(stained(draw_slide(1200, spread_points(220, 1200)).reshape(-1, 3)), CONFIG)
    assert without.brown_share == 0
    assert many.brown_share > 0.03
    assert many.value == pytest.approx(without.value, abs=0.05)


@pytest.mark.parametrize("settings", [{"mpp": 0}, {"min_area_um2": 50, "max_area_um2": 20}, {"fields": 0}])
def test_nonsense_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        BrownConfig(**settings)  # type: ignore[arg-type]


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(UsageError, match=r"\[candidates\] has no setting colour"):
        settings_of(BrownConfig, {"colour": "brown"}, "candidates")
    with pytest.raises(UsageError, match=r"\[candidates.tissue\] has no setting colour"):
        settings_of(BrownConfig, {"tissue": {"colour": "brown"}}, "candidates")
    assert settings_of(BrownConfig, {"tissue": {"mpp": 4.0}}).tissue.mpp == 4.0


def test_real_tumour_tiles(real_data: Path) -> None:
    files = sorted((real_data / "phh3-tiles" / "tumour").glob("*.jpg"))
    tiles = [np.asarray(Image.open(file).convert("RGB")) for file in files]
    mosaic = np.vstack([np.hstack(tiles[row : row + 5]) for row in range(0, 20, 5)])
    found = search(array_slide(mosaic)).table
    assert 3 <= len(found) <= 12
    assert (found["dab_mean"] > found["haematoxylin_mean"] * 0.5).all()


def test_a_tinted_lamp_does_not_make_phh3_look_like_he(picture: RGB) -> None:
    tinted = (picture * np.array([1.0, 0.93, 1.0])).astype(np.uint8)
    survey = survey_slide(array_slide(tinted), CONFIG)
    assert survey.stain.name == "DAB"
