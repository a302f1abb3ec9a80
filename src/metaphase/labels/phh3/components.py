"""Connected components of a plane that is seen tile by tile, without seams.

A component is known by sums and maxima over its pixels. Both can be added up over its parts, hence a
component that crosses tiles ends with exactly the numbers it would have in one piece. Parts that touch the
border of a tile wait until the end; all others are finished with their tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from metaphase.base.arrays import Integers, Mask
from metaphase.base.geometry import Box
from metaphase.labels.phh3.survey import Levels

SUMS = ("area", "x", "y", "xx", "xy", "yy", "dab", "haematoxylin")
"""Over the pixels of a component: their number, coordinates, products of coordinates, and amounts."""
MAXIMA = ("peak", "right", "bottom", "minus_left", "minus_top", "last")
"""Greatest amount of DAB, the sides of the bounding box (right and bottom just beyond it), and the last pixel
in reading order, as row x `ROW_CODE` + column."""
ROW_CODE = 2**32


@dataclass(frozen=True, eq=False)
class Components:
    """One row a component; whole numbers, in pixels of the plane. Products may wrap around 64 bits, which the
    differences that are taken of them undo."""

    sums: Integers
    """(n, len(SUMS))."""
    maxima: Integers
    """(n, len(MAXIMA))."""

    def __len__(self) -> int:
        return len(self.sums)

    def __getitem__(self, which: Mask | Integers | slice) -> Components:
        return Components(self.sums[which], self.maxima[which])

    def of(self, name: str) -> Integers:
        """One of `SUMS` or `MAXIMA`."""
        return self.sums[:, SUMS.index(name)] if name in SUMS else self.maxima[:, MAXIMA.index(name)]

    def merged(self, group: Integers) -> Components:
        """One component a group, in order of the group's number; `group` has a number for each row."""
        order = np.argsort(group, kind="stable")
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        if not len(starts):
            return self
        return Components(
            np.add.reduceat(self.sums[order], starts, axis=0),
            np.maximum.reduceat(self.maxima[order], starts, axis=0),
        )

    @classmethod
    def joined(cls, parts: Sequence[Components]) -> Components:
        """All components of `parts`, one list after the other."""
        return cls(
            np.concatenate([np.zeros((0, len(SUMS)), np.int64), *(part.sums for part in parts)]),
            np.concatenate([np.zeros((0, len(MAXIMA)), np.int64), *(part.maxima for part in parts)]),
        )


@dataclass(frozen=True, eq=False)
class TileComponents:
    """The components of one tile, and the labels along its four sides (0 is background, i is row i - 1)."""

    box: Box
    components: Components
    top: Integers
    bottom: Integers
    left: Integers
    right: Integers


def label_tile(box: Box, brown: Mask, dab: Levels, haematoxylin: Levels) -> TileComponents:
    """Label the brown pixels of the tile `box` (8-connected).

    `brown` and `dab` are (height, width); `haematoxylin` holds the brown pixels alone, in reading order.
    """
    count, labels, boxes, _ = cv2.connectedComponentsWithStats(
        brown.view(np.uint8), connectivity=8, ltype=cv2.CV_32S
    )
    labels = np.asarray(labels, np.int32)
    rows, columns = np.nonzero(brown)
    owner = labels[rows, columns].astype(np.int32) - np.int32(1)
    amounts = dab[rows, columns]
    sums = _sums(owner, count - 1, columns, rows, amounts, haematoxylin)
    last = (rows + box.y) * ROW_CODE + columns + box.x
    maxima = _maxima(owner, amounts, last, np.asarray(boxes, np.int32)[1:], box)
    components = Components(_moved(sums, box), maxima)
    sides = (labels[0], labels[-1], labels[:, 0], labels[:, -1])
    return TileComponents(box, components, *(side.astype(np.int64) for side in sides))


def _sums(
    owner: npt.NDArray[np.int32], count: int, x: Integers, y: Integers, dab: Levels, haematoxylin: Levels
) -> Integers:
    """`SUMS` of each owner, with coordinates from the tile's corner: small enough for exact float sums."""
    quantities = (None, x, y, x * x, x * y, y * y, dab, haematoxylin)
    columns = [np.bincount(owner, quantity, minlength=count) for quantity in quantities]
    return np.stack(columns, axis=1).astype(np.int64)


def _moved(sums: Integers, box: Box) -> Integers:
    """The same sums with coordinates from the plane's corner, of which the tile's is at `box`."""
    area, x, y, xx, xy, yy, dab, haematoxylin = sums.T
    u, v = np.int64(box.x), np.int64(box.y)
    return np.stack(
        [
            area,
            x + u * area,
            y + v * area,
            xx + 2 * u * x + u * u * area,
            xy + u * y + v * x + u * v * area,
            yy + 2 * v * y + v * v * area,
            dab,
            haematoxylin,
        ],
        axis=1,
    )


def _maxima(
    owner: npt.NDArray[np.int32], dab: Levels, last: Integers, boxes: npt.NDArray[np.int32], box: Box
) -> Integers:
    left, top, width, height = boxes[:, :4].astype(np.int64).T
    peak, end = np.full((2, len(boxes)), np.iinfo(np.int64).min)
    np.maximum.at(peak, owner, dab.astype(np.int64))
    end[owner] = last  # pixels come in reading order: the last one stays
    left, top = left + box.x, top + box.y
    return np.stack([peak, left + width, top + height, -left, -top, end], axis=1)


@dataclass(eq=False)
class Stitcher:
    """Takes tiles row by row and joins what touches across their borders."""

    width: int
    """Of the plane."""
    smallest: int
    """Components of fewer pixels are counted and forgotten."""
    specks: int = 0
    _whole: list[Components] = field(default_factory=list)
    _open: list[Components] = field(default_factory=list)
    _links: list[Integers] = field(default_factory=list)
    _opened: int = 0
    _last: Box | None = None

    def __post_init__(self) -> None:
        self._above = np.zeros(self.width + 2, np.int64)
        self._below = np.zeros(self.width + 2, np.int64)
        self._beside = np.zeros(0, np.int64)

    def add(self, tile: TileComponents) -> None:
        """Take the next tile; tiles may be left out where nothing is brown."""
        self._turn(tile.box)
        sides = (tile.top, tile.bottom, tile.left, tile.right)
        touching = np.zeros(len(tile.components) + 1, np.bool_)
        for side in sides:
            touching[side] = True
        touching[0] = False
        number = np.where(touching, self._opened + np.cumsum(touching), 0)
        self._keep(tile.components[~touching[1:]])
        self._open.append(tile.components[touching[1:]])
        self._opened += int(touching.sum())
        self._link(tile.box, *(number[side] for side in sides))

    def finish(self) -> Components:
        """All components of the plane."""
        pieces = Components.joined(self._open)
        links = np.concatenate([np.zeros((0, 2), np.int64), *self._links]) - 1
        graph = coo_array((np.ones(len(links), np.bool_), (links[:, 0], links[:, 1])), (len(pieces),) * 2)
        if len(pieces):
            group = connected_components(graph, directed=False)[1].astype(np.int64)
            self._keep(pieces.merged(group))
        return Components.joined(self._whole)

    def _keep(self, components: Components) -> None:
        large = components.of("area") >= self.smallest
        self.specks += int(len(large) - large.sum())
        if large.any():
            self._whole.append(components[large])

    def _turn(self, box: Box) -> None:
        """Begin a new band or follow the last tile, forgetting sides that do not touch `box`."""
        last = self._last
        if last is None or box.y != last.y:
            follows = last is not None and last.bottom == box.y
            self._above = self._below if follows else np.zeros_like(self._below)
            self._below = np.zeros_like(self._above)
        if last is None or (last.right, last.y) != (box.x, box.y):
            self._beside = np.zeros(box.height, np.int64)
        self._last = box

    def _link(self, box: Box, top: Integers, bottom: Integers, left: Integers, right: Integers) -> None:
        """Note which open components touch those of the tiles above and to the left, diagonally too."""
        beside = np.pad(self._beside, 1)
        for step in range(3):
            self._note(top, self._above[box.x + step : box.x + step + box.width])
            self._note(left, beside[step : step + box.height])
        self._below[box.x + 1 : box.x + 1 + box.width] = bottom
        self._beside = right

    def _note(self, here: Integers, there: Integers) -> None:
        both = (here > 0) & (there > 0)
        if both.any():
            self._links.append(np.unique(np.stack([here[both], there[both]], axis=1), axis=0))
