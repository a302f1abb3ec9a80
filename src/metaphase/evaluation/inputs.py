"""Truth and predictions brought together: same slides, same names, no duplicates, nothing missing unsaid."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.spatial import cKDTree

from metaphase.detections import IGNORE, MITOSIS, DetectionSet, read_detections
from metaphase.evaluation.cohort import Cohort, cohort_of, load_cohort
from metaphase.tables import TableError, named

MANIFEST_NAME, TRUTH_NAMES = "manifest.csv", ("truth.csv", "truth.parquet")
TWIN_UM = 2.5
"""Detections of one slide nearer than this are hardly two mitoses; they are reported."""


@dataclass(frozen=True)
class Comparison:
    """What is compared: points of the same slides, under the same names, in level-0 pixels."""

    cohort: Cohort
    truth: DetectionSet
    """Mitoses only."""
    predictions: DetectionSet
    """Detections of mitoses only."""
    ignored: pd.DataFrame
    """Points of the truth labelled `ignore`: `slide, x, y` and where given `radius_um`."""
    warnings: tuple[str, ...]


def load_truth(
    truth: str | Path, manifest: str | Path | None = None, mpp: float | None = None
) -> tuple[Cohort, DetectionSet]:
    """Read a truth table and its cohort.

    `truth` is a table, or a folder with `truth.csv` and `manifest.csv` as `metaphase data import` writes it.
    The manifest may be given; else it is looked for beside the table; else the cohort is the truth's slides.
    """
    table, beside = _truth_files(Path(truth))
    if manifest is None and beside.is_file():
        manifest = beside
    if manifest is None:
        points = read_detections(table, mpp=mpp)
        cohort = cohort_of(points.slides, str(table), mpp)
    else:
        cohort = load_cohort(manifest, mpp)
        points = read_detections(table, mpp=cohort.mpp_by_name())
    return cohort, cohort.renamed(points)


def compare(
    cohort: Cohort, truth: DetectionSet, predictions: DetectionSet, *, missing_as_empty: bool = False
) -> Comparison:
    """Line up truth and predictions of `cohort`; both are already named by case."""
    covered = set(predictions.slides)
    missing = [case for case in cohort.cases if case not in covered]
    if missing and not missing_as_empty:
        raise TableError(
            f"no predictions for {len(missing)} of {len(cohort.cases)} slides: {named(missing)}",
            path=predictions.source,
            next_step="predict them; or, if nothing was found there, pass --missing-as-empty",
        )
    warnings = (
        [f"{len(missing)} slides without predictions count as empty: {named(missing)}"] if missing else []
    )
    truth, predictions = _within(cohort, truth), _within(cohort, predictions)
    other = int((predictions.table["label"] != MITOSIS).sum())
    if other:
        warnings.append(f"{other} predictions are not labelled as mitosis and are left out")
    mitoses, true_doubts = _without_copies(truth.of_label(MITOSIS))
    found, doubts = _without_copies(predictions.of_label(MITOSIS))
    ignored = truth.table[truth.table["label"] == IGNORE].reset_index(drop=True)
    doubts += _twin_doubts(cohort, found)
    return Comparison(cohort, mitoses, found, ignored, (*warnings, *true_doubts, *doubts))


def _truth_files(truth: Path) -> tuple[Path, Path]:
    """The table of points and the place where its manifest may be."""
    if not truth.is_dir():
        return truth, truth.parent / MANIFEST_NAME
    tables = [truth / name for name in TRUTH_NAMES if (truth / name).is_file()]
    if tables:
        return tables[0], truth / MANIFEST_NAME
    return truth, truth / MANIFEST_NAME


def _within(cohort: Cohort, points: DetectionSet) -> DetectionSet:
    """The points on slides of the cohort."""
    cases = set(cohort.cases)
    table = points.table[points.table["slide"].isin(cases)].reset_index(drop=True)
    return DetectionSet(table, tuple(slide for slide in points.slides if slide in cases), points.source)


def _without_copies(points: DetectionSet) -> tuple[DetectionSet, list[str]]:
    """Of points at exactly the same place, the most probable one."""
    ranked = points.table.sort_values("probability", ascending=False, kind="stable")
    kept = ranked.drop_duplicates(["slide", "x", "y"]).sort_index(kind="stable").reset_index(drop=True)
    copies = len(points.table) - len(kept)
    if not copies:
        return points, []
    doubt = f"{points.source}: {copies} exact duplicates were merged (the most probable of each kept)"
    return DetectionSet(kept, points.slides, points.source), [doubt]


def _twin_doubts(cohort: Cohort, points: DetectionSet) -> list[str]:
    """Detections that have another one suspiciously near."""
    mpp = cohort.mpp_by_case()
    twins = 0
    for slide, rows in points.table.groupby("slide", sort=False):
        places = rows[["x", "y"]].to_numpy() * mpp[str(slide)]
        twins += len(np.unique(cKDTree(places).query_pairs(TWIN_UM, output_type="ndarray")))
    if not twins:
        return []
    return [
        f"{points.source}: {twins} detections have another one within {TWIN_UM:g} um; at most one of them "
        "can be right, the others count as false: suppress neighbours before comparing"
    ]
