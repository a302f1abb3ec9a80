"""Precision, recall, F1, average precision and FROC from marked detections, with intervals.

Undefined values are NaN: precision where nothing was detected, recall where nothing was to be found, F1 where
there is neither. F1 is 2 TP / (2 TP + FP + FN), so it is 0 when only one of the two is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy
from pydantic import NonNegativeInt

from metaphase.base.arrays import Floats
from metaphase.base.errors import ResultWarning, several
from metaphase.base.settings import InnerShare, settings
from metaphase.evaluation.marks import Marked

# ---- settings of an evaluation, checked once when made ----


@settings
class BootstrapConfig:
    """Intervals by drawing patients with replacement."""

    samples: NonNegativeInt = 1000
    """How often the patients are drawn; 0 leaves the intervals out."""

    confidence: InnerShare = 0.95
    """Share of the drawn values that the interval holds (percentile method)."""

    seed: NonNegativeInt = 0
    """The same seed gives the same intervals."""


# ---- precision, recall, F1, average precision and FROC from marked detections ----

FALSE_PER_MM2 = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""False positives per mm2 at which FROC sensitivities are tabulated."""
SURE = 1e-6
"""Probabilities nearer to 0 or 1 than this are no surer."""


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
        """Share of true ones among all detections."""
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
    below = np.asarray(below, float)
    return np.asarray(above, float) / np.where(below == 0, np.nan, below)


def f1_of_counts(true: npt.ArrayLike, false: npt.ArrayLike, truths: npt.ArrayLike) -> Floats:
    """F1 from matched detections, false positives and the number of truths."""
    return ratio(2 * np.asarray(true), np.add(true, false) + truths)


def f1_of_rates(precision: float, recall: float) -> float:
    """F1 from precision and recall.

    >>> round(f1_of_rates(0.467, 0.494), 3)
    0.48
    """
    return float(ratio(2 * precision * recall, precision + recall))


def curve(marked: Marked) -> Curve:
    """True and false positives at each distinct probability, from the highest down."""
    last = np.flatnonzero(np.diff(marked.probability, append=-1.0))
    true = np.cumsum(marked.found)[last].astype(float)
    return Curve(marked.probability[last], true, last + 1 - true, float(marked.truths.sum()))


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


def steady_threshold(curve: Curve) -> tuple[float, float]:
    """A threshold for other slides than these, and the F1 here: the middle, in logits, of good ones.

    Good are those whose F1 is the highest within two standard errors of so few truths. The best
    of few mitoses is the best by chance, and often far too strict elsewhere.
    """
    best, highest = best_threshold(curve)
    if not highest > 0:
        return best, highest
    share = (curve.truths * highest + 1) / (curve.truths + 2)
    error = np.sqrt(share * (1 - share) / (curve.truths + 2))
    good = curve.threshold[curve.f1 >= highest - 2 * error]
    middle = scipy.special.expit(scipy.special.logit(good[[0, -1]].clip(SURE, 1 - SURE)).mean())
    steady = float(np.clip(middle, good[-1], good[0]))
    return steady, float(curve.f1[curve.threshold >= steady][-1])


ThresholdRule = Literal["steady", "highest"]
THRESHOLD_RULES: dict[ThresholdRule, Callable[[Curve], tuple[float, float]]] = {
    "steady": steady_threshold,
    "highest": best_threshold,
}
"""How a threshold of mitoses is chosen."""


def froc(curve: Curve, area_mm2: float) -> dict[float, float]:
    """The highest sensitivity with at most so many false positives per mm2, for each of `FALSE_PER_MM2`."""
    per_mm2 = ratio(curve.false, area_mm2)
    recall = curve.recall
    return {
        rate: float(max(recall[per_mm2 <= rate], default=0.0)) if area_mm2 > 0 else np.nan
        for rate in FALSE_PER_MM2
    }


def thin(curve: Curve, points: int = 500) -> Curve:
    """At most about `points` thresholds, for pictures: even steps through the recall and the list."""
    count = len(curve.threshold)
    if count <= points:
        return curve
    by_rank = np.linspace(0, count - 1, points // 2).astype(int)
    by_recall = np.searchsorted(curve.true, np.linspace(0, curve.true[-1], points // 2)).clip(0, count - 1)
    chosen = np.unique(np.concatenate([by_rank, by_recall]))
    return Curve(curve.threshold[chosen], curve.true[chosen], curve.false[chosen], curve.truths)


# ---- intervals by drawing patients with replacement ----

LEAST_PATIENTS = 5
"""Fewer can be drawn in less than 40 different ways: no interval of 95 % comes of that, so none is given."""
MANY_PATIENTS = 10
"""Below this, intervals are rough."""
FEW_PATIENTS = "few-patients"
"""Code of the warning about that."""


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


def few_patients(patients: Sequence[str]) -> ResultWarning | None:
    """A warning where patients are too few for intervals, or for good ones."""
    count = len(set(patients))
    if count >= MANY_PATIENTS:
        return None
    so = "no interval can be given" if count < LEAST_PATIENTS else "the intervals are rough"
    return ResultWarning(FEW_PATIENTS, f"there are only {several(count, 'patient')}: {so}")


def draws(patients: Sequence[str], config: BootstrapConfig) -> Floats:
    """How often each slide is drawn, shape (samples, slides): patients with replacement, all their slides.

    No samples of fewer than `LEAST_PATIENTS`.
    """
    names, unit = np.unique(np.array(patients, dtype=object).astype(str), return_inverse=True)
    if len(names) < LEAST_PATIENTS:
        return np.zeros((0, len(patients)))
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
    """True and false positives of each slide at each threshold, shape (slides, thresholds)."""
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


def draw_rates(marked: Marked, thresholds: Floats, times: Floats) -> dict[str, Floats]:
    """Precision, recall and F1 of every draw at every threshold, shape (samples, thresholds)."""
    true, false = (times @ table for table in slide_counts(marked, thresholds))
    truths = (times @ marked.truths)[:, None]
    return {
        "precision": ratio(true, true + false),
        "recall": ratio(true, truths),
        "f1": f1_of_counts(true, false, truths),
    }


def draw_average_precision(marked: Marked, thresholds: Floats, times: Floats) -> Floats:
    """Average precision of every draw, summed over falling `thresholds`; exact if these are all there are."""
    true, false = (times @ table for table in slide_counts(marked, thresholds))
    gained = np.diff(true, axis=1, prepend=0.0)
    summed = (gained * np.nan_to_num(ratio(true, true + false))).sum(axis=1)
    return ratio(summed, times @ marked.truths)


# ---- all numbers of a set of marked detections at one threshold ----

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
    """Sensitivity at each number of false positives per mm2."""
    distance_um: float
    """Median distance between matched detections and their truths."""

    @property
    def missed(self) -> int:
        """Truths without a detection."""
        return self.truths - self.true

    def row(self) -> dict[str, Any]:
        """All values in one flat row; of rates also the limits of the interval."""
        names = ("slides", "patients", "truths", "true", "false", "missed")
        flat: dict[str, Any] = {name: getattr(self, name) for name in names}
        for name in RATES:
            value: Estimate = getattr(self, name)
            flat |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
        flat |= {name: getattr(self, name) for name in ("false_per_mm2", "distance_um")}
        flat |= {"best_f1": self.best_f1, "best_threshold": self.best_threshold}
        return flat | {f"sensitivity_at_{rate:g}_per_mm2": value for rate, value in self.froc.items()}


def draw_metrics(marked: Marked, threshold: float, times: Floats) -> dict[str, Floats]:
    """Precision, recall, F1 at the threshold, and average precision, of every draw."""
    rates = draw_rates(marked, np.array([threshold]), times)
    steps = thin(curve(marked), AVERAGED_THRESHOLDS).threshold
    average = draw_average_precision(marked, steps, times)
    return {name: table[:, 0] for name, table in rates.items()} | {"average_precision": average}


def detection_metrics(marked: Marked, threshold: float, config: BootstrapConfig) -> DetectionMetrics:
    """All metrics at a probability threshold, with intervals from drawing patients."""
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
    drawn = draw_metrics(marked, threshold, draws(marked.patients, config))
    rates = {name: estimate(value, drawn[name], config) for name, value in values.items()}
    distances = marked.distance_um[counted & marked.found]
    best, best_f1 = best_threshold(whole)
    return DetectionMetrics(
        slides=len(marked.cases),
        patients=len(set(marked.patients)),
        truths=truths,
        true=true,
        false=false,
        **rates,
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
