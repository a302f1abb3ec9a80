"""Settings of the engine and of what counts as a detection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from metaphase.errors import UsageError

MAX_SMOOTH_UM = 10.0
Precision = Literal["auto", "fast", "float32"]


@dataclass(frozen=True)
class EngineConfig:
    """How networks are computed; the defaults suit the machine at hand."""

    device: str = "auto"
    """`auto` (a GPU where there is one), `cpu`, `cuda` or `cuda:1`."""
    precision: Precision = "auto"
    """`auto`: probabilities within 1e-3 of float32; `fast`: single half precision on a GPU, about 1e-2;
    `float32`: all arithmetic in float32 (the CPU always does that)."""
    batch: int | None = None
    """Tiles computed at once on a GPU, by default as many as suit its memory; halved where that is short."""
    workers: int | None = None
    """Threads that compute on the CPU; by default one a core."""

    def __post_init__(self) -> None:
        if self.precision not in ("auto", "fast", "float32"):
            raise UsageError(
                f"there is no precision {self.precision!r}", next_step="give auto, fast or float32"
            )
        if min(self.batch or 1, self.workers or 1) < 1 or 0 in (self.batch, self.workers):
            raise UsageError(
                f"batch {self.batch} with {self.workers} workers cannot run",
                next_step="give 1 or more of each",
            )


@dataclass(frozen=True)
class PeakConfig:
    """Which points of a probability map become detections."""

    floor: float = 0.1
    """Lowest probability that is kept: below the threshold, so that it can be changed afterwards."""
    suppress_um: float = 25.0
    """Of two detections nearer than this, the less probable one goes (the paper's d, 100 px of 0.25 um)."""
    smooth_um: float = 0.0
    """Standard deviation of the Gaussian by which probabilities are averaged before maxima are taken: what a
    network says about places a little beside each other. 0, as in the paper, averages nothing."""
    max_peaks: int = 5_000_000
    """Where more local maxima than this reach the floor, the network or the floor is at fault: an error."""

    def __post_init__(self) -> None:
        if not 0 < self.floor < 1 or not self.suppress_um >= 0 or self.max_peaks < 1:
            raise UsageError(
                f"detections from probability {self.floor} on, {self.suppress_um} um apart, make no sense",
                next_step="give a floor between 0 and 1 and a distance of 0 um or more",
            )
        if not 0 <= self.smooth_um <= MAX_SMOOTH_UM:
            raise UsageError(
                f"smoothing by {self.smooth_um} um makes no sense",
                next_step=f"give 0 to {MAX_SMOOTH_UM:g} um; a mitosis has about 10",
            )
