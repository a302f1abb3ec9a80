"""The rules that choose thresholds for laboratories of which most gave crops of mitoses only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from metaphase.base.arrays import Floats
from metaphase.base.errors import UsageError
from metaphase.evaluation.marks import Marked
from metaphase.evaluation.metrics import f1_of_counts, ratio, slide_counts


def threshold_of_several(
    fields: Marked, crops: Sequence[Marked] = (), others: Sequence[Marked] = ()
) -> tuple[float, float]:
    """The threshold of the highest F1 that several laboratories lead one to expect, and that F1.

    Complete `fields` of one laboratory say how many mitoses there are per mm2 and, together with `others`
    (complete but for their mitoses), how many false detections. Recall is the mean over these fields and
    each slide of `crops`, which show mitoses and hardly any other tissue. With `fields` alone it is
    `best_threshold`, the highest of equals. NaN without detections, or where the fields have no mitoses.
    Areas must be known.
    """
    thresholds = np.unique(np.concatenate([part.probability for part in (fields, *crops)]))[::-1]
    complete = (fields, *others)
    false = np.sum([slide_counts(part, thresholds)[1].sum(axis=0) for part in complete], axis=0)
    false_per_mm2 = ratio(false, sum(part.area_mm2.sum() for part in complete))
    there_per_mm2 = ratio(fields.truths.sum() or np.nan, fields.area_mm2.sum())
    recall = _mean_recall(fields, crops, thresholds)
    f1 = np.round(f1_of_counts(recall * there_per_mm2, false_per_mm2, there_per_mm2), 12)
    if np.isnan(f1).all():
        return float("nan"), float("nan")
    best = int(np.nanargmax(f1))
    return float(thresholds[best]), float(f1[best])


def threshold_for_false(
    parts: Sequence[Marked], most_per_mm2: float, least: float = 0.0
) -> tuple[float, float]:
    """The lowest threshold, from `least` on, with at most so many false detections per mm2, and how many.

    The number is the mean over patients, whatever they gave: one with much tissue does not speak for all.
    """
    every = np.unique(np.concatenate([part.probability for part in parts]))
    thresholds = np.unique([least, *every[every >= least], 1.0])
    false = pd.concat([pd.DataFrame(slide_counts(part, thresholds)[1]) for part in parts])
    area = np.concatenate([part.area_mm2 for part in parts])
    patients = np.array([name for part in parts for name in part.patients], object)
    by_patient = false.groupby(patients).sum().div(pd.Series(area).groupby(patients).sum(), axis=0)
    rates = by_patient.mean(axis=0).to_numpy(np.float64)
    fine = np.flatnonzero(rates <= most_per_mm2)
    if not len(fine):
        raise UsageError(
            f"there are {rates[-1]:.1f} false detections per mm2 even at a threshold of 1",
            next_step=f"allow more than {most_per_mm2:g}",
        )
    return float(thresholds[fine[0]]), float(rates[fine[0]])


def _mean_recall(fields: Marked, crops: Sequence[Marked], thresholds: Floats) -> Floats:
    """Mean over the fields as a whole and each slide of crops; those without mitoses say nothing."""
    rows = [ratio(slide_counts(fields, thresholds)[0].sum(axis=0, keepdims=True), fields.truths.sum())]
    rows += [ratio(slide_counts(part, thresholds)[0], part.truths[:, None]) for part in crops]
    recalls = np.concatenate(rows)
    known = ~np.isnan(recalls).any(axis=1)
    return ratio(recalls[known].sum(axis=0), known.sum())
