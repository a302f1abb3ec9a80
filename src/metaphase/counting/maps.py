"""Where mitoses lie: cells of tissue, smoothed density, and how unevenly they are spread."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.fft import fftshift, irfft2, rfft2
from scipy.ndimage import gaussian_filter
from scipy.spatial import cKDTree

from metaphase.base.arrays import Floats, Integers, Points
from metaphase.counting.hotspot import Hotspot, Lattice
from metaphase.counting.specimen import Specimen
from metaphase.images.tissue.finding import TissueMask

# ---- mitoses and tissue in square cells ----


@dataclass(frozen=True)
class CellGrid:
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


def cells_on_tissue(points_px: Points, tissue: TissueMask, cell_um: float) -> CellGrid:
    """Cells over the tissue mask, each a whole number of its pixels wide; mitoses beyond it are left out."""
    size = max(1, round(cell_um / tissue.mpp))
    area = _block_sums(tissue.mask.astype(np.float64), size) * tissue.mpp**2 / 1e6
    scale, mpp = size * tissue.scale, size * tissue.mpp
    return _fill(CellGrid(np.zeros_like(area), area, tissue.x, tissue.y, scale, mpp, True), points_px)


def cells_around(points_px: Points, mpp: float, reach_um: float, cell_um: float) -> CellGrid:
    """Cells around the mitoses where the tissue is not known: all of it counts as tissue."""
    step_px, reach_px = cell_um / mpp, reach_um / mpp
    around = points_px if len(points_px) else np.zeros((1, 2))
    corner = around.min(axis=0) - reach_px
    size = np.ceil((around.max(axis=0) + reach_px - corner) / step_px).astype(int)
    area = np.full((size[1], size[0]), (cell_um / 1000) ** 2)
    x, y = map(float, corner)
    return _fill(CellGrid(np.zeros_like(area), area, x, y, step_px, cell_um, False), points_px)


def tissue_in_circle(tissue: TissueMask, x: float, y: float, radius_px: float) -> float:
    """Area in mm2 of the tissue within `radius_px` of (x, y), both in level-0 pixels."""
    rows, columns = (np.arange(side) + 0.5 for side in tissue.mask.shape)
    dy, dx = tissue.y + rows * tissue.scale - y, tissue.x + columns * tissue.scale - x
    near = np.ix_(np.abs(dy) <= radius_px, np.abs(dx) <= radius_px)
    dy, dx = dy[np.abs(dy) <= radius_px], dx[np.abs(dx) <= radius_px]
    inside = dy[:, None] ** 2 + dx**2 <= radius_px**2
    return float(np.count_nonzero(tissue.mask[near] & inside)) * tissue.mpp**2 / 1e6


def _fill(cells: CellGrid, points_px: Points) -> CellGrid:
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


# ---- mitoses per mm2 of tissue, smoothed ----

LEAST_TISSUE = 0.1
"""Near an edge the density is raised at most tenfold, lest a single mitosis in a splinter light up."""


@dataclass(frozen=True, eq=False)
class DensityMap:
    """Value (row, column) holds for level-0 x from `x + column * step_px`, and rows likewise."""

    values: npt.NDArray[np.float32]
    """(h, w), mitoses per mm2 of tissue; 0 off the tissue."""
    x: float
    y: float
    step_px: float


def density_map(cells: CellGrid, sigma_um: float) -> DensityMap:
    """Smooth mitoses and tissue alike and divide: what lies beyond the edge of the tissue does not dilute."""
    sigma = sigma_um / cells.step_um
    mitoses = gaussian_filter(cells.mitoses, sigma, mode="constant")
    tissue = gaussian_filter(cells.tissue_mm2, sigma, mode="constant" if cells.ends else "nearest")
    least = LEAST_TISSUE * (cells.step_um / 1000) ** 2
    density = np.where(cells.tissue_mm2 > 0, mitoses / np.maximum(tissue, least), 0)
    return DensityMap(density.astype(np.float32), cells.x, cells.y, cells.step_px)


# ---- how unevenly mitoses are spread over the tissue ----

FIELD_UM = 500.0
"""Fields for Gini and dispersion: 0.25 mm2, about one high-power field."""
LEAST_FIELD = 0.1
"""Fields with less than this share of tissue are left out."""
MOST_PAIRED = 20_000
"""Pairs are counted among at most so many mitoses, evenly picked."""


def heterogeneity(slide: Specimen, cells: CellGrid, hotspot: Hotspot) -> dict[str, float]:
    """All measures; those relative to tissue are NaN where the tissue is not known."""
    total, radius_um = len(slide.mitoses_um), slide.config.radius_um
    mean = total / slide.area_mm2
    measures = {
        "mean_per_mm2": mean,
        "hotspot_to_mean": hotspot.per_mm2 / mean if total else math.nan,
        "hotspots": float(separate_hotspots(slide.counts, slide.lattice, radius_um)),
    }
    if slide.tissue is None:
        unknown = ("gini", "dispersion", "clustering", "share_above_theta1", "share_above_theta2")
        return {**measures, **dict.fromkeys(unknown, math.nan)}
    mitoses, tissue_mm2 = fields(cells)
    return {
        **measures,
        "gini": gini(mitoses, tissue_mm2),
        "dispersion": dispersion(mitoses, tissue_mm2),
        "clustering": clustering(slide.mitoses_um, cells, radius_um),
        "share_above_theta1": share_above(slide, cells, slide.config.theta1),
        "share_above_theta2": share_above(slide, cells, slide.config.theta2),
    }


def fields(cells: CellGrid) -> tuple[Floats, Floats]:
    """Mitoses and tissue (mm2) in every field with enough tissue."""
    size = max(1, round(FIELD_UM / cells.step_um))
    mitoses, tissue = (part.ravel() for part in cells.blocks(size))
    enough = tissue >= LEAST_FIELD * (size * cells.step_um / 1000) ** 2
    return mitoses[enough], tissue[enough]


def dispersion(mitoses: Floats, tissue_mm2: Floats) -> float:
    """Variance of the fields' counts relative to their expectation: 1 for chance, more for clusters."""
    if len(mitoses) < 2 or mitoses.sum() == 0:
        return math.nan
    expected = mitoses.sum() * tissue_mm2 / tissue_mm2.sum()
    return float(((mitoses - expected) ** 2 / expected).sum() / (len(mitoses) - 1))


def gini(mitoses: Floats, tissue_mm2: Floats) -> float:
    """Inequality of mitoses over tissue: 0 if every mm2 has as many, towards 1 if one field has them all."""
    if mitoses.sum() == 0:
        return math.nan
    order = np.argsort(mitoses / tissue_mm2)
    tissue = np.r_[0, tissue_mm2[order].cumsum()] / tissue_mm2.sum()
    share = np.r_[0, mitoses[order].cumsum()] / mitoses.sum()
    return float(1 - np.sum(np.diff(tissue) * (share[1:] + share[:-1])))


def clustering(points_um: Points, cells: CellGrid, radius_um: float) -> float:
    """Pairs of mitoses within `radius_um` relative to chance on this very tissue: Ripley's K, as a ratio."""
    points_um = points_um[:: -(-len(points_um) // MOST_PAIRED) or 1]
    total = len(points_um)
    if total < 2:
        return math.nan
    tree = cKDTree(points_um)
    pairs = int(tree.count_neighbors(tree, radius_um)) - total
    return pairs / (total * (total - 1)) / near_by_chance(cells, radius_um)


def near_by_chance(cells: CellGrid, radius_um: float) -> float:
    """Probability that two points thrown anywhere on the tissue are within `radius_um` of each other."""
    tissue = cells.tissue_mm2
    size = [2 * side - 1 for side in tissue.shape]
    together = fftshift(irfft2(np.abs(rfft2(tissue, size)) ** 2, size))
    rows, columns = (np.arange(-side + 1, side) * cells.step_um for side in tissue.shape)
    near = rows[:, None] ** 2 + columns**2 <= radius_um**2
    return float(together[near].sum() / tissue.sum() ** 2)


def separate_hotspots(counts: Integers, lattice: Lattice, radius_um: float) -> int:
    """Circles that do not overlap, each at least half as busy as the busiest; picked busiest first."""
    left = counts.copy()
    least, found = max(1, math.ceil(counts.max(initial=0) / 2)), 0
    xs, ys = lattice.xs_um, lattice.ys_um
    while left.max(initial=0) >= least:
        row, column = np.unravel_index(int(left.argmax()), left.shape)
        rows = slice(*np.searchsorted(ys, (ys[row] - 2 * radius_um, ys[row] + 2 * radius_um)))
        columns = slice(*np.searchsorted(xs, (xs[column] - 2 * radius_um, xs[column] + 2 * radius_um)))
        apart = (ys[rows, None] - ys[row]) ** 2 + (xs[columns] - xs[column]) ** 2 >= 4 * radius_um**2
        left[rows, columns] *= apart
        found += 1
    return found


def share_above(slide: Specimen, cells: CellGrid, level: float) -> float:
    """Share of the tissue around which a circle holds more than `level` mitoses."""
    lattice, tissue = slide.lattice, cells.tissue_mm2
    rows, columns = (np.arange(side) + 0.5 for side in tissue.shape)
    to_lattice = slide.mpp / lattice.step_um
    row = np.floor((cells.y + rows * cells.step_px) * to_lattice).astype(int) - lattice.row
    column = np.floor((cells.x + columns * cells.step_px) * to_lattice).astype(int) - lattice.column
    known = ((row >= 0) & (row < lattice.rows))[:, None] & (column >= 0) & (column < lattice.columns)
    nearest = np.ix_(row.clip(0, lattice.rows - 1), column.clip(0, lattice.columns - 1))
    above = known & (slide.counts[nearest] > level)
    return float(tissue[above].sum() / tissue.sum())
