"""Settings of the mitotic count, its grade and their uncertainty, in physical units."""

from __future__ import annotations

import math
from dataclasses import dataclass

from metaphase.errors import UsageError


@dataclass(frozen=True, slots=True)
class GradingConfig:
    """The hotspot, the grades, and how their uncertainty is drawn. The defaults are the paper's."""

    area_mm2: float = 2.0
    """Area of the circular hotspot."""

    step_um: float = 50.0
    """Distance between neighbouring positions of the hotspot."""

    percentile: float = 95.0
    """Which percentile of the counts at non-empty positions is the slide's count; 100 is their maximum."""

    threshold: float = 0.8
    """Detections at or above this probability count."""

    theta1: float = 6.0
    """Counts up to this are grade 1."""

    theta2: float = 20.0
    """Counts above `theta1` and up to this are grade 2, counts above it grade 3."""

    draws: int = 1000
    """Draws of the bootstrap; 0 leaves the uncertainty out."""

    threshold_spread: float = 0.5
    """Each draw moves the threshold by up to so much in log-odds: 0.5 around 0.8 is from 0.71 to 0.87."""

    confidence: float = 0.95
    """Share of the draws that the interval of the count holds."""

    seed: int = 0
    """The same seed gives the same draws."""

    cell_um: float = 100.0
    """Size of the cells of the density map, about: a whole number of pixels of the tissue mask is taken."""

    def __post_init__(self) -> None:
        for name in ("area_mm2", "step_um", "cell_um"):
            value = getattr(self, name)
            _require(math.isfinite(value) and value > 0, name, value, "above 0")
        _require(self.step_um <= self.radius_um, "step_um", self.step_um, "up to the hotspot's radius")
        _require(0 <= self.percentile <= 100, "percentile", self.percentile, "from 0 to 100")
        _require(0 <= self.threshold <= 1, "threshold", self.threshold, "from 0 to 1")
        _require(math.isfinite(self.theta1) and self.theta1 >= 0, "theta1", self.theta1, "at least 0")
        _require(self.theta2 >= self.theta1, "theta2", self.theta2, f"not below theta1 ({self.theta1:g})")
        _require(self.draws >= 0, "draws", self.draws, "at least 0")
        _require(self.threshold_spread >= 0, "threshold_spread", self.threshold_spread, "at least 0")
        _require(0 < self.confidence < 1, "confidence", self.confidence, "between 0 and 1")
        _require(self.seed >= 0, "seed", self.seed, "at least 0")

    @property
    def radius_um(self) -> float:
        """Radius of the hotspot."""
        return math.sqrt(self.area_mm2 * 1e6 / math.pi)


def _require(fine: bool, name: str, value: float, range_text: str) -> None:
    if not fine:
        raise UsageError(f"{name} is {value}", next_step=f"give a number {range_text}")
