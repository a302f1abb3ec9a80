"""The count and its interval on a line that is cut where one grade ends and the next begins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metaphase.grading import SlideScore

LEAST_APART = 6.0
"""Per cent of the line between two labels."""
ROOM = 1.08
"""Length of the line in terms of the largest thing on it."""


@dataclass(frozen=True)
class GradeScale:
    """Places along the line in per cent of its length."""

    count: float
    low: float
    high: float
    cuts: tuple[tuple[float, str], ...]
    """Where grades 1 and 2 end, and the counts there; those that would run into another are left out."""


def grade_scale(score: SlideScore) -> GradeScale | None:
    """The line of a score; None where the count is not known."""
    if not math.isfinite(score.count):
        return None
    low, high = (end if math.isfinite(end) else score.count for end in score.count_interval)
    theta1, theta2 = score.config.theta1, score.config.theta2
    length = ROOM * max(1.5 * theta2, high, score.count, 1.0)
    share = [round(100 * max(0.0, value) / length, 2) for value in (score.count, low, high, theta1, theta2)]
    cuts = [(share[3], f"{theta1:g}"), (share[4], f"{theta2:g}")]
    apart = cuts[1][0] - cuts[0][0] >= LEAST_APART
    return GradeScale(share[0], share[1], share[2], tuple(cuts if apart else cuts[1:]))
