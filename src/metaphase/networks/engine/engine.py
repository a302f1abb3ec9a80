"""The dense engine: one network or an ensemble over tiles of pixels, on the CPU or a GPU."""

from __future__ import annotations

import copy
import importlib.util
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from mmap import mmap
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from metaphase.base.arrays import RGB, Floats32
from metaphase.base.parallel import ordered_map
from metaphase.networks.architectures import InvertedBlock, Subcells
from metaphase.networks.cards import OUTPUT_STRIDE_PX, Calibration
from metaphase.networks.checkpoints import choose_device
from metaphase.networks.engine.arithmetic import TOLERANCE, PreparedNetwork, fastest, largest_difference
from metaphase.networks.engine.layers import (
    BLOCK_OUTPUTS,
    CELL_PX,
    ForeignDetector,
    OtherKindError,
    PatchNetwork,
    PlainDetector,
    PortableDetector,
    first_line,
    fold_detector,
    is_ours,
    other_kind,
    windows_px,
)
from metaphase.networks.engine.peaks import collect, smoothed
from metaphase.networks.engine.positions import BORDER, Peaks
from metaphase.networks.engine.searching import StartedTiles, TileEngine, check_tiles
from metaphase.networks.engine.second import Windows
from metaphase.networks.engine.settings import (
    DeviceError,
    EngineConfig,
    PeakConfig,
    Second,
    not_finite,
)

CPU_TILE_OUTPUTS = 8 * BLOCK_OUTPUTS
"""Outputs a side of a tile: whole blocks."""
GPU_OUTPUTS, GPU_TILE_BLOCKS = 50, 10
"""Blocks of 50 outputs read 63 features a side: 64 with one of padding, which is what matrix units like."""
TILE_BYTES, BATCH_SHARE, MAX_BATCH = 1.5e9, 0.5, 16
"""Memory that a tile takes on a GPU, about; the share of the free memory to use; tiles at once at most."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Engine(TileEngine):
    """Applies PyTorch's networks to tiles."""

    smoothed, collect = staticmethod(smoothed), staticmethod(collect)

    def __init__(
        self,
        networks: Sequence[nn.Sequential],
        config: EngineConfig | None = None,
        second: Second[nn.Sequential] | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        super().__init__(networks, config, second, calibration)
        self.device = choose_device(self.config.device)
        if self.device.type == "cpu" and self.config.workers is not None:
            torch.set_num_threads(self.config.workers)
        self._combined = mean_logit if self.everywhere else combine
        with torch.inference_mode(), self.active():
            prepared = [self._prepared(network) for network in self.networks]
            self._detectors = [detector for detector, _ in prepared]
            if second is not None and not self.everywhere:
                if isinstance(second.network[-1], Subcells):
                    raise other_kind()  # in a window its cells lie elsewhere than in a tile
                prepared.append(self._prepared(second.network))
                self.second = Second(prepared[-1][0], second.floor)
            self.arithmetic = " and ".join(dict.fromkeys(words for _, words in prepared))
            if self.device.type == "mps":
                self._compare_with_cpu([*networks, *([] if second is None else [second.network])])
        self._lay_tiles()

    def _lay_tiles(self) -> None:
        """Say how tiles have to be cut, and how many are computed at once.

        Large batches leave the processor time for decoding: starting kernels and decoding share one lock.
        """
        on_cpu, on_gpu = self.device.type == "cpu", self.device.type == "cuda"
        tile_outputs = CPU_TILE_OUTPUTS if on_cpu else GPU_OUTPUTS * GPU_TILE_BLOCKS
        self.tile_px = OUTPUT_STRIDE_PX * (tile_outputs - 2 * BORDER)  # whole blocks with a border of one
        self.windows_px = windows_px(self.device)
        answers_by_cells = any(
            isinstance(network, nn.Sequential) and isinstance(network[-1], Subcells)
            for network in self.networks
        )
        self.step_px = CELL_PX if answers_by_cells else OUTPUT_STRIDE_PX
        self._classifier = next(
            (detector for detector in self._detectors if isinstance(detector, PatchNetwork)), None
        )
        if self._classifier is not None:
            self.step_px, self.margin = self._classifier.stride_px, self._classifier.margin
        free = torch.cuda.mem_get_info(self.device)[0] if on_gpu else 0
        suits = int(np.clip(free * BATCH_SHARE / (TILE_BYTES * len(self._detectors)), 1, MAX_BATCH))
        self.batch = 1 if on_cpu else self.config.batch or suits

    def _prepared(self, network: nn.Module) -> tuple[PreparedNetwork, str]:
        """A network in the form that runs fastest here, and the arithmetic in words."""
        if isinstance(network, PatchNetwork):
            return copy.deepcopy(network).to(self.device), "float32, window by window"
        if isinstance(network, nn.Sequential) and is_ours(network):
            for form in (self._wide, self._plain):
                with suppress(OtherKindError):
                    return form(network)
        return ForeignDetector(network, self.device), "float32"

    def _compare_with_cpu(self, networks: Sequence[nn.Sequential]) -> None:
        """Refuse a device that computes something else than the CPU."""
        second = [] if self.second is None else [self.second.network]
        for detector, network in zip([*self._detectors, *second], networks, strict=True):
            (exact,) = Engine([network], EngineConfig(device="cpu"))._detectors
            difference = largest_difference(detector, exact, self.device, torch.device("cpu"))
            if not difference <= TOLERANCE["auto"]:
                raise DeviceError(
                    f"the device {self.device} differs from the CPU by {difference:.2g} in logits",
                    next_step="use --device cpu",
                )
        _log.warning("the device %s agrees with the CPU here, but was never tested", self.device)

    def _wide(self, network: nn.Sequential) -> tuple[PreparedNetwork, str]:
        """A network with a wide convolution, the paper's."""
        folded, precision = fold_detector(network), self.config.precision
        exact = PortableDetector(folded, self.device)
        if not self._has_kernels:
            return exact, "float32"
        from metaphase.networks.engine.gpu import GpuDetector  # kernels made for the paper's detector

        planes, words = (1, "float16") if precision == "fast" else (2, "float16 pairs")
        ways = [(words, partial(GpuDetector, folded, self.device, GPU_OUTPUTS, planes=planes))]
        return fastest(ways, exact, self.device, precision)

    def _plain(self, network: nn.Sequential) -> tuple[PreparedNetwork, str]:
        """A network of small convolutions."""
        exact = PlainDetector(network, self.device, torch.float32)
        ways: list[tuple[str, Callable[[], PreparedNetwork]]] = []
        if self.device.type == "cuda":
            ways = [
                ("float16", partial(PlainDetector, network, self.device, torch.float16)),
                ("TensorFloat-32", partial(PlainDetector, network, self.device, torch.float32, rounded=True)),
            ]
        if self._has_kernels and any(isinstance(layer, InvertedBlock) for layer in network):
            from metaphase.networks.engine.cell_gpu import LiteDetector  # kernels made for its blocks

            ways.insert(0, ("float16", partial(LiteDetector, network, self.device)))
        return fastest(ways, exact, self.device, self.config.precision)

    @property
    def _has_kernels(self) -> bool:
        """Whether kernels of our own run here."""
        return self.device.type == "cuda" and importlib.util.find_spec("triton") is not None

    def active(self) -> AbstractContextManager[object]:
        """Makes the engine's GPU the current one, as kernels and events expect."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def staged(self, batches: Iterable[tuple[T, list[RGB]]]) -> Iterable[tuple[T, Tensor]]:
        """Batches whose pixels are tensors; for a GPU they are sent ahead, beside its work."""
        if self.device.type != "cuda":
            return map(_stacked, batches)  # tensors that one thread makes and another frees pile up here
        send = partial(_sent, device=self.device, stream=torch.cuda.Stream(self.device))
        return ordered_map(send, batches, threads=1, ahead=1)

    def start(self, pixels: Tensor, config: PeakConfig, sigma: float) -> StartedBatch:
        """Tiles on their way through the device, smoothed by `sigma` outputs."""
        return StartedBatch(self, pixels, config, sigma)

    def values(self, array: Any) -> Tensor:
        """An array as a tensor."""
        return torch.from_numpy(np.array(array))

    def probabilities(self, logits: Tensor) -> Floats32:
        """Calibrated probabilities of logits."""
        check_finite(logits)
        return torch.sigmoid(self.calibration(logits)).cpu().numpy()

    @torch.inference_mode()
    def window_logits(self, windows: RGB) -> Floats32:
        """Logits (n, rows, columns) of uint8 windows (n, side, side, 3), by all networks."""
        count = len(windows)
        if self.device.type == "cuda":
            windows = windows[np.minimum(np.arange(usual_count(count)), count - 1)]
        image = torch.from_numpy(np.ascontiguousarray(windows)).to(self.device)
        with self.active():
            if self._classifier is not None:
                logits = self._classifier(image.permute(0, 3, 1, 2))[:, None, None]
            else:
                logits = self._combined([detector.logits(image) for detector in self._detectors])
            if self.second is not None:
                logits = mean_logit([logits, self.second.network.logits(image)])
        check_finite(logits)
        answers: Floats32 = logits[:count].float().cpu().numpy()
        return answers

    @torch.inference_mode()
    def logits(self, tiles: Tensor) -> Tensor:
        """Logits (tiles, rows, columns) on the engine's device; a batch too large for it is halved."""
        check_tiles(tiles)
        try:
            with self.active():
                image = tiles.to(self.device, non_blocking=True)
                return self._combined([detector.logits(image) for detector in self._detectors])
        except torch.OutOfMemoryError as error:
            if len(tiles) == 1:
                raise DeviceError(
                    f"the device {self.device} has too little memory for one tile",
                    next_step="close other programs on it, or use --device cpu",
                ) from error
            torch.cuda.empty_cache()
            return torch.cat([self.logits(half) for half in tiles.split((len(tiles) + 1) // 2)])
        except RuntimeError as error:
            if self.device.type == "cpu":
                raise
            raise _failed(self.device, error) from error


class StartedBatch(StartedTiles):
    """Tiles on their way through the device."""

    engine: Engine

    def __init__(self, engine: Engine, pixels: Tensor, config: PeakConfig, sigma: float) -> None:
        super().__init__(engine, pixels, config, sigma)
        self._cuda = engine.device.type == "cuda"
        with torch.inference_mode(), engine.active():
            self.pixels = pixels.to(engine.device, non_blocking=True)
            self.search(engine.logits(self.pixels))
            if self._cuda:
                self._done = torch.cuda.Event()
                self._done.record()

    def results(self, *, maps: bool) -> tuple[Peaks, Floats32 | None]:
        """Wait for the batch, and fetch its places while the device works on the next one."""
        if not self._cuda:
            return self._fetch(maps)
        with self.engine.active(), torch.cuda.stream(stream := torch.cuda.Stream()):
            stream.wait_event(self._done)
            fetched = self._fetch(maps)
            stream.synchronize()
        return fetched

    @torch.inference_mode()
    def _fetch(self, maps: bool) -> tuple[Peaks, Floats32 | None]:
        check_finite(self.own)
        return self.peaks(), self.engine.probabilities(self.own) if maps else None

    def answers(self, windows: Windows) -> tuple[Floats32, Floats32]:
        """Logits of both networks around positions."""
        second = self.engine.second
        assert second is not None
        parts = []
        for some in windows.split(max(1, self.engine.windows_px // windows.pixels**2)):
            count = len(some.tile)
            shown = some.filled(usual_count(count)) if self._cuda else some
            seen = _cut(self.pixels, shown, OUTPUT_STRIDE_PX, some.pixels)
            parts.append([_cut(self.raw, some, 1, some.outputs), second.network.logits(seen)[:count]])
        first, re_check = (torch.cat(logits).float().cpu().numpy() for logits in zip(*parts, strict=True))
        return first, re_check


def usual_count(count: int) -> int:
    """A few more, so that numbers of windows come again: for each one new to it cuDNN looks for a way first.

    >>> [usual_count(count) for count in (1, 5, 9, 17, 33, 100, 805)]
    [1, 5, 10, 20, 40, 112, 896]
    """
    step = 1 << max(0, count.bit_length() - 3)
    return -(-count // step) * step


def _cut(values: Tensor, windows: Windows, step: int, side: int) -> Tensor:
    """As `second.cut`, where the values lie."""
    positions = torch.from_numpy(np.column_stack([windows.tile, step * windows.corner])).to(values.device)
    steps = torch.arange(side, device=values.device)
    rows, columns = (positions[:, axis, None] + steps for axis in (1, 2))
    return values[positions[:, 0, None, None], rows[:, :, None], columns[:, None, :]]


def _stacked(batch: tuple[T, list[RGB]]) -> tuple[T, Tensor]:
    """Pixels (tiles, rows, columns, 3) of a batch."""
    tiles, pixels = batch
    return tiles, torch.from_numpy(np.stack(pixels))


def _sent(batch: tuple[T, list[RGB]], device: torch.device, stream: torch.cuda.Stream) -> tuple[T, Tensor]:
    """As `_stacked`, on a GPU; straight from where the pixels lie."""
    tiles, pixels = batch
    try:
        with torch.cuda.device(device):
            used_by = torch.cuda.current_stream()
            with torch.cuda.stream(stream):
                out = torch.empty((len(pixels), *pixels[0].shape), dtype=torch.uint8, device=device)
                for target, source in zip(out, pixels, strict=True):
                    writable = source if source.flags.writeable else source.copy()
                    target.copy_(torch.from_numpy(writable), non_blocking=True)
                stream.synchronize()
            out.record_stream(used_by)
    except RuntimeError as error:
        raise _failed(device, error) from error
    return tiles, out


PORTABLE = 1
"""For all GPUs of the machine."""


def page_locked(memory: mmap) -> Callable[[], object]:
    """Memory from which a GPU fetches by itself, where the system allows that; and how to undo it."""
    lock, position = torch.cuda.cudart(), np.frombuffer(memory, np.uint8)
    if lock.cudaHostRegister(position.ctypes.data, position.nbytes, PORTABLE) != lock.cudaError.success:
        return lambda: None
    return partial(lock.cudaHostUnregister, position.ctypes.data)


def combine(logits: list[Tensor]) -> Tensor:
    """The logit of the mean probability, without rounding certain ones to 1."""
    if len(logits) == 1:
        return logits[0]
    stacked = torch.stack(logits)
    yes = torch.logsumexp(torch.nn.functional.logsigmoid(stacked), 0)
    no = torch.logsumexp(torch.nn.functional.logsigmoid(-stacked), 0)
    return yes - no


def mean_logit(logits: list[Tensor]) -> Tensor:
    """As a re-check combines two networks."""
    return torch.stack(logits).mean(0)


def check_finite(logits: Tensor) -> None:
    """Raise `ModelError` where a network gave NaN or infinity."""
    if not bool(torch.isfinite(logits).all()):
        raise not_finite()


def _failed(device: torch.device, error: Exception) -> DeviceError:
    return DeviceError(
        f"the device {device} failed ({first_line(error)})",
        next_step="run again, finished tiles and slides are kept; or use --device cpu",
    )
