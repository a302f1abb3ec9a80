"""A re-check: another network has its say about the few positions that a first one points to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy

from metaphase.base.arrays import RGB, Floats32, Integers, Mask
from metaphase.base.errors import UsageError
from metaphase.networks.cards import OUTPUT_STRIDE_PX, PATCH_PX, RECEPTIVE_PX, Calibration
from metaphase.networks.engine.positions import (
    BORDER,
    Peaks,
    collect,
    is_peak,
    smoothed,
    smoothing_reach,
)
from metaphase.networks.engine.settings import PeakConfig

NEAR, FAR = 1, 5
"""Outputs by which a maximum moves when the second network has its say: nearly always, and at most."""
MARGIN = 6
"""Outputs that a tile needs at each side beyond those of a search with one look: `FAR` and a border, and an
even number, so that the cells of a network lie as they do in such a search."""
LACKING = 0.7
"""Logits, calibrated, by which both networks at a position itself may say less than what is asked for."""
NARROW_OUTPUTS = 2.5
"""Smoothing up to which a position itself tells enough: what is averaged wider says little about it."""
VIEWS, ANSWER_REACH = 8, 2
"""Turned by right angles and mirrored views of a final answer; outputs around the maximum that it covers."""
ANSWER_PX = PATCH_PX + 2 * ANSWER_REACH * OUTPUT_STRIDE_PX
ANSWER_SEEN_PX = RECEPTIVE_PX + 2 * ANSWER_REACH * OUTPUT_STRIDE_PX
Values = TypeVar("Values", bound=npt.NDArray[Any])


@dataclass(frozen=True)
class Windows:
    """Squares of a batch of tiles around positions: their corner in the tile's outputs, and their side."""

    tile: Integers
    corner: Integers
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

    def filled(self, count: int) -> Windows:
        """So many: the last one again and again."""
        which = np.minimum(np.arange(count), len(self.tile) - 1)
        return Windows(self.tile[which], self.corner[which], self.outputs)


Answers = Callable[[Windows], tuple[Floats32, Floats32]]
"""Logits (n, outputs, outputs) of the first and of the second network in windows."""


def refuse_components(config: PeakConfig) -> None:
    """What touches is known only where both networks saw everything."""
    if config.method != "maxima":
        raise UsageError(
            "connected components, as in the paper, need every network of the model at every position",
            next_step="give --model paper or another of one network, or --set exhaustive=true, which is slow",
        )


def re_check(
    first: Peaks,
    answers: Answers,
    sigma: float,
    floor: float,
    calibration: Calibration,
) -> Peaks:
    """What becomes of the positions that the first network points to, from a probability of `floor` on.

    The result is as if both had searched everything and the mean of their logits counted. The second network
    sees each position itself first; where that is promising, its surroundings; and where the answer rises
    towards their edge, more. Positions are counted in the first network's smoothed maps, which lack `MARGIN`
    and the smoothing's reach.
    """
    if sigma <= NARROW_OUTPUTS and len(first.map_index):
        alone = calibration(_means(first, answers, 0, sigma))[:, 0, 0]
        first = first.select(alone >= scipy.special.logit(floor) - LACKING)
    if not len(first.map_index):
        return first
    beyond = BORDER + smoothing_reach(sigma)
    near = calibration(smoothed(_means(first, answers, NEAR + beyond, sigma), sigma))
    rises = _rises(near, floor)
    stay = _tops(near[~rises], first.select(~rises), floor)
    if not rises.any():
        return stay
    first = first.select(rises)
    far = calibration(smoothed(_means(first, answers, FAR + beyond, sigma), sigma))
    return Peaks.concatenate([stay, _tops(far, first, floor)])


# ---- the final answer ----


def answered_at_once(window_px: int) -> int:
    """Detections whose views have together about so many pixels."""
    return max(1, window_px // (VIEWS * ANSWER_PX**2))


def view_logits(squares: RGB, window_logits: Callable[[RGB], Floats32]) -> Floats32:
    """Final logits (n,) of squares (n, 116, 116, 3) around a corner of pixels.

    The highest value of the mean over turned and mirrored views. Networks see 3 px less than a square, so
    that all views have the position where patches have theirs.
    """
    sides, turns = (squares, squares[:, :, ::-1]), range(VIEWS // 2)
    turned = [np.rot90(side, turn, (1, 2)) for side in sides for turn in turns]
    seen = np.concatenate([view[:, :ANSWER_SEEN_PX, :ANSWER_SEEN_PX] for view in turned])
    shape = len(sides), len(turns), len(squares), *2 * [2 * ANSWER_REACH + 1]
    plain, mirrored = (
        sum(np.rot90(side[turn], -turn, (1, 2)) for turn in turns)
        for side in window_logits(seen).reshape(shape)
    )
    highest: Floats32 = ((plain + mirrored[:, :, ::-1]) / VIEWS).max(axis=(1, 2))
    return highest


# ---- windows ----


def _means(peaks: Peaks, answers: Answers, around: int, sigma: float) -> Floats32:
    """Mean logits of both networks `around` positions: (positions, 2 around + 1, 2 around + 1)."""
    corner = peaks.output + (MARGIN + smoothing_reach(sigma) - around)
    own, others = answers(Windows(peaks.map_index, corner, 2 * around + 1))
    return np.asarray((own + others) / 2, np.float32)


def _rises(maps: Floats32, floor: float) -> Mask:
    """Which maps have no maximum from `floor` on, and are highest at their border."""
    inner = maps[:, BORDER:-BORDER, BORDER:-BORDER]
    rises: Mask = ~is_peak(maps, floor).any((1, 2)) & (maps.max((1, 2)) > inner.max((1, 2)))
    return rises


def _tops(maps: Floats32, first: Peaks, floor: float) -> Peaks:
    """The highest maximum of each small map; the highest value of one that rises towards its border.

    Its output remains the first network's, by which a position belongs to one tile. Values at the border are
    there to be compared with.
    """
    inner = slice(BORDER, -BORDER)
    values = np.full(maps.shape, -np.inf, np.float32)
    values[:, inner, inner] = maps[:, inner, inner]
    side = maps.shape[1]
    flat = values.reshape(len(maps), side**2)
    peaks = np.where(is_peak(maps, floor).reshape(flat.shape), flat, -np.inf)
    chosen = np.where(peaks.max(1) > -np.inf, peaks.argmax(1), flat.argmax(1))
    number = np.arange(len(maps))
    top = np.zeros(maps.shape, bool)
    top[number, chosen // side, chosen % side] = flat.max(1) >= scipy.special.logit(floor)
    tops = collect(maps, top)
    which = tops.map_index
    shift = first.output[which] - side // 2
    moved = (tops.row + shift[:, 0], tops.column + shift[:, 1], tops.probability)
    return Peaks(first.map_index[which], first.output[which], *moved)


def cut(values: Values, windows: Windows, step: int, side: int) -> Values:
    """Squares (n, side, side, ...) of (tiles, rows, columns, ...), which have `step` of them an output."""
    rows, columns = (step * windows.corner[:, axis, None] + np.arange(side) for axis in (0, 1))
    squares: Values = values[windows.tile[:, None, None], rows[:, :, None], columns[:, None, :]]
    return squares
