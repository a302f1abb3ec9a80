"""ASAP XML: one file per slide, dots in level-0 pixels in coloured groups, the probability in the name."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import shapely

from metaphase.base.arrays import Points
from metaphase.base.files import atomic_path
from metaphase.base.foreign import finite, parsing
from metaphase.base.tables import TableError
from metaphase.detections.formats.contract import (
    HOTSPOT,
    PLACE_DECIMALS,
    Format,
    ReadContext,
    Row,
    WriteContext,
    found_in,
    hex_colour,
    name_of,
    never,
    noted_probability,
    probability_note,
    ring,
)
from metaphase.detections.table import IGNORE, LOOKALIKE, MITOSIS, DetectionSet, common_label

ROOT = "ASAP_Annotations"
POINTS = ("Dot", "PointSet")
OUTLINES = ("Polygon", "Spline", "Rectangle")
"""Shapes that stand for what they enclose; a measurement encloses nothing."""
NO_GROUP = ("None", "")
HOTSPOT_CORNERS = 64


def read(path: Path, context: ReadContext) -> DetectionSet:
    """Dots and the points of point sets as they are, outlines by their centroid; the group is the label.

    Of groups within groups, the innermost that names one of the common labels counts.
    """
    left_out: Counter[str] = Counter()
    advice = "save the annotations in ASAP, or give another format"
    with parsing(path, "is not an ASAP annotation file", next_step=advice, error=TableError):
        root = ET.parse(path).getroot()
        if root.tag != ROOT:
            raise ValueError(f"it begins with {root.tag}, not with {ROOT}")
        parents = {
            group.get("Name", ""): group.get("PartOfGroup", "")
            for group in root.iterfind("AnnotationGroups//Group")
        }
        drawings = root.iterfind("Annotations//Annotation")
        rows = [row for drawn in drawings for row in _rows(drawn, parents, context.slide, left_out)]
    return found_in(path, rows, (context.slide,), left_out)


def is_asap(path: Path) -> bool:
    """Whether an XML file begins as ASAP's do."""
    try:
        _, first = next(ET.iterparse(path, ("start",)))
    except (ET.ParseError, StopIteration, ValueError):
        return False
    return str(first.tag) == ROOT


def _rows(
    drawing: ET.Element, parents: Mapping[str, str], slide: str, left_out: Counter[str]
) -> Iterator[Row]:
    kind = drawing.get("Type", "")
    corners = sorted(drawing.iterfind("Coordinates/Coordinate"), key=lambda one: int(one.get("Order", 0)))
    positions = np.array([[finite(corner.attrib[name]) for name in "XY"] for corner in corners])
    if drawing.get("PartOfGroup") == HOTSPOT:
        return
    if kind not in POINTS + OUTLINES:
        left_out[f"annotations of the type {kind or 'None'}"] += 1
    elif not len(positions):
        left_out["annotations without coordinates"] += 1
    else:
        group, chain = drawing.get("PartOfGroup", ""), list[str]()
        while group not in (*NO_GROUP, *chain):
            chain.append(group)
            group = parents.get(group, "")
        known = (name for name in chain if common_label(name) in (MITOSIS, LOOKALIKE, IGNORE))
        label = next(known, chain[0] if chain else MITOSIS)
        probability = noted_probability(drawing.get("Name"))
        for x, y in [_centroid(positions)] if kind in OUTLINES else positions.tolist():
            yield slide, x, y, probability, label


def _centroid(positions: Points) -> tuple[float, float]:
    """Of the area enclosed; of the line or point where there is none."""
    outline = shapely.Polygon(positions) if len(positions) > 2 else shapely.MultiPoint(positions)
    return outline.centroid.x, outline.centroid.y


def write(detections: DetectionSet, path: Path, context: WriteContext) -> None:
    """A dot a detection, named by its class, number and probability; a group a class."""
    root = ET.Element(ROOT)
    dots, groups = ET.SubElement(root, "Annotations"), ET.SubElement(root, "AnnotationGroups")
    table, (slide,) = detections.table, detections.slides
    rows = zip(table["x"], table["y"], table["probability"], table["label"], strict=True)
    for number, (x, y, probability, label) in enumerate(rows):
        name = f"{name_of(label)} {number} {probability_note(probability)}"
        dot = {"Name": name, "Type": "Dot", "PartOfGroup": name_of(label), "Color": hex_colour(label)}
        coordinates = ET.SubElement(ET.SubElement(dots, "Annotation", dot), "Coordinates")
        position = {"X": f"{x:.{PLACE_DECIMALS}f}", "Y": f"{y:.{PLACE_DECIMALS}f}"}
        ET.SubElement(coordinates, "Coordinate", {"Order": "0"} | position)
    circles = context.hotspots.get(slide, ())
    for circle in circles:
        shape = {"Name": HOTSPOT, "Type": "Polygon", "PartOfGroup": HOTSPOT, "Color": "#005AC8"}
        coordinates = ET.SubElement(ET.SubElement(dots, "Annotation", shape), "Coordinates")
        for order, (x, y) in enumerate(ring(circle, HOTSPOT_CORNERS)[:-1]):
            ET.SubElement(coordinates, "Coordinate", {"Order": str(order), "X": f"{x}", "Y": f"{y}"})
    if circles:
        group = {"Name": HOTSPOT, "PartOfGroup": NO_GROUP[0], "Color": "#005AC8"}
        ET.SubElement(ET.SubElement(groups, "Group", group), "Attributes")
    for label in table["label"].unique():
        group = {"Name": name_of(label), "PartOfGroup": NO_GROUP[0], "Color": hex_colour(label)}
        ET.SubElement(ET.SubElement(groups, "Group", group), "Attributes")
    ET.indent(root, space=" ")
    with atomic_path(path) as temporary:
        ET.ElementTree(root).write(temporary, encoding="utf-8", xml_declaration=True)


ASAP = Format("asap", (".xml",), never, read, write, one_slide=True, title="ASAP XML", recognises=is_asap)
