"""How mitoses are spread over the tissue of a slide: density map, distance to the edge, heterogeneity."""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt
import scipy

from metaphase.base.arrays import Floats, Integers, Points
from metaphase.base.later import pandas as pd
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


def cells_of(slide: Specimen) -> CellGrid:
    """Mitoses and tissue in cells, each a whole number of pixels of the tissue mask wide.

    Where the tissue is not known, the cells lie around the mitoses, and all of them count as tissue.
    """
    tissue, cell_um, points = slide.tissue, slide.config.cell_um, slide.mitoses_px
    if tissue is not None:
        size = max(1, round(cell_um / tissue.mpp))
        x, y, step_px, step_um = tissue.x, tissue.y, size * tissue.scale, size * tissue.mpp
        tissue_mm2 = block_sums(tissue.mask.astype(np.float64), size) * tissue.mpp**2 / 1e6
    else:
        step_px, step_um, reach_px = cell_um / slide.mpp, cell_um, 2 * slide.config.radius_um / slide.mpp
        around = points if len(points) else np.zeros((1, 2))
        corner = around.min(axis=0) - reach_px
        columns, rows = np.ceil((around.max(axis=0) + reach_px - corner) / step_px).astype(int)
        x, y = map(float, corner)
        tissue_mm2 = np.full((rows, columns), (cell_um / 1000) ** 2)
    cells = np.floor((points - (x, y)) / step_px).astype(int)[:, ::-1]
    cells = cells[((cells >= 0) & (cells < tissue_mm2.shape)).all(axis=1)]
    mitoses = np.zeros_like(tissue_mm2)
    np.add.at(mitoses, tuple(cells.T), 1)
    return CellGrid(mitoses, tissue_mm2, x, y, step_px, step_um, tissue is not None)


def block_sums(values: Floats, size: int) -> Floats:
    """Sums over blocks of `size` x `size`, the last ones filled up with 0."""
    rows, columns = (-(-side // size) * size for side in values.shape)
    padded = np.zeros((rows, columns))
    padded[: values.shape[0], : values.shape[1]] = values
    sums: Floats = padded.reshape(rows // size, size, columns // size, size).sum(axis=(1, 3))
    return sums


# ---- mitoses by their distance to the edge of the tissue ----

BANDS_UM = (0.0, 250.0, 500.0, 1000.0, 2000.0, 4000.0, math.inf)
LEAST_BAND_MM2 = 0.1
"""Bands with less tissue say nothing."""


def edge_bands(points_px: Points, tissue: TissueMask) -> pd.DataFrame:
    """Figures and tissue in bands of distance to the nearest edge, holes included: one row a band, with the
    figures per mm2 and their 95 % Poisson interval."""
    away = cv2.distanceTransform(np.pad(tissue.mask, 1).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)[
        1:-1, 1:-1
    ]
    away_um = (away - 0.5) * tissue.mpp  # of the middle of a pixel
    column, row = np.floor((points_px[tissue.contains(points_px)] - (tissue.x, tissue.y)) / tissue.scale).T
    figures, _ = np.histogram(away_um[row.astype(int), column.astype(int)], BANDS_UM)
    area_mm2 = np.histogram(away_um[tissue.mask], BANDS_UM)[0] * tissue.mpp**2 / 1e6
    table = pd.DataFrame({"from_um": BANDS_UM[:-1], "to_um": BANDS_UM[1:], "figures": figures})
    ends = (
        scipy.special.gammaincinv(np.maximum(figures, 1e-9), 0.025),
        scipy.special.gammaincinv(figures + 1, 0.975),
    )
    kept = area_mm2 >= LEAST_BAND_MM2
    numbers = zip(("per_mm2", "low", "high"), (figures, *ends), strict=True)
    densities = {name: values[kept] / area_mm2[kept] for name, values in numbers}
    return table[kept].assign(tissue_mm2=area_mm2[kept], **densities)


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
    mitoses = scipy.ndimage.gaussian_filter(cells.mitoses, sigma, mode="constant")
    tissue = scipy.ndimage.gaussian_filter(
        cells.tissue_mm2, sigma, mode="constant" if cells.ends else "nearest"
    )
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


def heterogeneity(slide: Specimen, hotspot: Hotspot) -> dict[str, float]:
    """All measures; those relative to tissue are NaN where the tissue is not known."""
    total, config = len(slide.mitoses_um), slide.config
    mean = total / slide.area_mm2 if slide.area_mm2 else math.nan
    measures = {
        "mean_per_mm2": mean,
        "hotspot_to_mean": hotspot.per_mm2 / mean if total else math.nan,
        "hotspots": float(separate_hotspots(slide.counts, slide.lattice, config.radius_um)),
    }
    if slide.tissue is None:
        unknown = ("gini", "dispersion", "clustering", "share_above_theta1", "share_above_theta2")
        return measures | dict.fromkeys(unknown, math.nan)
    cells = cells_of(slide)
    size = max(1, round(FIELD_UM / cells.step_um))
    mitoses, tissue_mm2 = (block_sums(part, size).ravel() for part in (cells.mitoses, cells.tissue_mm2))
    enough = tissue_mm2 >= LEAST_FIELD * (size * cells.step_um / 1000) ** 2
    return measures | {
        "gini": gini(mitoses[enough], tissue_mm2[enough]),
        "dispersion": dispersion(mitoses[enough], tissue_mm2[enough]),
        "clustering": clustering(slide.mitoses_um, cells, config.radius_um),
        "share_above_theta1": share_above(slide, cells, config.theta1),
        "share_above_theta2": share_above(slide, cells, config.theta2),
    }


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
    tree = scipy.spatial.cKDTree(points_um)
    pairs = int(tree.count_neighbors(tree, radius_um)) - total
    return pairs / (total * (total - 1)) / near_by_chance(cells, radius_um)


def near_by_chance(cells: CellGrid, radius_um: float) -> float:
    """Probability that two points thrown anywhere on the tissue are within `radius_um` of each other."""
    tissue = cells.tissue_mm2
    size = [2 * side - 1 for side in tissue.shape]
    together = scipy.fft.fftshift(scipy.fft.irfft2(np.abs(scipy.fft.rfft2(tissue, size)) ** 2, size))
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
