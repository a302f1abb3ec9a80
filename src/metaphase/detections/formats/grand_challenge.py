"""Grand-Challenge "Multiple points" JSON: one file per slide, points in millimetres."""

from __future__ import annotations

from pathlib import Path

from metaphase.base.foreign import finite
from metaphase.detections.formats.contract import (
    Context,
    Format,
    Row,
    found_in,
    load_json,
    name_of,
    save_json,
    stated_probability,
)
from metaphase.detections.table import MITOSIS, DetectionSet

UM_PER_MM = 1000.0
MM_DECIMALS = 7
"""A tenth of a nanometre: finer than the positions other formats keep."""
PURPOSE = "a format in millimetres"


def read(path: Path, context: Context) -> DetectionSet:
    """Points by name and probability, brought from millimetres to level-0 pixels."""
    points = load_json(path).get("points") or []
    scale = UM_PER_MM / context.mpp_of(context.slide, path, PURPOSE) if points else 0.0
    rows: list[Row] = []
    for point in points:
        x, y = (finite(value) * scale for value in point["point"][:2])
        probability = stated_probability(point.get("probability"), path)
        rows.append((context.slide, x, y, probability, str(point.get("name") or MITOSIS)))
    return found_in(path, rows, (context.slide,))


def write(detections: DetectionSet, path: Path, context: Context) -> None:
    """Points as the platform's schema has them: name, point and probability, and nothing else."""
    table = detections.table
    (slide,) = detections.slides
    scale = context.mpp_of(slide, path, PURPOSE) / UM_PER_MM if len(table) else 0.0
    positions = (table[["x", "y"]].to_numpy() * scale).round(MM_DECIMALS).tolist()
    points = [
        {"name": name_of(label), "point": [*position, 0], "probability": probability}
        for position, label, probability in zip(positions, table["label"], table["probability"], strict=True)
    ]
    version = {"major": 1, "minor": 0}
    save_json(path, {"type": "Multiple points", "name": "detections", "points": points, "version": version})


GRAND_CHALLENGE = Format(
    "grand-challenge",
    (".json",),
    read,
    write,
    "a point is an object with point: [x, y, z] in millimetres",
    one_slide=True,
    title="Grand-Challenge JSON",
    holds=lambda content: (
        isinstance(content, dict) and str(content.get("type", "")).lower() == "multiple points"
    ),
)
