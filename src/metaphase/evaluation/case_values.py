"""One number a case: tables of truths, predictions and counts, checked and lined up for tasks 1 and 2."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.base.arrays import Floats
from metaphase.base.cautions import Caution, Cautions
from metaphase.base.tables import (
    TableError,
    as_text,
    named,
    read_manifest,
    read_table,
    require_columns,
    require_numbers,
)
from metaphase.evaluation.cohort import MANIFEST_NAME, Cohort
from metaphase.evaluation.operating_points import refuse_reuse, stated_point
from metaphase.networks.points import OperatingPoint

GRADES: tuple[int, ...] = (1, 2, 3)
THRESHOLD_TOLERANCE = 1e-9
"""Thresholds of a table and of a card that differ by less are the same."""


@dataclass(frozen=True)
class ScorePairs:
    """True and predicted values of the same cases."""

    cohort: Cohort
    truth: Floats
    predicted: Floats
    warnings: Cautions = ()

    @property
    def patients(self) -> list[str]:
        """The patient of each case."""
        return [str(name) for name in self.cohort.manifest["patient"]]


def load_pairs(
    truth: str | Path,
    predictions: str | Path,
    true_column: str,
    predicted_columns: tuple[str, ...],
    *,
    split: str | None = None,
    skip_missing: bool = False,
    point: OperatingPoint | None = None,
) -> ScorePairs:
    """Line up the true column with the first of `predicted_columns` that is there, case by case.

    Cases may be named by path, file name or stem, too. Of a table with several thresholds, the rows at the
    operating point are taken; without a point such a table is refused.
    """
    everyone = read_cohort(truth)
    frame = _named_by_case(read_table(predictions), everyone, predictions)
    name = next((name for name in predicted_columns if name in frame.columns), predicted_columns[0])
    frame = _finite(_at_point(frame, point, predictions), name, predictions)
    _refuse_repeated(frame, ["case"], predictions)
    given = dict(zip(frame["case"], frame[name], strict=True))
    cohort, warnings = with_values(everyone.of_split(split), true_column)
    known = {case for case, value in given.items() if not np.isnan(value)}
    cohort, left_out = _predicted_only(cohort, known, str(predictions), skip_missing)
    stated = stated_point([Path(predictions)], "count")
    for tuned in (point, None if stated is None else stated[1]):
        if tuned is not None:
            refuse_reuse(tuned, cohort)
    predicted = np.array([given[case] for case in cohort.cases])
    return ScorePairs(
        cohort, cohort.manifest[true_column].to_numpy(np.float64), predicted, warnings + left_out
    )


def read_counts(path: str | Path, cohort: Cohort) -> pd.DataFrame:
    """A table of case, threshold (missing where the file has none) and count, each pair once."""
    frame = _finite(_named_by_case(read_table(path), cohort, path), "count", path)
    if "threshold" not in frame.columns:
        frame = frame.assign(threshold=np.nan)
    frame = _finite(frame, "threshold", path)
    for name, fine, range_text in (
        ("threshold", frame["threshold"].isna() | frame["threshold"].between(0, 1), "from 0 to 1"),
        ("count", frame["count"].isna() | (frame["count"] >= 0), "of at least 0"),
    ):
        if not fine.all():
            raise TableError(
                f"column {name} holds {frame[name][~fine].iloc[0]:g}",
                path=path,
                next_step=f"give numbers {range_text}",
            )
    _refuse_repeated(frame, ["case", "threshold"], path)
    return frame[["case", "threshold", "count"]]


def _named_by_case(frame: pd.DataFrame, cohort: Cohort, path: str | Path) -> pd.DataFrame:
    """The table with each row under the manifest's name of its case."""
    require_columns(frame, ("case",), path)
    names = as_text(frame["case"])
    return frame.assign(case=names.map(cohort.case_names(names.unique(), str(path))))


def _finite(frame: pd.DataFrame, column: str, path: str | Path) -> pd.DataFrame:
    """The table with numbers in a column; what is infinite is refused, what is missing stays so."""
    require_columns(frame, (column,), path)
    require_numbers(frame, (column,), path)
    values = pd.to_numeric(frame[column]).astype(float)
    if np.isinf(values).any():
        raise TableError(
            f"column {column} of case {frame['case'][np.isinf(values)].iloc[0]} is infinite",
            path=path,
            next_step="correct the cell, or leave it empty where nothing is known",
        )
    return frame.assign(**{column: values})


def _at_point(frame: pd.DataFrame, point: OperatingPoint | None, path: str | Path) -> pd.DataFrame:
    """The rows at the operating point's delta, where the table says at which threshold it counts."""
    if "threshold" not in frame.columns:
        return frame
    stated = _finite(frame, "threshold", path)["threshold"]
    if point is None:
        if stated.nunique() > 1:
            raise TableError(
                f"counts at {stated.nunique()} thresholds",
                path=path,
                next_step="give --card, whose operating point is used, or keep the rows of one threshold",
            )
        return frame
    here = is_same_threshold(stated, point.delta) | stated.isna()
    if not here.any():
        raise TableError(
            f"has no row at the card's delta of {point.delta:g} (its thresholds: {told_thresholds(stated)})",
            path=path,
            next_step=f"count with `metaphase score --threshold {point.delta!r}`",
        )
    return frame[here]


def is_same_threshold(thresholds: pd.Series[float], delta: float) -> npt.NDArray[np.bool_]:
    """Which thresholds of a table are that of an operating point."""
    return np.isclose(thresholds.to_numpy(np.float64), delta, rtol=0, atol=THRESHOLD_TOLERANCE)


def told_thresholds(values: pd.Series[float]) -> str:
    """Different thresholds for a message."""
    return named(f"{value:g}" for value in sorted(values.dropna().unique()))


def _refuse_repeated(frame: pd.DataFrame, columns: list[str], path: str | Path) -> None:
    repeated = frame["case"][frame.duplicated(columns)]
    if len(repeated):
        raise TableError(
            f"{' and '.join(columns)} given more than once: {named(repeated)}",
            path=path,
            next_step=f"keep one row a {' and '.join(columns)}",
        )


def read_cohort(truth: str | Path) -> Cohort:
    """The cohort of a manifest, or of a folder that holds one; its slides are not looked at."""
    path = Path(truth) / MANIFEST_NAME if Path(truth).is_dir() else Path(truth)
    return Cohort(read_manifest(path), str(path))


def with_values(cohort: Cohort, column: str) -> tuple[Cohort, Cautions]:
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
    return kept, (Caution("no-true-value", text),)


def with_grades(cohort: Cohort) -> tuple[Cohort, Cautions]:
    """The cases whose true grade is known; one that is not 1, 2 or 3 is an error."""
    kept, warnings = with_values(cohort, "grade")
    refuse_other_grades(kept.manifest["grade"].to_numpy(np.float64), "true", cohort.source)
    return kept, warnings


def _predicted_only(
    cohort: Cohort, known: set[str], source: str, skip_missing: bool
) -> tuple[Cohort, Cautions]:
    missing = [case for case in cohort.cases if case not in known]
    if not missing:
        return cohort, ()
    if not skip_missing or len(missing) == len(cohort.cases):
        raise TableError(
            f"no prediction for {len(missing)} of {len(cohort.cases)} cases: {named(missing)}",
            path=source,
            next_step="predict them, or leave them out with --skip-missing",
        )
    kept = cohort.manifest[cohort.manifest["case"].isin(known)].reset_index(drop=True)
    warning = f"{len(missing)} cases without a prediction are left out: {named(missing)}"
    return Cohort(kept, cohort.source), (Caution("no-prediction", warning),)


def refuse_other_grades(values: Floats, name: str, source: str) -> None:
    """Refuse what is no grade."""
    other = values[~np.isin(values, GRADES)]
    if len(other):
        raise TableError(
            f"a {name} grade is {other[0]:g}",
            path=source,
            next_step="grades are 1, 2 or 3; for counts give a model card with theta1 and theta2",
        )
