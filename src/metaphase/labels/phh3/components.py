"""Connected components of a plane that is seen in tiles, without seams, and what is known about each.

A component is known by sums and maxima over its pixels. Both add up over its parts, hence a component that
crosses tiles ends with exactly the numbers it would have in one piece. So everything here is merging: pixels
make the parts in a tile, parts make the components of the plane, and two components may make one figure.
Parts that touch the border of a tile wait until the end; all others are finished with their tile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from metaphase.base.arrays import Box, Floats, Integers, Mask

Levels = npt.NDArray[np.int16]
"""Amounts of a stain, in whole numbers of a unit."""
SUMS = ("area", "x", "y", "xx", "xy", "yy", "dab", "haematoxylin")
"""Over the pixels of a component: their number, coordinates, products of coordinates, and amounts."""
MAXIMA = ("peak", "right", "bottom", "minus_left", "minus_top", "last")
"""Greatest amount of DAB, the sides of the bounding box (right and bottom just beyond it), and the last pixel
in reading order, as row x `ROW_CODE` + column."""
ROW_CODE = 2**32
LEAST_LIKENESS = 0.5
"""Components that are joined differ in area by no more than this ratio."""
TOUCHING = 1.5
"""Pixels whose centres are closer than this lie side by side, or corner to corner."""
PIXEL_VARIANCE = 1 / 12
"""Of a coordinate within a pixel: with it, a single pixel has the extent of a pixel."""

KIND = np.dtype([(name, np.int64) for name in (*SUMS, *MAXIMA)])
Components = npt.NDArray[np.void]
"""One record a component, its fields (`KIND`) whole numbers, in pixels of the plane. Products may wrap around
64 bits, which the differences that are taken of them undo."""


def merge(parts: Components, group: Integers) -> Components:
    """One component a group, in order of the group's number; `group` has a number for each part."""
    if not len(parts):
        return parts
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    sums, maxima = np.split(parts[order].view(np.int64).reshape(len(parts), -1), [len(SUMS)], axis=1)
    return components_of(np.add.reduceat(sums, starts), np.maximum.reduceat(maxima, starts))


def components_of(*values: Integers) -> Components:
    """Components from parts of their values, one row a component."""
    return np.hstack(values).astype(np.int64).view(KIND)[:, 0]


class TileComponents(NamedTuple):
    """The components of one tile, and which of them reach its sides."""

    components: Components
    border: Integers
    """(3, pixels), of the brown pixels along its sides: x, y, and row of the component."""


def label_tile(box: Box, brown: Mask, dab: Levels, haematoxylin: Levels) -> TileComponents:
    """Label the brown pixels of the tile `box` (8-connected).

    `brown` and `dab` are (height, width); `haematoxylin` holds the brown pixels alone, in reading order.
    """
    labels = np.asarray(cv2.connectedComponents(brown.view(np.uint8), connectivity=8)[1], np.int64)
    row, column = np.nonzero(brown)
    owner, darkness = labels[row, column] - 1, dab[row, column].astype(np.int64)
    edge = (column == 0) | (row == 0) | (column == box.width - 1) | (row == box.height - 1)
    x, y = column + box.x, row + box.y
    sums = (np.ones_like(x), x, y, x * x, x * y, y * y, darkness, haematoxylin)
    maxima = (darkness, x + 1, y + 1, -x, -y, y * ROW_CODE + x)
    pixels = components_of(np.stack([*sums, *maxima], axis=1))
    return TileComponents(merge(pixels, owner), np.stack([x, y, owner])[:, edge])


@dataclass(eq=False)
class Stitcher:
    """Takes tiles, in any order, and joins what touches across their borders."""

    smallest: int
    """Components of fewer pixels are counted and forgotten."""
    specks: int = 0
    _whole: list[Components] = field(default_factory=list)
    _open: list[Components] = field(default_factory=list)
    _borders: list[Integers] = field(default_factory=list)
    _opened: int = 0

    def add(self, tile: TileComponents) -> None:
        """Take a tile; tiles may be left out where nothing is brown."""
        x, y, owner = tile.border
        touching, row = np.unique(owner, return_inverse=True)
        self._keep(np.delete(tile.components, touching))
        self._open.append(tile.components[touching])
        self._borders.append(np.stack([x, y, self._opened + row]))
        self._opened += len(touching)

    def finish(self) -> Components:
        """All components of the plane."""
        if self._opened:
            x, y, owner = np.concatenate(self._borders, axis=1)
            pixels = cKDTree(np.stack([x, y], axis=1)).query_pairs(TOUCHING, output_type="ndarray")
            links = coo_array((np.ones(len(pixels), bool), tuple(owner[pixels].T)), (self._opened,) * 2)
            self._keep(merge(np.concatenate(self._open), connected_components(links, directed=False)[1]))
        return np.concatenate([np.zeros(0, KIND), *self._whole])

    def _keep(self, components: Components) -> None:
        large = components["area"] >= self.smallest
        self.specks += int((~large).sum())
        self._whole.append(components[large])


def ellipse_axes(components: Components) -> tuple[Floats, Floats]:
    """Full lengths in pixels of the axes of the ellipse that has the component's area moments.

    Counted from the corner of the bounding box, the sums are exact, and small enough for floats.
    """
    area, x, y, xx, xy, yy = (components[name] for name in SUMS[:6])
    right, down = components["minus_left"], components["minus_top"]
    xx = xx + 2 * right * x + right * right * area
    xy = xy + right * y + down * x + right * down * area
    yy = yy + 2 * down * y + down * down * area
    x, y = x + right * area, y + down * area
    var_x = (xx - x * (x / area)) / area + PIXEL_VARIANCE
    var_y = (yy - y * (y / area)) / area + PIXEL_VARIANCE
    covariance = (xy - x * (y / area)) / area
    middle, half = (var_x + var_y) / 2, np.sqrt(((var_x - var_y) / 2) ** 2 + covariance**2)
    return 4 * np.sqrt(middle + half), 4 * np.sqrt(np.maximum(middle - half, PIXEL_VARIANCE))


def ellipse_filling(components: Components) -> Floats:
    """Area relative to the ellipse of the same moments."""
    major, minor = ellipse_axes(components)
    return components["area"] / (np.pi / 4 * major * minor)


def join_figures(
    components: Components, mpp: float, join_um: float, largest_px: int
) -> tuple[Components, Integers]:
    """Join pairs of like components that are one figure; also returns how many parts each then has.

    An anaphase is two plates of about the same size a few micrometres apart. Only pairs are joined, and only
    those that are each other's nearest neighbour, at most `join_um` apart and `largest_px` large together.
    """
    group = np.arange(len(components))
    if len(components) > 1 and join_um > 0:
        area = components["area"]
        centres = np.stack([components["x"] / area, components["y"] / area], axis=1)
        distance, nearest = (found[:, 1] for found in cKDTree(centres).query(centres, k=2))
        mutual = nearest[nearest] == group
        alike = np.minimum(area, area[nearest]) >= LEAST_LIKENESS * np.maximum(area, area[nearest])
        join = mutual & alike & (area + area[nearest] <= largest_px) & (distance * mpp <= join_um)
        group[join] = np.minimum(group, nearest)[join]
    return merge(components, group), np.unique(group, return_counts=True)[1]
