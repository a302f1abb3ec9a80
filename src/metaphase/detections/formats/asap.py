"""ASAP XML: one file a slide, dots in level-0 pixels in coloured groups, the probability in the name."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import shapely

from metaphase.base.arrays import Points
from metaphase.base.files import atomic_path
from metaphase.base.tables import TableError
from metaphase.detections.formats.contract import (
    PLACE_DECIMALS,
    Format,
    ReadContext,
    WriteContext,
    hex_colour,
    name_of,
    never,
    noted_probability,
    probability_note,
)
from metaphase.detections.table import COLUMNS, MITOSIS, DetectionSet, detection_set

ROOT = "ASAP_Annotations"
POINTS = ("Dot", "PointSet")
OUTLINES = ("Polygon", "Spline", "Rectangle")
"""Shapes that stand for what they enclose; measurements and images of nothing are left out."""
NO_GROUP = "None"

Row = tuple[str, float, float, float | None, str]


def read(path: Path, context: ReadContext) -> DetectionSet:
    """Dots and the points of point sets as they are, outlines by their centroid; the group is the label."""
    try:
        root = ET.parse(path).getroot()
        if root.tag != ROOT:
            raise ValueError(f"it begins with {root.tag}, not with {ROOT}")
        rows = [
            row for drawn in root.iterfind("Annotations/Annotation") for row in _rows(drawn, context.slide)
        ]
    except (ET.ParseError, OSError, ValueError) as error:
        raise TableError(
            f"is no ASAP annotation file ({error})",
            path=path,
            next_step="save the annotations in ASAP, or give another format",
        ) from error
    return detection_set(pd.DataFrame(rows, columns=list(COLUMNS)), (context.slide,), path)


def _rows(drawing: ET.Element, slide: str) -> Iterator[Row]:
    kind, group = drawing.get("Type", ""), drawing.get("PartOfGroup", NO_GROUP)
    places = np.array([_place(corner) for corner in drawing.iterfind("Coordinates/Coordinate")])
    if kind not in POINTS + OUTLINES or not len(places):
        return
    label = MITOSIS if group == NO_GROUP else group
    probability = noted_probability(drawing.get("Name"))
    for x, y in [_centroid(places)] if kind in OUTLINES else places.tolist():
        yield slide, x, y, probability, label


def _place(corner: ET.Element) -> tuple[float, float]:
    x, y = corner.get("X"), corner.get("Y")
    if x is None or y is None:
        raise ValueError("a coordinate without X and Y")
    return float(x), float(y)


def _centroid(places: Points) -> tuple[float, float]:
    """Of the area enclosed; of the line or point where there is none."""
    outline = shapely.Polygon(places) if len(places) > 2 else shapely.MultiPoint(places)
    return outline.centroid.x, outline.centroid.y


def write(detections: DetectionSet, path: Path, context: WriteContext) -> None:  # noqa: ARG001 -- in pixels
    """A dot a detection, named by its class, number and probability; a group a class."""
    root = ET.Element(ROOT)
    dots, groups = ET.SubElement(root, "Annotations"), ET.SubElement(root, "AnnotationGroups")
    table = detections.table
    rows = zip(table["x"], table["y"], table["probability"], table["label"], strict=True)
    for number, (x, y, probability, label) in enumerate(rows):
        name = f"{name_of(label)} {number} {probability_note(probability)}"
        dot = {"Name": name, "Type": "Dot", "PartOfGroup": name_of(label), "Color": hex_colour(label)}
        coordinates = ET.SubElement(ET.SubElement(dots, "Annotation", dot), "Coordinates")
        place = {"X": f"{x:.{PLACE_DECIMALS}f}", "Y": f"{y:.{PLACE_DECIMALS}f}"}
        ET.SubElement(coordinates, "Coordinate", {"Order": "0"} | place)
    for label in table["label"].unique():
        group = {"Name": name_of(label), "PartOfGroup": NO_GROUP, "Color": hex_colour(label)}
        ET.SubElement(ET.SubElement(groups, "Group", group), "Attributes")
    ET.indent(root, space=" ")
    with atomic_path(path) as temporary:
        ET.ElementTree(root).write(temporary, encoding="utf-8", xml_declaration=True)


ASAP = Format("asap", (".xml",), never, read, write, one_slide=True)
