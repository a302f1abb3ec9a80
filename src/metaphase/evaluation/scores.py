"""Tasks 1 and 2: one number a case, predicted and true. Grades by quadratic kappa, scores by Spearman."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.evaluation.agreement import GRADES, confusion, kappa_estimate, spearman_estimate
from metaphase.evaluation.bootstrap import Estimate, draws
from metaphase.evaluation.card import load_tuned, refuse_reuse
from metaphase.evaluation.config import BootstrapConfig
from metaphase.evaluation.mitoses import group_values
from metaphase.evaluation.pairs import Floats, ScorePairs, load_pairs
from metaphase.tables import TableError, natural


@dataclass(frozen=True)
class ScoreResult:
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
    warnings: tuple[str, ...]

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
                {"by": by, "group": group, "cases": count, "value": e.value, "low": e.low, "high": e.high}
                for by, group, count, e in rows
            ]
        )


def grades_of(counts: npt.ArrayLike, theta1: float, theta2: float) -> npt.NDArray[np.int64]:
    """Grade 1 up to `theta1` mitoses in the hotspot, 2 up to `theta2`, 3 above."""
    counts = np.asarray(counts, float)
    return 1 + (counts > theta1).astype(np.int64) + (counts > theta2).astype(np.int64)


def evaluate_grade(
    truth: str | Path,
    predictions: str | Path,
    output: str | Path | None = None,
    *,
    by: Sequence[str] = (),
    split: str | None = None,
    card: str | Path | None = None,
    skip_missing: bool = False,
    bootstrap: BootstrapConfig | None = None,
) -> ScoreResult:
    """Compare predicted with true grades 1 to 3.

    `truth` is a manifest (or a folder with one) with a column grade. `predictions` has the columns case and
    grade; or, with a model card that holds tuned theta1 and theta2, case and count.
    """
    bootstrap = bootstrap or BootstrapConfig()
    column = "grade" if card is None else "count"
    pairs = load_pairs(truth, predictions, "grade", (column,), split=split, skip_missing=skip_missing)
    if card is not None:
        tuned = load_tuned(card, "grade")
        refuse_reuse(tuned, pairs.cohort)
        predicted = grades_of(pairs.predicted, tuned.parameters["theta1"], tuned.parameters["theta2"])
        pairs = ScorePairs(pairs.cohort, pairs.truth, predicted.astype(float), pairs.warnings)
    for name, values in (("true", pairs.truth), ("predicted", pairs.predicted)):
        _refuse_other_grades(values, name, str(truth if name == "true" else predictions))
    result = _summarise(
        pairs, "quadratic kappa", by, bootstrap, _settings(truth, predictions, split, bootstrap)
    )
    return _reported(result, output)


def evaluate_proliferation(
    truth: str | Path,
    predictions: str | Path,
    output: str | Path | None = None,
    *,
    by: Sequence[str] = (),
    split: str | None = None,
    skip_missing: bool = False,
    bootstrap: BootstrapConfig | None = None,
) -> ScoreResult:
    """Compare predicted with true proliferation scores by rank.

    `truth` is a manifest (or a folder with one) with a column proliferation; `predictions` has the columns
    case and proliferation, or count (mitoses in the hotspot).
    """
    bootstrap = bootstrap or BootstrapConfig()
    columns = ("proliferation", "count")
    pairs = load_pairs(truth, predictions, "proliferation", columns, split=split, skip_missing=skip_missing)
    result = _summarise(pairs, "Spearman", by, bootstrap, _settings(truth, predictions, split, bootstrap))
    return _reported(result, output)


def _summarise(
    pairs: ScorePairs, metric: str, by: Sequence[str], bootstrap: BootstrapConfig, settings: dict[str, Any]
) -> ScoreResult:
    everyone = np.ones(len(pairs.truth), bool)
    graded = metric == "quadratic kappa"
    return ScoreResult(
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


def _doubts(pairs: ScorePairs, graded: bool) -> list[str]:
    doubts = []
    consequence = "kappa is 0 whatever the truth" if graded else "Spearman's correlation is undefined"
    if len(set(pairs.predicted.tolist())) == 1:
        doubts.append(f"all predictions are {pairs.predicted[0]:g}: {consequence}")
    if len(set(pairs.truth.tolist())) == 1:
        doubts.append(f"all true values are {pairs.truth[0]:g}: agreement cannot be measured")
    return doubts


def _refuse_other_grades(values: Floats, name: str, source: str) -> None:
    other = values[~np.isin(values, GRADES)]
    if len(other):
        raise TableError(
            f"a {name} grade is {other[0]:g}",
            path=source,
            next_step="grades are 1, 2 or 3; for counts give a model card with theta1 and theta2",
        )


def _settings(
    truth: str | Path, predictions: str | Path, split: str | None, bootstrap: BootstrapConfig
) -> dict[str, Any]:
    return {
        "truth": str(truth),
        "predictions": str(predictions),
        "split": split,
        "bootstrap_samples": bootstrap.samples,
        "bootstrap_confidence": bootstrap.confidence,
        "bootstrap_seed": bootstrap.seed,
    }


def _reported(result: ScoreResult, output: str | Path | None) -> ScoreResult:
    if output is not None:
        from metaphase.evaluation.score_report import write_score_report

        write_score_report(result, Path(output))
    return result
