"""The local part of a registration: a smooth field of small displacements.

The field is a sum of uniform cubic B-splines on a square grid, so it and its slope are continuous. Beyond the
grid it keeps the value of the nearest edge. Coefficients come from scattered measurements by robust
least squares, with a penalty on bending that bridges places without any.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array, csc_array, diags_array, eye_array, kron, vstack
from scipy.sparse.linalg import spsolve

from metaphase.base.arrays import Points
from metaphase.labels.registration.coarse import Weights

BENDING = 0.003
"""Weight of the squared second differences of the coefficients, per measurement of weight 1."""
RIDGE = 1e-4
"""Pulls coefficients that no measurement reaches towards 0."""
MAX_STRETCH = 0.3
"""The field changes by at most this much per unit of length: it neither folds nor tears."""
MAX_CELLS = 64
"""Cells along the longer side of the grid, at most."""
ROUNDS = 6


@dataclass(frozen=True, eq=False)
class LocalField:
    """Displacements in micrometres over the PHH3 slide."""

    x_um: float
    """Left edge of the first cell ..."""
    y_um: float
    """... and its top edge."""
    spacing_um: float
    """Side of a cell."""
    coefficients: npt.NDArray[np.float64]
    """(rows + 3, columns + 3, 2) for rows x columns cells: x and y in um."""

    def at(self, points_um: Points) -> Points:
        """Displacements (n, 2) at points (n, 2)."""
        rows, columns, _ = self.coefficients.shape
        basis = _basis(self._cell_units(points_um), rows, columns)
        return np.asarray(basis @ self.coefficients.reshape(-1, 2), np.float64)

    @property
    def stretch(self) -> float:
        """An upper bound of how much the displacement changes per unit of length."""
        steps = [np.diff(self.coefficients, axis=axis) for axis in (0, 1)]
        down, across = (float(np.linalg.norm(step, axis=2).max(initial=0)) for step in steps)
        return math.hypot(down, across) / self.spacing_um

    def _cell_units(self, points_um: Points) -> Points:
        rows, columns, _ = self.coefficients.shape
        units = (np.asarray(points_um, np.float64) - (self.x_um, self.y_um)) / self.spacing_um
        return np.clip(units, 0, (columns - 3, rows - 3))


def fit_field(
    places_um: Points, displacements_um: Points, weights: Weights, spacing_um: float, tolerance_um: float
) -> LocalField:
    """The smooth field nearest to the measurements; those far from it (see `tolerance_um`) lose their say.

    Bending is punished harder until the field is nowhere steeper than `MAX_STRETCH`, so it can be inverted.
    """
    low, size = places_um.min(axis=0), np.ptp(places_um, axis=0)
    spacing = max(spacing_um, float(size.max()) / MAX_CELLS)
    columns, rows = (max(1, int(np.ceil(side / spacing))) for side in size)
    bending = BENDING
    while True:
        grid = _solve(
            (places_um - low) / spacing, displacements_um, weights, (rows, columns), bending, tolerance_um
        )
        field = LocalField(float(low[0]), float(low[1]), spacing, grid)
        if field.stretch <= MAX_STRETCH:
            return field
        bending *= 4


def _solve(
    units: Points,
    displacements: Points,
    weights: Weights,
    cells: tuple[int, int],
    bending: float,
    tolerance: float,
) -> npt.NDArray[np.float64]:
    """Coefficients by iteratively reweighted least squares (Tukey's biweight)."""
    rows, columns = cells[0] + 3, cells[1] + 3
    basis = _basis(units, rows, columns)
    penalty = bending * _bending(rows, columns) + RIDGE * eye_array(rows * columns, format="csc")
    trust = weights
    grid = np.zeros((rows * columns, 2))
    for _ in range(ROUNDS):
        weighted = basis.T @ diags_array(trust)
        grid = np.asarray(spsolve(csc_array(weighted @ basis + penalty), weighted @ displacements))
        miss = np.linalg.norm(displacements - basis @ grid, axis=1)
        trust = weights * np.clip(1 - (miss / tolerance) ** 2, 0, 1) ** 2
    return grid.reshape(rows, columns, 2)


def _bending(rows: int, columns: int) -> csc_array:
    """The quadratic form of second differences along rows, along columns and across both."""

    def difference(n: int, order: int) -> csc_array:
        if n <= order:
            return csc_array((0, n))
        return csc_array(np.diff(np.eye(n), order, axis=0))

    whole_rows, whole_columns = eye_array(rows), eye_array(columns)
    parts = [
        kron(difference(rows, 2), whole_columns),
        kron(whole_rows, difference(columns, 2)),
        np.sqrt(2) * kron(difference(rows, 1), difference(columns, 1)),
    ]
    stacked = csc_array(vstack(parts))
    return csc_array(stacked.T @ stacked)


def _basis(units: Points, rows: int, columns: int) -> csc_array:
    """Values of all splines (n, rows * columns) at points given in cells."""
    limits = np.array([columns - 4, rows - 4])
    cell = np.clip(np.floor(units).astype(int), 0, np.maximum(limits, 0))
    part = units - cell
    across, down = _cubic(part[:, 0]), _cubic(part[:, 1])
    values = (down[:, :, None] * across[:, None, :]).reshape(len(units), 16)
    row = cell[:, 1, None, None] + np.arange(4)[:, None]
    column = cell[:, 0, None, None] + np.arange(4)
    index = (row * columns + column).reshape(len(units), 16)
    point = np.repeat(np.arange(len(units)), 16)
    return csc_array(coo_array((values.ravel(), (point, index.ravel())), (len(units), rows * columns)))


def _cubic(t: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The four B-splines (n, 4) that are not 0 at the fraction t of a cell."""
    return (
        np.stack([(1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3], axis=1) / 6
    )
