"""Choosing thresholds on a tuning set, and writing them with that set into the model card.

Slides marked `test` are refused here, and the evaluation refuses the cases named in the card.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from metaphase.base.arrays import Floats
from metaphase.base.tables import TableError, named, read_table, require_columns, require_numbers
from metaphase.evaluation.cohort import Cohort
from metaphase.evaluation.grades import (
    GRADES,
    load_pairs,
    quadratic_kappa,
    read_cohort,
    spearman,
    with_values,
)
from metaphase.evaluation.marks import MatchingConfig
from metaphase.evaluation.metrics import best_threshold, curve
from metaphase.evaluation.mitoses import load_marked
from metaphase.evaluation.operating_points import refuse_test_slides, save_point
from metaphase.networks.cards import OperatingPoint


def tune_mitoses(
    truth: str | Path,
    predictions: str | Path,
    card: str | Path | None = None,
    *,
    manifest: str | Path | None = None,
    split: str | None = None,
    ignore: str | Path | None = None,
    mpp: float | None = None,
    matching: MatchingConfig | None = None,
) -> OperatingPoint:
    """Task 3: the threshold delta of the highest F1 on the tuning slides."""
    comparison, marked = load_marked(
        truth,
        predictions,
        manifest=manifest,
        split=split,
        ignore=ignore,
        mpp=mpp,
        matching=matching or MatchingConfig(),
    )
    refuse_test_slides(comparison.cohort)
    delta, value = best_threshold(curve(marked))
    return _saved(card, "mitoses", {"delta": delta}, "F1", value, comparison.cohort)


def tune_proliferation(
    truth: str | Path, counts: str | Path, card: str | Path | None = None, *, split: str | None = None
) -> OperatingPoint:
    """Task 2: the threshold delta whose hotspot counts follow the true proliferation best (Spearman).

    `counts` has the columns case, threshold and count: the hotspot count of every case at every threshold.
    """
    cohort, _ = with_values(read_cohort(truth).of_split(split), "proliferation")
    refuse_test_slides(cohort)
    table = _complete_counts(counts, cohort)
    scores = cohort.manifest["proliferation"].to_numpy(np.float64)
    delta, value = delta_for_spearman(table.__getitem__, list(table), scores)
    return _saved(card, "proliferation", {"delta": delta}, "Spearman", value, cohort)


def tune_grade(
    truth: str | Path, counts: str | Path, card: str | Path | None = None, *, split: str | None = None
) -> OperatingPoint:
    """Task 1: theta1 and theta2 that turn counts (columns case, count) into grades of the best kappa."""
    pairs = load_pairs(truth, counts, "grade", ("count",), split=split)
    refuse_test_slides(pairs.cohort)
    theta1, theta2, value = thetas_for_kappa(pairs.predicted, pairs.truth.astype(np.int64))
    return _saved(card, "grade", {"theta1": theta1, "theta2": theta2}, "quadratic kappa", value, pairs.cohort)


def delta_for_spearman(
    counts_at: Callable[[float], Floats], thresholds: Sequence[float], truth: Floats
) -> tuple[float, float]:
    """The threshold (the highest of equals) at which counts follow `truth` best, and how well they do."""
    ordered = sorted(thresholds, reverse=True)
    values = np.array([spearman(truth, counts_at(threshold)) for threshold in ordered])
    if not len(values) or np.isnan(values).all():
        raise TableError(
            "no threshold gives counts that differ between cases",
            next_step="try lower thresholds, or more cases",
        )
    best = int(np.nanargmax(values))
    return float(ordered[best]), float(values[best])


def thetas_for_kappa(counts: Floats, grades: npt.NDArray[np.int64]) -> tuple[float, float, float]:
    """theta1, theta2 and their kappa, over all pairs of observed counts; the smallest of equals.

    A case is grade 1 up to theta1, grade 2 up to theta2, grade 3 above.
    """
    cuts = np.unique(counts)
    # Cases of each true grade with a count up to each cut; column i of the table of a pair of cuts.
    upto = np.stack(
        [np.searchsorted(np.sort(counts[grades == grade]), cuts, side="right") for grade in GRADES]
    )
    total = upto[:, -1]
    first, second = np.triu_indices(len(cuts))
    tables = np.stack(
        [upto[:, first], upto[:, second] - upto[:, first], total[:, None] - upto[:, second]], axis=-1
    ).transpose(1, 0, 2)
    kappa = quadratic_kappa(tables)
    if np.isnan(kappa).all():
        raise TableError(
            "kappa is undefined on this tuning set",
            next_step="tune on cases of more than one grade and count",
        )
    best = int(np.nanargmax(np.round(kappa, 12)))
    return float(cuts[first[best]]), float(cuts[second[best]]), float(kappa[best])


def _complete_counts(path: str | Path, cohort: Cohort) -> dict[float, Floats]:
    """Counts of the cohort's cases, in its order, at each threshold."""
    frame = read_table(path)
    require_columns(frame, ("case", "threshold", "count"), path)
    require_numbers(frame, ("threshold", "count"), path)
    table = frame.pivot_table(index="case", columns="threshold", values="count", aggfunc="last")
    table = table.reindex(list(cohort.cases))
    incomplete = table.index[table.isna().any(axis=1)]
    if len(incomplete):
        raise TableError(
            f"counts are missing at some threshold for {named(map(str, incomplete))}",
            path=path,
            next_step="give a count (0 where nothing is found) for every case and threshold",
        )
    return {float(str(threshold)): table[threshold].to_numpy(np.float64) for threshold in table.columns}


def _saved(
    card: str | Path | None,
    task: str,
    parameters: dict[str, float],
    metric: str,
    value: float,
    cohort: Cohort,
) -> OperatingPoint:
    if np.isnan(value):
        raise TableError(
            f"{metric} is undefined on this tuning set",
            path=cohort.source,
            next_step="tune on slides with truths and detections",
        )
    patients = tuple(dict.fromkeys(str(name) for name in cohort.manifest["patient"]))
    tuned = OperatingPoint(
        task=task,
        parameters=parameters,
        metric=metric,
        value=value,
        cases=cohort.cases,
        patients=patients,
        source=cohort.source,
    )
    if card is not None:
        save_point(card, tuned)
    return tuned
