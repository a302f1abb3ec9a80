"""Settings of an evaluation, checked once when made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from metaphase.detections import Method
from metaphase.errors import UsageError


@dataclass(frozen=True, slots=True)
class MatchingConfig:
    """When a detection counts as a truth found."""

    radius_um: float = 7.5
    """Farthest distance between a detection and its truth; 7.5 um are 30 px at 0.25 um/px."""

    method: Method = "greedy"
    """`greedy`: most probable first, nearest free truth. `optimal`: as many matches as possible."""

    threshold: float | None = None
    """Detections at or above this probability count; None counts them all."""

    border_um: float = 0.0
    """Width of a margin along the image border in which neither truths nor detections count."""

    ignore_radius_um: float = 7.5
    """Radius around a point labelled `ignore` in which nothing counts, unless its row states `radius_um`."""

    missing_as_empty: bool = False
    """Take slides without predictions as slides in which nothing was found, and not as an error."""

    def __post_init__(self) -> None:
        if self.method not in ("greedy", "optimal"):
            raise UsageError(f"matching {self.method!r} is unknown", next_step="choose greedy or optimal")
        _require(math.isfinite(self.radius_um) and self.radius_um > 0, "radius_um", self.radius_um, "above 0")
        for name in ("border_um", "ignore_radius_um"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value >= 0, name, value, "at least 0")
        if self.threshold is not None:
            _require(0 <= self.threshold <= 1, "threshold", self.threshold, "from 0 to 1")


@dataclass(frozen=True, slots=True)
class BootstrapConfig:
    """Intervals by drawing patients with replacement."""

    samples: int = 1000
    """How often the patients are drawn; 0 leaves the intervals out."""

    confidence: float = 0.95
    """Share of the drawn values that the interval holds (percentile method)."""

    seed: int = 0
    """The same seed gives the same intervals."""

    def __post_init__(self) -> None:
        _require(self.samples >= 0, "bootstrap samples", self.samples, "at least 0")
        _require(0 < self.confidence < 1, "confidence", self.confidence, "between 0 and 1")
        _require(self.seed >= 0, "seed", self.seed, "at least 0")


def _require(fine: bool, name: str, value: float, range_text: str) -> None:
    if not fine:
        raise UsageError(f"{name} is {value}", next_step=f"give a number {range_text}")
