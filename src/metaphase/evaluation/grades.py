"""Tasks 1 and 2, one number a case, checked and lined up: grades by quadratic kappa, scores by Spearman."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.base.arrays import Floats, Integers, Mask
from metaphase.base.errors import ResultWarning, ResultWarnings
from metaphase.base.tables import (
    TableError,
    as_text,
    named,
    read_manifest,
    read_table,
    require_columns,
    require_numbers,
)
from metaphase.counting.specimen import grade_of
from metaphase.detections.points import OperatingPoint
from metaphase.evaluation.comparison import MANIFEST_NAME, Cohort
from metaphase.evaluation.metrics import BootstrapConfig, Estimate, draws, estimate, few_patients, ratio
from metaphase.evaluation.mitoses import measure_groups
from metaphase.evaluation.operating_points import load_point, read_point, refuse_reuse

# ---- tables of truths, predictions and counts, checked and lined up ----

CountPart = Literal["proliferation", "grade"]
"""The tasks with one number a case, and their columns of the truth."""
COUNTED_BY = ("proliferation", "count")
"""Columns of tables of counts, the better first: the paper's delta and thetas belong to its percentile."""
GRADES: tuple[int, ...] = (1, 2, 3)
THRESHOLD_TOLERANCE = 1e-9
"""Thresholds of a table and of a card that differ by less are the same."""


def load_pairs(
    truth: Path,
    predictions: Path,
    task: CountPart,
    predicted_columns: tuple[str, ...],
    *,
    split: str | None = None,
    skip_missing: bool = False,
    point: OperatingPoint | None = None,
) -> tuple[Cohort, ResultWarnings]:
    """The cases with their true value and, as `predicted`, the first of `predicted_columns` that is there.

    Cases may be named by path, file name or stem, too. Of a table with several thresholds, the rows at the
    operating point are taken; without a point such a table is refused.
    """
    everyone = read_cohort(truth)
    frame, name = _read_values(predictions, everyone, predicted_columns)
    if point is not None:
        frame = rows_at(frame, point.delta, predictions)
    elif (thresholds := frame["threshold"].nunique()) > 1:
        raise TableError(
            f"has counts at {thresholds} thresholds",
            path=predictions,
            next_step="give --card, whose operating point is used, or keep the rows of one threshold",
        )
    _refuse_repeated(frame, ["case"], predictions)
    given = frame.set_index("case")[name].dropna()
    cohort, warnings = with_values(everyone.of_split(split), task)
    missing = [case for case in cohort.cases if case not in given]
    if missing and (not skip_missing or len(missing) == len(cohort.cases)):
        raise TableError(
            f"no prediction for {len(missing)} of {len(cohort.cases)} cases: {named(missing)}",
            path=predictions,
            next_step="predict them, or leave them out of the truth (in Python: skip_missing=True)",
        )
    manifest = cohort.manifest[cohort.manifest["case"].isin(given.index)].reset_index(drop=True)
    cohort = Cohort(manifest.assign(predicted=manifest["case"].map(given)), cohort.source)
    if missing:
        text = f"{len(missing)} cases without a prediction are left out: {named(missing)}"
        warnings += (ResultWarning("no-prediction", text),)
    for tuned in (point, read_point([predictions], "count")):
        if tuned is not None:
            refuse_reuse(tuned, cohort)
    return cohort, warnings


def read_counts(path: Path, cohort: Cohort) -> pd.DataFrame:
    """A table of case, threshold (missing where the file has none) and count, each pair once.

    The count is the proliferation score where the table has one: delta and thetas belong to that.
    """
    frame, counted = _read_values(path, cohort, COUNTED_BY)
    for name, valid, range_text in (
        ("threshold", frame["threshold"].between(0, 1), "from 0 to 1"),
        (counted, frame[counted] >= 0, "of at least 0"),
    ):
        wrong = frame[name][~valid].dropna()
        if len(wrong):
            raise TableError(
                f"column {name} holds {wrong.iloc[0]:g}", path=path, next_step=f"give numbers {range_text}"
            )
    _refuse_repeated(frame, ["case", "threshold"], path)
    return frame.rename(columns={counted: "count"})


def _read_values(path: Path, cohort: Cohort, columns: Sequence[str]) -> tuple[pd.DataFrame, str]:
    """A table of case (as the cohort names it), threshold (missing where the file has none) and the first of
    `columns` that the file has, and the name of that column."""
    frame = read_table(path)
    column = next((name for name in columns if name in frame.columns), columns[0])
    require_columns(frame, ("case", column), path)
    frame = frame.reindex(columns=["case", "threshold", column])
    require_numbers(frame, ("threshold", column), path)
    names = as_text(frame["case"])
    frame["case"] = names.map(cohort.case_names(names.unique(), str(path)))
    for name in ("threshold", column):
        frame[name] = pd.to_numeric(frame[name]).astype(float)
        infinite = frame["case"][np.isinf(frame[name])]
        if len(infinite):
            raise TableError(
                f"column {name} of case {infinite.iloc[0]} is infinite",
                path=path,
                next_step="correct the cell, or leave it empty where nothing is known",
            )
    return frame, column


def rows_at(frame: pd.DataFrame, delta: float, path: Path) -> pd.DataFrame:
    """The rows at an operating point's delta, and those that state no threshold."""
    thresholds = frame["threshold"]
    here = np.isclose(thresholds, delta, rtol=0, atol=THRESHOLD_TOLERANCE) | thresholds.isna()
    if len(frame) and not here.any():
        raise TableError(
            f"has no row at the point's delta of {delta:g} (its thresholds: "
            f"{named(f'{value:g}' for value in sorted(thresholds.unique()))})",
            path=path,
            next_step=f"count with `metaphase score --threshold {delta!r}`, or tune both parts of the point",
        )
    return frame[here]


def _refuse_repeated(frame: pd.DataFrame, columns: list[str], path: Path) -> None:
    repeated = frame["case"][frame.duplicated(columns)]
    if len(repeated):
        raise TableError(
            f"{' and '.join(columns)} given more than once: {named(repeated)}",
            path=path,
            next_step=f"keep one row per {' and '.join(columns)}",
        )


def read_cohort(truth: Path) -> Cohort:
    """The cohort of a manifest, or of a folder that holds one; slides are not opened."""
    path = truth / MANIFEST_NAME if truth.is_dir() else truth
    return Cohort(read_manifest(path), str(path))


def with_values(cohort: Cohort, column: str) -> tuple[Cohort, ResultWarnings]:
    """The cases whose true value is known, and a warning about the others."""
    require_columns(cohort.manifest, (column,), cohort.source)
    unknown = cohort.manifest[column].isna()
    kept = Cohort(cohort.manifest[~unknown].reset_index(drop=True), cohort.source)
    if not len(kept.manifest):
        raise TableError(
            f"no case has a true {column}", path=cohort.source, next_step=f"fill the column {column}"
        )
    if not unknown.any():
        return kept, ()
    text = f"{int(unknown.sum())} cases have no true {column} and are left out"
    return kept, (ResultWarning("no-true-value", text),)


def refuse_other_grades(values: Floats, name: str, source: str) -> None:
    """Raise unless every value is 1, 2 or 3; `name` and `source` say where the values come from."""
    other = values[~np.isin(values, GRADES)]
    if len(other):
        raise TableError(
            f"a {name} grade is {other[0]:g}",
            path=source,
            next_step="grades are 1, 2 or 3; for counts give a model card with theta1 and theta2",
        )


# ---- agreement on grades (quadratic weighted kappa) and on scores (Spearman) ----


def confusion(truth: npt.ArrayLike, predicted: npt.ArrayLike) -> Integers:
    """Cases of each true grade (rows) and predicted grade (columns)."""
    cells = _cells(truth, predicted)
    return np.bincount(cells, minlength=len(GRADES) ** 2).reshape(len(GRADES), len(GRADES))


def _cells(truth: npt.ArrayLike, predicted: npt.ArrayLike) -> Integers:
    """Number of each case's cell in the confusion table."""
    return np.searchsorted(GRADES, truth) * len(GRADES) + np.searchsorted(GRADES, predicted)


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
    first, second = (rank - rank.mean() for rank in (_ranks(truth), _ranks(predicted)))
    return float(ratio(first @ second, np.sqrt((first @ first) * (second @ second))))


def _ranks(values: Floats) -> Floats:
    _, place, often = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((often.cumsum() - (often - 1) / 2)[place])


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
    confusion: Integers | None
    """True grades in rows, predicted in columns; None for scores."""
    settings: dict[str, Any]
    warnings: ResultWarnings

    def table(self) -> pd.DataFrame:
        """The agreement of all cases and of each group."""
        groups = {"all": {"all": (len(self.cases), self.overall)}} | self.groups
        rows = [
            {"by": by, "group": group, "cases": count, "metric": self.metric, **asdict(value)}
            for by, members in groups.items()
            for group, (count, value) in members.items()
        ]
        return pd.DataFrame(rows)


def evaluate_scores(
    task: CountPart,
    truth: Path,
    predictions: Path,
    *,
    by: Sequence[str] = (),
    split: str | None = None,
    card: Path | None = None,
    skip_missing: bool = False,
    bootstrap: BootstrapConfig | None = None,
) -> AgreementResult:
    """Compare predicted with true grades 1 to 3, or with true proliferation scores by rank.

    `truth` is a manifest (or a folder with one) with a column grade or proliferation. `predictions` has the
    columns case and grade; or else case and proliferation, or where that is not there count (figures in the
    hotspot), which becomes a grade by a model card whose point for counts holds theta1 and theta2. The card's
    point also says which rows of a table of several thresholds are meant, and the cases it was tuned on are
    refused.
    """
    bootstrap, graded = bootstrap or BootstrapConfig(), task == "grade"
    point = None if card is None else load_point(card, "count")
    columns: tuple[str, ...] = ("grade",) if graded and point is None else COUNTED_BY
    cohort, warnings = load_pairs(
        truth, predictions, task, columns, split=split, skip_missing=skip_missing, point=point
    )
    true, predicted = (cohort.manifest[name].to_numpy(np.float64) for name in (task, "predicted"))
    if graded and point is not None:
        if point.theta1 is None or point.theta2 is None:
            raise TableError(
                "the operating point for counts has no thetas",
                path=card,
                next_step="run `metaphase evaluate tune count` on a tuning set first",
            )
        predicted = grade_of(predicted, point.theta1, point.theta2).astype(float)
    if graded:
        refuse_other_grades(true, "true", str(truth))
        refuse_other_grades(predicted, "predicted", str(predictions))
    patients = cohort.manifest["patient"].astype(str)
    used: dict[str, Any] = {"operating_point": None}
    if point is not None:
        used = {"operating_point": f"count, {point.source or 'of the card'}"}
        used |= {f"point_{name}": value for name, value in point.numbers.items()}
    used |= {"truth": str(truth), "predictions": str(predictions), "split": split}

    def agreement(chosen: Mask) -> tuple[int, Estimate]:
        times = draws(list(patients[chosen]), bootstrap)
        measure = _kappa if graded else _correlation
        return int(chosen.sum()), estimate(*measure(true[chosen], predicted[chosen], times), bootstrap)

    return AgreementResult(
        metric="quadratic kappa" if graded else "Spearman",
        overall=agreement(np.ones(len(true), bool))[1],
        groups=measure_groups(by, cohort, agreement),
        cases=pd.DataFrame({"case": cohort.manifest["case"], "truth": true, "predicted": predicted}),
        confusion=confusion(true, predicted) if graded else None,
        settings=used | {f"bootstrap_{name}": value for name, value in asdict(bootstrap).items()},
        warnings=(*warnings, *_warnings(true, predicted, list(patients), graded)),
    )


def _kappa(truth: Floats, predicted: Floats, times: Floats) -> tuple[float, Floats]:
    """Kappa of the cases, and of each draw of them."""
    size = len(GRADES)
    drawn = (times @ np.eye(size * size)[_cells(truth, predicted)]).reshape(-1, size, size)
    return float(quadratic_kappa(confusion(truth, predicted))), quadratic_kappa(drawn)


def _correlation(truth: Floats, predicted: Floats, times: Floats) -> tuple[float, Floats]:
    """Spearman's correlation of the cases, and of each draw of them."""
    rows = times.astype(int)
    drawn = [spearman(np.repeat(truth, often), np.repeat(predicted, often)) for often in rows]
    return spearman(truth, predicted), np.array(drawn)


def _warnings(truth: Floats, predicted: Floats, patients: Sequence[str], graded: bool) -> list[ResultWarning]:
    warnings = []
    name = "kappa" if graded else "Spearman's correlation"
    one_said, one_true = (len(set(side.tolist())) == 1 for side in (predicted, truth))
    if one_said:
        said = "0 whatever the truth" if graded and not one_true else "undefined"
        text = f"all predictions are {predicted[0]:g}: {name} is {said}"
        warnings.append(ResultWarning("one-prediction", text))
    if one_true:
        text = f"all true values are {truth[0]:g}: agreement cannot be measured"
        warnings.append(ResultWarning("one-truth", text))
    if few := few_patients(patients):
        warnings.append(few)
    return warnings
