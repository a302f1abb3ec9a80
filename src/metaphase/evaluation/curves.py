"""Precision, recall, F1, average precision and FROC from marked detections.

Undefined values are NaN: precision where nothing was detected, recall where nothing was to be found, F1 where
there is neither. F1 is 2 TP / (2 TP + FP + FN), so it is 0 when only one of the two is empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from metaphase.evaluation.scoring import Floats, Marked

FALSE_PER_MM2 = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""False detections per mm2 at which FROC sensitivities are tabulated."""


@dataclass(frozen=True)
class Curve:
    """Counts at every threshold that makes a difference, from the highest down."""

    threshold: Floats
    true: Floats
    """Detections at or above the threshold that are matched."""
    false: Floats
    """Detections at or above the threshold that are not."""
    truths: float

    @property
    def precision(self) -> Floats:
        """True among all detections."""
        return ratio(self.true, self.true + self.false)

    @property
    def recall(self) -> Floats:
        """Truths found among all truths."""
        return ratio(self.true, self.truths)

    @property
    def f1(self) -> Floats:
        """Harmonic mean of precision and recall."""
        return f1_of_counts(self.true, self.false, self.truths)


def ratio(above: npt.ArrayLike, below: npt.ArrayLike) -> Floats:
    """Quotients, NaN where the divisor is 0."""
    above, below = np.broadcast_arrays(np.asarray(above, float), np.asarray(below, float))
    quotient = np.full(above.shape, np.nan)
    np.divide(above, below, out=quotient, where=below != 0)
    return quotient


def f1_of_counts(true: npt.ArrayLike, false: npt.ArrayLike, truths: npt.ArrayLike) -> Floats:
    """F1 from matched detections, false detections and the number of truths."""
    true, false, truths = (np.asarray(value, float) for value in (true, false, truths))
    return ratio(2 * true, true + false + truths)


def f1_of_rates(precision: float, recall: float) -> float:
    """F1 from precision and recall.

    >>> round(f1_of_rates(0.467, 0.494), 3)
    0.48
    """
    return float(ratio(2 * precision * recall, precision + recall))


def curve(marked: Marked) -> Curve:
    """Counts at each distinct probability."""
    last = np.append(np.flatnonzero(np.diff(marked.probability)), len(marked.probability) - 1)
    last = last[: len(marked.probability)]
    true = np.cumsum(marked.found)[last] if len(last) else np.zeros(0)
    return Curve(
        threshold=marked.probability[last],
        true=true.astype(float),
        false=(last + 1 - true).astype(float),
        truths=float(marked.truths.sum()),
    )


def average_precision(curve: Curve) -> float:
    """Area under the steps of the precision-recall curve; truths never found count as missed.

    NaN where there is nothing to find, 0 where nothing was detected.
    """
    if not curve.truths:
        return float("nan")
    gained = np.diff(curve.true, prepend=0.0)
    return float((gained * curve.precision).sum() / curve.truths)


def best_threshold(curve: Curve) -> tuple[float, float]:
    """The threshold of the highest F1 (the highest such threshold) and that F1; NaN without detections."""
    if not len(curve.threshold) or np.isnan(curve.f1).all():
        return float("nan"), float("nan")
    best = int(np.nanargmax(curve.f1))
    return float(curve.threshold[best]), float(curve.f1[best])


def froc(curve: Curve, area_mm2: float, rates: tuple[float, ...] = FALSE_PER_MM2) -> dict[float, float]:
    """Sensitivity at given numbers of false detections per mm2: the best one not above that number."""
    per_mm2 = ratio(curve.false, area_mm2)
    recall = curve.recall
    return {
        rate: float(max(recall[per_mm2 <= rate], default=0.0)) if area_mm2 > 0 else np.nan for rate in rates
    }


def thinned(curve: Curve, points: int = 500) -> Curve:
    """At most about `points` thresholds, for pictures: even steps through the recall and the list."""
    count = len(curve.threshold)
    if count <= points:
        return curve
    by_rank = np.linspace(0, count - 1, points // 2).astype(int)
    by_recall = np.searchsorted(curve.true, np.linspace(0, curve.true[-1], points // 2)).clip(0, count - 1)
    chosen = np.unique(np.concatenate([by_rank, by_recall]))
    return Curve(curve.threshold[chosen], curve.true[chosen], curve.false[chosen], curve.truths)
