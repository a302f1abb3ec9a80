import cv2
import numpy as np
import pytest

from metaphase.base.arrays import Box
from metaphase.base.errors import RegionError
from metaphase.simulation.cohort import case_truth, tissue_truth
from metaphase.simulation.config import Case
from metaphase.simulation.rendering import CaseRenderer, object_patches, render_region


@pytest.mark.slow
@pytest.mark.parametrize("frame", ["he", "phh3"])
def test_a_region_alone_equals_the_same_part_of_the_slide(case: Case, renderer: CaseRenderer, frame):
    large = renderer.region(frame, 900, 400, 300, 250)
    alone = CaseRenderer(case).region(frame, 1000, 480, 60, 70)
    np.testing.assert_array_equal(alone, large[80:150, 100:160])


@pytest.mark.parametrize("frame", ["he", "phh3"])
def test_blocks_join_without_a_seam(renderer: CaseRenderer, frame):
    joined = renderer.region(frame, 924, 412, 200, 200)
    whole = renderer.box(frame, Box(924, 412, 200, 200))
    difference = np.abs(joined.astype(int) - whole)
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.001


def test_around_the_tissue_lies_glass(case: Case):
    corner = render_region(case, "he", -900, -700, 64, 64)
    np.testing.assert_allclose(corner.mean(axis=(0, 1)), case.laboratory.scanner.white, atol=1.5)


def test_an_empty_region_is_refused(renderer: CaseRenderer):
    with pytest.raises(RegionError, match="empty"):
        renderer.region("he", 0, 0, 0, 10)


def test_the_two_slides_show_different_stains(renderer: CaseRenderer):
    he, phh3 = (renderer.box(frame, Box(900, 800, 400, 300)).mean(axis=(0, 1)) for frame in ("he", "phh3"))
    assert he[0] - he[1] > 40
    assert phh3[2] >= phh3[0]
    assert phh3.min() > he.min() + 30


def chosen(case: Case, **values: object):
    truth = case_truth(case)
    inner = truth["x_phh3"].between(60, case.width - 60) & truth["y_phh3"].between(60, case.height - 60)
    for name, value in values.items():
        inner &= truth[name] == value
    return truth[inner].head(12)


def brownness(patches) -> np.ndarray:
    """Red minus blue: positive where brown, negative on the blue counterstain."""
    return patches[..., 0].astype(int) - patches[..., 2]


def test_positive_mitoses_are_brown_and_negative_ones_are_not(case: Case):
    positive = object_patches(case, chosen(case, category="mitosis", phh3_positive=True), "phh3", 40)
    missed = object_patches(case, chosen(case, category="mitosis", phh3_positive=False), "phh3", 40)
    assert ((brownness(positive) > 15).sum(axis=(1, 2)) > 60).mean() > 0.9
    assert np.median((brownness(missed) > 15).sum(axis=(1, 2))) < 20


def test_the_brown_of_a_mitosis_lies_where_the_truth_says(case: Case):
    rows = chosen(case, kind="metaphase_polar", phh3_positive=True)
    patches = object_patches(case, rows, "phh3", 60)
    y, x = np.mgrid[:60, :60] + 0.5
    offsets = []
    for patch, (_, row) in zip(patches, rows.iterrows(), strict=True):
        weight = np.clip(brownness(patch) - 10, 0, None) * (np.hypot(x - 30, y - 30) < 22)
        centre = np.array([(x * weight).sum(), (y * weight).sum()]) / weight.sum()
        corner = np.round(np.array([row["x_phh3"], row["y_phh3"]]) - 30)
        offsets.append(centre + corner - (row["x_phh3"], row["y_phh3"]))
    assert np.abs(np.median(offsets, axis=0)).max() < 1.5


def test_mitoses_are_dark_in_he(case: Case):
    patches = object_patches(case, chosen(case, kind="metaphase_side"), "he", 60)
    darkest = np.percentile(patches.mean(axis=3)[:, 22:38, 22:38].reshape(len(patches), -1), 10, axis=1)
    around = np.median(patches.mean(axis=3).reshape(len(patches), -1), axis=1)
    assert (darkest < around - 40).mean() > 0.9


def test_tissue_truth_matches_the_picture(case: Case, renderer: CaseRenderer):
    mask = tissue_truth(case, mpp=4.0)
    assert mask.shape == (round(2200 / 16), round(2600 / 16))
    picture = renderer.region("he", 0, 0, 2600, 400)[: 25 * 16, : 162 * 16].astype(float)
    blocks = picture.reshape(25, 16, 162, 16, 3).mean(axis=(1, 3))
    coloured = (np.array(case.laboratory.scanner.white) - blocks).max(axis=2) > 15
    inside = mask[:25, :162]
    near = cv2.dilate(inside.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0
    assert coloured[~near].mean() < 0.02
    assert coloured[inside].mean() > 0.8
