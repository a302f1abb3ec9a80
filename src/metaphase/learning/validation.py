"""How good a network is on held-out patches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class BestF1:
    """The highest F1 over all thresholds, and the lowest probability that counts as positive there."""

    f1: float
    threshold: float
    precision: float
    recall: float


def best_f1(probabilities: npt.NDArray[np.floating], labels: npt.NDArray[np.integer]) -> BestF1:
    """Sweep every threshold at once. Without any positive the F1 is 0."""
    order = np.argsort(-probabilities, kind="stable")
    ranked, hits = probabilities[order], np.cumsum(labels[order] == 1)
    positives = int((labels == 1).sum())
    if positives == 0:
        return BestF1(0.0, 1.0, 0.0, 0.0)
    called = np.arange(1, len(ranked) + 1)
    last_of_ties = np.append(ranked[1:] != ranked[:-1], True)
    f1 = np.where(last_of_ties, 2 * hits / (called + positives), -1.0)
    best = int(f1.argmax())
    precision, recall = hits[best] / called[best], hits[best] / positives
    return BestF1(float(f1[best]), float(ranked[best]), float(precision), float(recall))
