"""What a report is made from, and the detections in the form that all its parts use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.errors import UsageError
from metaphase.tables import require_columns
from metaphase.tissue import TissueMask

if TYPE_CHECKING:
    from metaphase.grading import Hotspot, SlideScore

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ReportInput:
    """Everything about one slide that the report shows, apart from the slide itself."""

    tissue: TissueMask
    detections: pd.DataFrame
    """Columns `x, y` (level-0 pixels) and `probability`; rows under the threshold are welcome."""
    score: SlideScore
    card: Mapping[str, Any]
    """The model card as plain values (`ModelCard.model_dump()`), so that this package needs no torch."""
    threshold: float
    """Probability from which a detection counts as a mitosis."""
    warnings: tuple[str, ...] = ()
    """What to beware of, besides the warnings of slide, tissue and score, which are added."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds by step; `total` is the time from start to end where the steps overlap."""
    stain: str = ""
    """The likely stain, in words."""
    versions: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    """What to call the slide; its file name where empty."""
    created: datetime | None = None

    def __post_init__(self) -> None:
        require_columns(self.detections, ("x", "y", "probability"))
        if not 0 <= self.threshold <= 1:
            raise UsageError(
                f"a threshold of {self.threshold} is no probability", next_step="give a number from 0 to 1"
            )
        if not math.isclose(self.threshold, self.score.config.threshold):
            raise UsageError(
                f"the threshold is {self.threshold}, the score was made with {self.score.config.threshold}",
                next_step="score the slide again, with the threshold of the report",
            )


@dataclass(frozen=True, eq=False)
class Points:
    """Detections with a place and a probability, the most probable first."""

    x: Floats
    y: Floats
    probability: Floats
    counted: Flags
    """At or above the threshold."""
    in_hotspot: Flags
    """Counted, and inside the hotspot's circle."""
    dropped: int
    """Rows without a finite place and probability, which no part of the report shows."""

    def __len__(self) -> int:
        return len(self.x)


def points_of(result: ReportInput) -> Points:
    """The usable detections of a result in order of probability, then place."""
    values = result.detections[["x", "y", "probability"]].to_numpy(float, na_value=np.nan)
    finite = np.isfinite(values).all(axis=1)
    x, y, probability = values[finite].T
    order = np.lexsort((x, y, -probability))
    x, y, probability = x[order], y[order], probability[order]
    counted = probability >= result.threshold
    inside = counted & _inside(x, y, result.score.hotspot)
    return Points(x, y, probability, counted, inside, int((~finite).sum()))


def drawable(hotspot: Hotspot | None) -> Hotspot | None:
    """The hotspot, or None where there is nothing to draw: no mitosis, or no finite place."""
    if hotspot is None or not hotspot.count:
        return None
    return hotspot if all(map(math.isfinite, (hotspot.x, hotspot.y, hotspot.radius_px))) else None


def _inside(x: Floats, y: Floats, hotspot: Hotspot | None) -> Flags:
    circle = drawable(hotspot)
    if circle is None:
        return np.zeros(len(x), bool)
    return np.hypot(x - circle.x, y - circle.y) <= circle.radius_px * (1 + 1e-9)
