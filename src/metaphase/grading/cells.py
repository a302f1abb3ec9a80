"""Mitoses and tissue in square cells, from which density and heterogeneity are computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metaphase.grading.lattice import Floats, Points
from metaphase.tissue import TissueMask


@dataclass(frozen=True)
class Cells:
    """Cell (row, column) covers level-0 x from `x + column * step_px`, and rows likewise."""

    mitoses: Floats
    """(rows, columns), mitoses in each cell."""
    tissue_mm2: Floats
    """(rows, columns), tissue in each cell."""
    x: float
    y: float
    step_px: float
    step_um: float
    ends: bool
    """Whether there is no tissue beyond the cells; if not, it goes on."""

    def index(self, points_px: Points) -> tuple[Floats, Floats]:
        """Row and column of each point, also of points outside."""
        column, row = np.floor((points_px - (self.x, self.y)) / self.step_px).T
        return row, column

    def blocks(self, size: int) -> tuple[Floats, Floats]:
        """Mitoses and tissue of blocks of `size` x `size` cells."""
        return _block_sums(self.mitoses, size), _block_sums(self.tissue_mm2, size)


def cells_on_tissue(points_px: Points, tissue: TissueMask, cell_um: float) -> Cells:
    """Cells over the tissue mask, each a whole number of its pixels wide; mitoses beyond it are left out."""
    size = max(1, round(cell_um / tissue.mpp))
    area = _block_sums(tissue.mask.astype(np.float64), size) * tissue.mpp**2 / 1e6
    scale, mpp = size * tissue.scale, size * tissue.mpp
    return _fill(Cells(np.zeros_like(area), area, tissue.x, tissue.y, scale, mpp, True), points_px)


def cells_around(points_px: Points, mpp: float, reach_um: float, cell_um: float) -> Cells:
    """Cells around the mitoses where the tissue is not known: all of it counts as tissue."""
    step_px, reach_px = cell_um / mpp, reach_um / mpp
    around = points_px if len(points_px) else np.zeros((1, 2))
    corner = around.min(axis=0) - reach_px
    size = np.ceil((around.max(axis=0) + reach_px - corner) / step_px).astype(int)
    area = np.full((size[1], size[0]), (cell_um / 1000) ** 2)
    x, y = map(float, corner)
    return _fill(Cells(np.zeros_like(area), area, x, y, step_px, cell_um, False), points_px)


def tissue_in_circle(tissue: TissueMask, x: float, y: float, radius_px: float) -> float:
    """Area in mm2 of the tissue within `radius_px` of (x, y), both in level-0 pixels."""
    rows, columns = (np.arange(side) + 0.5 for side in tissue.mask.shape)
    dy, dx = tissue.y + rows * tissue.scale - y, tissue.x + columns * tissue.scale - x
    near = np.ix_(np.abs(dy) <= radius_px, np.abs(dx) <= radius_px)
    dy, dx = dy[np.abs(dy) <= radius_px], dx[np.abs(dx) <= radius_px]
    inside = dy[:, None] ** 2 + dx**2 <= radius_px**2
    return float(np.count_nonzero(tissue.mask[near] & inside)) * tissue.mpp**2 / 1e6


def _fill(cells: Cells, points_px: Points) -> Cells:
    """Add the mitoses to their cells."""
    row, column = cells.index(points_px)
    rows, columns = cells.mitoses.shape
    inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    np.add.at(cells.mitoses, (row[inside].astype(int), column[inside].astype(int)), 1)
    return cells


def _block_sums(values: Floats, size: int) -> Floats:
    """Sums over blocks of `size` x `size`, the last ones filled up with 0."""
    rows, columns = (-(-side // size) * size for side in values.shape)
    padded = np.zeros((rows, columns))
    padded[: values.shape[0], : values.shape[1]] = values
    sums: Floats = padded.reshape(rows // size, size, columns // size, size).sum(axis=(1, 3))
    return sums
