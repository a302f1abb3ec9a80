"""Scores of several slides as one table, in the form that `metaphase evaluate` reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from metaphase.grading.score import SlideScore

COLUMNS = (
    "case", "threshold", "detections", "count", "count_low", "count_high", "grade", "p_grade1", "p_grade2",
    "p_grade3", "proliferation", "maximum", "hotspot_x", "hotspot_y", "hotspot_radius_px",
    "hotspot_per_mm2", "area_mm2",
)  # fmt: skip
"""The first columns; the measures of heterogeneity follow."""


def scores_table(scores: Iterable[tuple[str, SlideScore]]) -> pd.DataFrame:
    """One row a case (and threshold, where a case was scored at several)."""
    rows = [_row(case, score) for case, score in scores]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=list(COLUMNS))


def _row(case: str, score: SlideScore) -> dict[str, Any]:
    first, second, third = score.grade_probabilities
    low, high = score.count_interval
    values = (
        case, score.config.threshold, score.detections, score.count, low, high, score.grade, first, second,
        third, score.proliferation, score.maximum, score.hotspot.x, score.hotspot.y, score.hotspot.radius_px,
        score.hotspot.per_mm2, score.area_mm2,
    )  # fmt: skip
    return {**dict(zip(COLUMNS, values, strict=True)), **score.heterogeneity}
