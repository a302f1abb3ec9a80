"""Counts that are hardly more than a model's false positives are doubted."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from metaphase.counting.clinical import SlideCount, count_slide
from metaphase.counting.specimen import CountConfig
from metaphase.images.tissue.finding import TissueMask

MPP, SIDE_MM = 0.25, 2.5


def score_of(count: int, false_per_mm2: float = 0.0) -> SlideCount:
    """A tumour of 6.25 mm2 with its detections close together."""
    rng = np.random.default_rng(0)
    positions = rng.normal(SIDE_MM * 500 / MPP, 200, (count, 2))
    table = pd.DataFrame(positions, columns=["x", "y"]).assign(slide="s", probability=0.99, label="mitosis")
    mask = TissueMask(np.ones((100, 100), np.bool_), SIDE_MM * 10, 0.0, 0.0, SIDE_MM * 10 / MPP)
    config = CountConfig(false_per_mm2=false_per_mm2)
    return count_slide(table, mpp=MPP, tissue=mask, config=config)


@pytest.mark.parametrize(
    ("count", "false_per_mm2", "warned"), [(10, 7.0, True), (40, 7.0, False), (40, 30.0, True)]
)
def test_a_count_is_doubted_where_half_of_it_may_be_false(
    count: int, false_per_mm2: float, warned: bool
) -> None:
    said = [one for one in score_of(count, false_per_mm2).warnings if one.code == "mostly-false"]
    assert bool(said) == warned
    if warned:
        assert f"{false_per_mm2:.1f} false positives per mm2" in said[0].text
        assert f"about {min(round(2 * false_per_mm2), count)} may be false" in said[0].text


def test_nothing_is_said_where_nothing_is_known_or_counted() -> None:
    for score in (score_of(10), score_of(0, 7.0)):
        assert "mostly-false" not in [one.code for one in score.warnings]


@pytest.mark.parametrize(("length_mm", "code"), [(3.98, "little-tissue"), (4.02, "only-area")])
def test_an_area_alone_never_counts_without_a_word(length_mm: float, code: str) -> None:
    """A core of 0.5 mm: of a little less than 2 mm2 all is counted, of a little more what a circle holds."""
    x = np.linspace(0, length_mm * 1000 / MPP, 20)
    table = pd.DataFrame({"x": x, "y": 1000.0, "probability": 1.0})
    count = count_slide(table, mpp=MPP, area_mm2=0.5 * length_mm)
    assert code in [one.code for one in count.warnings]
    assert (count.count == 20) == (code == "little-tissue")
    assert "only-area" not in [one.code for one in count_slide(table, mpp=MPP).warnings]
