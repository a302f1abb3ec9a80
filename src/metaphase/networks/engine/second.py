"""A second look: another network has its say about the few places that a first one points to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.special import logit

from metaphase.base.arrays import Floats32
from metaphase.base.errors import UsageError
from metaphase.networks.cards import OUTPUT_STRIDE_PX, RECEPTIVE_PX
from metaphase.networks.engine.places import BORDER, Peaks, collect, is_peak, smoothed, smoothing_reach
from metaphase.networks.engine.settings import Calibration, PeakConfig

MOVES = 5
"""Outputs by which a maximum may move when the second network has its say."""
MARGIN = 6
"""Outputs that a tile needs at each side beyond those of a search with one look: `MOVES` and a border, and an
even number, so that the cells of a network lie as they do in such a search."""
Ints = npt.NDArray[np.int64]
Values = TypeVar("Values", bound=npt.NDArray[Any])


@dataclass(frozen=True)
class Windows:
    """Squares of a batch of tiles around places: where they begin in their tile's outputs, and their side."""

    tile: Ints
    corner: Ints
    """(n, 2): row and column."""
    outputs: int

    @property
    def pixels(self) -> int:
        """Side of what a network sees of it."""
        return RECEPTIVE_PX + OUTPUT_STRIDE_PX * (self.outputs - 1)

    def split(self, count: int) -> list[Windows]:
        """At most so many at once."""
        starts = range(0, len(self.tile), count)
        return [
            Windows(self.tile[at : at + count], self.corner[at : at + count], self.outputs) for at in starts
        ]


Answers = Callable[[Windows], tuple[Floats32, Floats32]]
"""Logits (n, outputs, outputs) of the first and of the second network in windows."""


def refuse_components(config: PeakConfig) -> None:
    """What touches can be told only where both networks saw everything."""
    if config.method != "maxima":
        raise UsageError(
            "connected components, as in the paper, need both networks at every place",
            next_step="give --exhaustive, which is slow, or a model of one network",
        )


def look_again(first: Peaks, answers: Answers, sigma: float, floor: float, calibration: Calibration) -> Peaks:
    """What becomes of the places that the first network points to, from a probability of `floor` on.

    As if both had searched everything, and the mean of their logits counted. Places are counted in the first
    network's smoothed maps, which lack `MARGIN` and the smoothing's reach.
    """
    if not len(first.map_index):
        return first
    reach = smoothing_reach(sigma)
    corner = first.output + (MARGIN - MOVES - BORDER)  # maps lack the reach that windows add
    one, other = answers(Windows(first.map_index, corner, 2 * (reach + MOVES + BORDER) + 1))
    mean = np.asarray((one + other) / 2, np.float32)
    return _tops(calibration(smoothed(mean, sigma)), first, floor)


def _tops(maps: Floats32, first: Peaks, floor: float) -> Peaks:
    """The highest maximum of each small map; the highest value of one that rises towards its border.

    Its output remains the first network's, by which a place belongs to one tile. Values at the border are
    there to be compared with.
    """
    inner = slice(BORDER, -BORDER)
    values = np.full(maps.shape, -np.inf, np.float32)
    values[:, inner, inner] = maps[:, inner, inner]
    flat = values.reshape(len(maps), -1)
    peaks = np.where(is_peak(maps, floor).reshape(flat.shape), flat, -np.inf)
    chosen = np.where(peaks.max(1) > -np.inf, peaks.argmax(1), flat.argmax(1))
    number, side = np.arange(len(maps)), maps.shape[1]
    top = np.zeros(maps.shape, bool)
    top[number, chosen // side, chosen % side] = flat.max(1) >= logit(floor)
    found = collect(maps, top)
    which = found.map_index
    shift = first.output[which] - MOVES - BORDER
    moved = (found.row + shift[:, 0], found.column + shift[:, 1], found.probability)
    return Peaks(first.map_index[which], first.output[which], *moved)


def cut(values: Values, windows: Windows, step: int, side: int) -> Values:
    """Squares (n, side, side, ...) of (tiles, rows, columns, ...), which have `step` of them an output."""
    rows, columns = (step * windows.corner[:, axis, None] + np.arange(side) for axis in (0, 1))
    squares: Values = values[windows.tile[:, None, None], rows[:, :, None], columns[:, None, :]]
    return squares
