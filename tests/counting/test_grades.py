"""A grade is shown where it is earned: one, a range, or none, with the reason."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from metaphase.counting.clinical import count_slide
from metaphase.counting.specimen import CountConfig, stated_config
from tests.counting.scenes import all_tissue, table

TUNED = CountConfig(thetas_tuned=True, draws=200)


def points_of(number: int) -> pd.DataFrame:
    return table(np.random.default_rng(0).uniform(1000, 1400, (number, 2)))


@pytest.mark.parametrize(
    ("count", "changes", "text", "reason"),
    [
        (12, {}, "2 (", None),
        (12, {"thetas_tuned": False}, "withheld", "were not tuned"),
        (8, {"false_per_mm2": 2.0}, "1 to 2", "may be false"),
        (15, {"false_per_mm2": 2.0}, "2 (", None),
    ],
)
def test_a_grade_that_false_detections_or_thetas_could_change_is_no_single_one(
    count: int, changes: dict[str, float], text: str, reason: str | None
) -> None:
    config = CountConfig(**{"thetas_tuned": True, "draws": 200} | changes)  # type: ignore[arg-type]
    found = count_slide(points_of(count), mpp=0.25, tissue=all_tissue(4000, 4000), config=config)
    shown = found.grade_shown
    assert shown.text.startswith(text)
    assert shown.low <= found.grade <= shown.high
    assert bool(shown.reasons) == (reason is not None)
    codes = [warning.code for warning in found.warnings]
    assert ("grade-withheld" in codes) == shown.withheld
    assert ("grade-range" in codes) == (bool(shown.reasons) and not shown.withheld)
    if reason:
        assert reason in shown.reasons[0]


def test_less_tissue_than_a_hotspot_leaves_higher_grades_open() -> None:
    found = count_slide(points_of(5), mpp=0.25, tissue=all_tissue(1000, 1000), config=TUNED)
    assert (found.grade, found.grade_shown.text) == (1, "1 to 2")
    assert "2 mm2 of tissue (there are 1.00)" in found.grade_shown.reasons[0]


def test_the_false_rate_is_inside_the_interval() -> None:
    clean, doubtful = (
        count_slide(
            points_of(30), mpp=0.25, tissue=all_tissue(4000, 4000),
            config=CountConfig(false_per_mm2=rate, threshold_spread=0.0),
        ).count_interval
        for rate in (0.0, 8.0)
    )  # fmt: skip
    assert doubtful[0] < clean[0] - 3
    assert doubtful[0] <= 30 - 0.8 * 16 * 0.5
    assert doubtful[1] >= 30


def test_a_table_is_counted_at_the_point_it_carries() -> None:
    points = points_of(20).assign(probability=np.linspace(0.5, 0.99, 20))
    point = {"delta": 0.9, "theta1": 2.0, "theta2": 9.0, "kappa": 0.6, "false_per_mm2": 0.5}
    points.attrs["operating_points"] = {"model": "m", "count": point}
    found = count_slide(points, mpp=0.25, area_mm2=9.0)
    assert (found.config.threshold, found.config.theta2, found.config.false_per_mm2) == (0.9, 9.0, 0.5)
    assert found.config.thetas_tuned
    assert found.counted == int((points["probability"] >= 0.9).sum())
    assert stated_config(points_of(3)) == CountConfig()
