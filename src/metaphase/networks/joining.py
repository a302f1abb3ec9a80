"""A pair of networks as one ONNX graph that gives what `metaphase detect` finds in an image.

The graph takes `pixels`, uint8 RGB (1, height, width, 3) at the card's um/px, as large as memory bears, and
gives for each position `x` and `y` in pixels, `found`, the probability by which it was found, and
`probability`, its final answer. What is left to do: of two positions nearer than `suppress_um` the one with
less `found` goes, then those below a threshold. It holds both networks, the re-check, the views and the
calibration, in float32; beyond the image all is white, as in a search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy
from torch import nn

from metaphase.base.files import write_bytes
from metaphase.detections.points import points_of
from metaphase.networks.cards import OUTPUT_STRIDE_PX, PATCH_PX, RECEPTIVE_PX, ModelCard, named_model
from metaphase.networks.checkpoints import load_model
from metaphase.networks.engine.onnx import PROBABILITY
from metaphase.networks.engine.positions import BORDER, EARLIER, smoothing_reach, smoothing_weights
from metaphase.networks.engine.second import (
    ANSWER_PX,
    ANSWER_SEEN_PX,
    FAR,
    LACKING,
    MARGIN,
    NARROW_OUTPUTS,
    NEAR,
    VIEWS,
)
from metaphase.networks.exporting import FLOAT, Graph, Value, export_model

X, Y, FOUND = "x", "y", "found"
WHITE = np.uint8(255)
LOWEST, TINY = float(np.finfo(np.float32).min), float(np.finfo(np.float32).tiny)
FIRST, LAST = -(2**31), 2**31 - 1
"""Ends of slices beyond any."""
INT32, INT64, BOOL, DOUBLE = 6, 7, 9, 11
"""ONNX's numbers of types."""
SPARE_PX = 2 * OUTPUT_STRIDE_PX
"""White beyond the last output, so that sides need be no multiple of anything."""


def export_detector(model: str | Path, output: str | Path) -> tuple[ModelCard, Path | None]:
    """Write a detector as graphs, as `export_model` does; that of a pair with final answers also as one
    graph of the whole way, `OUTPUT.detections.onnx`. The card as written, and that graph's file."""
    card = export_model(model, output)
    if card.second is None or card.second.answered_from is None:
        return card, None
    source, target = named_model(model), Path(output).with_suffix(".detections.onnx")
    names = source.stem, card.second.model
    pair = [load_model(source.with_name(f"{name}.safetensors"))[0] for name in names]
    write_bytes(target, detections_graph(pair, card))
    return card, target


def detections_graph(pair: Sequence[nn.Sequential], card: ModelCard) -> bytes:
    """The graph of a pair whose card says how its networks are joined."""
    graph = _PairGraph(pair, card)
    graph.build()
    return graph.written(card, (X, Y, FOUND, PROBABILITY), ("detections",))


@dataclass(frozen=True)
class _Raster:
    """Pixels or logits whose rows follow each other, and the width of a row."""

    values: Value
    width: Value


class _PairGraph(Graph):
    """Nodes of the whole way. Of positions there is always one more, so that no batch of windows is empty."""

    def __init__(self, pair: Sequence[nn.Sequential], card: ModelCard) -> None:
        super().__init__()
        assert card.second is not None
        assert card.second.answered_from is not None
        self._pair, self._card, self._known = pair, card, dict[bytes, str]()
        self._floor = float(scipy.special.logit(card.second.floor))
        self._least = float(scipy.special.logit(card.second.answered_from))
        self._sigma = points_of(card.thresholds).smooth_um / (card.mpp * OUTPUT_STRIDE_PX)
        self._reach = smoothing_reach(self._sigma)
        self._lead = PATCH_PX // 2 + (BORDER + self._reach + MARGIN) * OUTPUT_STRIDE_PX

    def constant(self, value: npt.ArrayLike) -> str:
        """The name of a constant; equal ones, as the weights of a network that is used again, are one."""
        array = np.array(value, np.float32 if type(value) is float else None)
        key = f"{array.dtype} {array.shape}".encode() + array.tobytes()
        if key not in self._known:
            self._known[key] = super().constant(array)
        return self._known[key]

    def build(self) -> None:
        """Add the whole way."""
        after = RECEPTIVE_PX + (2 * (BORDER + self._reach + MARGIN) - 1) * OUTPUT_STRIDE_PX + SPARE_PX
        sides = (0, self._lead, self._lead, 0, 0, after - self._lead, after - self._lead, 0)
        pixels = self.add("Pad", self.pixels, sides, WHITE)
        logits = self.network(self._pair[0], pixels)
        self._image = _Raster(self.add("Reshape", pixels, [-1, 3]), self._size(pixels, 2, 3))
        self._logits = _Raster(self.add("Reshape", logits, [-1]), self._size(logits, 2, 3))
        outputs = self._first_outputs(logits)
        *near, near_enough, rises = self._looked_at(outputs, NEAR)
        *far, far_enough, _ = self._looked_at(self._with_spare(self._chosen(outputs, rises), BORDER), FAR)
        parts = [
            [self._chosen(values, which) for values in tops]
            for tops, which in ((near, near_enough & ~rises), (far, far_enough))
        ]
        rows, columns, logits = (self.add("Concat", *each, axis=0) for each in zip(*parts, strict=True))
        x, y = ((each + np.float64(-BORDER)) * np.float64(OUTPUT_STRIDE_PX) for each in (columns, rows))
        answers = self._answers(x, y)
        self.add("Cast", x, to=FLOAT, output=X)
        self.add("Cast", y, to=FLOAT, output=Y)
        self.add("Sigmoid", logits, output=FOUND)
        self.add("Sigmoid", answers, output=PROBABILITY)

    # ---- the search, and the second network at the positions themselves ----

    def _first_outputs(self, logits: Value) -> Value:
        """Outputs (n, 2) that the first network points to, inside the image, and one more."""
        inner = logits.cut(1, MARGIN, -MARGIN).cut(2, MARGIN, -MARGIN)
        peak = self._is_peak(self._smoothed(inner), self._floor)
        outputs = self.add("Transpose", self.add("NonZero", peak), perm=(1, 0)).cut(1, 1, 3)
        inside = self.add("Less", outputs * OUTPUT_STRIDE_PX, self._size(self.pixels, 1, 3))
        both = self.add("ReduceMin", inside.cast(INT32), axes=(1,), keepdims=0)
        outputs = self._with_spare(self.add("Compress", outputs, both.cast(BOOL), axis=0) + BORDER, BORDER)
        if self._sigma > NARROW_OUTPUTS:
            return outputs
        alone = self.add("Reshape", self._mean_logits(outputs, 0), [-1])
        return self._with_spare(self._chosen(outputs, alone >= self._least - LACKING), BORDER)

    # ---- the second network around them ----

    def _looked_at(self, outputs: Value, reach: int) -> list[Value]:
        """The top near each output: row and column among all, logit, whether that is enough; and whether the
        answer rises beyond what is near."""
        maps = self._smoothed(self._mean_logits(outputs, reach + BORDER + self._reach))
        side = 2 * (reach + BORDER) + 1
        peak, inner, whole = (
            self.add("Flatten", each) for each in (self._is_peak(maps, self._least), self._inner(maps), maps)
        )
        tops = self.add("Where", peak, inner, LOWEST)
        any_top, best = self._highest(tops) > LOWEST, self._highest(inner)
        rises = ~any_top & (self._highest(whole) > best)
        highest = (self.add("ArgMax", each, axis=1, keepdims=1) for each in (tops, inner))
        chosen = self.add("Where", any_top, *highest)
        row, column = chosen / (side - 2) + 1, chosen % (side - 2) + 1
        at = row * side + column
        middle, above, below, left, right = (
            self.add("GatherElements", whole, at + step, axis=1) for step in (0, -side, side, -1, 1)
        )
        positions = [
            (within + outputs.cut(1, axis, axis + 1) + -(side // 2)).cast(DOUBLE)
            + self._offset(before, middle, behind)
            for axis, within, before, behind in ((0, row, above, below), (1, column, left, right))
        ]
        ends = (*positions, middle, best >= self._least, rises)
        return [self.add("Reshape", each, [-1]) for each in ends]

    def _mean_logits(self, outputs: Value, around: int) -> Value:
        """Of both networks, (n, 2 around + 1, 2 around + 1)."""
        corner = outputs + (MARGIN + self._reach - around)
        first = self._windows(self._logits, corner, 2 * around + 1)
        side = RECEPTIVE_PX + OUTPUT_STRIDE_PX * 2 * around
        seen = self._windows(self._image, corner * OUTPUT_STRIDE_PX, side)
        return (first + self.network(self._pair[1], seen)) * 0.5

    def _windows(self, raster: _Raster, corner: Value, side: int) -> Value:
        """Squares (n, side, side, ...) of a raster."""
        rows, columns = (corner.cut(1, axis, axis + 1) + np.arange(side)[None] for axis in (0, 1))
        starts = self.add("Unsqueeze", rows * raster.width, [2])
        return self.add("Gather", raster.values, starts + self.add("Unsqueeze", columns, [1]), axis=0)

    # ---- final answers ----

    def _answers(self, x: Value, y: Value) -> Value:
        """Calibrated logits of views of the squares around positions."""
        half = np.float64(0.5 + 1e-6 - ANSWER_PX // 2 + self._lead)
        columns = [self.add("Unsqueeze", self.add("Floor", each + half), [1]) for each in (y, x)]
        corner = self._with_spare(self.add("Concat", *columns, axis=1).cast(INT64), 0)
        plain = self._windows(self._image, corner, ANSWER_PX)
        turns = range(VIEWS // 2)
        sides = (plain, self._flipped(plain, 2))
        turned = [self._turned(side, turn, (0, 2, 1, 3)) for side in sides for turn in turns]
        seen = [view.cut(1, 0, ANSWER_SEEN_PX).cut(2, 0, ANSWER_SEEN_PX) for view in turned]
        images = self.add("Concat", *seen, axis=0)
        first, second = (self.network(network, images) for network in self._pair)
        both = first + second
        shape = self.add("Concat", [VIEWS, -1], self._size(both, 1, 3), axis=0)
        views = self.add("Reshape", both, shape)
        back = []
        for number in range(VIEWS):
            view = self.add("Squeeze", views.cut(0, number, number + 1), [0])
            view = self._turned(view, -number % len(turns), (0, 2, 1))
            back.append(view if number < len(turns) else self._flipped(view, 2))
        mean = self.add("Sum", *back) * (0.5 / VIEWS)
        logits = self._without_spare(self.add("ReduceMax", mean, axes=(1, 2), keepdims=0))
        calibration = self._card.calibration
        return logits if calibration is None else calibration(logits)

    def _turned(self, values: Value, turns: int, exchanged: Sequence[int]) -> Value:
        """Squares (n, side, side, ...) turned as `np.rot90` does."""
        if turns == 2:
            return self._flipped(self._flipped(values, 1), 2)
        if turns == 1:
            return self.add("Transpose", self._flipped(values, 2), perm=exchanged)
        return self._flipped(self.add("Transpose", values, perm=exchanged), 2) if turns == 3 else values

    def _flipped(self, values: Value, axis: int) -> Value:
        return self.add("Slice", values, [-1], [FIRST], [axis], [-1])

    # ---- maps, as in `engine.positions` ----

    def _smoothed(self, logits: Value) -> Value:
        """Logits of the mean probability around each position."""
        if not self._reach:
            return logits
        weights = smoothing_weights(self._sigma).astype(np.float32)
        sides = []
        for side in (logits, self.add("Neg", logits)):
            values = self.add("Unsqueeze", self.add("Sigmoid", side), [1])
            for shape in ((1, 1, -1, 1), (1, 1, 1, -1)):
                values = self.add("Conv", values, weights.reshape(shape))
            sides.append(self.add("Log", self.add("Max", self.add("Squeeze", values, [1]), TINY)))
        yes, no = sides
        return yes - no

    def _is_peak(self, logits: Value, floor: float) -> Value:
        """Which positions, those at the border left out, reach the floor and beat their neighbours."""
        inner = self._inner(logits)
        peak = inner >= floor
        for dy, dx in EARLIER:
            peak &= (inner > self._inner(logits, dy, dx)) & (inner >= self._inner(logits, -dy, -dx))
        return peak

    def _inner(self, logits: Value, dy: int = 0, dx: int = 0) -> Value:
        """All positions but those at the border, or their neighbours."""
        return logits.cut(1, 1 + dy, (dy - 1) or LAST).cut(2, 1 + dx, (dx - 1) or LAST)

    def _offset(self, *values: Value) -> Value:
        """Where the parabola through three neighbours has its top, -0.5 to 0.5."""
        before, middle, after = (each.cast(DOUBLE) for each in values)
        zero, half, two = np.float64(0), np.float64(0.5), np.float64(2)
        bend = middle * two - before - after
        top = self.add("Where", bend > zero, (after - before) / (bend * two), zero)
        return self.add("Max", self.add("Min", top, half), -half)

    # ---- numbers ----

    def _size(self, values: Value, first: int, last: int) -> Value:
        """Some sides of what has several axes."""
        return self.add("Shape", values).cut(0, first, last)

    def _with_spare(self, rows: Value, spare: int) -> Value:
        """Pairs of numbers (n, 2), and one pair more."""
        return self.add("Concat", rows, [[spare, spare]], axis=0)

    def _without_spare(self, values: Value) -> Value:
        return values.cut(0, 0, -1)

    def _chosen(self, values: Value, which: Value) -> Value:
        """Some rows; the spare one is none of them."""
        return self.add("Compress", values, self._without_spare(which), axis=0)

    def _highest(self, values: Value) -> Value:
        return self.add("ReduceMax", values, axes=(1,), keepdims=1)
