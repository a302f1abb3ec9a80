"""Choosing how a pair of networks is used, on images that neither learnt from.

Probabilities that mean what they say, the floor from which positions are re-checked, and both operating
points; and how good the pair is in each group of images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logit

from metaphase.base.arrays import Floats, Mask
from metaphase.base.errors import UsageError
from metaphase.counting.likely import LaboratoryPrior
from metaphase.detections.matching import match
from metaphase.detections.points import PAPER_POINTS, OperatingPoint, PointName
from metaphase.detections.table import IGNORE, MITOSIS
from metaphase.evaluation.marks import Marked, SlideMatch
from metaphase.evaluation.metrics import (
    THRESHOLD_RULES,
    BootstrapConfig,
    ThresholdRule,
    curve,
    detection_metrics,
    slide_counts,
)
from metaphase.evaluation.operating_points import threshold_of_several
from metaphase.networks.cards import Calibration
from metaphase.networks.training.images import LEAST_FLOOR, MPP, PAINTED_UM, LabelledImage

KEPT = 0.995
"""Share of the detections of each validation group that the floor must let pass."""
FLOORS = np.arange(0.05, 0.96, 0.05).round(2)
FIRST, SMOOTHED = 3, 4
"""Columns of what is found."""
BELOW = 0.05
"""How far below the lowest operating point final answers are given."""
POINTS: tuple[PointName, ...] = ("mitoses", "count")
FIELDS, NEGATIVES = "fields", "negatives"
Found = Mapping[str, Floats]
"""(n, 5) of each image: x, y, probability, that of the network that sees everything, smoothed mean."""
Groups = dict[str, list[LabelledImage]]


def match_image(image: LabelledImage, detections: Floats, radius_um: float) -> SlideMatch:
    """Detections that no point to ignore is near, and the mitoses inside the image."""
    real, ignored = image.of(MITOSIS), image.of(IGNORE)
    if len(ignored) and len(detections):
        apart = np.hypot(*(detections[:, None, :2] - ignored[None]).transpose(2, 0, 1)).min(axis=1)
        detections = detections[apart * MPP > PAINTED_UM]
    real = real[((real >= 0) & (real < image.pixels.shape[1::-1])).all(axis=1)]
    positions, probability = detections[:, :2], detections[:, 2].copy()
    matched = match(positions * MPP, probability, real * MPP, radius_um)
    return SlideMatch(MPP, real, positions, probability, matched)


def mark_images(images: Sequence[LabelledImage], found: Found, radius_um: float) -> Marked:
    """Detections in these images, each true or false; what lies near a point to ignore is left out."""
    return Marked.of(
        [match_image(image, found[image.name], radius_um) for image in images],
        [image.area_mm2 for image in images],
        [image.name for image in images],
        [image.patient for image in images],
    )


# ---- groups ----


def by_laboratory(images: Sequence[LabelledImage]) -> Groups:
    """The images of each laboratory."""
    names = sorted({image.laboratory for image in images})
    return {name: [image for image in images if image.laboratory == name] for name in names}


def validation_groups(images: Sequence[LabelledImage]) -> Groups:
    """The images that choose: fields, tissue without mitoses, and the crops of each laboratory."""
    chosen = [image for image in images if image.split == "validation"]
    groups: Groups = {
        FIELDS: [image for image in chosen if image.kind == "field"],
        NEGATIVES: [image for image in chosen if image.kind == "negatives"],
        **by_laboratory([image for image in chosen if image.is_crop]),
    }
    if not any(len(image.of(MITOSIS)) for image in groups[FIELDS]):
        raise UsageError(
            "no field or slide of the split validation has a mitosis",
            next_step="put fields of a patient that is not trained on into the split validation",
        )
    return {name: group for name, group in groups.items() if group}


# ---- probabilities ----


def fit_calibration(logits: Floats, right: Mask, weight: Floats) -> Calibration:
    """Scale and shift of logits by the least cross-entropy."""

    def loss(values: Floats) -> float:
        z = np.exp(values[0]) * logits + values[1]
        return float(np.sum(weight * np.where(right, -log_expit(z), -log_expit(-z))))

    scale, shift = minimize(loss, (0.0, 0.0), method="Nelder-Mead").x
    return Calibration(float(np.clip(np.exp(scale), 0.01, 100)), float(np.clip(shift, -100, 100)))


def fit_to_fields(groups: Groups, found: Found, radius_um: float) -> Calibration:
    """The calibration of fields, each laboratory counting alike; none where nothing is found or all right."""
    laboratories = by_laboratory(groups[FIELDS]).values()
    parts = [mark_images(images, found, radius_um) for images in laboratories]
    parts = [part for part in parts if len(part.probability)]
    right = np.concatenate([np.empty(0, np.bool_), *(part.found for part in parts)])
    if not right.any() or right.all():
        return Calibration(1.0, 0.0)
    logits = logit(np.clip(np.concatenate([part.probability for part in parts]), 1e-6, 1 - 1e-6))
    weight = np.concatenate([np.full(len(part.found), 1 / len(part.found)) for part in parts])
    return fit_calibration(logits, right, weight)


def apply_calibration(found: Found, calibration: Calibration) -> dict[str, Floats]:
    """The same positions with calibrated probabilities."""
    return {
        name: np.column_stack(
            [rows[:, :2], expit(calibration(logit(np.clip(rows[:, 2], 1e-7, 1 - 1e-7)))), rows[:, 3:]]
        )
        for name, rows in found.items()
    }


def reliability(part: Marked) -> list[dict[str, float]]:
    """Mean probability, and how often it was right, in 5 bins of equal numbers from 0.1 on."""
    kept = part.probability >= 0.1
    said, right = part.probability[kept], part.found[kept]
    groups = [group for group in np.array_split(np.argsort(said), 5) if len(group)]
    return [
        {
            "said": round(float(said[group].mean()), 3),
            "right": round(float(right[group].mean()), 3),
            "detections": len(group),
        }
        for group in groups
    ]


# ---- the floor of the re-check, and operating points ----


def floor_for(found: Found, groups: Groups, threshold: float, column: int = FIRST) -> float:
    """The highest floor of a column that lets `KEPT` of each group's detections pass.

    Those near which the first network has no maximum at all are lost whatever the floor.
    """
    fine = LEAST_FLOOR
    for floor in FLOORS:
        for images in groups.values():
            rows = np.concatenate([found[image.name] for image in images])
            sure = rows[rows[:, 2] >= threshold, column]
            if len(sure) and (sure >= floor).sum() < min(KEPT * len(sure), (sure > 0).sum()):
                return fine
        fine = float(floor)
    return fine


def patient_recall(part: Marked, threshold: float) -> float:
    """Mean over patients with mitoses of the share that is found."""
    true = slide_counts(part, np.array([threshold]))[0][:, 0]
    sums = pd.DataFrame({"true": true, "truths": part.truths}).groupby(list(part.patients)).sum()
    return float((sums["true"] / sums["truths"])[sums["truths"] > 0].mean())


def group_figures(part: Marked, threshold: float, samples: int) -> dict[str, Any]:
    """Metrics of one group at one threshold, as a card states them."""
    figures = detection_metrics(part, threshold, BootstrapConfig(samples=samples))
    return {
        "images": figures.slides,
        "patients": figures.patients,
        "mitoses": int(part.truths.sum()),
        "mm2": round(float(part.area_mm2.sum()), 2),
        "f1": str(figures.f1),
        "recall": str(figures.recall),
        "precision": str(figures.precision),
        "false_per_mm2": round(figures.false_per_mm2, 2),
    }


@dataclass(frozen=True)
class PairConfig:
    """Settings by which operating points of a pair are chosen and measured."""

    radius_um: float
    suppress_um: float
    smooth_um: float
    count_threshold: float
    samples: int
    """Draws of patients for 95 % intervals."""
    rule: ThresholdRule = "steady"


@dataclass(frozen=True)
class PairChoice:
    """How a pair is used, and how good it is."""

    calibration: Calibration
    floor: float
    answered_from: float
    """Smoothed mean of both from which final answers are given."""
    points: dict[PointName, OperatingPoint]
    f1: float
    """On the validation images, at the threshold of mitoses."""
    metrics: dict[str, Any]


def choose_pair(
    images: Sequence[LabelledImage], raw: Found, config: PairConfig, calibration: Calibration | None = None
) -> PairChoice:
    """Calibrate (unless that is given), choose both operating points and the floor, and measure."""
    groups, radius = validation_groups(images), config.radius_um
    calibration = calibration or fit_to_fields(groups, raw, radius)
    found = apply_calibration(raw, calibration)
    marks = {name: mark_images(group, found, radius) for name, group in groups.items()}
    fields = marks[FIELDS]
    others = [marks[NEGATIVES]] if NEGATIVES in marks else []
    if crops := [part for name, part in marks.items() if name not in (FIELDS, NEGATIVES)]:
        threshold, f1 = threshold_of_several(fields, crops, others)
    else:
        complete = [*groups[FIELDS], *groups.get(NEGATIVES, [])]
        threshold, f1 = THRESHOLD_RULES[config.rule](curve(mark_images(complete, found, radius)))
    if np.isnan(threshold):
        threshold, f1 = 0.5, 0.0
    tested = by_laboratory([image for image in images if image.split == "test"])
    marks |= {name: mark_images(group, found, radius) for name, group in tested.items()}
    chosen_on = [image for group in groups.values() for image in group]

    def point(name: PointName, delta: float, **own: Any) -> OperatingPoint:
        return OperatingPoint(
            name=name,
            delta=delta,
            suppress_um=config.suppress_um,
            smooth_um=config.smooth_um,
            method="maxima",
            cases=tuple(image.name for image in chosen_on if not image.is_crop),
            patients=tuple(dict.fromkeys(image.patient for image in chosen_on)),
            laboratories=tuple(dict.fromkeys(image.laboratory for image in chosen_on)),
            false_per_mm2=group_figures(fields, delta, 0)["false_per_mm2"],
            recall=patient_recall(fields, delta),
            **own,
        )

    source = "validation images of metaphase run"
    points: dict[PointName, OperatingPoint] = {
        "mitoses": point("mitoses", threshold, metric="F1", value=f1, source=source),
        "count": point(
            "count",
            config.count_threshold,
            theta1=PAPER_POINTS.count.theta1,
            theta2=PAPER_POINTS.count.theta2,
            source="a setting, of the calibrated probability; it and the prior over laboratories were "
            "measured for the bundled pair. theta1 and theta2 are the paper's",
            prior=asdict(LaboratoryPrior()),
        ),
    }
    measured = {
        name: {point: group_figures(part, points[point].delta, config.samples) for point in POINTS}
        for name, part in marks.items()
    }
    metrics = {"left out": measured, "reliability": reliability(fields)}
    floor = floor_for(found, groups, threshold)
    answered_from = floor_for(found, groups, threshold - BELOW, SMOOTHED)
    return PairChoice(calibration, floor, answered_from, points, f1, metrics)
