"""All numbers of a set of marked detections at one threshold, with intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from metaphase.evaluation.bootstrap import (
    Estimate,
    drawn_average_precision,
    drawn_rates,
    draws,
    estimate,
    slide_counts,
)
from metaphase.evaluation.config import BootstrapConfig
from metaphase.evaluation.curves import (
    average_precision,
    best_threshold,
    curve,
    f1_of_counts,
    froc,
    ratio,
    thinned,
)
from metaphase.evaluation.scoring import Marked

AVERAGED_THRESHOLDS = 2000
"""Thresholds over which the interval (not the value) of average precision is computed, at most."""
RATES = ("precision", "recall", "f1", "average_precision")


@dataclass(frozen=True)
class DetectionMetrics:
    """Counts and rates of one group of slides."""

    slides: int
    patients: int
    truths: int
    true: int
    """Detections at or above the threshold that are matched with a truth."""
    false: int
    """Detections at or above the threshold that are not."""
    precision: Estimate
    recall: Estimate
    f1: Estimate
    average_precision: Estimate
    best_f1: float
    """The highest F1 of any threshold; chosen on these very slides, hence optimistic."""
    best_threshold: float
    false_per_mm2: float
    """NaN where the area is unknown."""
    froc: dict[float, float]
    """Sensitivity at each number of false detections per mm2."""
    distance_um: float
    """Median distance between matched detections and their truths."""

    @property
    def missed(self) -> int:
        """Truths without a detection."""
        return self.truths - self.true

    def row(self) -> dict[str, Any]:
        """One flat row for a table."""
        names = ("slides", "patients", "truths", "true", "false", "missed")
        flat: dict[str, Any] = {name: getattr(self, name) for name in names}
        for name in RATES:
            value: Estimate = getattr(self, name)
            flat |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
        flat |= {name: getattr(self, name) for name in ("false_per_mm2", "distance_um")}
        flat |= {"best_f1": self.best_f1, "best_threshold": self.best_threshold}
        return flat | {f"sensitivity_at_{rate:g}_per_mm2": value for rate, value in self.froc.items()}


def detection_metrics(marked: Marked, threshold: float, config: BootstrapConfig) -> DetectionMetrics:
    """Compute all metrics; the intervals draw patients."""
    counted = marked.probability >= threshold
    true, false = int(marked.found[counted].sum()), int((~marked.found[counted]).sum())
    truths, area = int(marked.truths.sum()), float(marked.area_mm2.sum())
    whole = curve(marked)
    values = {
        "precision": float(ratio(true, true + false)),
        "recall": float(ratio(true, truths)),
        "f1": float(f1_of_counts(true, false, truths)),
        "average_precision": average_precision(whole),
    }
    distances = marked.distance_um[counted & marked.found]
    best, best_f1 = best_threshold(whole)
    return DetectionMetrics(
        slides=len(marked.cases),
        patients=len(set(marked.patients)),
        truths=truths,
        true=true,
        false=false,
        **_with_intervals(values, marked, threshold, config),
        best_f1=best_f1,
        best_threshold=best,
        false_per_mm2=float(ratio(false, area)),
        froc=froc(whole, area),
        distance_um=float(np.median(distances)) if len(distances) else float("nan"),
    )


def slide_rows(marked: Marked, threshold: float) -> dict[str, Any]:
    """Columns of a table with one row a slide: `case, patient, truths, true, false, missed, f1`."""
    true, false = (table[:, 0] for table in slide_counts(marked, np.array([threshold])))
    return {
        "case": marked.cases,
        "patient": marked.patients,
        "truths": marked.truths,
        "true": true.astype(int),
        "false": false.astype(int),
        "missed": marked.truths - true.astype(int),
        "f1": f1_of_counts(true, false, marked.truths),
    }


def _with_intervals(
    values: dict[str, float], marked: Marked, threshold: float, config: BootstrapConfig
) -> dict[str, Estimate]:
    if not config.samples:
        return {name: Estimate(value) for name, value in values.items()}
    times = draws(marked.patients, config)
    drawn = {name: table[:, 0] for name, table in drawn_rates(marked, np.array([threshold]), times).items()}
    steps = thinned(curve(marked), AVERAGED_THRESHOLDS).threshold
    drawn["average_precision"] = drawn_average_precision(marked, steps, times)
    return {name: estimate(value, drawn[name], config) for name, value in values.items()}
