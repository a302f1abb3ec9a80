"""The dense engine: one network or an ensemble over tiles of pixels, on the CPU or a GPU."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from metaphase.base.arrays import RGB, Floats32
from metaphase.base.errors import MetaphaseError, ModelError, UsageError
from metaphase.base.parallel import available_cores
from metaphase.base.provenance import decides
from metaphase.detections.table import PAPER_SUPPRESS_UM
from metaphase.networks.cards import OUTPUT_STRIDE_PX, RECEPTIVE_PX
from metaphase.networks.checkpoints import choose_device
from metaphase.networks.engine.cpu import CpuDetector, PortableDetector, Workers
from metaphase.networks.engine.layers import (
    CELL_PX,
    CellDetector,
    FoldedDetector,
    PlainDetector,
    fold_detector,
    has_wide,
)
from metaphase.networks.engine.peaks import BORDER
from metaphase.networks.engine.second import MARGIN, Second, SecondLook

# ---- settings of the engine and of what counts as a detection ----

MAX_SMOOTH_UM = 10.0
Precision = Literal["auto", "fast", "float32"]
PeakMethod = Literal["maxima", "components"]


@dataclass(frozen=True)
class EngineConfig:
    """How networks are computed; the defaults suit the machine at hand."""

    device: str | None = field(default=None, metadata=decides())
    """`cpu`, `cuda` or `cuda:1`; None is a GPU where there is one."""
    precision: Precision = "auto"
    """`auto`: probabilities within 1e-3 of float32; `fast`: half precision, about 1e-2, on a GPU and, for a
    `swift` detector, on a CPU; `float32`: all arithmetic in float32."""
    batch: int | None = field(default=None, metadata=decides())
    """Tiles computed at once on a GPU, by default as many as suit its memory; halved where that is short."""
    workers: int | None = field(default=None, metadata=decides())
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
    suppress_um: float = PAPER_SUPPRESS_UM
    """Of two detections nearer than this, the less probable one goes (the paper's d, 100 px of 0.25 um)."""
    smooth_um: float = 0.0
    """Standard deviation of the Gaussian by which probabilities are averaged before maxima are taken: what a
    network says about places a little beside each other. 0, as in the paper, averages nothing."""
    method: PeakMethod = "maxima"
    """`maxima`: local maxima from the floor on, placed between outputs. `components`, as in the paper: what
    reaches the floor and touches is one detection, in its middle, with its highest probability."""
    max_peaks: int = field(default=5_000_000, metadata=decides())
    """Where more places than this reach the floor, the network or the floor is at fault: an error."""

    def __post_init__(self) -> None:
        if not 0 < self.floor < 1 or not self.suppress_um >= 0 or self.max_peaks < 1:
            raise UsageError(
                f"detections from probability {self.floor} on, {self.suppress_um} um apart, make no sense",
                next_step="give a floor between 0 and 1 and a distance of 0 um or more",
            )
        if self.method not in ("maxima", "components"):
            raise UsageError(
                f"detections by {self.method!r} are unknown", next_step="give maxima or components"
            )
        if not 0 <= self.smooth_um <= MAX_SMOOTH_UM:
            raise UsageError(
                f"smoothing by {self.smooth_um} um makes no sense",
                next_step=f"give 0 to {MAX_SMOOTH_UM:g} um; a mitosis has about 10",
            )


# ---- the dense engine ----

CPU_OUTPUTS = (32, 24, 16)
"""Outputs a side of a Fourier block on the CPU: the first whose spectra fit `SPECTRA_BYTES` is taken."""
SPECTRA_BYTES = 900_000_000
CPU_TILE_OUTPUTS = 320
GPU_OUTPUTS, GPU_TILE_BLOCKS = 50, 10
"""Blocks of 50 outputs read 63 features a side: 64 with one of padding, which is what matrix units like."""
TILE_BYTES, BATCH_SHARE, MAX_BATCH = 1.5e9, 0.5, 16
"""Memory that a tile takes on a GPU, about; the share of the free memory to use; tiles at once at most."""
TOLERANCE = 0.02
"""Largest difference in logits to plain float32 with which faster arithmetic is used (`fast`: 20 times)."""

_log = logging.getLogger(__name__)


class DeviceError(MetaphaseError):
    """A device cannot do the work."""


class Detector(Protocol):
    """A prepared network."""

    def logits(self, image: Tensor) -> Tensor:
        """Logits (tiles, rows, columns) of uint8 pixels (tiles, rows, columns, 3) on the device."""


class Engine:
    """Applies detectors to tiles; several networks give the mean of their probabilities.

    With a `second` network, what they point to is looked at again: the logits' mean decides there.
    Pixels are RGB at the networks' resolution. Output (i, j) of a tile sees 97 x 97 px from (4 i, 4 j) on.
    """

    def __init__(
        self,
        networks: Sequence[nn.Sequential],
        config: EngineConfig | None = None,
        second: Second | None = None,
    ) -> None:
        if not networks:
            raise UsageError("an engine needs at least one network", next_step="name a model")
        self.config = config or EngineConfig()
        self.device = choose_device(self.config.device)
        with torch.inference_mode(), self.active():
            self._detectors, self.arithmetic = self._prepare(networks)
            half = self.device.type == "cuda" and self.config.precision == "fast"
            dtype = torch.float16 if half else torch.float32
            self.second = None if second is None else SecondLook(second, self.device, dtype)

    def _prepare(self, networks: Sequence[nn.Sequential]) -> tuple[list[Detector], str]:
        """Each network in the form that runs fastest here, and the arithmetic in words."""
        wide = [fold_detector(network) for network in networks if has_wide(network)]
        prepared: list[tuple[Detector, str]]
        if self.device.type == "cpu":
            workers = Workers(self.config.workers or available_cores())
            outputs = cpu_block_outputs(wide)
            prepared = [(CpuDetector(folded, outputs, workers), "float32") for folded in wide]
        else:
            prepared = [self._on_gpu(folded) for folded in wide]
        prepared += [self._of_cells(network) for network in networks if not has_wide(network)]
        arithmetic = " and ".join(dict.fromkeys(words for _, words in prepared))
        return [detector for detector, _ in prepared], arithmetic

    def _on_gpu(self, folded: FoldedDetector) -> tuple[Detector, str]:
        """A network's fastest form with its arithmetic in words."""
        exact = PortableDetector(folded, self.device, GPU_OUTPUTS)
        if folded.chain and importlib.util.find_spec("triton") is None:
            return exact, "float32"
        make = self._fused if folded.chain else self._plain
        return self._rounded(partial(make, folded), exact)

    def _of_cells(self, network: nn.Sequential) -> tuple[Detector, str]:
        """The form of a network without a wide convolution; PyTorch's own threads share it on a CPU."""
        exact = CellDetector(network, self.device, torch.float32)
        return self._rounded(partial(self._cells, network), exact)

    def _rounded(self, make: Callable[[bool], tuple[Detector, str]], exact: Detector) -> tuple[Detector, str]:
        """Faster arithmetic where it is wanted, runs here and agrees with plain float32."""
        fast = self.config.precision == "fast"
        if self.config.precision == "float32" or not (self.rounds or fast):
            return exact, "float32"
        try:
            detector, words = make(fast)
            difference = self._difference(detector, exact)
        except Exception as error:  # noqa: BLE001 -- a compiler, a driver or a small GPU may refuse in many ways
            _log.warning("the fast arithmetic does not run here (%s); using plain float32", error)
            return exact, "float32"
        if not difference <= TOLERANCE * (20 if fast else 1):
            _log.warning("%s on this device is off by %.2g; using plain float32", words, difference)
            return exact, "float32"
        return detector, words

    def _fused(self, folded: FoldedDetector, fast: bool) -> tuple[Detector, str]:
        """The kernels made for the paper's detector."""
        from metaphase.networks.engine.gpu import GpuDetector

        detector = GpuDetector(folded, self.device, GPU_OUTPUTS, planes=1 if fast else 2)
        return detector, "float16" if fast else "float16 pairs"

    def _plain(self, folded: FoldedDetector, fast: bool) -> tuple[Detector, str]:
        """PyTorch's convolutions, for a detector with residual blocks."""
        detector = PlainDetector(folded, self.device, torch.float16 if fast else torch.float32)
        return detector, "float16" if fast else "TensorFloat-32"

    def _cells(self, network: nn.Sequential, fast: bool) -> tuple[Detector, str]:
        """PyTorch's convolutions, for a detector of cells; half precision is bfloat16 on a CPU."""
        half, words = (
            (torch.float16, "float16") if self.device.type == "cuda" else (torch.bfloat16, "bfloat16")
        )
        detector = CellDetector(network, self.device, half if fast else torch.float32, rounded=True)
        return detector, words if fast else "TensorFloat-32"

    def _difference(self, detector: Detector, exact: Detector) -> float:
        """Largest difference in logits on a small image."""
        side = RECEPTIVE_PX + OUTPUT_STRIDE_PX * GPU_OUTPUTS
        generator = torch.Generator().manual_seed(0)
        image = torch.randint(100, 256, (1, side, side, 3), dtype=torch.uint8, generator=generator)
        image = image.to(self.device)
        return float((detector.logits(image) - exact.logits(image)).abs().max())

    @property
    def rounds(self) -> bool:
        """Whether the device has arithmetic between half precision and float32."""
        return self.device.type == "cuda"

    def active(self) -> AbstractContextManager[object]:
        """Makes the engine's GPU the current one, as kernels and events expect."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    @property
    def step_px(self) -> int:
        """Tiles whose sides are multiples of this join without a seam: an output, or a cell of outputs."""
        cells = any(isinstance(detector, CellDetector) for detector in self._detectors)
        return CELL_PX if cells else OUTPUT_STRIDE_PX

    @property
    def margin(self) -> int:
        """Outputs that tiles need at each side beyond what their maxima are compared with."""
        return 0 if self.second is None else MARGIN

    @property
    def tile_outputs(self) -> int:
        """Outputs a side of the tiles that run fastest."""
        return CPU_TILE_OUTPUTS if self.device.type == "cpu" else GPU_OUTPUTS * GPU_TILE_BLOCKS

    @property
    def tile_px(self) -> int:
        """Side of a tile's core that runs fastest: its outputs and a border of one fill whole blocks."""
        return OUTPUT_STRIDE_PX * (self.tile_outputs - 2 * BORDER)

    @cached_property
    def batch(self) -> int:
        """Tiles computed at once: one on the CPU, on a GPU as many as asked for or as suit its free memory.

        Large batches leave the processor time for decoding: starting kernels and decoding share one lock.
        """
        if self.device.type == "cpu":
            return 1
        if self.config.batch is not None:
            return self.config.batch
        free = torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else 0
        return int(np.clip(free * BATCH_SHARE / (TILE_BYTES * len(self._detectors)), 1, MAX_BATCH))

    def probability_map(self, tile: RGB) -> Floats32:
        """Probabilities (rows, columns) of a uint8 tile (height, width, 3) of 97 px or more a side."""
        logits = self.logits(torch.from_numpy(np.array(tile))[None])
        check_finite(logits)
        return torch.sigmoid(logits[0]).cpu().numpy()

    @torch.inference_mode()
    def logits(self, tiles: Tensor) -> Tensor:
        """Logits (tiles, rows, columns) on the engine's device; a batch too large for it is halved."""
        if tiles.ndim != 4 or tiles.shape[3] != 3 or min(tiles.shape[1:3]) < RECEPTIVE_PX:
            raise UsageError(
                f"tiles of shape {tuple(tiles.shape)} cannot be computed",
                next_step=f"give RGB tiles of {RECEPTIVE_PX} px or more a side",
            )
        try:
            with self.active():
                image = tiles.to(self.device, non_blocking=True)
                return combine([detector.logits(image) for detector in self._detectors])
        except torch.OutOfMemoryError as error:
            return self._halved(tiles, error)
        except RuntimeError as error:
            if self.device.type == "cpu":
                raise
            raise DeviceError(
                f"the device {self.device} failed ({_first_line(error)})",
                next_step="run again, finished tiles and slides are kept; or use --device cpu",
            ) from error

    def _halved(self, tiles: Tensor, error: Exception) -> Tensor:
        if len(tiles) == 1:
            raise DeviceError(
                f"the device {self.device} has too little memory for one tile",
                next_step="close other programs on it, or use --device cpu",
            ) from error
        torch.cuda.empty_cache()
        middle = len(tiles) // 2
        return torch.cat([self.logits(tiles[:middle]), self.logits(tiles[middle:])])


def cpu_block_outputs(folded: Sequence[FoldedDetector]) -> int:
    """Outputs a side of a block: larger ones are faster, and their spectra need more memory."""
    for outputs in CPU_OUTPUTS:
        total = 0
        for detector in folded:
            filters, channels, kernel, _ = detector.wide.weight.shape
            size = outputs + kernel - 1
            total += size * (size // 2 + 1) * channels * filters * 3 * 4
        if total <= SPECTRA_BYTES:
            return outputs
    return CPU_OUTPUTS[-1]


def combine(logits: list[Tensor]) -> Tensor:
    """The logit of the mean probability, without rounding certain ones to 1."""
    if len(logits) == 1:
        return logits[0]
    stacked = torch.stack(logits)
    yes = torch.logsumexp(torch.nn.functional.logsigmoid(stacked), 0)
    no = torch.logsumexp(torch.nn.functional.logsigmoid(-stacked), 0)
    return yes - no


def check_finite(logits: Tensor) -> None:
    """Raise `ModelError` where a network gave NaN or infinity."""
    if not bool(torch.isfinite(logits).all()):
        raise ModelError(
            "the network gives NaN or infinite probabilities",
            next_step="try --precision float32; if that fails too, train or fetch the model again",
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
