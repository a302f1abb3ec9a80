"""One slide as grading sees it: checked detections, their scale, the tissue."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.errors import UsageError
from metaphase.grading.config import GradingConfig
from metaphase.grading.lattice import Counts, Floats, Lattice, Points, lattice_around, lattice_counts
from metaphase.tables import TableError, require_columns, require_numbers
from metaphase.tissue import TissueMask

SCALE_TOLERANCE = 0.02


@dataclass(frozen=True, eq=False)
class Specimen:
    """Detections of any probability, and what is known of the slide. Made by `specimen`, which checks it."""

    places: Points
    """All detections, in level-0 pixels."""
    probability: Floats
    mpp: float
    tissue: TissueMask | None
    area_mm2: float
    """Tissue on the slide; NaN where it is not known."""
    config: GradingConfig

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
    def counts(self) -> Counts:
        """Mitoses in the hotspot at each position of the lattice."""
        return lattice_counts(self.mitoses_um, self.lattice, self.config.radius_um)


def specimen(
    detections: pd.DataFrame,
    mpp: float,
    tissue: TissueMask | None,
    area_mm2: float | None,
    config: GradingConfig,
) -> Specimen:
    """Check what the user gave. Exact copies of a detection count once; an empty tissue mask says nothing."""
    if not (math.isfinite(mpp) and mpp > 0):
        raise UsageError(f"mpp is {mpp}", next_step="give micrometres per pixel, 0.25 for a usual 40x scan")
    if area_mm2 is not None and not (math.isfinite(area_mm2) and area_mm2 > 0):
        raise UsageError(f"the area is {area_mm2} mm2", next_step="give the area of the tissue, above 0")
    if tissue is not None:
        _refuse_other_scale(tissue, mpp)
        tissue = None if tissue.is_empty else tissue
    known = math.nan if area_mm2 is None else area_mm2
    area = known if tissue is None else tissue.area_mm2
    return Specimen(*_points(detections), mpp, tissue, area, config)


def _points(detections: pd.DataFrame) -> tuple[Points, Floats]:
    require_columns(detections, ("x", "y"))
    require_numbers(detections, ("x", "y", "probability"))
    table = detections if "probability" in detections.columns else detections.assign(probability=1.0)
    table = table[["x", "y", "probability"]].astype(float).reset_index(drop=True)
    bad = ~np.isfinite(table.to_numpy()).all(axis=1) | ~table["probability"].between(0, 1).to_numpy()
    if bad.any():
        raise TableError(
            f"row {int(bad.argmax())} of the detections is {table[bad].iloc[0].to_dict()}",
            next_step="give x and y in level-0 pixels and a probability from 0 to 1",
        )
    ranked = table.sort_values("probability", ascending=False, kind="stable")
    kept = ranked.drop_duplicates(["x", "y"]).sort_index()
    return kept[["x", "y"]].to_numpy(), kept["probability"].to_numpy()


def _refuse_other_scale(tissue: TissueMask, mpp: float) -> None:
    stated = tissue.mpp / tissue.scale
    if abs(stated / mpp - 1) > SCALE_TOLERANCE:
        raise UsageError(
            f"the slide has {mpp:.4g} um/px, its tissue mask was made at {stated:.4g}",
            next_step="give the mask of this slide, and the micrometres per pixel it was made with",
        )
