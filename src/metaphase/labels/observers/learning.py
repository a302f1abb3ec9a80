"""Would more labels help? A learning curve of a quick classifier, while people label.

The classifier is a logistic regression of the candidates' measurements (and their squares), fitted in
milliseconds. It is not the network that will be trained, and no better; but where it has stopped learning
from more labels of the same kind, they add little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from metaphase.base.arrays import Floats

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Of the labels, at which the curve is measured."""
DRAWS = 20
"""Samples of each size."""
LEAST_OF_CLASS = 20
"""Labels of either class without which nothing is said."""
LITTLE_GAIN = 0.02
"""What doubling the labels may add to F1 where it is called enough."""
GOOD_F1 = 0.8
"""Lower limit of F1 without which a flat curve says nothing."""
RIDGE, STEPS = 1.0, 12
Truths = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CurvePoint:
    """F1 of the quick classifier, learnt from so many labels, on those of other patients."""

    labels: int
    f1: float
    low: float
    high: float


@dataclass(frozen=True)
class LearningCurve:
    """How F1 grew with the labels."""

    points: tuple[CurvePoint, ...]

    @property
    def gain(self) -> float:
        """What the last doubling of the labels added."""
        half = next(point for point in self.points if point.labels >= self.points[-1].labels / 2)
        return self.points[-1].f1 - half.f1

    @property
    def enough(self) -> bool:
        """Whether more labels of the same kind would add little; what has learnt little cannot say so."""
        return self.gain <= LITTLE_GAIN and self.points[-1].low >= GOOD_F1

    def __str__(self) -> str:
        """In a line."""
        last = self.points[-1]
        told = f"quick F1 {last.f1:.2f} [{last.low:.2f}, {last.high:.2f}] from {last.labels} labels"
        advice = "enough, more hardly help" if self.enough else "more may help"
        return f"{told}, {self.gain:+.2f} by the last doubling: {advice}"


def learning_curve(features: Floats, labels: Truths, patients: Sequence[str]) -> LearningCurve | None:
    """F1 against the number of labels, tested on patients not learnt from; none where there are too few.

    Intervals hold 95 % of the draws of labels and patients.
    """
    names, owner = np.unique(np.asarray(patients, dtype=object).astype(str), return_inverse=True)
    if min(int(labels.sum()), int((~labels).sum())) < LEAST_OF_CLASS or len(names) < 2:
        return None
    known = _expanded(features)
    rng = np.random.default_rng(0)
    points = []
    for share in SHARES:
        values, used = [], 0
        for _ in range(DRAWS):
            held = np.isin(owner, rng.permutation(len(names))[: max(1, len(names) // 3)])
            learnt = rng.permutation(np.flatnonzero(~held))
            learnt = learnt[: max(4, round(share * len(learnt)))]
            if len(set(labels[learnt].tolist())) < 2 or not labels[held].any():
                continue
            weights = _fitted(known[learnt], labels[learnt])
            said = known[held] @ weights > 0
            values.append(2 * (said & labels[held]).sum() / max(1, said.sum() + labels[held].sum()))
            used = max(used, len(learnt))
        if values:
            low, high = np.percentile(values, (2.5, 97.5))
            points.append(CurvePoint(used, float(np.mean(values)), float(low), float(high)))
    return LearningCurve(tuple(points)) if len(points) == len(SHARES) else None


def _expanded(features: Floats) -> Floats:
    spread = features.std(axis=0)
    scaled = (features - features.mean(axis=0)) / np.where(spread > 0, spread, 1)
    scaled = np.clip(scaled, -4, 4)
    return np.column_stack([np.ones(len(scaled)), scaled, scaled**2])


def _fitted(known: Floats, labels: Truths) -> Floats:
    """Ridge logistic regression by Newton's steps, both classes of equal weight."""
    share = labels.mean()
    importance = np.where(labels, 0.5 / share, 0.5 / (1 - share))
    weights = np.zeros(known.shape[1])
    penalty = np.full(known.shape[1], RIDGE)
    penalty[0] = 1e-6
    for _ in range(STEPS):
        chance = 1 / (1 + np.exp(-np.clip(known @ weights, -30, 30)))
        slope = known.T @ (importance * (chance - labels)) + penalty * weights
        curve = (known.T * (importance * np.maximum(chance * (1 - chance), 1e-3))) @ known + np.diag(penalty)
        weights = weights - np.linalg.solve(curve, slope)
    return weights
