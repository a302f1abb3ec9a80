"""Circles over points: exact counts at every position of a lattice, and the busiest circle of all.

A point lies in the circles of a run of neighbouring positions in each row. Only the two ends of every run are
kept; a cumulative sum along the rows turns them into counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
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

    @property
    def positions(self) -> int:
        """How many positions the window has."""
        return self.columns * self.rows


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


@dataclass(frozen=True)
class Runs:
    """Where the runs of positions start and stop, as indices into rows of `columns + 1` cells."""

    point: npt.NDArray[np.intp]
    start: npt.NDArray[np.intp]
    stop: npt.NDArray[np.intp]


def runs(points_um: Points, lattice: Lattice, radius_um: float) -> Runs:
    """For each point and each row, the run of positions not farther than `radius_um` from the point."""
    step, reach = lattice.step_um, math.ceil(radius_um / lattice.step_um) + 1
    row = np.floor(points_um[:, 1] / step).astype(np.intp)[:, None] + np.arange(-reach, reach + 1)
    height = (row + 0.5) * step - points_um[:, 1, None]
    half = np.sqrt(np.maximum(radius_um**2 - height**2, 0))
    first = np.ceil((points_um[:, 0, None] - half) / step - 0.5) - lattice.column
    after = np.floor((points_um[:, 0, None] + half) / step - 0.5) + 1 - lattice.column
    row -= lattice.row
    met = (np.abs(height) <= radius_um) & (row >= 0) & (row < lattice.rows) & (after > first)
    line = row[met] * (lattice.columns + 1)
    start, stop = (np.clip(end[met], 0, lattice.columns).astype(np.intp) for end in (first, after))
    return Runs(np.nonzero(met)[0], line + start, line + stop)


def lattice_counts(points_um: Points, lattice: Lattice, radius_um: float) -> Integers:
    """How many points lie within `radius_um` of each position, (rows, columns)."""
    found = runs(points_um, lattice, radius_um)
    cells = lattice.rows * (lattice.columns + 1)
    ends = np.bincount(found.start, minlength=cells) - np.bincount(found.stop, minlength=cells)
    return ends.reshape(lattice.rows, lattice.columns + 1).cumsum(axis=1)[:, :-1]


def run_ends(points_um: Points, lattice: Lattice, radius_um: float) -> scipy.sparse.csr_matrix:
    """The matrix (cells, points) that turns weights of points into ends of runs; see `counts_of_weights`."""
    found = runs(points_um, lattice, radius_um)
    signs = np.repeat(np.array([1, -1], np.int32), len(found.point))
    ends_at = (np.concatenate([found.start, found.stop]), np.tile(found.point, 2))
    shape = (lattice.rows * (lattice.columns + 1), len(points_um))
    return scipy.sparse.csr_matrix((signs, ends_at), shape=shape)


def counts_of_weights(
    ends: scipy.sparse.csr_matrix, lattice: Lattice, weights: npt.NDArray[np.int32]
) -> Integers:
    """Counts (positions, draws) where points count `weights` (points, draws) times each."""
    changes = (ends @ weights).reshape(lattice.rows, lattice.columns + 1, -1)
    counts = np.cumsum(changes, axis=1, out=changes)[:, :-1].reshape(lattice.positions, -1)
    return np.asarray(counts)


def filled_percentile(counts: npt.NDArray[np.integer], percentile: float) -> Floats:
    """The percentile of the counts above 0 in each column of `counts` (positions, draws), or 0.

    The same as `numpy.percentile` with its linear interpolation, from a histogram: counts are small integers.
    """
    draws, levels = counts.shape[1], int(counts.max(initial=0)) + 1
    offset = np.arange(draws, dtype=np.int64) * levels
    histogram = np.bincount((counts + offset).ravel(), minlength=draws * levels).reshape(draws, levels)
    histogram[:, 0] = 0
    upto = histogram.cumsum(axis=1)
    rank = percentile / 100 * np.maximum(upto[:, -1] - 1, 0)
    low, high = (  # the values of these ranks, 0 the lowest
        (upto <= end[:, None]).sum(axis=1).astype(np.float64) for end in (np.floor(rank), np.ceil(rank))
    )
    return np.where(upto[:, -1] > 0, low + (high - low) * (rank - np.floor(rank)), 0.0)


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
