"""Intervals by drawing patients with replacement: slides of one patient come and go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from metaphase.evaluation.config import BootstrapConfig
from metaphase.evaluation.curves import f1_of_counts, ratio
from metaphase.evaluation.scoring import Floats, Marked


@dataclass(frozen=True)
class Estimate:
    """A value and the interval that holds the stated share of its bootstrap values."""

    value: float
    low: float = float("nan")
    high: float = float("nan")

    def __str__(self) -> str:
        if np.isnan(self.value):
            return "undefined"
        return f"{self.value:.3f}" + ("" if np.isnan(self.low) else f" [{self.low:.3f}, {self.high:.3f}]")


def draws(patients: Sequence[str], config: BootstrapConfig) -> npt.NDArray[np.float64]:
    """How often each slide is drawn, shape (samples, slides): patients with replacement, all their slides."""
    names, unit = np.unique(np.array(patients, dtype=object).astype(str), return_inverse=True)
    if not len(names):
        return np.zeros((config.samples, 0))
    generator = np.random.default_rng(config.seed)
    times = generator.multinomial(len(names), np.full(len(names), 1 / len(names)), size=config.samples)
    return times[:, unit].astype(np.float64)


def estimate(value: float, values: Floats, config: BootstrapConfig) -> Estimate:
    """The interval of the bootstrap `values` around `value`; draws in which it is undefined are left out."""
    defined = values[~np.isnan(values)]
    if np.isnan(value) or len(defined) < 2:
        return Estimate(value)
    tail = (1 - config.confidence) / 2
    low, high = np.quantile(defined, [tail, 1 - tail])
    return Estimate(value, float(low), float(high))


def slide_counts(marked: Marked, thresholds: Floats) -> tuple[Floats, Floats]:
    """True and false detections of each slide at each threshold, shape (slides, thresholds)."""
    slides, steps = len(marked.cases), len(thresholds)
    descending = np.argsort(-thresholds, kind="stable")
    # The first threshold, in falling order, at which a detection counts; those below all thresholds never do.
    first = np.searchsorted(-thresholds[descending], -marked.probability, side="left")
    table = np.zeros((2, slides, steps + 1))
    np.add.at(table, (marked.found.astype(int), marked.slide, first), 1)
    cumulated = table[:, :, :steps].cumsum(axis=2)
    false, true = np.empty_like(cumulated[0]), np.empty_like(cumulated[1])
    false[:, descending], true[:, descending] = cumulated[0], cumulated[1]
    return true, false


def drawn_rates(marked: Marked, thresholds: Floats, times: Floats) -> dict[str, Floats]:
    """Precision, recall and F1 of every draw at every threshold, shape (samples, thresholds)."""
    true, false = (times @ table for table in slide_counts(marked, thresholds))
    truths = (times @ marked.truths)[:, None]
    return {
        "precision": ratio(true, true + false),
        "recall": ratio(true, truths),
        "f1": f1_of_counts(true, false, truths),
    }


def drawn_average_precision(marked: Marked, thresholds: Floats, times: Floats) -> Floats:
    """Average precision of every draw, summed over falling `thresholds`; exact if these are all there are."""
    true, false = (times @ table for table in slide_counts(marked, thresholds))
    gained = np.diff(true, axis=1, prepend=0.0)
    summed = (gained * np.nan_to_num(ratio(true, true + false))).sum(axis=1)
    return ratio(summed, times @ marked.truths)
