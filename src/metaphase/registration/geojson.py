"""Annotations and points of other tools, carried from one slide to the other as GeoJSON."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pandas as pd

from metaphase.registration.transform import Transform
from metaphase.tables import TableError

Frame = Literal["he", "phh3"]
Position = list[float]
Move = Callable[[Position], Position]

SHAPES = ("geometry", "nucleusGeometry")
"""Members of a feature that hold shapes; QuPath keeps a cell's nucleus apart."""
ID_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "registration.metaphase")
COLOUR = (200, 0, 0)


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
