"""How good detections are on slides: counts a slide at two thresholds, F1 curves, results a laboratory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from metaphase.base.arrays import Floats
from metaphase.detections import IGNORE, MITOSIS, DetectionSet, detection_set
from metaphase.evaluation.cohort import Cohort, compare, completed
from metaphase.evaluation.marks import Marked, MatchingConfig, mark, merged, point_regions
from metaphase.evaluation.metrics import (
    BootstrapConfig,
    Estimate,
    curve,
    draws,
    estimate,
    f1_of_counts,
    slide_counts,
    steady_threshold,
)

GRID = np.round([*np.linspace(0.01, 0.99, 99), 0.992, 0.994, 0.996, 0.998, 0.999, 0.9995], 4)
"""Thresholds of the F1 curves; finer at the end, where networks that saw balanced batches are cut."""
Found = Mapping[str, pd.DataFrame]
"""Detections `x, y, probability` of each case."""


@dataclass(frozen=True)
class Bench:
    """Slides of one split with what is to be found on them."""

    cohort: Cohort
    truth: DetectionSet
    matching: MatchingConfig

    def marked(self, found: Found, border_um: float = 0.0) -> Marked:
        """Each detection marked true or false; slides are those of `found`, all of which must be covered.

        Nothing within `border_um` of an image's border counts.
        """
        parts = [table.assign(slide=case) for case, table in found.items()]
        predictions = detection_set(pd.concat(parts, ignore_index=True), tuple(found))
        comparison = compare(self.cohort, self.truth, predictions)
        matching = replace(self.matching, border_um=border_um)
        ignored = point_regions(comparison.ignored, self.cohort, matching.ignore_radius_um)
        return mark(comparison, merged([ignored]), matching)

    def centres(self) -> list[str]:
        """Laboratory of each slide, in the order of the marks."""
        return [str(centre) or "unknown" for centre in self.cohort.manifest["centre"]]


def bench_of(cohort: pd.DataFrame, reference: pd.DataFrame, split: str, matching: MatchingConfig) -> Bench:
    """The slides of a split, ready to compare detections with."""
    slides = completed(Cohort(cohort[cohort["split"] == split].reset_index(drop=True), f"split {split}"))
    own = reference[reference["case"].isin(slides.cases) & reference["label"].isin((MITOSIS, IGNORE))]
    truth = detection_set(own.rename(columns={"case": "slide"}), slides.cases, "reference standard")
    return Bench(slides, truth, matching)


def measured(validation: Marked, test: Marked, centres: list[str]) -> dict[str, Any]:
    """Plain values from which every table and curve of a network is made.

    Counts a slide at the steady threshold of the validation slides, and on the grid of thresholds.
    """
    chosen, reached = steady_threshold(curve(validation))
    return measured_at(0.5 if np.isnan(chosen) else chosen, reached, test, centres)


def measured_at(chosen: float, reached: float, test: Marked, centres: list[str]) -> dict[str, Any]:
    """The same at a threshold that was chosen elsewhere, where F1 was `reached`."""
    true, false = slide_counts(test, np.array([chosen]))
    rows = pd.DataFrame({"case": test.cases, "patient": test.patients, "centre": centres})
    rows = rows.assign(truths=test.truths, true=true[:, 0].astype(int), false=false[:, 0].astype(int))
    steps = slide_counts(test, GRID)
    return {
        "threshold": chosen,
        "validation_f1": _number(reached),
        "slides": rows.to_dict("list"),
        "curve_true": steps[0].astype(int).tolist(),
        "curve_false": steps[1].astype(int).tolist(),
    }


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


@dataclass(frozen=True)
class BenchCounts:
    """The measured values of one network, or of several seeds of one experiment, over some test slides."""

    true: Floats
    """Found mitoses (networks, slides) at each network's own validation threshold."""
    false: Floats
    truths: Floats
    """Mitoses to find (slides)."""
    curve_true: Floats
    """Found mitoses (networks, slides, thresholds) on `GRID`."""
    curve_false: Floats
    patients: tuple[str, ...]

    def f1_at_validation(self, bootstrap: BootstrapConfig) -> Estimate:
        """Mean over the networks, with the interval of drawing slides."""
        return self._estimate(self.true, self.false, bootstrap)

    def highest_f1(self, bootstrap: BootstrapConfig) -> Estimate:
        """The paper's figure: each network at its best threshold of the grid, chosen on these very slides."""
        return self._estimate(*self._at_best(), bootstrap)

    def curves(self) -> Floats:
        """F1 (networks, thresholds)."""
        return f1_of_counts(self.curve_true.sum(axis=1), self.curve_false.sum(axis=1), self.truths.sum())

    def each_f1(self) -> list[float]:
        """F1 of each network at its validation threshold."""
        values = f1_of_counts(self.true.sum(axis=1), self.false.sum(axis=1), self.truths.sum())
        return [float(value) for value in values]

    def drawn(self, bootstrap: BootstrapConfig) -> Floats:
        """Mean F1 at the validation thresholds in every draw of slides; the same draws for every network."""
        return _drawn(self.true, self.false, self.truths, draws(self.patients, bootstrap))

    def _at_best(self) -> tuple[Floats, Floats]:
        """True and false detections (networks, slides), each network at its best threshold of the grid."""
        best = np.nan_to_num(self.curves()).argmax(axis=1)
        take = np.arange(len(best)), slice(None), best
        return self.curve_true[take], self.curve_false[take]

    def _estimate(self, true: Floats, false: Floats, bootstrap: BootstrapConfig) -> Estimate:
        value = float(f1_of_counts(true.sum(axis=1), false.sum(axis=1), self.truths.sum()).mean())
        if not bootstrap.samples:
            return Estimate(value)
        return estimate(value, _drawn(true, false, self.truths, draws(self.patients, bootstrap)), bootstrap)


def counts_of(results: list[dict[str, Any]], centres: set[str] | None = None) -> BenchCounts:
    """Measured values of networks tested on the same slides, on those of some laboratories or all."""
    slides = pd.DataFrame(results[0]["slides"])
    chosen = slides["centre"].isin(centres if centres is not None else set(slides["centre"])).to_numpy()

    def stacked(*keys: str) -> Floats:
        values = [_reach(result, keys) for result in results]
        return np.asarray(values, np.float64)[:, chosen]

    return BenchCounts(
        true=stacked("slides", "true"),
        false=stacked("slides", "false"),
        truths=slides["truths"].to_numpy(np.float64)[chosen],
        curve_true=stacked("curve_true"),
        curve_false=stacked("curve_false"),
        patients=tuple(slides["patient"].astype(str)[chosen]),
    )


def _reach(values: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        values = values[key]
    return values


def _drawn(true: Floats, false: Floats, truths: Floats, times: Floats) -> Floats:
    """Mean over networks of F1 in each draw, (samples,)."""
    drawn: Floats = f1_of_counts(true @ times.T, false @ times.T, times @ truths).mean(axis=0)
    return drawn
