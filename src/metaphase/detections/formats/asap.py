"""ASAP XML: one file per slide, dots in level-0 pixels in coloured groups, the probability in the name."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import shapely

from metaphase.base.arrays import Points
from metaphase.base.files import atomic_path
from metaphase.base.foreign import finite
from metaphase.detections.formats.contract import (
    HOTSPOT,
    POSITION_DECIMALS,
    Context,
    Format,
    Row,
    found_in,
    hex_colour,
    name_of,
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
HOTSPOT_COLOUR = "#005AC8"


def read(path: Path, context: Context) -> DetectionSet:
    """Dots and the points of point sets as they are, outlines by their centroid; the group is the label.

    Of groups within groups, the innermost that names one of the common labels counts.
    """
    left_out: Counter[str] = Counter()
    root = ET.parse(path).getroot()
    if root.tag != ROOT:
        raise ValueError(f"it begins with {root.tag}, not with {ROOT}")
    groups = root.iterfind("AnnotationGroups//Group")
    parents = {group.get("Name", ""): group.get("PartOfGroup", "") for group in groups}
    drawings = root.iterfind("Annotations//Annotation")
    rows = [row for drawing in drawings for row in _rows(drawing, parents, context.slide, left_out)]
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
    kind, group = drawing.get("Type", ""), drawing.get("PartOfGroup", "")
    corners = sorted(drawing.iterfind("Coordinates/Coordinate"), key=lambda it: int(it.get("Order", 0)))
    positions = np.array([[finite(corner.attrib[name]) for name in "XY"] for corner in corners])
    if group == HOTSPOT:
        return
    if kind not in POINTS + OUTLINES:
        left_out[f"annotations of the type {kind or 'None'}"] += 1
    elif not len(positions):
        left_out["annotations without coordinates"] += 1
    else:
        chain = list[str]()
        while group not in (*NO_GROUP, *chain):
            chain.append(group)
            group = parents.get(group, "")
        known = (name for name in chain if common_label(name) in (MITOSIS, LOOKALIKE, IGNORE))
        label = next(known, chain[0] if chain else MITOSIS)
        probability = noted_probability(drawing.get("Name"))
        for x, y in _centroid(positions) if kind in OUTLINES else positions.tolist():
            yield slide, x, y, probability, label


def _centroid(positions: Points) -> list[tuple[float, float]]:
    """Of the area enclosed; of the line or point where there is none."""
    outline = shapely.Polygon(positions) if len(positions) > 2 else shapely.MultiPoint(positions)
    return [(outline.centroid.x, outline.centroid.y)]


def write(detections: DetectionSet, path: Path, context: Context) -> None:
    """A dot for each detection, named by its class, number and probability; a group for each class."""
    root = ET.Element(ROOT)
    drawings, groups = ET.SubElement(root, "Annotations"), ET.SubElement(root, "AnnotationGroups")
    table, (slide,) = detections.table, detections.slides

    def draw(name: str, kind: str, group: str, colour: str, corners: Iterable[Iterable[str]]) -> None:
        about = {"Name": name, "Type": kind, "PartOfGroup": group, "Color": colour}
        coordinates = ET.SubElement(ET.SubElement(drawings, "Annotation", about), "Coordinates")
        for order, (x, y) in enumerate(corners):
            ET.SubElement(coordinates, "Coordinate", {"Order": str(order), "X": x, "Y": y})

    def add_group(name: str, colour: str) -> None:
        about = {"Name": name, "PartOfGroup": NO_GROUP[0], "Color": colour}
        ET.SubElement(ET.SubElement(groups, "Group", about), "Attributes")

    rows = zip(table["x"], table["y"], table["probability"], table["label"], strict=True)
    for number, (x, y, probability, label) in enumerate(rows):
        name = f"{name_of(label)} {number} {probability_note(probability)}"
        corner = (f"{x:.{POSITION_DECIMALS}f}", f"{y:.{POSITION_DECIMALS}f}")
        draw(name, "Dot", name_of(label), hex_colour(label), [corner])
    circles = context.hotspots.get(slide, ())
    for circle in circles:
        corners = [map(str, corner) for corner in ring(circle)[:-1]]
        draw(HOTSPOT, "Polygon", HOTSPOT, HOTSPOT_COLOUR, corners)
    if circles:
        add_group(HOTSPOT, HOTSPOT_COLOUR)
    for label in table["label"].unique():
        add_group(name_of(label), hex_colour(label))
    ET.indent(root, space=" ")
    with atomic_path(path) as temporary:
        ET.ElementTree(root).write(temporary, encoding="utf-8", xml_declaration=True)


ASAP = Format(
    "asap",
    (".xml",),
    read,
    write,
    "save the annotations in ASAP, or give another format",
    one_slide=True,
    title="ASAP XML",
    recognises=is_asap,
)
