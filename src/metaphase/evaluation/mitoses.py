"""Task 3, mitosis location: coordinates in a wrong frame are noticed and named, then come all numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.spatial import cKDTree

from metaphase.base.arrays import Floats, Mask, Points
from metaphase.base.errors import ResultWarning, ResultWarnings, UsageError
from metaphase.base.tables import TableError, as_text, natural
from metaphase.detections.files import detection_files, read_detections
from metaphase.detections.points import OperatingPoint
from metaphase.evaluation.comparison import Cohort, Comparison, compare, load_truth
from metaphase.evaluation.marks import (
    Marked,
    MatchingConfig,
    SlideMatch,
    by_slide,
    mark,
    matches,
    read_regions,
)
from metaphase.evaluation.metrics import (
    BootstrapConfig,
    Curve,
    DetectionMetrics,
    curve,
    detection_metrics,
    draw_rates,
    draws,
    few_patients,
    slide_rows,
    thin,
)
from metaphase.evaluation.operating_points import load_point, read_point, refuse_reuse
from metaphase.slides.contract import WORKING_MPP

# ---- coordinates in another frame or unit: noticed before they become a bad F1, and named ----
#
# Two signs are used. Points beyond the slide's edge cannot be its level-0 pixels. And where few truths have a
# detection nearby, but many would have one if x and y were swapped, or the numbers were micrometres,
# millimetres, pixels of a coarser level, or all shifted alike, then that is what happened.

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


class _Slide(NamedTuple):
    mpp: float
    truths: Points
    detections: Points


def check_frame(comparison: Comparison, radius_um: float) -> list[ResultWarning]:
    """Raise if the predictions are clearly in another frame or unit; warn where that is less clear."""
    truth, predictions = by_slide(comparison.truth.table), by_slide(comparison.predictions.table)
    slides = [
        _Slide(mpp, truth[case][0], predictions[case][0])
        for case, mpp, *_ in comparison.cohort.frames()
        if case in truth and case in predictions
    ]
    slides = sorted(slides, key=lambda slide: -len(slide.truths))[:MAX_SLIDES]

    def hits(detections: list[Points]) -> int:
        """Truths with a detection within the radius."""
        near = 0
        for slide, points in zip(slides, detections, strict=True):
            reach = radius_um / slide.mpp
            near += int(np.isfinite(cKDTree(points).query(slide.truths, distance_upper_bound=reach)[0]).sum())
        return near

    total = sum(len(slide.truths) for slide in slides)
    plain = hits([slide.detections for slide in slides])
    needed = max(MIN_HITS, CLEARLY * plain, ENOUGH * total)
    for guess, remedy, moved in _guesses(slides, radius_um) if needed <= total else ():
        if (reached := hits(moved)) >= needed:
            raise TableError(
                f"the coordinates are not those of the truth: {plain} of {total} truths have a detection "
                f"within {radius_um:g} um as they stand, {reached} if {guess}",
                path=comparison.predictions.source,
                next_step=remedy,
            )
    return _outside(comparison)


def _guesses(slides: list[_Slide], radius_um: float) -> Iterator[tuple[str, str, list[Points]]]:
    """What the coordinates might be, what to do then, and where the detections would lie."""
    yield "x and y are swapped", "exchange x and y", [slide.detections[:, ::-1] for slide in slides]
    units = {
        "micrometres": ("divide x and y by the slide's um/px", 1),
        "millimetres": ("multiply x and y by 1000 and divide by the slide's um/px", 1000),
        f"pixels at {WORKING_MPP} um/px": (
            f"multiply x and y by {WORKING_MPP} and divide by the slide's um/px",
            WORKING_MPP,
        ),
    }
    for unit, (remedy, size_um) in units.items():
        yield f"they are {unit}", remedy, [slide.detections * (size_um / slide.mpp) for slide in slides]
    for level in LEVELS:
        guess = f"they are pixels of a level {level} times coarser"
        yield guess, f"multiply x and y by {level}", [slide.detections * float(level) for slide in slides]
    yield (
        "they are all shifted alike within each slide",
        "check the origin: OpenSlide counts from the canvas, other tools from the filled part of the scan",
        [slide.detections + _common_shift(slide, radius_um) for slide in slides],
    )


def _common_shift(slide: _Slide, radius_um: float) -> Points:
    """The shift most truth-detection pairs agree on, if at least `MIN_HITS` do; else none."""
    pairs = (slide.truths[:MAX_POINTS, None] - slide.detections[None, :MAX_POINTS]).reshape(-1, 2)
    step = radius_um / slide.mpp
    cells = np.round(pairs / step).astype(np.int64)
    _, first, votes = np.unique(cells @ (1 << 32, 1), return_index=True, return_counts=True)
    best = int(votes.argmax())
    if votes[best] < MIN_HITS:
        return np.zeros(2)
    near = (np.abs(pairs / step - cells[first[best]]) <= 1).all(axis=1)
    return np.asarray(np.median(pairs[near], axis=0))


def _outside(comparison: Comparison) -> list[ResultWarning]:
    """Points beyond the edge of their slide, where its size is known."""
    table = comparison.predictions.table
    sizes = comparison.cohort.manifest.set_index("case").loc[table["slide"], ["width", "height"]]
    positions, limits = table[["x", "y"]].to_numpy(float), sizes.to_numpy(float) * EDGE_TOLERANCE
    beyond = ((positions > limits) | (positions < limits * (1 - EDGE_TOLERANCE))).any(axis=1)
    if not beyond.any():
        return []
    row, share = int(beyond.argmax()), float(beyond.mean())
    (x, y), (width, height) = positions[row], sizes.iloc[row]
    worst = f"({x:g}, {y:g}) in {table['slide'].iloc[row]}, which has {width:g} x {height:g} px"
    message = f"{int(beyond.sum())} detections ({share:.0%}) lie outside their slide, such as {worst}"
    next_step = "give level-0 pixels of the same slides"
    if share > 0.5:
        raise TableError(message, path=comparison.predictions.source, next_step=next_step)
    return [ResultWarning("outside-slide", message, "check that these are level-0 pixels of the same slides")]


CURVE_POINTS = 400
MAX_GROUPS = 100


@dataclass(frozen=True)
class MitosisResult:
    """How well detections agree with truth."""

    overall: DetectionMetrics
    groups: dict[str, dict[str, DetectionMetrics]]
    """Metrics of each value of each manifest column asked for."""
    slides: pd.DataFrame
    """One row a slide: `case, patient, truths, true, false, missed, f1`."""
    curve: Curve
    """Counts at a few hundred thresholds."""
    f1_band: tuple[Floats, Floats]
    """Lower and upper limit of F1 at the curve's thresholds; empty without bootstrap."""
    area_mm2: float
    threshold: float
    settings: dict[str, Any]
    warnings: ResultWarnings

    def table(self) -> pd.DataFrame:
        """All metrics, one row for all slides together and one a group."""
        groups = {"all": {"all": self.overall}} | self.groups
        rows = [
            {"by": column, "group": group, **metrics.row()}
            for column, members in groups.items()
            for group, metrics in members.items()
        ]
        return pd.DataFrame(rows)


def evaluate_mitoses(
    truth: str | Path,
    predictions: str | Path,
    *,
    manifest: str | Path | None = None,
    by: Sequence[str] = (),
    split: str | None = None,
    mpp: float | None = None,
    card: str | Path | None = None,
    matching: MatchingConfig | None = None,
    bootstrap: BootstrapConfig | None = None,
) -> MitosisResult:
    """Compare detections with truth.

    `by` names manifest columns (laboratory, scanner) to report apart. The threshold is that of `matching`;
    else that of the point `mitoses` in the model card `card`; else that of the point which tables of
    `metaphase detect` state; else all detections count. The cases that a point was tuned on are refused.
    """
    matching, bootstrap = matching or MatchingConfig(), bootstrap or BootstrapConfig()
    if card is not None and matching.threshold is not None:
        raise UsageError("both a threshold and a model card are given", next_step="give one of them")
    own = card is None and matching.threshold is None
    located = locate(
        truth, predictions, manifest=manifest, split=split, mpp=mpp, matching=matching, every=not own
    )
    comparison, marked = located.comparison, located.marked
    point = point_of(predictions, comparison.cohort, card, own=own)
    if point is not None:
        matching = replace(matching, threshold=point.delta)
    sources = {"truth": str(truth), "predictions": str(predictions), "split": split}
    sources["operating_point"] = None if point is None else f"mitoses, {point.source or 'of the card'}"
    settings = sources | asdict(matching) | {f"bootstrap_{k}": v for k, v in asdict(bootstrap).items()}
    threshold = 0.0 if matching.threshold is None else matching.threshold

    def measure(slides: Mask) -> DetectionMetrics:
        return detection_metrics(marked.of_slides(slides), threshold, bootstrap)

    few, times = thin(curve(marked), CURVE_POINTS), draws(marked.patients, bootstrap)
    low, high = np.zeros((2, 0))
    if len(times) and len(few.threshold):
        tail = (1 - bootstrap.confidence) / 2
        drawn = np.nan_to_num(draw_rates(marked, few.threshold, times)["f1"])
        low, high = np.quantile(drawn, [tail, 1 - tail], axis=0)
    return MitosisResult(
        overall=measure(np.ones(len(marked.cases), bool)),
        groups=measure_groups(by, comparison.cohort, measure),
        slides=pd.DataFrame(slide_rows(marked, threshold)),
        curve=few,
        f1_band=(low, high),
        area_mm2=float(marked.area_mm2.sum()),
        threshold=threshold,
        settings=settings,
        warnings=(*comparison.warnings, *doubts(marked)),
    )


def point_of(
    predictions: str | Path, cohort: Cohort, card: str | Path | None = None, *, own: bool = True
) -> OperatingPoint | None:
    """The point of a card, else with `own` the one that tables of `metaphase detect` state.

    That a point was tuned on cases of the cohort is an error, whether it is used or not.
    """
    point, tables = None if card is None else load_point(card, "mitoses"), detection_files(Path(predictions))
    for tuned in (point, *(read_point([table], "mitoses") for table in tables)):
        if tuned is not None:
            refuse_reuse(tuned, cohort)
    return read_point(tables, "mitoses") if own else point


@dataclass(frozen=True)
class Located:
    """Detections and truth of the same slides, matched."""

    comparison: Comparison
    slides: tuple[SlideMatch, ...]
    """One a slide of the cohort."""
    marked: Marked


def locate(
    truth: str | Path,
    predictions: str | Path,
    *,
    matching: MatchingConfig,
    manifest: str | Path | None = None,
    split: str | None = None,
    mpp: float | None = None,
    floor: float = 0.0,
    every: bool = False,
) -> Located:
    """Read, check and match truth and predictions of at least the probability `floor`, of results also
    `every` one that is not listed."""
    cohort, true_points = load_truth(truth, manifest, mpp)
    detections = read_detections(predictions, mpp=cohort.mpp_by_name(), every=every)
    detections = cohort.rename_slides(detections).at_least(floor)
    comparison = compare(
        cohort.of_split(split), true_points, detections, missing_as_empty=matching.missing_as_empty
    )
    warnings = check_frame(comparison, matching.radius_um)
    comparison = replace(comparison, warnings=(*comparison.warnings, *warnings))
    drawn = read_regions(matching.ignore, cohort) if matching.ignore else None
    slides = tuple(matches(comparison, matching, drawn))
    return Located(comparison, slides, mark(comparison.cohort, slides, matching))


Measured = TypeVar("Measured")


def measure_groups(
    columns: Sequence[str], cohort: Cohort, measure: Callable[[Mask], Measured]
) -> dict[str, dict[str, Measured]]:
    """Measure the slides of each value of each manifest column apart."""
    groups: dict[str, dict[str, Measured]] = {}
    for column in columns:
        values = _group_values(cohort.manifest, column, cohort.source)
        groups[column] = {name: measure(values == name) for name in sorted(set(values), key=natural)}
    return groups


def _group_values(manifest: pd.DataFrame, column: str, source: str) -> npt.NDArray[np.object_]:
    """The group of each slide; a column that is absent, or has too many values, is an error."""
    if column not in manifest.columns:
        raise UsageError(
            f"there is no column {column} to report by",
            path=source,
            next_step=f"the manifest has {', '.join(manifest.columns)}",
        )
    values = as_text(manifest[column]).replace("", "unknown").to_numpy(object)
    if len(set(values)) > MAX_GROUPS:
        raise UsageError(
            f"column {column} has {len(set(values))} values", path=source, next_step="choose one with fewer"
        )
    return values


def doubts(marked: Marked) -> list[ResultWarning]:
    """Warnings about what limits the metrics of marked detections."""
    warnings = []
    if not len(marked.probability):
        text = "there are no detections: precision is undefined, F1 is 0"
        warnings.append(ResultWarning("no-detections", text))
    elif len(marked.probability) > 1 and marked.probability[0] == marked.probability[-1]:
        text = "all detections have the same probability: curves and average precision say nothing"
        warnings.append(ResultWarning("one-probability", text))
    if not marked.truths.sum():
        text = "there is nothing to find: recall and average precision are undefined"
        warnings.append(ResultWarning("no-truth", text))
    if few := few_patients(marked.patients):
        warnings.append(few)
    return warnings
