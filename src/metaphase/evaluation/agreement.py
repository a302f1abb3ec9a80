"""Agreement on grades (quadratic weighted kappa) and on scores (Spearman), with intervals."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from metaphase.evaluation.bootstrap import Estimate, estimate
from metaphase.evaluation.config import BootstrapConfig
from metaphase.evaluation.curves import ratio

Floats = npt.NDArray[np.float64]
GRADES = (1, 2, 3)


def confusion(
    truth: npt.ArrayLike, predicted: npt.ArrayLike, grades: tuple[int, ...] = GRADES
) -> npt.NDArray[np.int64]:
    """Cases of each true grade (rows) and predicted grade (columns)."""
    rows, columns = np.searchsorted(grades, truth), np.searchsorted(grades, predicted)
    table = np.zeros((len(grades), len(grades)), np.int64)
    np.add.at(table, (rows, columns), 1)
    return table


def quadratic_kappa(table: npt.ArrayLike) -> Floats:
    """Cohen's kappa with quadratic weights of confusion tables, shape (..., grades, grades).

    NaN where chance leaves nothing to disagree about: all cases of one grade, truly and predicted.
    """
    table = np.asarray(table, float)
    grade = np.arange(table.shape[-1])
    weight = (grade[:, None] - grade[None, :]) ** 2
    rows, columns = table.sum(axis=-1), table.sum(axis=-2)
    seen = (weight * table).sum(axis=(-1, -2)) * table.sum(axis=(-1, -2))
    expected = (weight * rows[..., :, None] * columns[..., None, :]).sum(axis=(-1, -2))
    return 1 - ratio(seen, expected)


def spearman(truth: Floats, predicted: Floats) -> float:
    """Spearman's rank correlation, ties ranked in the middle; NaN if one side is constant."""
    ranks = (rankdata(side) for side in (truth, predicted))
    first, second = (rank - rank.mean() for rank in ranks)
    return float(ratio(first @ second, np.sqrt((first @ first) * (second @ second))))


def kappa_estimate(
    truth: npt.NDArray[np.int64], predicted: npt.NDArray[np.int64], times: Floats, config: BootstrapConfig
) -> Estimate:
    """Quadratic kappa with its interval; `times` tells how often each case is drawn."""
    size = len(GRADES)
    cell = np.searchsorted(GRADES, truth) * size + np.searchsorted(GRADES, predicted)
    drawn = (times @ np.eye(size * size)[cell]).reshape(-1, size, size)
    value = float(quadratic_kappa(confusion(truth, predicted)))
    return estimate(value, quadratic_kappa(drawn), config)


def spearman_estimate(truth: Floats, predicted: Floats, times: Floats, config: BootstrapConfig) -> Estimate:
    """Spearman's correlation with its interval; `times` tells how often each case is drawn."""
    repeats = times.astype(int)
    drawn = [spearman(np.repeat(truth, often), np.repeat(predicted, often)) for often in repeats]
    return estimate(spearman(truth, predicted), np.array(drawn), config)
