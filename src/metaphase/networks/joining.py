"""A pair of networks as one ONNX graph that gives what `metaphase detect` finds in an image.

The graph takes `pixels`, uint8 RGB (1, height, width, 3) at the card's um/px, as large as memory bears, and
gives for each position `x` and `y` in pixels, `found`, the probability by which it was found, and
`probability`, its final answer. What is left to do: of two positions nearer than `suppress_um` the one with
less `found` goes, then those below a threshold. It holds both networks, the re-check, the views and the
calibration, in float32; beyond the image all is white, as in a search.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy
from torch import nn

from metaphase.base.files import write_bytes
from metaphase.detections.points import points_of
from metaphase.networks.cards import OUTPUT_STRIDE_PX, PATCH_PX, RECEPTIVE_PX, ModelCard, named_model
from metaphase.networks.checkpoints import load_model
from metaphase.networks.engine.onnx import PIXELS, PROBABILITY
from metaphase.networks.engine.positions import BORDER, EARLIER, smoothing_reach
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
from metaphase.networks.exporting import Graph, export_model

X, Y, FOUND = "x", "y", "found"
WHITE = 255
LOWEST = float(np.finfo(np.float32).min)
FIRST, LAST = -(2**31), 2**31 - 1
"""Ends of slices beyond any."""
FLOAT, INT32, INT64, BOOL, DOUBLE = 1, 6, 7, 9, 11
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
    pair = [
        load_model(source.with_name(f"{name}.safetensors"))[0] for name in (source.stem, card.second.model)
    ]
    write_bytes(target, detections_graph(pair, card))
    return card, target


def detections_graph(pair: Sequence[nn.Sequential], card: ModelCard) -> bytes:
    """The graph of a pair whose card says how its networks are joined."""
    graph = _Joined(pair, card)
    outputs = graph.build()
    return graph.written(card, outputs, ("detections",))


class _Tops(NamedTuple):
    """Names of values (n,): row and column among all outputs, logit, and whether that is enough."""

    row: str
    column: str
    logit: str
    enough: str


class _Joined(Graph):
    """Nodes of the whole way. Of positions there is always one more, so that no batch of windows is empty."""

    def __init__(self, pair: Sequence[nn.Sequential], card: ModelCard) -> None:
        super().__init__(())
        assert card.second is not None
        assert card.second.answered_from is not None
        self._pair, self._card, self._same = pair, card, dict[bytes, str]()
        self._floor, self._from = card.second.floor, card.second.answered_from
        self._sigma = points_of(card.thresholds).smooth_um / (card.mpp * OUTPUT_STRIDE_PX)
        self._reach = smoothing_reach(self._sigma)
        self._lead = PATCH_PX // 2 + (BORDER + self._reach + MARGIN) * OUTPUT_STRIDE_PX

    def constant(self, value: npt.ArrayLike, numbers: npt.DTypeLike | None = None) -> str:
        """The name of a constant; equal ones, as the weights of a network that is used again, are one."""
        array = np.array(value, numbers)
        key = f"{array.dtype} {array.shape}".encode() + array.tobytes()
        if key not in self._same:
            self._same[key] = super().constant(array)
        return self._same[key]

    def build(self) -> tuple[str, ...]:
        """The whole way; the names of its outputs."""
        size = self.cut(self.add("Shape", PIXELS), 0, 1, 3)
        after = RECEPTIVE_PX + (2 * (BORDER + self._reach + MARGIN) - 1) * OUTPUT_STRIDE_PX + SPARE_PX
        sides = (0, self._lead, self._lead, 0, 0, after - self._lead, after - self._lead, 0)
        white = self.constant(WHITE, np.uint8)
        self._pixels = self.add("Pad", PIXELS, self.constant(sides), white)
        self._width = self.cut(self.add("Shape", self._pixels), 0, 2, 3)
        self._flat = self.add("Reshape", self._pixels, self.constant([-1, 3]))
        raw = self.network(self._pair[0], self._pixels)
        self._columns = self.cut(self.add("Shape", raw), 0, 2, 3)
        self._raw = self.add("Reshape", raw, self.constant([-1]))
        places = self._first(raw, size)
        near, rises = self._looked_at(places, NEAR)
        rising = self._chosen(self._but_last(places), self._but_last(rises))
        spare = self.constant([[BORDER, BORDER]])
        far, _ = self._looked_at(self.add("Concat", rising, spare, axis=0), FAR)
        stays = self.add("And", near.enough, self.add("Not", rises))
        parts = [
            [self._chosen(self._but_last(each), self._but_last(which)) for each in tops[:3]]
            for tops, which in ((near, stays), (far, far.enough))
        ]
        rows, columns, logits = (self.add("Concat", *each, axis=0) for each in zip(*parts, strict=True))
        x, y = (
            self._times(self._plus(each, -BORDER, np.float64), OUTPUT_STRIDE_PX, np.float64)
            for each in (columns, rows)
        )
        answers = self._answered(x, y)
        self.add("Cast", x, to=FLOAT, output=X)
        self.add("Cast", y, to=FLOAT, output=Y)
        self.add("Sigmoid", logits, output=FOUND)
        self.add("Sigmoid", answers, output=PROBABILITY)
        return X, Y, FOUND, PROBABILITY

    # ---- the search, and the second network at the positions themselves ----

    def _first(self, raw: str, size: str) -> str:
        """Outputs (n, 2) that the first network points to, inside the image, and one more."""
        inner = self.cut(self.cut(raw, 1, MARGIN, -MARGIN), 2, MARGIN, -MARGIN)
        peak = self._is_peak(self._smoothed(inner), self._floor)
        found = self.cut(self.add("Transpose", self.add("NonZero", peak), perm=(1, 0)), 1, 1, 3)
        inside = self.add("Less", self.add("Mul", found, self.constant([OUTPUT_STRIDE_PX])), size)
        both = self.add("ReduceMin", self.add("Cast", inside, to=INT32), axes=(1,), keepdims=0)
        found = self._plus(self._chosen(found, self.add("Cast", both, to=BOOL)), BORDER, np.int64)
        spare = self.constant([[BORDER, BORDER]])
        found = self.add("Concat", found, spare, axis=0)
        if self._sigma > NARROW_OUTPUTS:
            return found
        alone = self.add("Reshape", self._means(found, 0), self.constant([-1]))
        least = scipy.special.logit(self._from) - LACKING
        promising = self._but_last(self._at_least(alone, least))
        return self.add("Concat", self._chosen(self._but_last(found), promising), spare, axis=0)

    # ---- the second network around them ----

    def _looked_at(self, places: str, reach: int) -> tuple[_Tops, str]:
        """The top near each place, and whether the answer rises beyond what is near."""
        maps = self._smoothed(self._means(places, reach + BORDER + self._reach))
        side = 2 * (reach + BORDER) + 1
        inner = self.add("Reshape", self._shifted(maps, 0, 0), self.constant([-1, (side - 2) ** 2]))
        whole = self.add("Reshape", maps, self.constant([-1, side**2]))
        peak = self.add("Reshape", self._is_peak(maps, self._from), self.constant([-1, (side - 2) ** 2]))
        tops = self.add("Where", peak, inner, self.constant(LOWEST, np.float32))
        any_top = self.add("Greater", self._highest(tops), self.constant(LOWEST, np.float32))
        best = self._highest(inner)
        rises = self.add("And", self.add("Not", any_top), self.add("Greater", self._highest(whole), best))
        chosen = self.add(
            "Where",
            any_top,
            *(self.add("ArgMax", each, axis=1, keepdims=1) for each in (tops, inner)),
        )
        across = self.constant(side - 2)
        row = self._plus(self.add("Div", chosen, across), 1, np.int64)
        column = self._plus(self.add("Mod", chosen, across), 1, np.int64)
        at = self.add("Add", self.add("Mul", row, self.constant(side)), column)
        middle, above, below, left, right = (
            self.add("GatherElements", whole, self._plus(at, step, np.int64), axis=1)
            for step in (0, -side, side, -1, 1)
        )
        positions = []
        for axis, within, before, behind in ((0, row, above, below), (1, column, left, right)):
            place = self._plus(self.cut(places, 1, axis, axis + 1), -(side // 2), np.int64)
            output = self.add("Cast", self.add("Add", within, place), to=DOUBLE)
            positions.append(self.add("Add", output, self._offset(before, middle, behind)))
        enough = self._at_least(best, scipy.special.logit(self._from))
        ends = (*positions, middle, enough, rises)
        flat = [self.add("Reshape", each, self.constant([-1])) for each in ends]
        return _Tops(*flat[:4]), flat[4]

    def _means(self, places: str, around: int) -> str:
        """Mean logits (n, 2 around + 1, 2 around + 1) of both networks."""
        corner = self._plus(places, MARGIN + self._reach - around, np.int64)
        one = self._window(self._raw, self._columns, corner, 2 * around + 1)
        pixels = self.add("Mul", corner, self.constant([OUTPUT_STRIDE_PX]))
        seen = self._window(self._flat, self._width, pixels, RECEPTIVE_PX + OUTPUT_STRIDE_PX * 2 * around)
        return self._times(self.add("Add", one, self.network(self._pair[1], seen)), 0.5)

    def _window(self, flat: str, width: str, corner: str, side: int) -> str:
        """Squares (n, side, side, ...) of values whose rows follow each other."""
        steps = self.constant(np.arange(side)[None])
        rows, columns = (self.add("Add", self.cut(corner, 1, axis, axis + 1), steps) for axis in (0, 1))
        starts = self.add("Unsqueeze", self.add("Mul", rows, width), self.constant([2]))
        index = self.add("Add", starts, self.add("Unsqueeze", columns, self.constant([1])))
        return self.add("Gather", flat, index, axis=0)

    # ---- final answers ----

    def _answered(self, x: str, y: str) -> str:
        """Calibrated logits of views of the squares around positions."""
        half = 0.5 + 1e-6 - ANSWER_PX // 2 + self._lead
        corners = [self.add("Floor", self._plus(each, half, np.float64)) for each in (y, x)]
        columns = [self.add("Unsqueeze", one, self.constant([1])) for one in corners]
        corner = self.add("Concat", *columns, axis=1)
        spare = self.constant([[0, 0]])
        corner = self.add("Concat", self.add("Cast", corner, to=INT64), spare, axis=0)
        plain = self._window(self._flat, self._width, corner, ANSWER_PX)
        turns = range(VIEWS // 2)
        sides = (plain, self._flipped(plain, 2))
        turned = [self._turned(side, turn, (0, 2, 1, 3)) for side in sides for turn in turns]
        inner = [self.cut(self.cut(one, 1, 0, ANSWER_SEEN_PX), 2, 0, ANSWER_SEEN_PX) for one in turned]
        seen = self.add("Concat", *inner, axis=0)
        both = self.add("Add", *(self.network(network, seen) for network in self._pair))
        views = [self.add("Squeeze", one, self.constant([0])) for one in self._views(both)]
        back = [
            self._turned(one, -turn % 4, (0, 2, 1)) for one, turn in zip(views, [*turns] * 2, strict=True)
        ]
        back[VIEWS // 2 :] = [self._flipped(one, 2) for one in back[VIEWS // 2 :]]
        mean = self._times(self.add("Sum", *back), 0.5 / VIEWS)
        calibration = self._card.calibration
        logits = self._but_last(self.add("ReduceMax", mean, axes=(1, 2), keepdims=0))
        if calibration is None:
            return logits
        return self._plus(self._times(logits, calibration.scale), calibration.shift)

    def _views(self, values: str) -> list[str]:
        """The views, (1, n, rows, columns) each."""
        sides = self.cut(self.add("Shape", values), 0, 1, 3)
        wanted = self.add("Concat", self.constant([VIEWS, -1]), sides, axis=0)
        views = self.add("Reshape", values, wanted)
        return [self.cut(views, 0, view, view + 1) for view in range(VIEWS)]

    def _turned(self, values: str, turns: int, exchanged: Sequence[int]) -> str:
        """Squares (n, side, side, ...) turned as `np.rot90` does."""
        if turns == 2:
            return self._flipped(self._flipped(values, 1), 2)
        if turns == 1:
            return self.add("Transpose", self._flipped(values, 2), perm=exchanged)
        return self._flipped(self.add("Transpose", values, perm=exchanged), 2) if turns == 3 else values

    def _flipped(self, values: str, axis: int) -> str:
        edges = (self.constant([number]) for number in (-1, FIRST, axis, -1))
        return self.add("Slice", values, *edges)

    # ---- maps, as in `engine.positions` ----

    def _smoothed(self, logits: str) -> str:
        """Logits of the mean probability around each position."""
        if not self._reach:
            return logits
        weights = np.exp(-(np.arange(-self._reach, self._reach + 1) ** 2) / (2 * self._sigma**2))
        weights /= weights.sum()
        tiny = self.constant(np.finfo(np.float32).tiny, np.float32)
        sides = []
        for side in (logits, self.add("Neg", logits)):
            values = self.add("Unsqueeze", self.add("Sigmoid", side), self.constant([1]))
            for shape in ((1, 1, -1, 1), (1, 1, 1, -1)):
                values = self.add("Conv", values, self.constant(weights.reshape(shape), np.float32))
            values = self.add("Squeeze", values, self.constant([1]))
            sides.append(self.add("Log", self.add("Max", values, tiny)))
        return self.add("Sub", *sides)

    def _is_peak(self, logits: str, floor: float) -> str:
        """Which positions, those at the border left out, reach the floor and beat their neighbours."""
        inner = self._shifted(logits, 0, 0)
        peak = self._at_least(inner, scipy.special.logit(floor))
        for dy, dx in EARLIER:
            earlier = self.add("Greater", inner, self._shifted(logits, dy, dx))
            later = self.add("GreaterOrEqual", inner, self._shifted(logits, -dy, -dx))
            peak = self.add("And", peak, self.add("And", earlier, later))
        return peak

    def _shifted(self, logits: str, dy: int, dx: int) -> str:
        for axis, step in ((1, dy), (2, dx)):
            logits = self.cut(logits, axis, 1 + step, (step - 1) or LAST)
        return logits

    def _offset(self, before: str, middle: str, after: str) -> str:
        """Where the parabola through three neighbours has its top, -0.5 to 0.5."""
        before, middle, after = (self.add("Cast", one, to=DOUBLE) for one in (before, middle, after))
        twice = self._times(middle, 2, np.float64)
        bend = self.add("Sub", self.add("Sub", twice, before), after)
        zero, half, less = (self.constant(value, np.float64) for value in (0, 0.5, -0.5))
        slope = self.add("Sub", after, before)
        top = self.add("Div", slope, self._times(bend, 2, np.float64))
        top = self.add("Where", self.add("Greater", bend, zero), top, zero)
        return self.add("Max", self.add("Min", top, half), less)

    # ---- numbers ----

    def cut(self, values: str, axis: int, first: int, last: int) -> str:
        """What lies from `first` to before `last` along an axis."""
        return self.add("Slice", values, *(self.constant([number]) for number in (first, last, axis)))

    def _but_last(self, values: str) -> str:
        return self.cut(values, 0, 0, -1)

    def _chosen(self, values: str, which: str) -> str:
        return self.add("Compress", values, which, axis=0)

    def _highest(self, values: str) -> str:
        return self.add("ReduceMax", values, axes=(1,), keepdims=1)

    def _at_least(self, values: str, least: float) -> str:
        return self.add("GreaterOrEqual", values, self.constant(least, np.float32))

    def _plus(self, values: str, number: float, kind: npt.DTypeLike = np.float32) -> str:
        return self.add("Add", values, self.constant(number, kind)) if number else values

    def _times(self, values: str, number: float, kind: npt.DTypeLike = np.float32) -> str:
        return self.add("Mul", values, self.constant(number, kind))
