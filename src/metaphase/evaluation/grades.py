"""Tasks 1 and 2, one number a case: grades by quadratic kappa, proliferation scores by Spearman."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.base.arrays import Floats
from metaphase.base.cautions import Caution, Cautions
from metaphase.base.tables import TableError, natural
from metaphase.counting.specimen import grade_of
from metaphase.evaluation.case_values import GRADES, ScorePairs, load_pairs, refuse_other_grades
from metaphase.evaluation.metrics import BootstrapConfig, Estimate, draws, estimate, few_patients, ratio
from metaphase.evaluation.mitoses import group_values
from metaphase.evaluation.operating_points import load_point
from metaphase.networks.points import OperatingPoint

# ---- agreement on grades (quadratic weighted kappa) and on scores (Spearman) ----


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
    ranks = (pd.Series(side).rank().to_numpy() for side in (truth, predicted))
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


# ---- tasks 1 and 2 ----


@dataclass(frozen=True)
class AgreementResult:
    """Agreement between predicted and true values."""

    metric: str
    """`quadratic kappa` or `Spearman`."""
    overall: Estimate
    groups: dict[str, dict[str, tuple[int, Estimate]]]
    """For each column asked for, the number of cases and the agreement of each of its values."""
    cases: pd.DataFrame
    """`case, truth, predicted`, one row a case."""
    confusion: npt.NDArray[np.int64] | None
    """True grades in rows, predicted in columns; None for scores."""
    settings: dict[str, Any]
    warnings: Cautions

    def table(self) -> pd.DataFrame:
        """The agreement of all cases and of each group."""
        rows = [("all", "all", len(self.cases), self.overall)]
        rows += [
            (by, group, count, value)
            for by, members in self.groups.items()
            for group, (count, value) in members.items()
        ]
        return pd.DataFrame(
            [
                {
                    "by": by,
                    "group": group,
                    "cases": count,
                    "metric": self.metric,
                    "value": e.value,
                    "low": e.low,
                    "high": e.high,
                }
                for by, group, count, e in rows
            ]
        )


def evaluate_grade(
    truth: str | Path,
    predictions: str | Path,
    *,
    by: Sequence[str] = (),
    split: str | None = None,
    card: str | Path | None = None,
    skip_missing: bool = False,
    bootstrap: BootstrapConfig | None = None,
) -> AgreementResult:
    """Compare predicted with true grades 1 to 3.

    `truth` is a manifest (or a folder with one) with a column grade. `predictions` has the columns case and
    grade; or, with a model card whose point for counts holds theta1 and theta2, case and count.
    """
    bootstrap = bootstrap or BootstrapConfig()
    point = None if card is None else load_point(card, "count")
    column = "grade" if point is None else "count"
    pairs = load_pairs(
        truth, predictions, "grade", (column,), split=split, skip_missing=skip_missing, point=point
    )
    if point is not None:
        if point.theta1 is None or point.theta2 is None:
            raise TableError(
                "the operating point for counts holds no thetas",
                path=card,
                next_step="run `metaphase evaluate tune grade` on a tuning set first",
            )
        predicted = grade_of(pairs.predicted, point.theta1, point.theta2)
        pairs = ScorePairs(pairs.cohort, pairs.truth, predicted.astype(float), pairs.warnings)
    for name, values in (("true", pairs.truth), ("predicted", pairs.predicted)):
        refuse_other_grades(values, name, str(truth if name == "true" else predictions))
    return _summarise(
        pairs, "quadratic kappa", by, bootstrap, _settings(truth, predictions, split, bootstrap, point)
    )


def evaluate_proliferation(
    truth: str | Path,
    predictions: str | Path,
    *,
    by: Sequence[str] = (),
    split: str | None = None,
    card: str | Path | None = None,
    skip_missing: bool = False,
    bootstrap: BootstrapConfig | None = None,
) -> AgreementResult:
    """Compare predicted with true proliferation scores by rank.

    `truth` is a manifest (or a folder with one) with a column proliferation; `predictions` has the columns
    case and proliferation, or count (mitoses in the hotspot). With a model card, its point for counts says
    which rows of a table of several thresholds are meant, and the cases it was tuned on are refused.
    """
    bootstrap = bootstrap or BootstrapConfig()
    point = None if card is None else load_point(card, "count")
    columns = ("proliferation", "count")
    pairs = load_pairs(
        truth, predictions, "proliferation", columns, split=split, skip_missing=skip_missing, point=point
    )
    settings = _settings(truth, predictions, split, bootstrap, point)
    return _summarise(pairs, "Spearman", by, bootstrap, settings)


def _summarise(
    pairs: ScorePairs, metric: str, by: Sequence[str], bootstrap: BootstrapConfig, settings: dict[str, Any]
) -> AgreementResult:
    everyone = np.ones(len(pairs.truth), bool)
    graded = metric == "quadratic kappa"
    return AgreementResult(
        metric=metric,
        overall=_agreement(pairs, everyone, graded, bootstrap),
        groups={name: _by_group(pairs, name, graded, bootstrap) for name in by},
        cases=pd.DataFrame(
            {"case": pairs.cohort.manifest["case"], "truth": pairs.truth, "predicted": pairs.predicted}
        ),
        confusion=confusion(pairs.truth, pairs.predicted) if graded else None,
        settings=settings,
        warnings=(*pairs.warnings, *_doubts(pairs, graded)),
    )


def _agreement(
    pairs: ScorePairs, chosen: npt.NDArray[np.bool_], graded: bool, bootstrap: BootstrapConfig
) -> Estimate:
    truth, predicted = pairs.truth[chosen], pairs.predicted[chosen]
    times = draws([name for name, kept in zip(pairs.patients, chosen, strict=True) if kept], bootstrap)
    if graded:
        return kappa_estimate(truth.astype(np.int64), predicted.astype(np.int64), times, bootstrap)
    return spearman_estimate(truth, predicted, times, bootstrap)


def _by_group(
    pairs: ScorePairs, column: str, graded: bool, bootstrap: BootstrapConfig
) -> dict[str, tuple[int, Estimate]]:
    values = group_values(pairs.cohort.manifest, column, pairs.cohort.source)
    return {
        group: (int((values == group).sum()), _agreement(pairs, values == group, graded, bootstrap))
        for group in sorted(set(values), key=natural)
    }


def _doubts(pairs: ScorePairs, graded: bool) -> list[Caution]:
    doubts = []
    name = "kappa" if graded else "Spearman's correlation"
    one_said, one_true = (len(set(side.tolist())) == 1 for side in (pairs.predicted, pairs.truth))
    if one_said:
        said = "0 whatever the truth" if graded and not one_true else "undefined"
        text = f"all predictions are {pairs.predicted[0]:g}: {name} is {said}"
        doubts.append(Caution("one-prediction", text))
    if one_true:
        text = f"all true values are {pairs.truth[0]:g}: agreement cannot be measured"
        doubts.append(Caution("one-truth", text))
    if few := few_patients(pairs.patients):
        doubts.append(few)
    return doubts


def _settings(
    truth: str | Path,
    predictions: str | Path,
    split: str | None,
    bootstrap: BootstrapConfig,
    point: OperatingPoint | None,
) -> dict[str, Any]:
    used: dict[str, Any] = {"operating_point": None}
    if point is not None:
        used = {"operating_point": f"count, {point.source or 'of the card'}"}
        used |= {f"point_{name}": value for name, value in point.numbers.items()}
    return used | {
        "truth": str(truth),
        "predictions": str(predictions),
        "split": split,
        "bootstrap_samples": bootstrap.samples,
        "bootstrap_confidence": bootstrap.confidence,
        "bootstrap_seed": bootstrap.seed,
    }
