"""How unevenly mitoses are spread over the tissue. Each measure is one number."""

from __future__ import annotations

import math

import numpy as np
from scipy.signal import fftconvolve
from scipy.spatial import cKDTree

from metaphase.grading.cells import Cells
from metaphase.grading.hotspot import Hotspot
from metaphase.grading.lattice import Counts, Floats, Lattice, Points
from metaphase.grading.specimen import Specimen

FIELD_UM = 500.0
"""Fields for Gini and dispersion: 0.25 mm2, about one high-power field."""
LEAST_FIELD = 0.1
"""Fields with less than this share of tissue are left out."""
MOST_PAIRED = 20_000
"""Pairs are counted among at most so many mitoses, evenly picked."""


def heterogeneity(slide: Specimen, cells: Cells, hotspot: Hotspot) -> dict[str, float]:
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


def fields(cells: Cells) -> tuple[Floats, Floats]:
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


def clustering(points_um: Points, cells: Cells, radius_um: float) -> float:
    """Pairs of mitoses within `radius_um` relative to chance on this very tissue: Ripley's K, as a ratio."""
    points_um = points_um[:: -(-len(points_um) // MOST_PAIRED) or 1]
    total = len(points_um)
    if total < 2:
        return math.nan
    tree = cKDTree(points_um)
    pairs = int(tree.count_neighbors(tree, radius_um)) - total
    return pairs / (total * (total - 1)) / near_by_chance(cells, radius_um)


def near_by_chance(cells: Cells, radius_um: float) -> float:
    """Probability that two points thrown anywhere on the tissue are within `radius_um` of each other."""
    tissue = cells.tissue_mm2
    together = fftconvolve(tissue, tissue[::-1, ::-1])
    rows, columns = (np.arange(-side + 1, side) * cells.step_um for side in tissue.shape)
    near = rows[:, None] ** 2 + columns**2 <= radius_um**2
    return float(together[near].sum() / tissue.sum() ** 2)


def separate_hotspots(counts: Counts, lattice: Lattice, radius_um: float) -> int:
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


def share_above(slide: Specimen, cells: Cells, level: float) -> float:
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
