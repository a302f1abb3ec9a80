"""QuPath GeoJSON: one file a slide, objects in level-0 pixels, probability as a measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import shapely
from shapely.geometry import shape
from shapely.geometry.base import BaseGeometry

from metaphase.detections.formats.contract import Format, ReadContext, load_json
from metaphase.detections.table import COLUMNS, MITOSIS, DetectionSet, detection_set
from metaphase.tables import TableError

PROBABILITY_NAMES = ("probability", "score", "confidence", "detection probability")


def read(path: Path, context: ReadContext) -> DetectionSet:
    """Every object by its centroid; a MultiPoint object is as many points."""
    rows = []
    for feature, geometry in features(path):
        properties = feature.get("properties") or {}
        label, probability = _class_name(properties), _probability(properties)
        for part in getattr(geometry, "geoms", [geometry]):
            centre = part.centroid
            rows.append((context.slide, centre.x, centre.y, probability, label))
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return detection_set(frame, (context.slide,), path)


def features(path: Path) -> list[tuple[dict[str, Any], BaseGeometry]]:
    """The GeoJSON features of a file with their shapes; QuPath writes a collection or a bare list."""
    content = load_json(path)
    found = content.get("features", [content]) if isinstance(content, dict) else content
    try:
        return [(feature, _valid(shape(feature["geometry"]))) for feature in found]
    except (KeyError, TypeError, AttributeError, ValueError, shapely.errors.ShapelyError) as error:
        raise TableError(
            f"holds a feature that is no GeoJSON ({error})", path=path, next_step="export it again"
        ) from error


def class_name(properties: dict[str, Any]) -> str | None:
    """The class of a QuPath object, or None where it has none."""
    classification = properties.get("classification")
    if isinstance(classification, dict):
        names = classification.get("names") or [classification.get("name")]
        return str(names[0]) if names[0] else None
    return str(classification) if classification else None


def _class_name(properties: dict[str, Any]) -> str:
    return class_name(properties) or MITOSIS


def _probability(properties: dict[str, Any]) -> float | None:
    """QuPath wrote measurements as a list of name and value before 0.4, as an object since."""
    given = properties.get("measurements") or {}
    if not isinstance(given, dict):
        given = {entry.get("name"): entry.get("value") for entry in given}
    measured = {str(name).strip().lower(): value for name, value in (properties | given).items()}
    value = next((measured[name] for name in PROBABILITY_NAMES if name in measured), None)
    return None if value is None else float(value)


def _valid(geometry: BaseGeometry) -> BaseGeometry:
    if geometry.is_empty:
        raise ValueError("an empty shape")
    return geometry


def _is_geojson(content: Any) -> bool:
    first = content[0] if isinstance(content, list) and content else content
    return isinstance(first, dict) and first.get("type") in ("FeatureCollection", "Feature")


GEOJSON = Format("qupath", (".geojson",), _is_geojson, read)
