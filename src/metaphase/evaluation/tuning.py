"""Choosing operating points on a tuning set, and writing them with that set into the model card.

Slides marked `test` are refused here, and the evaluation refuses the cases named in the card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metaphase.base.arrays import Floats, Integers
from metaphase.base.errors import UsageError
from metaphase.base.tables import TableError, named
from metaphase.detections.files import detection_files
from metaphase.detections.points import SHARED_BY_POINTS, OperatingPoint
from metaphase.evaluation.comparison import Cohort
from metaphase.evaluation.grades import (
    GRADES,
    CountPart,
    quadratic_kappa,
    read_cohort,
    read_counts,
    refuse_other_grades,
    rows_at,
    spearman,
    with_values,
)
from metaphase.evaluation.marks import MatchingConfig
from metaphase.evaluation.metrics import (
    BootstrapConfig,
    best_threshold,
    curve,
    draw_rates,
    draws,
    thin,
)
from metaphase.evaluation.mitoses import locate
from metaphase.evaluation.operating_points import (
    load_point,
    read_point,
    read_search,
    refuse_test_slides,
    save_point,
)

DRAWS, STEPS = BootstrapConfig(samples=200), 400
"""Of patients, to see how far delta depends on them, and the thresholds that are tried in each."""
COUNT_PARTS: tuple[CountPart, ...] = ("proliferation", "grade")


def tune_mitoses(
    truth: Path,
    predictions: Path,
    card: Path | None = None,
    *,
    manifest: Path | None = None,
    split: str | None = None,
    mpp: float | None = None,
    matching: MatchingConfig | None = None,
    floor: float = 0.0,
) -> OperatingPoint:
    """Task 3, the point `mitoses`: the threshold delta of the highest F1 on the tuning slides.

    Detections below `floor` are left out first. Tables of `metaphase detect` say how they were searched, and
    the point then says so, too.
    """
    located = locate(
        truth,
        predictions,
        manifest=manifest,
        split=split,
        mpp=mpp,
        matching=matching or MatchingConfig(),
        floor=floor,
        every=True,
    )
    comparison, marked = located.comparison, located.marked
    refuse_test_slides(comparison.cohort)
    delta, value = best_threshold(curve(marked))
    if not value > 0:
        raise TableError(
            f"F1 is {'undefined' if np.isnan(value) else '0'} on this tuning set",
            path=comparison.cohort.source,
            next_step="tune on slides with truths and detections",
        )
    steps = thin(curve(marked), STEPS).threshold
    drawn = draw_rates(marked, steps, draws(marked.patients, DRAWS))["f1"]
    tables = detection_files(predictions, every=True)
    stated, search = read_point(tables, "mitoses"), read_search(tables, floor)
    if stated is not None:
        search |= {name: getattr(stated, name) for name in SHARED_BY_POINTS}
    point = OperatingPoint(
        name="mitoses",
        delta=delta,
        delta_range=_range(drawn, steps),
        **search,
        metric="F1",
        value=value,
        **_chosen_on(comparison.cohort),
    )
    if card is not None:
        save_point(card, point)
    return point


def tune_count(
    truth: Path,
    counts: Path,
    card: Path | None = None,
    *,
    split: str | None = None,
    parts: Sequence[CountPart] = COUNT_PARTS,
    floor: float = 0.0,
) -> OperatingPoint:
    """Tasks 1 and 2, the point `count`, by the paper's procedure.

    First `proliferation`: the threshold delta whose scores follow the true score best (Spearman). Then
    `grade`: theta1 and theta2 that turn the scores at that delta into grades of the best kappa, by exhaustive
    search. `counts` has the columns case, threshold and proliferation, as `metaphase score` writes them for
    several thresholds, or count in its place; those below `floor` are left out. Without `proliferation` delta
    is that of the card, or the only threshold of the table.
    """
    whole = read_cohort(truth)
    table, search = read_counts(counts, whole), read_search([counts], floor)
    kept = table["threshold"].isna() | (table["threshold"] >= floor)
    if not kept.any():
        raise TableError(
            f"no threshold reaches {floor:g}", path=counts, next_step="count at higher thresholds, too"
        )
    known: OperatingPoint | None = None
    if card is not None and card.exists():
        with suppress(TableError):  # it need not have one
            known = load_point(card, "count")
    known = count_point_of(whole.of_split(split), table[kept], counts, parts, known, **search)
    if card is not None:
        save_point(card, known)
    return known


def count_point_of(
    everyone: Cohort,
    table: pd.DataFrame,
    counts: Path,
    parts: Sequence[CountPart] = COUNT_PARTS,
    known: OperatingPoint | None = None,
    **search: Any,
) -> OperatingPoint:
    """The point `count` of a cohort, from a table `case, threshold, count` which `counts` names in errors.

    `known` is what stands before; `search` how the detections were searched for that were counted.
    """
    refuse_test_slides(everyone)
    if "proliferation" in parts:
        known = _point_by_scores(everyone, table, counts, search)
    if "grade" in parts:
        known = _point_with_thetas(everyone, table, counts, known)
    if known is None:
        raise UsageError("nothing to tune", next_step="tune proliferation, grade or both")
    return known


def _point_by_scores(
    everyone: Cohort, table: pd.DataFrame, counts: Path, search: Mapping[str, Any]
) -> OperatingPoint:
    cohort, _ = with_values(everyone, "proliferation")
    at = _complete_counts(table, cohort, counts)
    scores = cohort.manifest["proliferation"].to_numpy(np.float64)
    delta, value = delta_for_spearman(at, scores)
    deltas = sorted(at, reverse=True)
    drawn = [
        [spearman(np.repeat(scores, often), np.repeat(at[threshold], often)) for threshold in deltas]
        for often in draws([str(name) for name in cohort.manifest["patient"]], DRAWS).astype(int)
    ]
    return OperatingPoint(
        name="count",
        delta=delta,
        delta_range=_range(np.array(drawn).reshape(-1, len(deltas)), np.array(deltas)),
        metric="Spearman",
        value=value,
        **search,
        **_chosen_on(cohort),
    )


def _point_with_thetas(
    everyone: Cohort, table: pd.DataFrame, counts: Path, known: OperatingPoint | None
) -> OperatingPoint:
    """The known point, or one at the only threshold of the table, with thetas."""
    cohort, _ = with_values(everyone, "grade")
    grades = cohort.manifest["grade"].to_numpy(np.float64)
    refuse_other_grades(grades, "true", cohort.source)
    thresholds = table["threshold"].dropna().unique()
    if known is None and len(thresholds) != 1:
        raise TableError(
            f"has counts at {len(thresholds)} thresholds, and no delta is known",
            path=counts,
            next_step="tune proliferation first, or give the counts of one threshold in the column threshold",
        )
    known = known or OperatingPoint(name="count", delta=float(thresholds[0]))
    here = rows_at(table, known.delta, counts).assign(threshold=known.delta)
    (column,) = _complete_counts(here, cohort, counts).values()
    theta1, theta2, kappa = thetas_for_kappa(column, grades.astype(np.int64))
    chosen = _chosen_on(cohort)
    joint = {
        name: tuple(dict.fromkeys((*getattr(known, name), *chosen[name])))
        for name in ("cases", "patients", "laboratories")
    }
    source = "; ".join(dict.fromkeys(filter(None, (known.source, chosen["source"]))))
    own = {"theta1": theta1, "theta2": theta2, "kappa": kappa, "source": source}
    return OperatingPoint.model_validate(dict(known) | joint | own)


def delta_for_spearman(counts_at: Mapping[float, Floats], truth: Floats) -> tuple[float, float]:
    """The threshold (the highest of equals) at which counts follow `truth` best, and how well they do."""
    ordered = sorted(counts_at, reverse=True)
    values = np.array([spearman(truth, counts_at[threshold]) for threshold in ordered])
    if not len(values) or np.isnan(values).all():
        raise TableError(
            "no threshold gives counts that differ between cases",
            next_step="try lower thresholds, or more cases",
        )
    best = int(np.nanargmax(values))
    return float(ordered[best]), float(values[best])


def thetas_for_kappa(counts: Floats, grades: Integers) -> tuple[float, float, float]:
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


def _complete_counts(table: pd.DataFrame, cohort: Cohort, path: Path) -> dict[float, Floats]:
    """Counts of the cohort's cases, in its order, at each threshold."""
    if table["threshold"].isna().any():
        raise TableError(
            "the table does not say at which thresholds it counts",
            path=path,
            next_step="give the columns case, threshold and count (`metaphase score --threshold ...`)",
        )
    wide = table.pivot(index="case", columns="threshold", values="count").reindex(list(cohort.cases))
    incomplete = wide.index[wide.isna().any(axis=1)]
    if len(incomplete) or not len(wide.columns):
        raise TableError(
            f"counts are missing at some threshold for {named(map(str, incomplete))}",
            path=path,
            next_step="give a count (0 where nothing is found) for every case and threshold",
        )
    return {float(str(threshold)): wide[threshold].to_numpy(np.float64) for threshold in wide.columns}


def _range(drawn: Floats, thresholds: Floats) -> tuple[float, float] | None:
    """Of the best thresholds (the highest of equals) of all draws (draws, thresholds), the middle 95 %."""
    known = drawn[~np.isnan(drawn).all(axis=1)] if drawn.size else drawn
    if not known.size:
        return None
    best = thresholds[np.nanargmax(known, axis=1)]
    low, high = np.quantile(best, [0.025, 0.975])
    return float(low), float(high)


def _chosen_on(cohort: Cohort) -> dict[str, Any]:
    """The cases, patients and laboratories of a tuning set."""

    def different(column: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(name) for name in cohort.manifest[column] if str(name)))

    return {
        "cases": cohort.cases,
        "patients": different("patient"),
        "laboratories": different("laboratory"),
        "source": cohort.source,
    }
