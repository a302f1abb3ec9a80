"""QuPath GeoJSON: one file per slide, objects in level-0 pixels, probability as a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import shapely
from shapely.geometry import shape
from shapely.geometry.base import BaseGeometry

from metaphase.base.foreign import parsing
from metaphase.base.later import pandas as pd
from metaphase.base.tables import TableError
from metaphase.detections.formats.contract import (
    HOTSPOT,
    MARKER_UM,
    NO_CLASS,
    POSITION_DECIMALS,
    PROBABILITY_NAMES,
    Context,
    Format,
    colour_of,
    found_in,
    load_json,
    name_of,
    records,
    resolution_of,
    ring,
    save_json,
    stated_probability,
)
from metaphase.detections.table import COLUMNS, MITOSIS, DetectionSet, identities

FRAMES = ("root", "tmaCore", "PathRootObject", "TMACoreObject")
"""Objects that hold others and stand for nothing themselves, as QuPath calls and called them."""
SEGMENTED = ("cell", "tile", "PathCellObject", "PathTileObject")
"""Objects that a program found everywhere."""
MULTIPOINT = shapely.GeometryType.MULTIPOINT
"""The first of the types that have parts."""
MARKER_PX = 50.0
"""Width of a circle where the resolution is unknown: it only has to be seen."""
CORNERS = 8
"""Corners of a circle; a multiple of 4, so that they reach its bounding box, by which QuPath draws it."""


def read(path: Path, context: Context) -> DetectionSet:
    """Every object by its centroid, those inside others too; one of several parts is as many points.

    Other measurements and metadata become columns of their own.
    """
    everything = list(_objects(load_json(path)))
    figures = [feature for feature in everything if class_of(feature) != HOTSPOT]
    objects = [feature for feature in figures if _kind(feature) not in FRAMES]
    shapes = _shapes(objects, path)
    parts, owner = shapely.get_parts([geometry for _, geometry in shapes], return_index=True)
    while (shapely.get_type_id(parts) >= MULTIPOINT).any():  # collections may hold collections
        parts, inner = shapely.get_parts(parts, return_index=True)
        owner = owner[inner]
    centres = shapely.get_coordinates(shapely.centroid(parts))
    facts = [_facts(feature, path) for feature, _ in shapes]
    frame = pd.DataFrame(facts, columns=None if facts else ["probability", "label"])
    frame = frame.iloc[owner].reset_index(drop=True)
    frame = frame.assign(slide=context.slide, x=centres[:, 0], y=centres[:, 1])
    left_out = {
        "objects that frame others (TMA cores)": len(figures) - len(objects),
        "objects without a shape": len(objects) - len(shapes),
    }
    return found_in(path, frame, (context.slide,), left_out)


def features(path: Path) -> list[tuple[dict[str, Any], BaseGeometry]]:
    """The GeoJSON features of a file that have a shape, with it, and those inside them."""
    return _shapes(list(_objects(load_json(path))), path)


def _objects(content: Any) -> Iterator[dict[str, Any]]:
    """Features one by one: QuPath writes a collection, a list or a single one, with others inside, and reads
    bare shapes.
    """
    if isinstance(content, list):
        for part in content:
            yield from _objects(part)
    elif not isinstance(content, dict):
        yield {"geometry": content}
    elif "features" in content:
        yield from _objects(content["features"])
    elif content.get("type") == "Feature" or "geometry" in content:
        yield content
        yield from _objects((content.get("properties") or {}).get("childObjects") or [])
    else:
        yield {"geometry": content}


def _shapes(objects: list[dict[str, Any]], path: Path) -> list[tuple[dict[str, Any], BaseGeometry]]:
    """Features with the shape of plain numbers that they state; true and false would pass for 1 and 0."""
    shapes = []
    with parsing(path, "holds a feature that is not GeoJSON", next_step="export it again", error=TableError):
        for feature in objects:
            if (stated := feature["geometry"]) is not None:
                geometry = shape(stated)
                if "coordinates" in stated and not _are_numbers(stated["coordinates"]):
                    raise ValueError("a corner that is not a number")
                if geometry.is_empty or not np.isfinite(geometry.bounds).all():
                    raise ValueError("an empty shape")
                shapes.append((feature, geometry))
    return shapes


def _kind(feature: dict[str, Any]) -> str | None:
    """What QuPath calls the object; its first versions said it in other positions."""
    properties = feature.get("properties") or {}
    return properties.get("objectType") or properties.get("object_type") or feature.get("id")


def _facts(feature: dict[str, Any], path: Path) -> dict[str, Any]:
    """Probability, label and whatever else an object says of itself.

    QuPath wrote measurements as a list of name and value before 0.4, as an object since. An annotation
    without class is a mark of a mitosis; a cell or tile without class is only an object that was found.
    """
    properties = feature.get("properties") or {}
    measured, metadata = properties.get("measurements") or {}, properties.get("metadata") or {}
    if not isinstance(measured, dict):
        measured = {str(entry["name"]): entry.get("value") for entry in measured}
    lowered = {str(name).strip().lower(): value for name, value in (properties | measured).items()}
    stated = next((name for name in PROBABILITY_NAMES if name in lowered), "")
    label = class_of(feature) or (NO_CLASS if _kind(feature) in SEGMENTED else MITOSIS)
    probability = stated_probability(lowered.get(stated), path)
    return {"probability": probability, "label": label} | {
        name: value
        for name, value in (metadata | measured).items()
        if name.strip().lower() not in (stated, *COLUMNS)
    }


def class_of(feature: dict[str, Any]) -> str:
    """The class of an object, `A: B` where it has parts; empty without one."""
    label = (feature.get("properties") or {}).get("classification")
    if isinstance(label, dict):
        names = label.get("names") or [label.get("name")]
        label = ": ".join(str(name) for name in names if name)
    return str(label or "")


def _are_numbers(values: Any) -> bool:
    if isinstance(values, list):
        return all(map(_are_numbers, values))
    return type(values) in (int, float)


def write(detections: DetectionSet, path: Path, context: Context) -> None:
    """A circle a detection. QuPath does not draw detections that are bare points when zoomed out."""
    table = detections.table
    (slide,) = detections.slides
    mpp = resolution_of(context.mpp, slide)
    width = MARKER_UM / mpp if mpp else MARKER_PX
    corners = np.array(ring((0.0, 0.0, width / 2), CORNERS))
    centres = table[["x", "y"]].to_numpy().round(POSITION_DECIMALS)
    circles = (centres[:, None] + corners).round(POSITION_DECIMALS).tolist()
    features = [_circle(*row) for row in zip(identities(table), circles, _properties(table), strict=True)]
    for hotspot in context.hotspots.get(slide, ()):
        middle = pd.DataFrame([(slide, *hotspot[:2], HOTSPOT)], columns=["slide", "x", "y", "label"])
        features.append(_circle(identities(middle)[0], ring(hotspot), HOTSPOT_PROPERTIES))
    save_json(path, {"type": "FeatureCollection", "features": features})


HOTSPOT_PROPERTIES = {
    "objectType": "annotation",
    "name": HOTSPOT,
    "isLocked": True,
    "classification": {"name": HOTSPOT, "color": [0, 90, 200]},
}


def _circle(identity: str, corners: list[list[float]], properties: dict[str, Any]) -> dict[str, Any]:
    geometry = {"type": "Polygon", "coordinates": [corners], "isEllipse": True}
    return {"type": "Feature", "id": identity, "geometry": geometry, "properties": properties}


def _properties(table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """QuPath's measurements are numbers; text goes to the metadata."""
    extra = table.drop(columns=list(COLUMNS))
    numbers = [str(name) for name in extra.select_dtypes("number")]
    texts = [str(name) for name in extra if name not in numbers]
    classes = {
        label: {"name": name_of(label), "color": list(colour_of(label))} for label in table["label"].unique()
    }
    columns = (table["label"], records(table, ["probability", *numbers]), records(table, texts))
    for label, measured, noted in zip(*columns, strict=True):
        metadata = {"metadata": {name: str(value) for name, value in noted.items()}} if noted else {}
        about = {"objectType": "detection", "classification": classes[label], "measurements": measured}
        yield about | metadata


def _is_geojson(content: Any) -> bool:
    first = content[0] if isinstance(content, list) and content else content
    return isinstance(first, dict) and first.get("type") in ("FeatureCollection", "Feature")


GEOJSON = Format(
    "qupath",
    (".geojson",),
    read,
    write,
    packed=(".geojson.gz", ".zip"),
    one_slide=True,
    title="QuPath GeoJSON",
    holds=_is_geojson,
)
