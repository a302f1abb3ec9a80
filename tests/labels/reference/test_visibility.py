"""A dark figure is seen where there is one, and only there."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest

from metaphase.base.errors import UsageError
from metaphase.labels.reference import ReferenceConfig, VisibilityConfig, contrast, measure_contrast
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.opening import open_slide
from tests.labels.reference.pairs import DrawnPair, drawn_pair
from tests.labels.registration.slides import MPP

LEAST = ReferenceConfig().min_contrast


@pytest.fixture(scope="module")
def pair() -> DrawnPair:
    return drawn_pair()


def test_mitoses_stand_out_and_other_places_do_not(pair: DrawnPair) -> None:
    assert measure_contrast(pair.he, pair.mitoses_he).min() > 1.5
    elsewhere = pair.mitoses_he + np.array([35.0, 0.0])
    assert measure_contrast(pair.he, elsewhere).max() < LEAST


@pytest.mark.parametrize(("off_um", "seen"), [(0.0, True), (4.0, True), (12.0, False)])
def test_the_figure_may_lie_a_little_beside_its_place(pair: DrawnPair, off_um: float, seen: bool) -> None:
    found = measure_contrast(pair.he, pair.mitoses_he + np.array([0.0, off_um / MPP]))
    assert np.mean(found >= LEAST) == pytest.approx(float(seen), abs=0.15)


def test_contrast_does_not_hang_on_the_amount_of_stain(pair: DrawnPair) -> None:
    side = VisibilityConfig().side_px
    x, y = pair.mitoses_he[0] - side / 2
    crop = pair.he.read(float(x), float(y), side, side, MPP)
    paler = (255 * (crop / 255.0) ** 0.6).astype(np.uint8)  # densities of six tenths
    assert contrast(paler) == pytest.approx(contrast(crop), rel=0.1)


def test_no_place_no_contrast(pair: DrawnPair) -> None:
    found = measure_contrast(pair.he, [[np.nan, np.nan], [-5.0, 10.0], [10.0, 1e6], [0.0, 0.0]])
    assert np.isnan(found).tolist() == [True, True, True, False]
    assert measure_contrast(pair.he, np.zeros((0, 2))).shape == (0,)


def test_nothing_stands_out_on_glass() -> None:
    glass = ArraySlide(np.full((300, 300, 3), 244, np.uint8), MPP)
    assert measure_contrast(glass, [[150.0, 150.0]])[0] < LEAST


def test_resolution_of_the_slide_does_not_matter(pair: DrawnPair) -> None:
    fine = cv2.resize(pair.he.read(0, 0, pair.he.width, pair.he.height, MPP), None, fx=2, fy=2)
    finer = measure_contrast(ArraySlide(fine, MPP / 2), pair.mitoses_he * 2)
    np.testing.assert_allclose(finer, measure_contrast(pair.he, pair.mitoses_he), rtol=0.1)


def test_sizes_must_fit_each_other() -> None:
    for wrong in ({"reach_um": 9.0}, {"window_um": 10.0}, {"mpp": 0.0}, {"dark_percent": 120.0}):
        with pytest.raises(UsageError):
            VisibilityConfig(**wrong)


def test_real_mitoses_are_visible_and_most_other_places_are_not(real_data: Path) -> None:
    folder = real_data / "icpr2012-aperio"
    labels = pd.read_csv(folder / "mitoses.csv")
    labels = labels[labels["label"] == "mitosis"]
    rng, seen, elsewhere = np.random.default_rng(0), [], []
    for image in sorted(labels["image"].unique())[::4]:
        path = next(folder.rglob(image))
        with open_slide(path, mpp=0.2456) as slide:
            own = labels.loc[labels["image"] == image, ["x", "y"]].to_numpy(float)
            seen.append(measure_contrast(slide, own))
            elsewhere.append(measure_contrast(slide, rng.uniform(130, 1950, (12, 2))))
    assert (np.concatenate(seen) >= LEAST).mean() > 0.9
    assert (np.concatenate(elsewhere) >= LEAST).mean() < 0.4
