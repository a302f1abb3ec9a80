"""Circles over points: exact counts at every position of a lattice, and the busiest circle of all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import scipy
import shapely
from pydantic import Field, computed_field
from shapely.geometry.base import BaseGeometry

from metaphase.base.arrays import Floats, Integers, Mask, Points
from metaphase.base.errors import UsageError
from metaphase.base.typed import Number, Stored

# ---- a circle at every position of a lattice, and how many points it holds there ----


MOST_POSITIONS = 50_000_000
"""A slide of 60 mm x 60 mm has 1.4 million at 50 um: what is far beyond is a wrong scale."""


@dataclass(frozen=True, slots=True)
class Lattice:
    """Positions ((column + 0.5) step, (row + 0.5) step) for a window of columns and rows.

    The lattice belongs to the slide and not to the points: more or fewer points do not move it.
    """

    step_um: float
    column: int
    row: int
    columns: int
    rows: int

    @property
    def xs_um(self) -> Floats:
        """Position of each column."""
        return (np.arange(self.column, self.column + self.columns, dtype=np.float64) + 0.5) * self.step_um

    @property
    def ys_um(self) -> Floats:
        """Position of each row."""
        return (np.arange(self.row, self.row + self.rows, dtype=np.float64) + 0.5) * self.step_um


def lattice_around(points_um: Points, reach_um: float, step_um: float) -> Lattice:
    """The window of all positions within `reach_um` of some point."""
    low = np.floor((points_um.min(axis=0) - reach_um) / step_um)
    high = np.floor((points_um.max(axis=0) + reach_um) / step_um)
    columns, rows = high - low + 1
    if not columns * rows <= MOST_POSITIONS:
        width, height = (side * step_um / 1000 for side in (columns, rows))
        raise UsageError(
            f"the detections are spread over {width:.4g} mm x {height:.4g} mm",
            next_step="check the micrometres per pixel, and that x and y are level-0 pixels",
        )
    return Lattice(step_um, int(low[0]), int(low[1]), int(columns), int(rows))


def lattice_counts(points_um: Points, lattice: Lattice, radius_um: float) -> Integers:
    """How many points lie within `radius_um` of each position, (rows, columns).

    In each row, a point lies in the circles of a run of neighbouring positions: only the ends of the runs are
    noted, and a cumulative sum along the rows turns them into counts.
    """
    step, reach = lattice.step_um, math.ceil(radius_um / lattice.step_um) + 1
    row = np.floor(points_um[:, 1] / step).astype(np.intp)[:, None] + np.arange(-reach, reach + 1)
    height = (row + 0.5) * step - points_um[:, 1, None]
    half = np.sqrt(np.maximum(radius_um**2 - height**2, 0))
    first = np.ceil((points_um[:, 0, None] - half) / step - 0.5) - lattice.column
    after = np.floor((points_um[:, 0, None] + half) / step - 0.5) + 1 - lattice.column
    row -= lattice.row
    met = (np.abs(height) <= radius_um) & (row >= 0) & (row < lattice.rows) & (after > first)
    line = row[met] * (lattice.columns + 1)
    start, stop = (line + np.clip(end[met], 0, lattice.columns).astype(np.intp) for end in (first, after))
    cells = lattice.rows * (lattice.columns + 1)
    ends = np.bincount(start, minlength=cells) - np.bincount(stop, minlength=cells)
    return ends.reshape(lattice.rows, lattice.columns + 1).cumsum(axis=1)[:, :-1]


def filled_percentile(counts: Integers, percentile: float) -> float:
    """The percentile of the counts above 0, interpolated linearly; 0 where no count is."""
    filled = np.sort(counts[counts > 0])
    rank = percentile / 100 * (len(filled) - 1)
    return float(np.interp(rank, np.arange(len(filled)), filled)) if len(filled) else 0.0


# ---- the busiest circle of all ----

FINEST_UM = 0.01
"""Half-width of the smallest cells searched: no circle smaller by 15 nm holds more than the one found."""
CELLS_A_RADIUS = 12
QUARTERS = np.array([(-0.5, -0.5), (-0.5, 0.5), (0.5, -0.5), (0.5, 0.5)])


Circle = tuple[float, float, float]
"""x, y and radius, in level-0 pixels."""


def held_by(circles: Sequence[Circle], points: Points) -> Mask:
    """Which points (n, 2) lie in any of the circles, on their edges included."""
    away = [np.hypot(*(points - (x, y)).T) <= radius * (1 + 1e-9) for x, y, radius in circles]
    return np.asarray(np.any(away, axis=0))


class Hotspot(Stored):
    """The busiest circle, in level-0 pixels; where nothing counts, where most is listed, or most tissue.

    Where a person chose the place of the count, that: a circle, or ten fields and the circle around them.
    """

    x: float
    """Centre, in level-0 pixels."""
    y: float
    """Centre, in level-0 pixels."""
    radius_px: Annotated[float, Field(gt=0)]
    """Radius, in level-0 pixels."""
    count: Annotated[int, Field(ge=0)]
    """Mitotic figures inside."""
    tissue_mm2: float
    """Tissue inside; the whole circle where no tissue mask was given."""
    fields: tuple[Circle, ...] = ()
    """x, y and radius of each of ten fields, where these are counted in place of the circle."""

    @property
    def circles(self) -> tuple[Circle, ...]:
        """Where figures are counted."""
        return self.fields or ((self.x, self.y, self.radius_px),)

    @property
    def shape(self) -> BaseGeometry:
        """The same for shapely."""
        return shapely.union_all([shapely.Point(x, y).buffer(r, quad_segs=32) for x, y, r in self.circles])

    def holds(self, points: Points) -> Mask:
        """Which points (n, 2) lie inside."""
        return held_by(self.circles, points)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def per_mm2(self) -> Number:
        """Mitotic figures per mm² of that tissue; unknown where there is none."""
        return self.count / self.tissue_mm2 if self.tissue_mm2 > 0 else math.nan


def busiest_circle(
    points_um: Points, radius_um: float, within: BaseGeometry | None = None
) -> tuple[float, float, int]:
    """Centre and count of a circle of `radius_um` that holds as many points as any can.

    A square cell of centres cannot hold more than a circle larger by its half-diagonal around its middle.
    Cells that cannot beat the best circle seen are dropped, the others are quartered. Where a shape is given
    that holds the points, the centre lies `within` it, and cells beside it are dropped, too.
    """
    tree = scipy.spatial.cKDTree(points_um)
    step = radius_um / CELLS_A_RADIUS
    lattice = lattice_around(points_um, radius_um + step, step)
    counts = lattice_counts(points_um, lattice, radius_um)
    bound = lattice_counts(points_um, lattice, radius_um + step / math.sqrt(2))
    row, column = np.unravel_index(int(counts.argmax()), counts.shape)
    centre, best = np.array([lattice.xs_um[column], lattice.ys_um[row]]), int(counts.max())
    if within is not None:  # begin with a point: it lies within
        shapely.prepare(within)
        own = tree.query_ball_point(points_um, radius_um, return_length=True)
        centre, best = points_um[own.argmax()], int(own.max())
    rows, columns = np.nonzero(bound > best)
    middles, half = np.stack([lattice.xs_um[columns], lattice.ys_um[rows]], axis=1), step / 2
    while len(middles) and half > FINEST_UM:
        half /= 2
        middles = (middles[:, None] + 2 * half * QUARTERS).reshape(-1, 2)
        if within is not None:
            cells = shapely.box(*(middles - half).T, *(middles + half).T)
            middles = middles[shapely.intersects(within, cells)]
            if not len(middles):
                break
        inside = tree.query_ball_point(middles, radius_um, return_length=True)
        if within is not None:
            inside = np.where(shapely.contains_xy(within, *middles.T), inside, 0)
        top = int(inside.argmax())
        if inside[top] > best:
            centre, best = middles[top], int(inside[top])
        bound = tree.query_ball_point(middles, radius_um + half * math.sqrt(2), return_length=True)
        middles = middles[bound > best]
    # Of all circles that hold the same points, the one around the middle of their smallest circle.
    members = tree.query_ball_point(centre, radius_um)
    smallest = shapely.minimum_bounding_circle(shapely.MultiPoint(np.unique(points_um[members], axis=0)))
    middle = np.array([smallest.centroid.x, smallest.centroid.y])
    lost = tree.query_ball_point(middle, radius_um, return_length=True) < len(members)  # to rounding
    if lost or (within is not None and not shapely.contains_xy(within, *middle)):
        middle = centre
    return float(middle[0]), float(middle[1]), best
