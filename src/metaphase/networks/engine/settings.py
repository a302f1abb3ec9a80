"""Settings of the engine and of what counts as a detection, and what may go wrong: no torch is needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import Field, NonNegativeFloat, PositiveInt

from metaphase.base.errors import MetaphaseError, ModelError
from metaphase.base.provenance import decides
from metaphase.base.settings import InnerShare, settings
from metaphase.detections.table import PAPER_SUPPRESS_UM, PeakMethod
from metaphase.networks.cards import ModelCard

Network = TypeVar("Network")
MAX_SMOOTH_UM = 10.0
Smoothing = Annotated[float, Field(ge=0, le=MAX_SMOOTH_UM)]
"""Of probabilities, in micrometres; a mitosis has about 10."""
Precision = Literal["auto", "fast", "float32"]


@settings
class EngineConfig:
    """How networks are computed; the defaults suit the machine at hand."""

    device: str | None = field(default=None, metadata=decides())
    """cpu, cuda, cuda:N or mps (untested); by default an NVIDIA GPU if there is one."""
    precision: Precision = "auto"
    """`auto`: on a GPU numbers of 16 bits where probabilities stay within about 0.01 of float32, on a CPU a
    search in 8 bits, and float32 where an answer is near a threshold; `fast`: also within 0.1 on a GPU;
    `float32`: all arithmetic in float32."""
    exhaustive: bool = False
    """The second network sees all tissue, too: slow, for checks."""
    batch: PositiveInt | None = field(default=None, metadata=decides())
    """Tiles computed at once on a GPU, by default as many as suit its memory; halved where that is short."""
    workers: PositiveInt | None = field(default=None, metadata=decides())
    """Threads that compute on the CPU; by default one a core."""


@settings
class PeakConfig:
    """Which points of a probability map become detections."""

    floor: InnerShare = 0.1
    """Lowest probability that is kept: below the threshold, so that it can be changed afterwards."""
    suppress_um: NonNegativeFloat = PAPER_SUPPRESS_UM
    """Of two detections nearer than this, the less probable one goes (the paper's d, 100 px of 0.25 um)."""
    smooth_um: Smoothing = 0.0
    """Standard deviation of the Gaussian by which probabilities are averaged before maxima are taken: what a
    network says about positions a little beside each other. 0, as in the paper, averages nothing."""
    method: PeakMethod = "maxima"
    """`maxima`: local maxima from the floor on, placed between outputs. `components`, as in the paper: what
    reaches the floor and touches is one detection, in its middle, with its highest probability."""
    max_peaks: PositiveInt = field(default=5_000_000, metadata=decides())
    """Where more positions than this reach the floor, the network or the floor is at fault: an error."""


class DeviceError(MetaphaseError):
    """A device cannot do the work."""


def not_finite() -> ModelError:
    """A network gave NaN or infinity."""
    return ModelError(
        "the network gives NaN or infinite probabilities",
        next_step="try --set precision=float32; if that fails too, train or fetch the model again",
    )


@dataclass(frozen=True)
class Second(Generic[Network]):
    """A network to ask about what a first one points to, from which probability on."""

    network: Network
    floor: float
    """As the first network says it, before calibration."""
    card: ModelCard | None = None
    answered_from: float | None = None
    """Smoothed mean of both, not calibrated, from which on views give the final answer; None: they do not."""
    points: tuple[float, ...] = ()
    """Thresholds of the operating points: what is near one is answered in float32."""
