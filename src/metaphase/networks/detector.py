"""One network, or several whose probabilities are averaged, with their cards; and what computes them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from metaphase.base.arrays import RGB, Floats32
from metaphase.base.errors import ModelError, ResultWarnings, UsageError, unique
from metaphase.base.parallel import available_cores, has_nvidia_driver
from metaphase.detections.points import UsedPoints, plain_point, points_of
from metaphase.detections.table import ATYPICAL, PAPER_FLOOR
from metaphase.networks.cards import (
    DETECTORS,
    PATCH_PX,
    PATCHES,
    PLAIN,
    RECEPTIVE_PX,
    AtypicalModel,
    Calibration,
    Identity,
    ModelCard,
    StoredNetwork,
    bundled_graph,
    bundled_model,
    current_versions,
    named_model,
    stored_network,
    warnings_about,
)
from metaphase.networks.engine.onnx import OnnxEngine, OnnxNetwork, load_onnx, onnx_device
from metaphase.networks.engine.searching import TileEngine
from metaphase.networks.engine.second import ANSWER_PX, answered_at_once
from metaphase.networks.engine.settings import EngineConfig, PeakConfig, Second
from metaphase.networks.engine.streaming import answer_map, find_detections, whole_map
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.contract import WORKING_MPP
from metaphase.slides.tiles import TileProcesses

if TYPE_CHECKING:
    from torch import nn

AnyNetwork = Union["nn.Sequential", OnnxNetwork, StoredNetwork]
"""A PyTorch network, an exported one for ONNX Runtime, or one built from its file where it runs."""
PAPER_PEAKS = PeakConfig(floor=PAPER_FLOOR, method="components")
"""What the paper takes from a probability map."""


@dataclass(frozen=True)
class Detector:
    """Networks that answer together: all exported ones, or none."""

    networks: tuple[AnyNetwork, ...]
    cards: tuple[ModelCard, ...]
    second: Second[AnyNetwork] | None = None
    """Asked about what the first points to; a single network may have one."""
    atypical: Path | None = None
    """Weights of the network that tells atypical figures."""

    def built(self) -> Detector:
        """With networks of PyTorch in place of those that are stored."""
        return self.each(_built)

    def each(self, change: Callable[[AnyNetwork, ModelCard | None], AnyNetwork]) -> Detector:
        """With changed networks."""
        second = self.second and replace(self.second, network=change(self.second.network, self.second.card))
        return replace(self, networks=tuple(map(change, self.networks, self.cards)), second=second)

    @property
    def atypical_sha256(self) -> str:
        """Checksum of the network that tells atypical figures; empty where none does."""
        network = self.cards[0].atypical if self.atypical is not None else None
        return "" if network is None else network.weights_sha256

    @property
    def calibration(self) -> Calibration:
        """Of a single network; several together are not calibrated."""
        own = self.cards[0].calibration if len(self.cards) == 1 else None
        return own or Calibration()

    @property
    def name(self) -> str:
        """Names of the networks, joined by `+`."""
        return " + ".join(card.name for card in self.cards)

    @property
    def mpp(self) -> float:
        """Micrometres per pixel that the networks were trained at."""
        return self.cards[0].mpp

    @property
    def points(self) -> UsedPoints:
        """Those tuned on slides with this very model. A card with one of them has it stand in for the other;
        an ensemble, and a card without any, gets the paper's floor."""
        return points_of(self.cards[0].thresholds if len(self.cards) == 1 else {})

    @property
    def optical_density(self) -> tuple[float, float, float] | None:
        """Colour of the training slides, where the card says."""
        return self.cards[0].optical_density

    @property
    def warnings(self) -> ResultWarnings:
        """What the cards themselves say against it."""
        return unique(warning for card in self.cards for warning in warnings_about(card))

    @property
    def identities(self) -> tuple[Identity, ...]:
        """What decides its answers, of whichever form: a profile of a laboratory holds for both."""
        return identities_of(self.cards)

    @property
    def exact_identities(self) -> tuple[Identity | str, ...]:
        """What decides its answers to the last digit: of exported networks the graphs count, too."""
        networks = (*self.networks, None if self.second is None else self.second.network)
        graphs = (network.sha256 for network in networks if isinstance(network, OnnxNetwork))
        return (*self.identities, *graphs)

    def plain_points(self, points: UsedPoints) -> dict[str, Any]:
        """Operating points as tables and summaries carry them."""
        return {
            "model": self.name,
            "mitoses": plain_point(points.mitoses),
            "count": plain_point(points.count),
        }

    @property
    def card(self) -> dict[str, Any]:
        """The first member's card as plain values; an ensemble's lists its members."""
        card = self.cards[0].model_dump(mode="json")
        return card if len(self.cards) == 1 else card | {"name": self.name, "members": len(self.cards)}


PATCHES_AT_ONCE = 128
FEW_CORES = 4
"""With fewer, processes that decode would only take turns with the one that computes."""


@dataclass(frozen=True)
class ReadyDetector:
    """A detector, and the engine that runs it, which is made when the first slide has to be searched."""

    detector: Detector
    config: EngineConfig = field(default_factory=EngineConfig)
    may_start_processes: bool = False
    """Whether the main program is safe to import; if so, processes decode for a GPU."""

    def __post_init__(self) -> None:  # wrong use is refused before any slide is opened
        _ = onnx_device(self.config.device) if self._is_exported else self._computes_on

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.detector.name}, {self.mpp:g} um/px)"

    @property
    def mpp(self) -> float:
        """Micrometres per pixel of what the networks see."""
        return self.detector.mpp

    def predict(self, pixels: RGB, *, smooth_um: float | None = None) -> Floats32:
        """Probabilities of a mitosis in RGB pixels at the model's resolution, on the scale of `detect`.

        An image (height, width, 3) gives a map (rows, columns), smoothed as in a search or by `smooth_um`:
        value (i, j) is for position x = 4 j, y = 4 i; the image is padded with white. Patches (n,
        height, width, 3) give one number each, for their middle, not smoothed, close to what a map says
        there; they hold at least the 97 px that networks see, or a classifier's own patch.

        A model with final answers, as the bundled one, gives those: in a map at the outputs around each
        position that a search finds, elsewhere 0 (`first_map` has values everywhere); of patches, which then
        hold 116 px, whether a search would find something there or not.
        """
        if np.ndim(pixels) == 4:
            return self._of_patches(np.asarray(pixels))
        if self.engine.answered_from is None:
            return self._map_of(self._everywhere, pixels, smooth_um)
        slide, suppress_um = ArraySlide(pixels, self.mpp), self.detector.points.suppress_um
        peaks = PeakConfig(smooth_um=self._smoothing(smooth_um), suppress_um=suppress_um)
        return answer_map(find_detections(self.engine, slide, peaks, mpp=self.mpp), slide)

    def first_map(self, pixels: RGB, *, smooth_um: float | None = None) -> Floats32:
        """What the search sees first: of a pair its first network alone, before re-check and final answers.

        A map as of `predict`, with a value everywhere. Of a pair it is on a scale of its own: thresholds of
        `detect` mean nothing there.
        """
        return self._map_of(self.engine, pixels, smooth_um)

    def _map_of(self, engine: TileEngine, pixels: RGB, smooth_um: float | None) -> Floats32:
        peaks = PeakConfig(smooth_um=self._smoothing(smooth_um))
        return whole_map(engine, ArraySlide(pixels, self.mpp), peaks, mpp=self.mpp)

    def _smoothing(self, smooth_um: float | None) -> float:
        return self.detector.points.smooth_um if smooth_um is None else smooth_um

    @cached_property
    def _everywhere(self) -> TileEngine:
        """The engine in which all networks see everything."""
        if self.detector.second is None:
            return self.engine
        return ReadyDetector(self.detector, replace(self.config, exhaustive=True)).engine

    def _of_patches(self, patches: RGB) -> Floats32:
        card, sizes = self.detector.cards[0], patches.shape[1:3]
        side, point = card.patch_px if card.family == PATCHES else RECEPTIVE_PX, card.patch_px // 2
        probabilities: Callable[[RGB], Floats32] = self.engine.patch_probabilities
        at_once = PATCHES_AT_ONCE
        if self.engine.answered_from is not None:
            side, point, probabilities = ANSWER_PX, ANSWER_PX // 2, self.engine.answers_about
            at_once = answered_at_once(self.engine.windows_px)
        if patches.dtype != np.uint8 or patches.shape[3] != 3 or min(sizes) < side:
            raise UsageError(
                f"patches of shape {patches.shape} and type {patches.dtype} cannot be computed",
                next_step=f"give (n, height, width, 3) uint8 RGB of {side} px or more a side",
            )
        top, left = (min(max(0, size // 2 - point), size - side) for size in sizes)
        seen = np.ascontiguousarray(patches[:, top : top + side, left : left + side])
        parts = [probabilities(seen[at : at + at_once]) for at in range(0, len(seen), at_once)]
        return np.concatenate([np.empty(0, np.float32), *parts])

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process it goes without the engine, which is made there."""
        return type(self), (self.detector, self.config)

    @cached_property
    def engine(self) -> TileEngine:
        """Make what computes the networks."""
        if self._is_exported or self._by_graphs:
            detector = self.detector.each(_graph)
            return OnnxEngine(detector.networks, self.config, detector.second, detector.calibration)  # type: ignore[arg-type]
        from metaphase.networks.engine.engine import Engine

        _ = self.decoders  # they begin while the engine is made
        detector = self.detector.built()
        return Engine(detector.networks, self.config, detector.second, detector.calibration)  # type: ignore[arg-type]

    @property
    def _by_graphs(self) -> bool:
        """Whether ONNX Runtime computes networks of PyTorch: on a CPU all of ours but the paper's, whose wide
        layer is several times faster in Fourier's form."""
        second = self.detector.second
        cards = (*self.detector.cards, second.card if second is not None else None)
        ours = all(card is None or card.family in DETECTORS[1:] for card in cards)
        return ours and self._computes_on == "cpu" and find_spec("onnxruntime") is not None

    @property
    def _computes_on(self) -> str:
        """Kind of the device of PyTorch, which is asked only where there may be another than a CPU."""
        device = self.config.device
        if device == "cpu" or (device is None and not has_nvidia_driver()):
            return "cpu"
        from metaphase.networks.checkpoints import choose_device

        return choose_device(device).type

    @property
    def _is_exported(self) -> bool:
        return any(isinstance(network, OnnxNetwork) for network in self.detector.networks)

    @cached_property
    def decoders(self) -> TileProcesses | None:
        """Processes that decode tiles, where a GPU would wait for threads."""
        cores = available_cores()
        if self._is_exported or not self.may_start_processes or cores < FEW_CORES:
            return None
        if self._computes_on != "cuda":
            return None
        from metaphase.networks.engine.engine import page_locked

        return TileProcesses(cores, page_locked)


def plain_detector(network: nn.Module, name: str, mpp: float = WORKING_MPP) -> Detector:
    """A detector of any trained network whose geometry is that of ours, which the engine checks, or of a
    classifier of patches (`PatchNetwork`).

    It takes RGB (n, 3, rows, columns) from 0 to 1, gives the logits (n, 2, ...) of "no" and "yes", sees 97 px
    of `mpp` a side and answers every 4 px, without padding.
    """
    from safetensors.torch import save

    from metaphase.networks.engine.layers import PatchNetwork

    network = network.eval()
    family, patch_px = (PATCHES, network.patch_px) if isinstance(network, PatchNetwork) else (PLAIN, PATCH_PX)
    content = save({key: value.detach().cpu().contiguous() for key, value in network.state_dict().items()})
    card = ModelCard(
        name=name,
        family=family,
        gamma=1.0,
        mpp=mpp,
        patch_px=patch_px,
        classes=("other", "mitosis"),
        versions=current_versions(),
        weights_sha256=hashlib.sha256(content + str(network).encode()).hexdigest(),
    )
    return Detector((network,), (card,))  # type: ignore[arg-type]


def load_detector(models: Sequence[str | Path] = ()) -> Detector:
    """Load the given models, or the bundled one: all .safetensors or all .onnx, made for one resolution."""
    paths = [named_model(model) for model in models] or [bundled_model()]
    kinds = {path.suffix == ".onnx" for path in paths}
    if len(kinds) > 1:
        raise ModelError(
            "an .onnx model cannot be combined with others",
            path=next(path for path in paths if path.suffix == ".onnx"),
            next_step="give .onnx models only, or .safetensors models only",
        )
    loaded = _loaded(paths)
    for path, (_, card) in zip(paths, loaded, strict=True):
        if card.family == "classifier" or ATYPICAL in card.classes:
            what = "network of atypical figures" if ATYPICAL in card.classes else card.family
            raise ModelError(
                f"is a {what}, not a detector",
                path=path,
                next_step="give a model that searches slides; see `metaphase model info`",
            )
        if abs(card.mpp / loaded[0][1].mpp - 1) > 0.01:
            raise ModelError(
                f"works at {card.mpp:g} um/px, {paths[0].name} at {loaded[0][1].mpp:g}",
                path=path,
                next_step="give networks of one resolution together",
            )
    cards = tuple(card for _, card in loaded)
    second = _second(paths[0], cards[0]) if len(cards) == 1 else None
    atypical = _atypical(paths[0], cards[0]) if len(cards) == 1 else None
    return Detector(tuple(network for network, _ in loaded), cards, second, atypical)


def gpu_count() -> int:
    """GPUs of this machine that torch can use; none where it is not installed."""
    if find_spec("torch") is None or not has_nvidia_driver():
        return 0
    import torch

    return torch.cuda.device_count()


def identities_of(cards: Sequence[ModelCard]) -> tuple[Identity, ...]:
    """What decides the answers of one model, or of several together, which are not re-checked."""
    return cards[0].identities if len(cards) == 1 else tuple(card.identity for card in cards)


def _built(network: AnyNetwork, _card: ModelCard | None) -> AnyNetwork:
    """A network of PyTorch, of its file where it is stored."""
    if not isinstance(network, StoredNetwork):
        return network
    from metaphase.networks.checkpoints import network_of

    return network_of(network)


def _graph(network: AnyNetwork, card: ModelCard | None) -> OnnxNetwork:
    """The graph of a network: itself, that of the package, or one that PyTorch's layers become."""
    if isinstance(network, OnnxNetwork):
        return network
    assert card is not None
    bundled = bundled_graph(card) if isinstance(network, StoredNetwork) else None
    if bundled is not None:
        return load_onnx(bundled)[0]
    from metaphase.networks.exporting import graph_of

    return graph_of(_built(network, card), card)  # type: ignore[arg-type]


def _second(path: Path, card: ModelCard) -> Second[AnyNetwork] | None:
    """The network that a card asks to re-check, from the files beside it."""
    if card.second is None:
        return None
    ((network, other),) = _loaded([_beside(path, card.second)])
    _check_beside(path, card, card.second, other, "second network")
    points = tuple(point.delta for point in card.thresholds.values())
    return Second(network, card.second.floor, other, card.second.answered_from, points)


def _atypical(path: Path, card: ModelCard) -> Path | None:
    """Weights of the network that tells atypical figures; graphs come without."""
    if card.atypical is None or path.suffix == ".onnx":
        return None
    weights = _beside(path, card.atypical)
    _check_beside(path, card, card.atypical, stored_network(weights).card, "network for atypical figures")
    return weights


def _beside(path: Path, other: AtypicalModel) -> Path:
    return path.with_name(other.model + (".onnx" if path.suffix == ".onnx" else ".safetensors"))


def _check_beside(path: Path, card: ModelCard, meant: AtypicalModel, other: ModelCard, what: str) -> None:
    """Refuse another network than the card means."""
    if other.weights_sha256 != meant.weights_sha256 or abs(other.mpp / card.mpp - 1) > 0.01:
        raise ModelError(
            f"is not the {what} of {card.name}",
            path=_beside(path, meant),
            next_step="fetch the model again, with all of its files",
        )


def _loaded(paths: list[Path]) -> list[tuple[AnyNetwork, ModelCard]]:
    """Graphs, or networks of PyTorch as they are stored."""
    if paths[0].suffix == ".onnx":
        return [load_onnx(path) for path in paths]
    if find_spec("torch") is None:
        raise ModelError(
            "needs the package torch",
            path=paths[0],
            next_step="pip install 'metaphase[torch]', or give an .onnx model (`metaphase model export`)",
        )
    stored = [stored_network(path) for path in paths]
    return [(network, network.card) for network in stored]
