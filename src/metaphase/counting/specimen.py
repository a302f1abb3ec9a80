"""One slide as counting sees it: settings, checked detections, scale, tissue, density map, heterogeneity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import cv2
import numpy as np
import numpy.typing as npt
import scipy
from pydantic import Field, NonNegativeInt, PositiveFloat

from metaphase.base.arrays import Floats, Integers, Points
from metaphase.base.errors import UsageError, require
from metaphase.base.later import pandas as pd
from metaphase.base.settings import Share, settings
from metaphase.base.tables import TableError, as_text, numbers_of, require_columns, require_numbers
from metaphase.counting.hotspot import Hotspot, Lattice, lattice_around, lattice_counts
from metaphase.counting.likely import LaboratoryPrior, prior_of
from metaphase.counting.regions import ANYWHERE, Scope
from metaphase.detections.table import (
    CERTAIN,
    LOOKALIKE,
    MACHINE,
    MITOSIS,
    OPERATING_POINTS,
    PAPER_FLOOR,
    PAPER_THETA1,
    PAPER_THETA2,
    REVIEWED,
)
from metaphase.images.tissue.finding import TissueMask

# ---- settings of the mitotic count ----

LARGEST_MM2 = 1e5
"""No slide has more tissue: 300 mm a side at most."""
MOST = 1e6
"""No hotspot has more mitoses."""
Theta = Annotated[float, Field(ge=0, le=MOST)]
"""A count at which grades change."""


@settings
class CountConfig:
    """The hotspot, the scores, and how the model errs. The defaults are the paper's."""

    area_mm2: PositiveFloat = 2.0
    """Area of the circular hotspot."""

    step_um: PositiveFloat = 50.0
    """Distance between neighbouring positions of the hotspot."""

    percentile: Annotated[float, Field(ge=0, le=100)] = 95.0
    """Which percentile of the counts at non-empty positions is the proliferation score."""

    threshold: Share = PAPER_FLOOR
    """Detections at or above this probability count."""

    theta1: Theta = PAPER_THETA1
    """Counts up to this are grade 1."""

    theta2: Theta = PAPER_THETA2
    """Counts above `theta1` and up to this are grade 2, counts above it grade 3."""

    thetas_given: bool = False
    """Whether the user chose them for the count: then their score comes first. Those that were tuned belong
    to the proliferation score."""

    field_diameter_mm: Annotated[float, Field(ge=0.4, le=0.69)] = 0.5
    """Diameter of a high-power field in mm, from 0.40 to 0.69: ten of 0.5 mm are about 2 mm2."""

    prior: LaboratoryPrior | None = None
    """How the model errs in laboratories that it does not know; without it there is no interval."""

    seed: NonNegativeInt = 0
    """The same seed gives the same interval."""

    cell_um: PositiveFloat = 100.0
    """Size of the cells of the density map, about: a whole number of pixels of the tissue mask is taken."""

    def __post_init__(self) -> None:
        require(self.step_um <= self.radius_um, "step_um", self.step_um, "up to the hotspot's radius")
        require(self.theta2 >= self.theta1, "theta2", self.theta2, f"not below theta1 ({self.theta1:g})")

    @property
    def radius_um(self) -> float:
        """Radius of the hotspot."""
        return math.sqrt(self.area_mm2 * 1e6 / math.pi)

    def grade_of(self, counts: npt.ArrayLike) -> Integers:
        """Grade of each count."""
        return grade_of(counts, self.theta1, self.theta2)


def stated_config(detections: pd.DataFrame) -> CountConfig:
    """Settings with threshold, thetas and prior of the operating point that a table carries, if any."""
    config = CountConfig()
    stated = detections.attrs.get(OPERATING_POINTS)
    return at_point(config, stated["count"]) if isinstance(stated, dict) and "count" in stated else config


def stated_floor(detections: pd.DataFrame) -> float:
    """Probability from which on a table has all detections, as it states; 0 where it does not."""
    return stated_share(detections.attrs.get(OPERATING_POINTS), "search", "floor") or 0.0


def stated_share(points: Any, part: str, name: str) -> float | None:
    """A number of a part of what a table states; None where that is not there, or is none."""
    inner = points.get(part) if isinstance(points, Mapping) else None
    value = inner.get(name) if isinstance(inner, Mapping) else None
    return value if isinstance(value, float) else None


def at_point(config: CountConfig, point: Mapping[str, Any]) -> CountConfig:
    """Settings at an operating point, given as plain values: threshold, thetas and how the model errs."""
    thetas = {name: point[name] for name in ("theta1", "theta2") if point.get(name) is not None}
    known = point.get("prior")
    return replace(
        config,
        threshold=point["delta"],
        **thetas,
        thetas_given=bool(thetas) and bool(point.get("thetas_given")),
        prior=None if known is None else prior_of(known),
    )


def grade_of(counts: npt.ArrayLike, theta1: float, theta2: float) -> Integers:
    """Grade 1 up to `theta1` mitoses in the hotspot, 2 up to `theta2`, 3 above."""
    values = np.asarray(counts, np.float64)
    return 1 + (values > theta1).astype(np.int64) + (values > theta2).astype(np.int64)


# ---- one slide as counting sees it ----

SCALE_TOLERANCE = 0.02


@dataclass(frozen=True, eq=False)
class Specimen:
    """Detections of any probability, and what is known of the slide. Made by `specimen`, which checks it."""

    positions: Points
    """All detections, in level-0 pixels."""
    probability: Floats
    """With which each counts: 0 for one that people rejected, 1 for one that they call a mitosis."""
    machine: Floats
    """What the model said of each; NaN where people added it."""
    answer: Floats
    """What people said of each: 1 a mitosis, 0 none; NaN where nobody decided."""
    mpp: float
    tissue: TissueMask | None
    area_mm2: float
    """Tissue on the slide, or in the regions of the scope; NaN where it is not known."""
    config: CountConfig
    scope: Scope = ANYWHERE
    """Where figures count: all else is left out."""

    @cached_property
    def counted(self) -> npt.NDArray[np.bool_]:
        """Which detections count: those at or above the threshold."""
        return self.probability >= self.config.threshold

    @cached_property
    def mitoses_px(self) -> Points:
        """The detections that count, in level-0 pixels."""
        return self.positions[self.counted]

    @cached_property
    def mitoses_um(self) -> Points:
        """The detections that count, in micrometres."""
        return self.mitoses_px * self.mpp

    @property
    def is_reviewed(self) -> bool:
        """Whether people said anything about it."""
        return bool(np.isfinite(self.answer).any())

    @cached_property
    def unseen(self) -> int:
        """Detections that count, and about which nobody decided."""
        return int((self.counted & np.isnan(self.answer)).sum())

    @property
    def is_small(self) -> bool:
        """Whether all tissue is counted, as there is less than a hotspot has and nobody chose a place."""
        return self.scope.place is None and self.area_mm2 < self.config.area_mm2

    @cached_property
    def lattice(self) -> Lattice:
        """All positions at which the hotspot may hold a mitosis."""
        if not len(self.mitoses_um):
            return Lattice(self.config.step_um, 0, 0, 1, 1)
        return lattice_around(self.mitoses_um, self.config.radius_um, self.config.step_um)

    @cached_property
    def cells(self) -> CellGrid:
        """Mitoses and tissue in cells, over the tissue or, where that is not known, around the mitoses."""
        if self.tissue is None:
            return cells_around(self.mitoses_px, self.mpp, 2 * self.config.radius_um, self.config.cell_um)
        return cells_on_tissue(self.mitoses_px, self.tissue, self.config.cell_um)

    @cached_property
    def counts(self) -> Integers:
        """Mitoses in the hotspot at each position of the lattice."""
        return lattice_counts(self.mitoses_um, self.lattice, self.config.radius_um)


def specimen(
    detections: pd.DataFrame,
    mpp: float,
    tissue: TissueMask | None,
    area_mm2: float | None,
    config: CountConfig,
    scope: Scope = ANYWHERE,
) -> Specimen:
    """Check what the user gave. Exact copies of a detection count once; an empty tissue mask says nothing.

    A table with the columns of a review says what people answered, too. What lies outside the regions of a
    `scope` is left out, detections and tissue alike.
    """
    if not (math.isfinite(mpp) and mpp > 0):
        raise UsageError(f"mpp is {mpp}", next_step="give micrometres per pixel, 0.25 for a usual 40x scan")
    if area_mm2 is not None and not 0 < area_mm2 <= LARGEST_MM2:
        advice = f"give the area of the tissue, above 0 and up to {LARGEST_MM2:g}"
        raise UsageError(f"the area is {area_mm2} mm2", next_step=advice)
    if tissue is not None:
        stated = tissue.mpp / tissue.scale
        if abs(stated / mpp - 1) > SCALE_TOLERANCE:
            raise UsageError(
                f"the slide has {mpp:.4g} um/px, its tissue mask was made at {stated:.4g}",
                next_step="give the mask of this slide, and the micrometres per pixel it was made with",
            )
        tissue = None if tissue.is_empty else tissue
    known = math.nan if area_mm2 is None else area_mm2
    points = _points(detections)
    if scope.regions:
        held = scope.holds(points[0])
        points = points[0][held], points[1][held], points[2][held], points[3][held]
        tissue = None if tissue is None else scope.tissue(tissue)
        known, tissue = (0.0, None) if tissue is not None and tissue.is_empty else (known, tissue)
    area = known if tissue is None else tissue.area_mm2
    return Specimen(*points, mpp, tissue, area, config, scope)


def _points(detections: pd.DataFrame) -> tuple[Points, Floats, Floats, Floats]:
    require_columns(detections, ("x", "y"))
    require_numbers(detections, ("x", "y", "probability", MACHINE))
    positions = np.column_stack([numbers_of(detections[name]) for name in ("x", "y")])
    probability = np.full(len(positions), CERTAIN)
    if "probability" in detections.columns:
        probability = np.array(numbers_of(detections["probability"]), np.float64)
    bad = ~(np.isfinite(positions).all(axis=1) & (probability >= 0) & (probability <= 1))
    if bad.any():
        row = int(bad.argmax())
        x, y = positions[row]
        raise TableError(
            f"row {row} of the detections has x {x:g}, y {y:g} and probability {probability[row]:g}",
            next_step="give x and y in level-0 pixels and a probability from 0 to 1",
        )
    machine, answer = probability.copy(), np.full(len(positions), np.nan)
    if {MACHINE, REVIEWED, "label"} <= set(detections.columns):
        said = as_text(detections[REVIEWED]).to_numpy(object)
        rejected = (said != "") & (as_text(detections["label"]) == LOOKALIKE).to_numpy()
        machine = detections[MACHINE].to_numpy(float)
        answer = np.select([said == MITOSIS, rejected], [1.0, 0.0], np.nan)
        probability[rejected] = 0.0
    ranked = np.argsort(-probability, kind="stable")
    _, first = np.unique(positions[ranked], axis=0, return_index=True)  # of copies, the most probable
    kept = np.sort(ranked[first])
    return positions[kept], probability[kept], machine[kept], answer[kept]


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
    column, row = np.floor((points_px - (cells.x, cells.y)) / cells.step_px).T
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


def heterogeneity(slide: Specimen, cells: CellGrid, hotspot: Hotspot) -> dict[str, float]:
    """All measures; those relative to tissue are NaN where the tissue is not known."""
    total, radius_um = len(slide.mitoses_um), slide.config.radius_um
    mean = total / slide.area_mm2 if slide.area_mm2 else math.nan
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
    mitoses, tissue = (_block_sums(part, size).ravel() for part in (cells.mitoses, cells.tissue_mm2))
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
