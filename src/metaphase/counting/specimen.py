"""One slide as counting sees it: settings of the count, checked detections, scale and tissue."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import scipy
from pydantic import Field, NonNegativeInt, PositiveFloat

from metaphase.base.arrays import Floats, Integers, Points
from metaphase.base.errors import UsageError, require
from metaphase.base.later import pandas as pd
from metaphase.base.settings import Share, settings
from metaphase.base.tables import TableError, as_text, numbers_of, require_columns, require_numbers
from metaphase.counting.hotspot import (
    Hotspot,
    Lattice,
    busiest_circle,
    held_by,
    lattice_around,
    lattice_counts,
)
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


def stated_config(detections: pd.DataFrame) -> CountConfig:
    """Settings with threshold, thetas and prior of the operating point that a table carries, if any."""
    config = CountConfig()
    stated = detections.attrs.get(OPERATING_POINTS)
    return at_point(config, stated["count"]) if isinstance(stated, dict) and "count" in stated else config


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


FIELDS = 10
"""High-power fields that are counted."""


def field_mm2(diameter_mm: float) -> float:
    """Area of a high-power field."""
    return math.pi / 4 * diameter_mm**2


def counted_config(config: CountConfig, scope: Scope) -> CountConfig:
    """Settings of the count with the area that is counted: that of ten fields, where these are asked for."""
    if scope.place is None or scope.place.field_diameter_mm is None:
        return config
    diameter = scope.place.field_diameter_mm
    area_mm2 = FIELDS * field_mm2(diameter)
    return replace(config, area_mm2=area_mm2, field_diameter_mm=diameter, thetas_given=False)


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
    """Check the input of a count. Exact copies of a detection count once; an empty tissue mask is as none.

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
    if tissue is not None and scope.regions:
        tissue = scope.tissue(tissue)
        known, tissue = (0.0, None) if tissue.is_empty else (known, tissue)
    area = known if tissue is None else tissue.area_mm2
    return Specimen(*_points(detections, scope), mpp, tissue, area, config, scope)


def _points(detections: pd.DataFrame, scope: Scope) -> tuple[Points, Floats, Floats, Floats]:
    """Positions, probabilities, the model's own probabilities and answers of the detections in a scope."""
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
    kept = kept[scope.holds(positions[kept])]
    return positions[kept], probability[kept], machine[kept], answer[kept]


# ---- where figures are counted ----


def find_hotspot(slide: Specimen) -> Hotspot:
    """The busiest circle, anywhere: it may reach beyond the tissue, and says how much tissue it holds.

    Its middle lies in the regions of the scope; the place that a person chose goes before all.
    """
    config, place, tissue = slide.config, slide.scope.place, slide.tissue
    fields = () if place is None else tuple(place.fields_px(slide.mpp))
    radius_px = 4 * fields[0][2] if fields else config.radius_um / slide.mpp
    x, y, count = _busiest(slide) if place is None else (place.x, place.y, 0)
    circles = fields or ((x, y, radius_px),)
    if place is not None:
        count = int(held_by(circles, slide.mitoses_px).sum())
    area_mm2 = counted_config(config, slide.scope).area_mm2
    if tissue is not None:
        area_mm2 = sum(tissue_in_circle(tissue, *circle) for circle in circles)
    elif place is not None and slide.area_mm2 == 0:
        area_mm2 = 0.0
    return Hotspot(x=x, y=y, radius_px=radius_px, count=count, tissue_mm2=area_mm2, fields=fields)


def _busiest(slide: Specimen) -> tuple[float, float, int]:
    """Middle in level-0 pixels and count of the busiest circle.

    Where nothing counts, it lies where most is listed; where nothing is listed, where most tissue is.
    """
    mpp, radius_um, tissue = slide.mpp, slide.config.radius_um, slide.tissue
    counted = len(slide.mitoses_um) > 0
    points_um = slide.mitoses_um if counted else slide.positions[slide.probability > 0] * mpp
    if len(points_um):
        x_um, y_um, count = busiest_circle(points_um, radius_um, slide.scope.shape(mpp))
        return x_um / mpp, y_um / mpp, count if counted else 0
    if tissue is None:
        return 0.0, 0.0, 0
    side = max(1, round(2 * radius_um / mpp / tissue.scale))
    held = scipy.ndimage.uniform_filter(tissue.mask.astype(np.float32), side, mode="constant")
    most = np.argwhere(held >= held.max() - 1e-4)
    middle = np.argwhere(tissue.mask).mean(axis=0)
    away = np.hypot(*(most - middle).T)  # of several such places, the one nearest to the middle of all
    row, column = 0.5 + (middle if away.min() < 1 else most[int(away.argmin())])
    return tissue.x + float(column) * tissue.scale, tissue.y + float(row) * tissue.scale, 0


def tissue_in_circle(tissue: TissueMask, x: float, y: float, radius_px: float) -> float:
    """Area in mm2 of the tissue within `radius_px` of (x, y), both in level-0 pixels."""
    rows, columns = (np.arange(side) + 0.5 for side in tissue.mask.shape)
    dy, dx = tissue.y + rows * tissue.scale - y, tissue.x + columns * tissue.scale - x
    near = np.ix_(np.abs(dy) <= radius_px, np.abs(dx) <= radius_px)
    inside = dy[near[0]] ** 2 + dx[near[1]] ** 2 <= radius_px**2
    return float(np.count_nonzero(tissue.mask[near] & inside)) * tissue.mpp**2 / 1e6
