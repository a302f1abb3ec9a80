"""One true and one predicted number a case, lined up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.evaluation.cohort import Cohort
from metaphase.evaluation.inputs import MANIFEST_NAME
from metaphase.tables import TableError, named, read_manifest, read_table, require_columns, require_numbers

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScorePairs:
    """True and predicted values of the same cases."""

    cohort: Cohort
    truth: Floats
    predicted: Floats
    warnings: tuple[str, ...] = ()

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
) -> ScorePairs:
    """Line up the true column with the first of `predicted_columns` that is there, case by case."""
    everyone = read_cohort(truth)
    frame = read_table(predictions)
    name = next((name for name in predicted_columns if name in frame.columns), predicted_columns[0])
    require_columns(frame, ("case", name), predictions)
    require_numbers(frame, (name,), predictions)
    given = dict(zip(frame["case"].astype(str), pd.to_numeric(frame[name]).astype(float), strict=True))
    if len(given) < len(frame):
        repeated = frame["case"][frame["case"].duplicated()].astype(str)
        raise TableError(
            f"cases predicted more than once: {named(repeated)}",
            path=predictions,
            next_step="keep one row a case",
        )
    everyone.case_names(given, str(predictions))
    cohort, warnings = with_values(everyone.of_split(split), true_column)
    known = {case for case, value in given.items() if not np.isnan(value)}
    cohort, left_out = _predicted_only(cohort, known, str(predictions), skip_missing)
    predicted = np.array([given[case] for case in cohort.cases])
    return ScorePairs(
        cohort, cohort.manifest[true_column].to_numpy(np.float64), predicted, warnings + left_out
    )


def read_cohort(truth: str | Path) -> Cohort:
    """The cohort of a manifest, or of a folder that holds one; its slides are not looked at."""
    path = Path(truth) / MANIFEST_NAME if Path(truth).is_dir() else Path(truth)
    return Cohort(read_manifest(path), str(path))


def with_values(cohort: Cohort, column: str) -> tuple[Cohort, tuple[str, ...]]:
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
    return kept, (f"{int(unknown.sum())} cases have no true {column} and are left out",)


def _predicted_only(
    cohort: Cohort, known: set[str], source: str, skip_missing: bool
) -> tuple[Cohort, tuple[str, ...]]:
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
    return Cohort(kept, cohort.source), (warning,)
