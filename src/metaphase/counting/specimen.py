"""One slide as counting sees it: settings, checked detections, their scale, the tissue."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.base.arrays import Floats, Integers, Points
from metaphase.base.errors import UsageError, require
from metaphase.base.tables import TableError, as_text, numbers_of, require_columns, require_numbers
from metaphase.counting.hotspot import Lattice, lattice_around, lattice_counts
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
from metaphase.images.tissue.mask import TissueMask

# ---- settings of the mitotic count ----

LARGEST_MM2 = 1e5
"""No slide has more tissue: 300 mm a side at most."""
MOST = 1e6
"""No hotspot has more mitoses."""


MOST_DRAWS = 1_000_000
"""Beyond, an interval gains nothing."""


@dataclass(frozen=True, slots=True)
class CountConfig:
    """The hotspot, the grades, and how their uncertainty is drawn. The defaults are the paper's."""

    __pydantic_config__: ClassVar = {"strict": True, "allow_inf_nan": False, "use_attribute_docstrings": True}

    area_mm2: float = 2.0
    """Area of the circular hotspot."""

    step_um: float = 50.0
    """Distance between neighbouring positions of the hotspot."""

    percentile: float = 95.0
    """Which percentile of the counts at non-empty positions is the slide's count; 100 is their maximum."""

    threshold: float = PAPER_FLOOR
    """Detections at or above this probability count."""

    theta1: float = PAPER_THETA1
    """Counts up to this are grade 1."""

    theta2: float = PAPER_THETA2
    """Counts above `theta1` and up to this are grade 2, counts above it grade 3."""

    thetas_tuned: bool = False
    """Whether they were tuned for counts of this model from this threshold on, or chosen for them by the
    user; no grade is given else."""

    false_per_mm2: float = 0.0
    """False detections that the model is known to make from this threshold on."""

    draws: int = 1000
    """Draws of the bootstrap; 0 leaves the uncertainty out."""

    threshold_spread: float = 0.5
    """Each draw moves the threshold by up to so much in log-odds: 0.5 around 0.8 is from 0.71 to 0.87."""

    confidence: float = 0.95
    """Share of the draws that the interval of the count holds."""

    seed: int = 0
    """The same seed gives the same draws."""

    cell_um: float = 100.0
    """Size of the cells of the density map, about: a whole number of pixels of the tissue mask is taken."""

    def __post_init__(self) -> None:
        for name in ("area_mm2", "step_um", "cell_um"):
            value = getattr(self, name)
            require(math.isfinite(value) and value > 0, name, value, "above 0")
        require(self.step_um <= self.radius_um, "step_um", self.step_um, "up to the hotspot's radius")
        require(0 <= self.percentile <= 100, "percentile", self.percentile, "from 0 to 100")
        require(0 <= self.threshold <= 1, "threshold", self.threshold, "from 0 to 1")
        require(0 <= self.theta1 <= MOST, "theta1", self.theta1, f"from 0 to {MOST:g}")
        require(self.theta2 <= MOST, "theta2", self.theta2, f"from 0 to {MOST:g}")
        require(self.theta2 >= self.theta1, "theta2", self.theta2, f"not below theta1 ({self.theta1:g})")
        known = math.isfinite(self.false_per_mm2) and self.false_per_mm2 >= 0
        require(known, "false_per_mm2", self.false_per_mm2, "at least 0")
        require(0 <= self.draws <= MOST_DRAWS, "draws", self.draws, f"from 0 to {MOST_DRAWS}")
        require(self.threshold_spread >= 0, "threshold_spread", self.threshold_spread, "at least 0")
        require(0 < self.confidence < 1, "confidence", self.confidence, "between 0 and 1")
        require(self.seed >= 0, "seed", self.seed, "at least 0")

    @property
    def radius_um(self) -> float:
        """Radius of the hotspot."""
        return math.sqrt(self.area_mm2 * 1e6 / math.pi)

    def grade_of(self, counts: npt.ArrayLike) -> Integers:
        """Grade of each count."""
        return grade_of(counts, self.theta1, self.theta2)


def stated_config(detections: pd.DataFrame, config: CountConfig | None = None) -> CountConfig:
    """Settings with threshold, thetas and false rate of the operating point that a table carries, if any."""
    config = config or CountConfig()
    stated = detections.attrs.get(OPERATING_POINTS)
    return at_point(config, stated["count"]) if isinstance(stated, dict) and "count" in stated else config


def at_point(config: CountConfig, point: Mapping[str, Any]) -> CountConfig:
    """Settings at an operating point, given as plain values: threshold, thetas and the rate of false ones."""
    thetas = {name: point[name] for name in ("theta1", "theta2") if point.get(name) is not None}
    tuned = bool(thetas) and (point.get("kappa") is not None or bool(point.get("thetas_given")))
    return replace(
        config,
        threshold=point["delta"],
        **thetas,
        thetas_tuned=tuned,
        false_per_mm2=point.get("false_per_mm2") or 0.0,
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

    places: Points
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
    """Tissue on the slide; NaN where it is not known."""
    config: CountConfig

    @cached_property
    def counted(self) -> npt.NDArray[np.bool_]:
        """Which detections count: those at or above the threshold."""
        return self.probability >= self.config.threshold

    @cached_property
    def mitoses_px(self) -> Points:
        """The detections that count, in level-0 pixels."""
        return self.places[self.counted]

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
        """Whether there is less tissue than a hotspot has."""
        return self.area_mm2 < self.config.area_mm2

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
) -> Specimen:
    """Check what the user gave. Exact copies of a detection count once; an empty tissue mask says nothing.

    A table with the columns of a review says what people answered, too.
    """
    if not (math.isfinite(mpp) and mpp > 0):
        raise UsageError(f"mpp is {mpp}", next_step="give micrometres per pixel, 0.25 for a usual 40x scan")
    if area_mm2 is not None and not 0 < area_mm2 <= LARGEST_MM2:
        advice = f"give the area of the tissue, above 0 and up to {LARGEST_MM2:g}"
        raise UsageError(f"the area is {area_mm2} mm2", next_step=advice)
    if tissue is not None:
        _refuse_other_scale(tissue, mpp)
        tissue = None if tissue.is_empty else tissue
    known = math.nan if area_mm2 is None else area_mm2
    area = known if tissue is None else tissue.area_mm2
    return Specimen(*_points(detections), mpp, tissue, area, config)


def _points(detections: pd.DataFrame) -> tuple[Points, Floats, Floats, Floats]:
    require_columns(detections, ("x", "y"))
    require_numbers(detections, ("x", "y", "probability", MACHINE))
    places = np.column_stack([numbers_of(detections[name]) for name in ("x", "y")])
    probability = np.full(len(places), CERTAIN)
    if "probability" in detections.columns:
        probability = np.array(numbers_of(detections["probability"]), np.float64)
    bad = ~(np.isfinite(places).all(axis=1) & (probability >= 0) & (probability <= 1))
    if bad.any():
        row = int(bad.argmax())
        x, y = places[row]
        raise TableError(
            f"row {row} of the detections has x {x:g}, y {y:g} and probability {probability[row]:g}",
            next_step="give x and y in level-0 pixels and a probability from 0 to 1",
        )
    machine, answer = probability.copy(), np.full(len(places), np.nan)
    if {MACHINE, REVIEWED, "label"} <= set(detections.columns):
        said = as_text(detections[REVIEWED]).to_numpy(object)
        rejected = (said != "") & (as_text(detections["label"]) == LOOKALIKE).to_numpy()
        machine = detections[MACHINE].to_numpy(float)
        answer = np.select([said == MITOSIS, rejected], [1.0, 0.0], np.nan)
        probability[rejected] = 0.0
    ranked = np.argsort(-probability, kind="stable")
    _, first = np.unique(places[ranked], axis=0, return_index=True)  # of copies, the most probable
    kept = np.sort(ranked[first])
    return places[kept], probability[kept], machine[kept], answer[kept]


def _refuse_other_scale(tissue: TissueMask, mpp: float) -> None:
    stated = tissue.mpp / tissue.scale
    if abs(stated / mpp - 1) > SCALE_TOLERANCE:
        raise UsageError(
            f"the slide has {mpp:.4g} um/px, its tissue mask was made at {stated:.4g}",
            next_step="give the mask of this slide, and the micrometres per pixel it was made with",
        )
