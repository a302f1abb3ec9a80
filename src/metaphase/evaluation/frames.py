"""Coordinates in another frame or unit: noticed before they become a bad F1, and named.

Two signs are used. Points beyond the slide's edge cannot be its level-0 pixels. And where few truths have a
detection nearby, but many would have one if x and y were swapped, or the numbers were micrometres,
millimetres, pixels of a coarser level, or all shifted alike, then that is what happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from metaphase.base.arrays import Points
from metaphase.base.cautions import Caution
from metaphase.base.tables import TableError
from metaphase.evaluation.cohort import Comparison, Field
from metaphase.evaluation.marks import by_slide

MAX_SLIDES = 30
"""Slides looked at, those with most truths first: enough to tell, quick on any cohort."""
MAX_POINTS = 1000
"""Points of a slide used to look for a common shift."""
MIN_HITS = 5
"""Fewer truths found by a guess prove nothing."""
CLEARLY = 3.0
"""A guess must find this many times the truths that the plain coordinates find."""
ENOUGH = 0.2
"""And at least this share of all truths."""
LEVELS = (2, 4, 8, 16, 32, 64)
EDGE_TOLERANCE = 1.01
"""Boxes around border cells may have their centre a little outside."""
WORKING_MPP = 0.25


@dataclass(frozen=True)
class _Slide:
    field: Field
    truths: Points
    detections: Points

    def hits(self, detections: Points, radius_um: float) -> int:
        """Truths with a detection within the radius."""
        near = cKDTree(detections).query(self.truths, distance_upper_bound=radius_um / self.field.mpp)[0]
        return int(np.isfinite(near).sum())


def check_frame(comparison: Comparison, radius_um: float) -> list[Caution]:
    """Raise where the predictions are clearly in another frame or unit; return doubts that are less clear."""
    slides = _fullest(comparison)
    total = sum(len(slide.truths) for slide in slides)
    plain = sum(slide.hits(slide.detections, radius_um) for slide in slides)
    needed = max(MIN_HITS, CLEARLY * plain, ENOUGH * total)
    for guess, remedy, moved in _guesses(slides, radius_um) if needed <= total else ():
        hits = sum(slide.hits(points, radius_um) for slide, points in zip(slides, moved, strict=True))
        if hits >= needed:
            raise TableError(
                f"the coordinates are not those of the truth: {plain} of {total} truths have a detection "
                f"within {radius_um:g} um as they stand, {hits} if {guess}",
                path=comparison.predictions.source,
                next_step=remedy,
            )
    return _outside(comparison)


def _fullest(comparison: Comparison) -> list[_Slide]:
    truth, predictions = by_slide(comparison.truth.table), by_slide(comparison.predictions.table)
    slides = [
        _Slide(field, truth[field.case][0], predictions[field.case][0])
        for field in comparison.cohort.fields()
        if field.case in truth and field.case in predictions
    ]
    return sorted(slides, key=lambda slide: -len(slide.truths))[:MAX_SLIDES]


def _guesses(slides: list[_Slide], radius_um: float) -> Iterator[tuple[str, str, list[Points]]]:
    """What the coordinates might be, what to do then, and where the detections would lie."""
    yield "x and y are swapped", "exchange x and y", [slide.detections[:, ::-1] for slide in slides]
    units = {
        "they are micrometres": (
            "divide x and y by the slide's um/px",
            [1 / slide.field.mpp for slide in slides],
        ),
        "they are millimetres": (
            "multiply x and y by 1000 and divide by the slide's um/px",
            [1000 / slide.field.mpp for slide in slides],
        ),
        f"they are pixels at {WORKING_MPP} um/px": (
            f"multiply x and y by {WORKING_MPP} and divide by the slide's um/px",
            [WORKING_MPP / slide.field.mpp for slide in slides],
        ),
    } | {
        f"they are pixels of a level {level} times coarser": (
            f"multiply x and y by {level}",
            [float(level)] * len(slides),
        )
        for level in LEVELS
    }
    for guess, (remedy, scales) in units.items():
        yield guess, remedy, [slide.detections * scale for slide, scale in zip(slides, scales, strict=True)]
    yield (
        "they are all shifted alike within each slide",
        "check the origin: OpenSlide counts from the canvas, other tools from the filled part of the scan",
        [slide.detections + _common_shift(slide, radius_um) for slide in slides],
    )


def _common_shift(slide: _Slide, radius_um: float) -> Points:
    """The shift most truth-detection pairs agree on, if at least `MIN_HITS` do; else none."""
    pairs = (slide.truths[:MAX_POINTS, None] - slide.detections[None, :MAX_POINTS]).reshape(-1, 2)
    step = radius_um / slide.field.mpp
    cells = np.round(pairs / step).astype(np.int64)
    _, first, votes = np.unique(cells @ (1 << 32, 1), return_index=True, return_counts=True)
    best = int(votes.argmax())
    if votes[best] < MIN_HITS:
        return np.zeros(2)
    near = (np.abs(pairs / step - cells[first[best]]) <= 1).all(axis=1)
    return np.asarray(np.median(pairs[near], axis=0))


def _outside(comparison: Comparison) -> list[Caution]:
    """Points beyond the edge of their slide, where its size is known."""
    predictions = by_slide(comparison.predictions.table)
    total, worst = 0, ""
    for field in comparison.cohort.fields():
        places, _ = predictions.get(field.case, (np.zeros((0, 2)), None))
        if np.isnan(field.width) or not len(places):
            continue
        limits = np.array([field.width, field.height]) * EDGE_TOLERANCE
        beyond = ((places > limits) | (places < limits * (1 - EDGE_TOLERANCE))).any(axis=1)
        if beyond.any():
            total += int(beyond.sum())
            x, y = places[beyond][0]
            worst = f"({x:g}, {y:g}) in {field.case}, which has {field.width:g} x {field.height:g} px"
    if not total:
        return []
    share = total / len(comparison.predictions.table)
    message = f"{total} detections ({share:.0%}) lie outside their slide, such as {worst}"
    if share > 0.5:
        raise TableError(
            message, path=comparison.predictions.source, next_step="give level-0 pixels of the same slides"
        )
    return [Caution("outside-slide", message, "check that these are level-0 pixels of the same slides")]
