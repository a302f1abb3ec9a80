"""The engine by ONNX Runtime: exported detectors over tiles of pixels, without torch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy

from metaphase.base.arrays import RGB, Floats32
from metaphase.base.errors import ModelError, UsageError
from metaphase.base.foreign import described, parsing, raised
from metaphase.base.parallel import available_cores
from metaphase.networks.cards import (
    OUTPUT_STRIDE_PX,
    Calibration,
    ModelCard,
    outputs_along,
    parse_card,
    vouched_bytes,
)
from metaphase.networks.engine.arithmetic import TRIED_PX, tissue_like
from metaphase.networks.engine.positions import BORDER, Peaks, collect, smoothed
from metaphase.networks.engine.searching import StartedTiles, TileEngine, check_tiles
from metaphase.networks.engine.second import Windows, cut, view_logits
from metaphase.networks.engine.settings import (
    DeviceError,
    EngineConfig,
    PeakConfig,
    Second,
    not_finite,
)

PIXELS, PROBABILITY, LOGIT = "pixels", "probability", "logit"
"""Input and outputs of a graph."""
TILE_OUTPUTS, QUICK_OUTPUTS = 240, 480
"""Outputs a side of a tile: features of larger ones take more memory and no less time; those of 8 bits take
a quarter of it, and less of larger tiles overlaps."""
STEP_PX = 2 * OUTPUT_STRIDE_PX
"""Tiles join without a seam, whatever the detector's cells."""
WINDOWS_PX = 1_000_000
"""Pixels of windows that a re-check sees at once."""
LONGEST_S = 600.0
"""A tile takes seconds; a graph that takes longer than this is given up."""
MOST_BYTES = 2 << 30
"""Memory for the features of tiles; ours need a fifth."""
QUICK_WORDS = "8 bits, and float32 near thresholds (ONNX Runtime)"
NEAR_POINT = 0.06
"""Final answers in 8 bits that are nearer to a threshold than this are given again in float32."""
TRIED_SIGMA, TRIED_TIMES = 1.75, 3.0
"""Smoothing of the comparison at the start, and how much larger than stated an error in it may be: it is on
what only looks like tissue."""
PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
Pixels = npt.NDArray[np.uint8]
T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OnnxNetwork:
    """An exported detector: the bytes of its graph, which its card vouches for, and their checksum."""

    path: Path
    data: bytes
    sha256: str
    quick: Quick | None = None


@dataclass(frozen=True)
class Quick:
    """A detector's form in 8 bits, and by how many smoothed logits it may say less where something is."""

    data: bytes
    error: float


def load_onnx(path: str | Path) -> tuple[OnnxNetwork, ModelCard]:
    """The graph and its card."""
    path = Path(path).with_suffix(".onnx")
    card = parse_card(path.with_suffix(".json"))
    data = vouched_bytes(path, card.graph_sha256, "graph is")
    quick = None
    if card.eight_bits is not None:
        beside = vouched_bytes(quick_path(path), card.eight_bits.graph_sha256, "graph in 8 bits is")
        quick = Quick(beside, card.eight_bits.error)
    with parsing(path, "not a graph that runs", next_step="export the model again", error=ModelError):
        for graph in (data, b"" if quick is None else quick.data):
            _refuse_programs(graph)
    return OnnxNetwork(path, data, card.graph_sha256, quick), card


_GRAPH, _FUNCTIONS, _NODE, _ATTRIBUTE, _SUBGRAPHS = 7, 25, 1, 5, (6, 11)
"""Fields of ONNX's messages: of a model, of its graph, of a node, and of its attribute."""


def _refuse_programs(model: bytes) -> None:
    """Refuse loops and branches, which are nodes with graphs inside, and functions: they may never end."""
    if list(_fields([model], _FUNCTIONS)):
        raise ValueError("it has functions of its own, and only plain operators are run")
    nodes = _fields(_fields([model], _GRAPH), _NODE)
    if list(_fields(_fields(nodes, _ATTRIBUTE), *_SUBGRAPHS)):
        raise ValueError("it has a loop or a branch, and only plain operators are run")


def _fields(messages: Iterable[bytes], *numbers: int) -> Iterator[bytes]:
    """Contents of some fields of messages of protocol buffers."""
    from google.protobuf.empty_pb2 import Empty  # a dependency of ONNX Runtime
    from google.protobuf.unknown_fields import UnknownFieldSet

    for message in messages:
        fields = UnknownFieldSet(Empty.FromString(message))
        yield from (field.data for field in fields if field.field_number in numbers)


def onnx_device(device: str | None) -> str:
    """The device of this name; a GPU where ONNX Runtime has one and none is named."""
    there = _runtime().get_available_providers()
    kind = device.partition(":")[0] if device else ("cuda" if PROVIDERS["cuda"] in there else "cpu")
    if kind not in PROVIDERS:
        raise UsageError(f"the device {device!r} is not supported", next_step="give cpu, cuda or cuda:N")
    if PROVIDERS[kind] not in there:
        raise UsageError(
            f"ONNX Runtime does not support the device {device} here",
            next_step="use --device cpu, or install onnxruntime-gpu in place of onnxruntime",
        )
    return device or kind


def _runtime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError(
            "an .onnx model needs the package onnxruntime", next_step="pip install 'metaphase[light]'"
        ) from error
    return onnxruntime


def own_graph(graph: bytes, outputs: Sequence[str]) -> Callable[[Pixels], list[Floats32]]:
    """What gives these outputs of a graph of our own for pixels (n, rows, columns, 3), on the CPU."""
    session = _runtime().InferenceSession(graph, providers=[PROVIDERS["cpu"]])
    return lambda pixels: session.run(outputs, {PIXELS: pixels})


def quick_path(path: Path) -> Path:
    """Where the form in 8 bits of an exported graph lies."""
    return path.with_suffix(".8bit.onnx")


@lru_cache(1)
def _bound_memory() -> None:
    """Let no graph take more memory of this process than any of ours needs many times over."""
    runtime = _runtime()
    kinds = runtime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, runtime.OrtMemType.DEFAULT
    memory = runtime.OrtMemoryInfo("Cpu", kinds[0], 0, kinds[1])
    arena = runtime.OrtArenaCfg({"max_mem": raised(MOST_BYTES), "arena_extend_strategy": 1})
    runtime.create_and_register_allocator(memory, arena)


class OnnxEngine(TileEngine):
    """Applies exported detectors to tiles."""

    smoothed, collect = staticmethod(smoothed), staticmethod(collect)
    step_px, windows_px = STEP_PX, WINDOWS_PX
    quick: tuple[Any, Any] | None = None
    """Sessions of both networks in 8 bits."""

    def __init__(
        self,
        networks: Sequence[OnnxNetwork],
        config: EngineConfig | None = None,
        second: Second[OnnxNetwork] | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        super().__init__(networks, config, second, calibration)
        self.device = onnx_device(self.config.device)
        self.combine_logits = mean_logit if self.everywhere else combine
        self._sessions = [self._session(network) for network in self.networks]
        if second is not None and not self.everywhere:
            self.second = replace(second, network=self._session(second.network))
            if self.config.precision != "float32" and self.device == "cpu" and len(networks) == 1:
                self._make_quick(networks[0], second)
        self.arithmetic = "float32 (ONNX Runtime)" if self.quick is None else QUICK_WORDS
        self.tile_px = OUTPUT_STRIDE_PX * (
            (TILE_OUTPUTS if self.quick is None else QUICK_OUTPUTS) - 2 * BORDER
        )
        self.batch = 1 if self.device == "cpu" else self.config.batch or 1

    def _make_quick(self, first: OnnxNetwork, second: Second[OnnxNetwork]) -> None:
        """Search in 8 bits from now on, where both networks have such a form and it is right on this machine.

        The floor of the first is lowered by what 8 bits may take from it.
        """
        assert self.second is not None
        forms = first.quick, second.network.quick
        if forms[0] is None or forms[1] is None:
            _log.info("%s has no form in 8 bits: it searches in float32", first.path.stem)
            return
        if second.answered_from is None:
            _log.info("%s gives no final answers: it searches in float32", first.path.stem)
            return
        both = [self._session(replace(first, data=each.data)) for each in forms if each is not None]
        picture = tissue_like(TRIED_PX)[None]
        for mine, exact, form in zip(both, (self._sessions[0], self.second.network), forms, strict=True):
            smooth = (smoothed(run_graph(each, picture), TRIED_SIGMA) for each in (mine, exact))
            difference = float(np.abs(np.subtract(*smooth)).max())
            if form is None or not difference <= TRIED_TIMES * form.error:
                _log.warning(
                    "8 bits on this machine are off by %.2g in logits: the search is in float32", difference
                )
                return
        self.quick = both[0], both[1]
        lowered = scipy.special.expit(scipy.special.logit(second.floor) - forms[0].error)
        self.second = replace(self.second, floor=float(lowered))

    def _session(self, network: OnnxNetwork) -> Any:
        runtime = _runtime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = self.config.workers or available_cores()
        options.log_severity_level = 4  # our errors say it
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # cores decode, too
        options.add_session_config_entry("session.use_env_allocators", "1")
        _bound_memory()
        kind, _, number = self.device.partition(":")
        provider = (PROVIDERS[kind], {"device_id": number or "0"} if kind == "cuda" else {})
        with parsing(
            network.path, "not a graph that runs", next_step="export the model again", error=ModelError
        ):
            session = runtime.InferenceSession(network.data, options, providers=[provider])
            ends = session.get_inputs(), session.get_outputs()
            names = [[end.name for end in side] for side in ends]
            if names != [[PIXELS], [PROBABILITY, LOGIT]]:
                raise ValueError(f"its inputs and outputs are {names}")
        return session

    def logits(self, tiles: Pixels) -> Floats32:
        """Logits (tiles, rows, columns) of uint8 pixels (tiles, rows, columns, 3)."""
        check_tiles(tiles)
        return self.combine_logits([run_graph(session, tiles) for session in self._sessions])

    def values(self, array: Pixels) -> Pixels:
        """An array as it is."""
        return array

    def probabilities(self, logits: Floats32) -> Floats32:
        """Calibrated probabilities of logits."""
        return np.asarray(scipy.special.expit(self.calibration(logits)))

    def window_logits(self, windows: Pixels) -> Floats32:
        """Logits (n, rows, columns) of windows (n, side, side, 3), by all networks."""
        logits = self.logits(windows)
        if self.second is not None:
            logits = mean_logit([logits, run_graph(self.second.network, windows)])
        return logits

    def final_logits(self, squares: Pixels) -> Floats32:
        """Final answers (n,) about squares (n, side, side, 3), by views of them."""
        if self.quick is None or self.second is None:
            return super().final_logits(squares)
        logits = view_logits(squares, self._quick_logits)
        off = np.subtract.outer(scipy.special.expit(self.calibration(logits)), self.second.points)
        near = (np.abs(off) < NEAR_POINT).any(axis=1)
        if near.any():
            logits[near] = super().final_logits(squares[near])
        return logits

    def _quick_logits(self, windows: Pixels) -> Floats32:
        """Logits of windows by both networks in 8 bits."""
        return mean_logit([run_graph(session, windows) for session in self.quick or ()])

    def staged(self, batches: Iterable[tuple[T, list[RGB]]]) -> Iterable[tuple[T, Pixels]]:
        """Batches whose pixels are arrays (tiles, rows, columns, 3)."""
        return ((tiles, np.stack(pixels)) for tiles, pixels in batches)

    def start(self, pixels: Pixels, config: PeakConfig, sigma: float) -> OnnxBatch:
        """Tiles computed, smoothed by `sigma` outputs."""
        return OnnxBatch(self, pixels, config, sigma)

    def begun(self, pixels: Pixels) -> list[Callable[[], Floats32]]:
        """The search of tiles, when each is called."""
        return [begin(each, pixels) for each in (self._sessions if self.quick is None else self.quick[:1])]


class OnnxBatch(StartedTiles):
    """A batch whose search has begun: its positions are re-checked while the next batch is searched."""

    engine: OnnxEngine

    def __init__(self, engine: OnnxEngine, pixels: Pixels, config: PeakConfig, sigma: float) -> None:
        super().__init__(engine, pixels, config, sigma)
        self._begun = engine.begun(pixels)

    def results(self, *, maps: bool) -> tuple[Peaks, Floats32 | None]:
        """Positions and, where asked for, probabilities (tiles, rows, columns)."""
        self.search(self.engine.combine_logits([wait() for wait in self._begun]))
        peaks = self.peaks()
        if not maps:
            return peaks, None
        exact = self.engine.quick is None
        own = self.own if exact else self.smoothed(self.engine.logits(self.pixels))
        return peaks, self.engine.probabilities(own)

    def answers(self, windows: Windows) -> tuple[Floats32, Floats32]:
        """Logits of both networks around positions."""
        engine = self.engine
        assert engine.second is not None
        second = engine.second.network if engine.quick is None else engine.quick[1]
        return cut(self.raw, windows, 1, windows.outputs), _in_windows(second, self.pixels, windows)


def _in_windows(session: Any, tiles: Pixels, windows: Windows) -> Floats32:
    """Logits (n, outputs, outputs) of a network in windows of tiles."""
    some = windows.split(max(1, WINDOWS_PX // windows.pixels**2))
    return np.concatenate(
        [run_graph(session, cut(tiles, each, OUTPUT_STRIDE_PX, each.pixels)) for each in some]
    )


def run_graph(session: Any, tiles: Pixels) -> Floats32:
    """Run a graph on a batch and return its outputs."""
    return begin(session, tiles)()


def begin(session: Any, tiles: Pixels) -> Callable[[], Floats32]:
    """Start a graph in a thread of its own, where signals do not wait for it; a call gives its logits."""
    options, answers = _runtime().RunOptions(), SimpleQueue[Any]()

    def run() -> None:
        try:
            answers.put(session.run([LOGIT], {PIXELS: np.ascontiguousarray(tiles)}, options)[0])
        except Exception as error:  # noqa: BLE001 -- reported below
            answers.put(error)

    def wait() -> Floats32:
        try:
            logits = answers.get(timeout=LONGEST_S)
        except Empty:
            logits = TimeoutError(f"tiles of shape {tiles.shape} took more than {LONGEST_S:.0f} s")
        finally:
            options.terminate = True  # where it still runs
        return _checked(logits, tiles)

    threading.Thread(target=run, daemon=True).start()
    return wait


def _checked(logits: Any, tiles: Pixels) -> Floats32:
    """An answer that is as it should be."""
    if isinstance(logits, Exception):
        raise DeviceError(
            f"ONNX Runtime failed ({described(logits)})",
            next_step="run again, what is finished is kept; or give smaller tiles (--set tile_px=512)",
        ) from logits
    sides = map(outputs_along, tiles.shape[1:3])
    given, expected = (str(getattr(logits, "dtype", "")), np.shape(logits)), ("float32", (len(tiles), *sides))
    if given != expected:
        raise ModelError(
            f"the graph gives outputs of type and shape {given}, not {expected}",
            next_step="export the model again (`metaphase model export`)",
        )
    if not np.isfinite(logits).all():
        raise not_finite()
    return np.asarray(logits)


def combine(logits: list[Floats32]) -> Floats32:
    """The logit of the mean probability, without rounding certain ones to 1."""
    if len(logits) == 1:
        return logits[0]
    stacked = np.stack(logits)
    return np.asarray(
        scipy.special.logsumexp(scipy.special.log_expit(stacked), 0)
        - scipy.special.logsumexp(scipy.special.log_expit(-stacked), 0),
        np.float32,
    )


def mean_logit(logits: list[Floats32]) -> Floats32:
    """As a re-check combines two networks."""
    return np.asarray(np.mean(logits, axis=0), np.float32)
