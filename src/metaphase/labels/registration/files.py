"""A registration on disk: the transform, points and annotations carried over."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from metaphase.base.errors import UsageError
from metaphase.base.files import write_text
from metaphase.base.tables import TableError, write_table
from metaphase.detections import COLUMNS, DetectionSet, read_detections
from metaphase.detections.formats.contract import load_json
from metaphase.labels.registration.config import RegistrationConfig
from metaphase.labels.registration.pair import Registration, register_pair
from metaphase.labels.registration.pictures import save_registration_picture
from metaphase.labels.registration.points import register_points
from metaphase.labels.registration.transform import Transform, save_transform
from metaphase.slides import Slide
from metaphase.version import __version__

# ---- annotations and points of other tools ----

Frame = Literal["he", "phh3"]
Position = list[float]
Move = Callable[[Position], Position]

SHAPES = ("geometry", "nucleusGeometry")
"""Members of a feature that hold shapes; QuPath keeps a cell's nucleus apart."""
ID_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "registration.metaphase")
COLOUR = (200, 0, 0)
NOT_ACCEPTED = "the registration of the pair is doubtful"


def map_geojson(content: Any, transform: Transform, *, to: Frame = "he") -> Any:
    """The same GeoJSON (collection, feature, bare list or shape) in the frame of the other slide.

    Every corner is mapped exactly; lines between corners stay straight. Identifiers and properties are
    kept, bounding boxes are dropped.
    """
    corners: list[Position] = []

    def collect(position: Position) -> Position:
        corners.append(position[:2])
        return position

    try:
        _moved(content, collect)
        points = np.array(corners, np.float64).reshape(-1, 2)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise TableError(f"is no GeoJSON ({error})", next_step="export it again") from error
    there = transform.phh3_to_he(points) if to == "he" else transform.he_to_phh3(points)
    queue = iter(there.tolist())
    return _moved(content, lambda position: [*next(queue), *position[2:]])


def _moved(node: Any, move: Move) -> Any:
    """A copy of any part of a GeoJSON document with its positions moved, in a fixed order."""
    if isinstance(node, list):
        return [_moved(item, move) for item in node]
    if "features" in node:
        return _without_box(node) | {"features": _moved(node["features"], move)}
    if "geometries" in node:
        return _without_box(node) | {"geometries": _moved(node["geometries"], move)}
    if "coordinates" in node:
        return _without_box(node) | {"coordinates": _positions(node["coordinates"], move)}
    shapes = {name: _moved(node[name], move) for name in SHAPES if node.get(name) is not None}
    if not shapes and "geometry" not in node:
        raise ValueError(f"an object of type {node.get('type')!r} without a shape")
    return _without_box(node) | shapes


def _positions(node: Any, move: Move) -> Any:
    if node and not isinstance(node[0], list):
        return move(node)
    return [_positions(item, move) for item in node]


def _without_box(node: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in node.items() if name != "bbox"}


def points_geojson(points: pd.DataFrame) -> dict[str, Any]:
    """Accepted points (`x, y, label, confidence, probability`) as QuPath annotations on the H&E slide."""
    kept = points[points["accepted"]]
    return {"type": "FeatureCollection", "features": [_feature(row) for row in kept.to_dict("records")]}


def _feature(row: dict[Any, Any]) -> dict[str, Any]:
    place = [round(float(row["x"]), 2), round(float(row["y"]), 2)]
    return {
        "type": "Feature",
        "id": str(uuid.uuid5(ID_NAMESPACE, f"{row['slide']} {row['x_phh3']} {row['y_phh3']}")),
        "geometry": {"type": "Point", "coordinates": place},
        "properties": {
            "objectType": "annotation",
            "classification": {"name": str(row["label"]), "color": list(COLOUR)},
            "measurements": {
                "probability": float(row["probability"]),
                "registration confidence": round(float(row["confidence"]), 4),
            },
        },
    }


# ---- registering files and writing what came out ----


@dataclass(frozen=True)
class Annotations:
    """A GeoJSON file, and the slide on which it was drawn."""

    path: Path
    drawn_on: Frame = "phh3"


def register_to_folder(
    he: Slide,
    phh3: Slide,
    folder: str | Path,
    *,
    points: str | Path | None = None,
    annotations: Annotations | None = None,
    config: RegistrationConfig | None = None,
    accept_doubtful: bool = False,
) -> dict[str, Any]:
    """Register a pair and write the results into `folder`; returns the summary, as in `summary.json`.

    Writes `transform.json`, `registration.png`, `summary.json`, for points `points.parquet`, `points.csv` and
    `points.geojson` (H&E coordinates), for annotations `annotations.geojson`. After a failed registration,
    or a doubtful one that nobody accepted, no annotations are written and all points are rejected.
    """
    folder = Path(folder)
    given = None if points is None else _read_points(points, phh3)
    shapes = None if annotations is None else load_json(annotations.path)
    registration = register_pair(he, phh3, config)
    verdict = registration.verdict
    trusted = verdict.status == "reliable" or (verdict.status == "doubtful" and accept_doubtful)
    table = None if given is None else mapped_points(registration, given, Path(he.name).stem, trusted=trusted)
    save_transform(folder / "transform.json", registration.transform, verdict=asdict(verdict))
    if table is not None:
        _write_points(folder, table)
    if annotations is not None and trusted:
        to: Frame = "he" if annotations.drawn_on == "phh3" else "phh3"
        _write_annotations(folder, shapes, registration, to, annotations.path)
    save_registration_picture(folder / "registration.png", registration, table)
    summary = summarised(registration, table) | {"accept_doubtful": accept_doubtful}
    write_text(folder / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    return summary


def mapped_points(
    registration: Registration, given: DetectionSet, slide: str, *, trusted: bool = True
) -> pd.DataFrame:
    """A detection table of the PHH3 slide as one of the H&E slide; rejected points have empty `x, y`.

    Columns of `register_points` and of the source follow the usual ones. Of a pair that is not `trusted` all
    points are rejected; `x_he` and `y_he` tell where they would lie.
    """
    placed = register_points(registration, given.table[["x", "y"]].to_numpy())
    if not trusted:
        because = placed["reason"].where(~placed["accepted"], NOT_ACCEPTED)
        placed = placed.assign(accepted=False, reason=because)
    extra = [name for name in given.table.columns if name not in (*COLUMNS, *placed.columns)]
    there = placed[["x_he", "y_he"]].where(placed["accepted"]).rename(columns={"x_he": "x", "y_he": "y"})
    usual = given.table[["probability", "label"]].assign(slide=slide, x=there["x"], y=there["y"])
    return pd.concat([usual[list(COLUMNS)], placed, given.table[extra]], axis=1)


def summarised(registration: Registration, table: pd.DataFrame | None) -> dict[str, Any]:
    """Verdict, reasons and numbers, for people and programs."""
    verdict = registration.verdict
    pair = registration.pair
    summary: dict[str, Any] = {
        "he": pair.he.slide.name,
        "phh3": pair.phh3.slide.name,
        "he_path": str(pair.he.slide.info.path or ""),
        "phh3_path": str(pair.phh3.slide.info.path or ""),
        "verdict": verdict.status,
        "reasons": list(verdict.reasons),
        "notes": list(verdict.notes),
        **verdict.numbers,
        "version": __version__,
        "config": asdict(registration.config),
    }
    if table is not None:
        accepted = table["accepted"].to_numpy(bool)
        summary["points"] = len(table)
        summary["points_accepted"] = int(accepted.sum())
        summary["points_by_method"] = {str(k): int(v) for k, v in table["method"].value_counts().items()}
        summary["mean_confidence"] = float(np.mean(table["confidence"][accepted])) if accepted.any() else 0.0
    return summary


def _read_points(path: str | Path, phh3: Slide) -> DetectionSet:
    """The points of the PHH3 slide; a table of several slides must name it."""
    stem = Path(phh3.name).stem
    found = read_detections(path, mpp=phh3.mpp, slide=stem)
    if len(found.slides) <= 1:
        return found
    named = found.table["slide"].isin([stem, phh3.name])
    if not named.any():
        raise UsageError(
            f"holds points of {len(found.slides)} slides, and none is called {stem}",
            path=path,
            next_step="give a file with the points of the PHH3 slide alone",
        )
    return replace(found.with_table(found.table[named]), slides=(stem,))


def _write_points(folder: Path, table: pd.DataFrame) -> None:
    for ending in ("parquet", "csv"):
        write_table(folder / f"points.{ending}", table)
    write_text(folder / "points.geojson", json.dumps(points_geojson(table)))


def _write_annotations(
    folder: Path, shapes: Any, registration: Registration, to: Frame, source: Path
) -> None:
    try:
        moved = map_geojson(shapes, registration.transform, to=to)
    except TableError as error:
        raise TableError(error.problem, path=source, next_step=error.next_step) from error
    write_text(folder / "annotations.geojson", json.dumps(moved))
