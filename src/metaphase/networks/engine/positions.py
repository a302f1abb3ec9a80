"""Positions of logit maps: local maxima, or all that reach a probability.

Which they are is decided alike for arrays and tensors. Arrays are smoothed and collected here, in double
precision; `peaks` does it with tensors, in that of their device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import scipy

from metaphase.base.arrays import AnyFloats, Floats, Floats32, Integers, Mask

BORDER = 1
"""Outputs around a tile's own that its maxima are compared with."""
EARLIER = ((-1, -1), (-1, 0), (-1, 1), (0, -1))
"""Neighbours before a position, by row, then column; those after it lie opposite."""
Values = Any
"""An array, or a tensor on its device."""


@dataclass(frozen=True)
class Rows:
    """Fields that are arrays as long as each other."""

    def select(self, which: Any) -> Self:
        """Some rows, by number or mask."""
        return type(self)(*(array[which] for array in vars(self).values()))

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """All rows of one part or more."""
        return cls(*map(np.concatenate, zip(*(vars(part).values() for part in parts), strict=True)))


@dataclass(frozen=True)
class Peaks(Rows):
    """Local maxima of a batch of maps: index of the map, the output, its top between outputs, probability."""

    map_index: Integers
    output: Integers
    """(n, 2): row and column of the output that is the maximum."""
    row: Floats
    column: Floats
    probability: Floats32


def smoothing_reach(sigma: float) -> int:
    """Outputs on each side that smoothing takes into account, and uses up."""
    return math.ceil(3 * sigma)


def smoothing_weights(sigma: float) -> Floats:
    """Weights of a Gaussian over the outputs that smoothing takes into account; their sum is 1."""
    reach = smoothing_reach(sigma)
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    return np.asarray(weights / weights.sum())


def smoothed(logits: Floats32, sigma: float) -> Floats32:
    """Logits of the mean probability around each position of (maps, rows, columns), by a Gaussian of `sigma`.

    The result is smaller by `smoothing_reach` on each side. Yes and no are averaged apart, so that very
    certain positions do not round to 1.
    """
    reach = smoothing_reach(sigma)
    if reach == 0:
        return logits
    weights = smoothing_weights(sigma)
    tiny = np.finfo(np.float32).tiny
    yes, no = (
        np.log(np.maximum(_averaged(scipy.special.expit(side), weights, reach), tiny))
        for side in (logits, -logits)
    )
    return np.asarray(yes - no, np.float32)


def is_peak(logits: Values, floor: float) -> Values:
    """Which positions of (maps, rows, columns) reach the probability `floor` and beat their eight neighbours.

    Of equal neighbours the first one (by row, then column) wins. Logits do not saturate as probabilities
    do, so that the middle of a large mitosis is a peak and not a plateau. Those at the border are no peaks.
    """
    inner = _shifted(logits, 0, 0)
    peak = inner >= scipy.special.logit(floor)
    for dy, dx in EARLIER:
        peak &= inner > _shifted(logits, dy, dx)
        peak &= inner >= _shifted(logits, -dy, -dx)
    peaks = reaches(logits, floor)
    _shifted(peaks, 0, 0)[:] = peak
    return peaks


def reaches(logits: Values, floor: float) -> Values:
    """Which positions of (maps, rows, columns), those at the border apart, reach the probability `floor`."""
    reached = logits >= scipy.special.logit(floor)
    _, rows, columns = logits.shape
    reached[:, :: max(1, rows - 1)] = False  # the first and the last
    reached[:, :, :: max(1, columns - 1)] = False
    return reached


def collect(logits: Floats32, peak: Mask, *, between: bool = True) -> Peaks:
    """The positions as arrays; a parabola through the neighbours puts each `between` outputs."""
    places = np.array(peak.nonzero())
    return peaks_from(places, np.array(logits_at(logits, places, between), np.float64))


def logits_at(logits: Values, places: Values, between: bool) -> list[Values]:
    """Logits at positions (map, row and column), then of their neighbours above, below, left and right."""
    index, row, column = places
    steps = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)) if between else ((0, 0),)
    return [logits[index, row + dy, column + dx] for dy, dx in steps]


def peaks_from(places: Integers, values: AnyFloats) -> Peaks:
    """Peaks at positions (map, row and column), from the logits there and of their neighbours."""
    middle, *around = values
    tops = [_offset(before, middle, after) for before, after in zip(around[::2], around[1::2], strict=True)]
    down, right = tops or np.zeros((2, len(middle)))
    probability = scipy.special.expit(middle.astype(np.float64)).astype(np.float32)
    return Peaks(places[0], places[1:].T, places[1] + down, places[2] + right, probability)


def _averaged(values: Floats32, weights: Floats, reach: int) -> Floats:
    rows: Floats = scipy.ndimage.correlate1d(values, weights, axis=1, mode="nearest", output=np.float64)
    both: Floats = scipy.ndimage.correlate1d(rows, weights, axis=2, mode="nearest")
    return both[:, reach:-reach, reach:-reach]


def _shifted(values: Values, dy: int, dx: int) -> Values:
    """A view of all positions but those at the border, or of their neighbours."""
    height, width = values.shape[1:]
    return values[:, 1 + dy : height - 1 + dy, 1 + dx : width - 1 + dx]


def _offset(before: AnyFloats, middle: AnyFloats, after: AnyFloats) -> AnyFloats:
    """Where the parabola through three neighbours has its top, -0.5 to 0.5."""
    bend = 2 * middle - before - after
    top = np.divide(after - before, 2 * bend, out=np.zeros_like(bend), where=bend > 0)
    return np.asarray(np.clip(top, -0.5, 0.5))
