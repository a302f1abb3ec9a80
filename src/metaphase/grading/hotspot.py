"""The busiest circle of all, at any position whatever and not only on a lattice."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import shapely
from scipy.spatial import cKDTree

from metaphase.grading.lattice import Points, lattice_around, lattice_counts

FINEST_UM = 0.01
"""Half-width of the smallest cells searched: no circle smaller by 15 nm holds more than the one found."""
CELLS_A_RADIUS = 12
QUARTERS = np.array([(-0.5, -0.5), (-0.5, 0.5), (0.5, -0.5), (0.5, 0.5)])


@dataclass(frozen=True, slots=True)
class Hotspot:
    """The busiest circle, in level-0 pixels; without any mitosis, a circle in the middle of the tissue."""

    x: float
    y: float
    radius_px: float
    count: int
    """Mitoses inside."""
    tissue_mm2: float
    """Tissue inside; the whole circle where no tissue mask was given."""

    @property
    def per_mm2(self) -> float:
        """Mitoses per mm2 of tissue inside; NaN where there is no tissue."""
        return self.count / self.tissue_mm2 if self.tissue_mm2 > 0 else math.nan


def busiest_circle(points_um: Points, radius_um: float) -> tuple[float, float, int]:
    """Centre and count of a circle of `radius_um` that holds as many points as any can.

    A square cell of centres cannot hold more than a circle larger by its half-diagonal around its middle.
    Cells that cannot beat the best circle seen are dropped, the others are quartered.
    """
    tree = cKDTree(points_um)
    middles, half, centre, best = _coarse_cells(points_um, radius_um)
    while len(middles) and half > FINEST_UM:
        half /= 2
        middles = (middles[:, None] + 2 * half * QUARTERS).reshape(-1, 2)
        inside = tree.query_ball_point(middles, radius_um, return_length=True)
        top = int(inside.argmax())
        if inside[top] > best:
            centre, best = middles[top], int(inside[top])
        bound = tree.query_ball_point(middles, radius_um + half * math.sqrt(2), return_length=True)
        middles = middles[bound > best]
    x, y = _centred(points_um, tree, centre, radius_um)
    return x, y, best


def _coarse_cells(points_um: Points, radius_um: float) -> tuple[Points, float, Points, int]:
    """Cells of a lattice that may hold a busier circle than its busiest position, and that position."""
    step = radius_um / CELLS_A_RADIUS
    lattice = lattice_around(points_um, radius_um + step, step)
    counts = lattice_counts(points_um, lattice, radius_um)
    bound = lattice_counts(points_um, lattice, radius_um + step / math.sqrt(2))
    best = int(counts.max())
    row, column = np.unravel_index(int(counts.argmax()), counts.shape)
    centre = np.array([lattice.xs_um[column], lattice.ys_um[row]])
    rows, columns = np.nonzero(bound > best)
    middles = np.stack([lattice.xs_um[columns], lattice.ys_um[rows]], axis=1)
    return middles, step / 2, centre, best


def _centred(points_um: Points, tree: cKDTree, centre: Points, radius_um: float) -> tuple[float, float]:
    """Of all circles that hold the same points, the one around the middle of their smallest circle."""
    members = tree.query_ball_point(centre, radius_um)
    smallest = shapely.minimum_bounding_circle(shapely.MultiPoint(np.unique(points_um[members], axis=0)))
    middle = np.array([smallest.centroid.x, smallest.centroid.y])
    if tree.query_ball_point(middle, radius_um, return_length=True) < len(members):
        middle = centre  # lost to rounding: the points need the whole circle
    return float(middle[0]), float(middle[1])
