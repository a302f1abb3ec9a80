"""What engines have in common, whatever computes their networks: PyTorch or ONNX Runtime."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import scipy

from metaphase.base.arrays import RGB, Floats32
from metaphase.base.errors import UsageError
from metaphase.networks.cards import RECEPTIVE_PX, Calibration
from metaphase.networks.engine.positions import Peaks, Values, is_peak, reaches
from metaphase.networks.engine.second import MARGIN, re_check, refuse_components, view_logits
from metaphase.networks.engine.settings import EngineConfig, PeakConfig, Second

T = TypeVar("T")


class TileEngine(ABC):
    """Networks that search tiles together; several give the mean of their probabilities.

    A `second` network re-checks what they point to: there the mean of both logits decides. Smoothed logits
    are calibrated.
    Pixels are RGB at the networks' resolution. Output (i, j) of a tile sees 97 x 97 px from (4 i, 4 j) on.
    """

    smoothed: Callable[[Values, float], Values]
    collect: Callable[..., Peaks]
    """Of `positions`, or of `peaks`: for arrays, or for tensors."""
    device: Any
    """Where it computes."""
    arithmetic: str
    """How, in words."""
    step_px: int
    """Tiles whose sides are multiples of this join without a seam."""
    tile_px: int
    """Side of a tile's core that runs fastest."""
    windows_px: int
    """Pixels of windows that networks see at once."""
    batch: int
    """How many tiles are computed at once."""
    second: Second[Any] | None = None
    """With its network as it is computed; None, too, where it sees everything as the others do."""

    def __init__(
        self,
        networks: Sequence[Any],
        config: EngineConfig | None,
        second: Second[Any] | None,
        calibration: Calibration | None,
    ) -> None:
        if not networks:
            raise UsageError("an engine needs at least one network", next_step="name a model")
        self.config = config or EngineConfig()
        self.calibration = calibration or Calibration()
        self.answered_from = None if second is None else second.answered_from
        """Smoothed probability from which on positions get a final answer; None where none is given."""
        self.everywhere = second is not None and self.config.exhaustive
        """Whether the second network sees everything, too."""
        self.networks = [*networks, second.network] if second is not None and self.everywhere else networks
        self.margin = 0 if second is None or self.everywhere else MARGIN
        """Outputs that tiles need at each side beyond what their maxima are compared with."""

    @abstractmethod
    def staged(self, batches: Iterable[tuple[T, list[RGB]]]) -> Iterable[tuple[T, Any]]:
        """Batches whose pixels are as `start` takes them."""

    @abstractmethod
    def start(self, pixels: Any, config: PeakConfig, sigma: float) -> StartedTiles:
        """Tiles sent on their way, smoothed by `sigma` outputs."""

    def probability_map(self, tile: RGB) -> Floats32:
        """Probabilities (rows, columns) of a uint8 tile (height, width, 3) of 97 px or more a side."""
        return self.probabilities(self.logits(self.values(tile[None]))[0])

    def patch_probabilities(self, patches: RGB) -> Floats32:
        """Probabilities (n,) of uint8 patches (n, side, side, 3) of what networks see, by all of them."""
        return self.probabilities(self.values(self.window_logits(patches)[:, 0, 0]))

    def final_logits(self, squares: RGB) -> Floats32:
        """Final answers (n,) about squares (n, side, side, 3), by views of them."""
        return view_logits(squares, self.window_logits)

    def answers_about(self, squares: RGB) -> Floats32:
        """Their probabilities (n,), calibrated."""
        logits = self.calibration(self.final_logits(squares).astype(np.float64))
        return np.asarray(scipy.special.expit(logits), np.float32)

    @abstractmethod
    def values(self, array: Any) -> Values:
        """An array as the engine computes with it."""

    @abstractmethod
    def logits(self, tiles: Values) -> Values:
        """Logits (tiles, rows, columns) of uint8 pixels (tiles, rows, columns, 3)."""

    @abstractmethod
    def window_logits(self, windows: RGB) -> Floats32:
        """Logits (n, rows, columns) of uint8 windows (n, side, side, 3), by all networks."""

    @abstractmethod
    def probabilities(self, logits: Values) -> Floats32:
        """Calibrated probabilities of logits."""


class StartedTiles(ABC):
    """A batch of tiles that is being searched; what its networks point to is re-checked afterwards."""

    own: Values
    """Smoothed logits of the search."""

    def __init__(self, engine: TileEngine, pixels: Any, config: PeakConfig, sigma: float) -> None:
        if engine.second is not None:
            refuse_components(config)
        self.engine, self.pixels, self.sigma = engine, pixels, sigma
        self._maxima = config.method == "maxima"
        self._floor, self._calibration = config.floor, engine.calibration
        if engine.answered_from is not None and self._maxima:  # what is asked about views is not calibrated
            self._floor, self._calibration = engine.answered_from, Calibration()

    def search(self, raw: Values) -> None:
        """Find positions in the logits of the search; nothing waits for a device here."""
        self.raw, self.own = raw, self.smoothed(raw)
        if self.engine.second is not None:
            self._logits, self._peak = self.own, is_peak(self.own, self.engine.second.floor)
        else:
            self._logits = self._calibration(self.own)
            self._peak = (is_peak if self._maxima else reaches)(self._logits, self._floor)

    def smoothed(self, raw: Values) -> Values:
        """Logits without the margin, smoothed."""
        inner = slice(self.engine.margin, -self.engine.margin or None)
        return self.engine.smoothed(raw[:, inner, inner], self.sigma)

    def peaks(self) -> Peaks:
        """Positions and values of the local maxima."""
        peaks = self.engine.collect(self._logits, self._peak, between=self._maxima)
        if self.engine.second is None:
            return peaks
        return re_check(peaks, self.answers, self.sigma, self._floor, self._calibration)

    @abstractmethod
    def results(self, *, maps: bool) -> tuple[Peaks, Floats32 | None]:
        """Their positions and, where asked for, probabilities (tiles, rows, columns)."""

    @abstractmethod
    def answers(self, windows: Any) -> tuple[Floats32, Floats32]:
        """Logits of both networks around positions."""


def check_tiles(tiles: Values) -> None:
    """Refuse what is no batch of tiles."""
    if tiles.ndim != 4 or tiles.shape[3] != 3 or min(tiles.shape[1:3]) < RECEPTIVE_PX:
        raise UsageError(
            f"tiles of shape {tuple(tiles.shape)} cannot be searched",
            next_step=f"give RGB tiles of {RECEPTIVE_PX} px or more a side",
        )
