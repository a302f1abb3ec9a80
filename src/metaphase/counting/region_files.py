"""Regions from and to files: QuPath's GeoJSON, and ASAP's XML, one slide a file."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import shapely
from shapely.geometry import mapping
from shapely.geometry.base import BaseGeometry

from metaphase.base.errors import UsageError
from metaphase.base.files import atomic_path
from metaphase.base.foreign import check_plain, files_in, finite, folder_key, parsing
from metaphase.counting.regions import Kind, Region, is_of_region, kind_of, region_of
from metaphase.detections.formats.asap import NO_GROUP, OUTLINES, ROOT
from metaphase.detections.formats.contract import HOTSPOT, save_json
from metaphase.detections.formats.qupath import class_of, features

ENDINGS = (".geojson", ".geojson.gz", ".zip", ".json", ".xml")
COLOURS: dict[Kind, tuple[int, int, int]] = {"include": (0, 130, 60), "exclude": (170, 60, 0)}
WHAT = "holds no regions that can be read"
ADVICE = "export polygons from QuPath (GeoJSON) or ASAP (XML), each with a class"
Found = tuple[str, BaseGeometry, str]
"""Class, shape and name of a drawn region."""
_PART = re.compile(r"([0-9a-f-]{36}) (\d+) (\d+)")
"""Name of a ring in ASAP, which knows no holes: region, polygon and ring."""


def read_regions(path: str | Path) -> tuple[Region, ...]:
    """The regions of a file, whose classes say which they are: `Exclude: follicle`, or a known name."""
    path = Path(path)
    check_plain(path)
    with parsing(path, WHAT, next_step=ADVICE):
        found = _found(path)
    if not found:
        raise UsageError("holds no polygon", path=path, next_step=ADVICE)
    return _regions(found, path, filed=True)


def _found(path: Path) -> list[Found]:
    return _from_asap(path) if path.suffix.lower() == ".xml" else _from_geojson(path)


def _regions(found: Sequence[Found], path: Path, *, filed: bool) -> tuple[Region, ...]:
    try:
        regions = tuple(
            region_of(*kind_of(label), shape, id=name, filed=filed) for label, shape, name in found
        )
    except UsageError as error:  # name the file
        raise UsageError(error.problem, path=path, next_step=error.next_step) from error
    if len({region.id for region in regions}) < len(regions):
        raise UsageError("holds a region twice", path=path, next_step="leave one of them out")
    return regions


def regions_among(path: Path) -> tuple[Region, ...]:
    """The regions among all that a file of any format holds; none where its format has no areas."""
    if not path.is_file() or not path.name.lower().endswith(ENDINGS[:3] + ENDINGS[-1:]):
        return ()
    with parsing(path, WHAT, next_step=ADVICE):
        found = [outline for outline in _found(path) if is_of_region(outline[0])]
    return _regions(found, path, filed=False)


def regions_for(path: str | Path, slide: str) -> tuple[Region, ...] | None:
    """The regions of a slide in a file, or in that of its name in a folder; None where that has none."""
    path = Path(path)
    if not path.is_dir():
        return read_regions(path)
    files = [one for one in files_in(path, "*") if one.name.lower().endswith(ENDINGS)]
    own = [file for file in files if folder_key(file.name[: -len(_ending(file))]) == folder_key(slide)]
    if len(own) > 1:
        raise UsageError(
            f"has several files of slide {slide}: {', '.join(file.name for file in own)}",
            path=path,
            next_step="leave one of them",
        )
    return read_regions(own[0]) if own else None


def _ending(path: Path) -> str:
    return max((ending for ending in ENDINGS if path.name.lower().endswith(ending)), key=len)


def _from_geojson(path: Path) -> list[Found]:
    return [
        (label, shape, str(feature.get("id") or ""))
        for feature, shape in features(path)
        if (label := class_of(feature)) != HOTSPOT and shape.geom_type in ("Polygon", "MultiPolygon")
    ]


def _from_asap(path: Path) -> list[Found]:
    root = ET.parse(path).getroot()
    if root.tag != ROOT:
        raise ValueError(f"it begins with {root.tag}, not with {ROOT}")
    found: list[Found] = []
    parts: dict[str, tuple[str, dict[int, list[list[tuple[float, float]]]]]] = {}
    for drawing in root.iterfind("Annotations//Annotation"):
        label, name = drawing.get("PartOfGroup", ""), drawing.get("Name", "")
        if drawing.get("Type") not in OUTLINES or label == HOTSPOT:
            continue
        corners = sorted(drawing.iterfind("Coordinates/Coordinate"), key=lambda one: int(one.get("Order", 0)))
        ring = [(finite(corner.attrib["X"]), finite(corner.attrib["Y"])) for corner in corners]
        part = _PART.fullmatch(name)
        if part is None:
            found.append((name if label in NO_GROUP else label, shapely.Polygon(ring), ""))
        else:
            polygons = parts.setdefault(part[1], (label, {}))[1]
            polygons.setdefault(int(part[2]), []).append(ring)
    for name, (label, polygons) in parts.items():
        shapes = [(rings[0], rings[1:]) for rings in polygons.values()]
        found.append((label, shapely.MultiPolygon(shapes), name))
    return found


def write_regions(regions: Sequence[Region], path: str | Path) -> None:
    """Write regions as GeoJSON, or as ASAP's XML by the file's ending; read again they are the same."""
    path = Path(path)
    if path.suffix.lower() == ".xml":
        _write_asap(regions, path)
    elif path.suffix.lower() == ".geojson":
        save_json(path, {"type": "FeatureCollection", "features": [_feature(region) for region in regions]})
    else:
        raise UsageError(
            "its name does not say the format", path=path, next_step="end it in .geojson or .xml"
        )


def class_name(region: Region) -> str:
    """The class of a region in other programs.

    >>> class_name(region_of("exclude", "DCIS", shapely.box(0, 0, 9, 9)))
    'Exclude: DCIS'
    """
    return f"{region.kind.capitalize()}: {region.name}"


def _feature(region: Region) -> dict[str, object]:
    parts = region.shape.geoms
    return {
        "type": "Feature",
        "id": region.id,
        "geometry": mapping(parts[0] if len(parts) == 1 else region.shape),
        "properties": {
            "objectType": "annotation",
            "name": region.name,
            "classification": {"name": class_name(region), "color": list(COLOURS[region.kind])},
        },
    }


def _write_asap(regions: Sequence[Region], path: Path) -> None:
    root = ET.Element(ROOT)
    drawings, groups = ET.SubElement(root, "Annotations"), ET.SubElement(root, "AnnotationGroups")
    colours = {class_name(one): "#{:02x}{:02x}{:02x}".format(*COLOURS[one.kind]) for one in regions}
    for region in regions:
        group = class_name(region)
        for number, polygon in enumerate(region.polygons):
            for hole, ring in enumerate(polygon):
                about = {"Name": f"{region.id} {number} {hole}", "Type": "Polygon", "PartOfGroup": group}
                drawing = ET.SubElement(drawings, "Annotation", about | {"Color": colours[group]})
                corners = ET.SubElement(drawing, "Coordinates")
                for order, (x, y) in enumerate(ring):
                    ET.SubElement(corners, "Coordinate", {"Order": f"{order}", "X": f"{x}", "Y": f"{y}"})
    for group, colour in colours.items():
        known = ET.SubElement(groups, "Group", {"Name": group, "PartOfGroup": NO_GROUP[0], "Color": colour})
        ET.SubElement(known, "Attributes")
    ET.indent(root, space=" ")
    with atomic_path(path) as temporary:
        ET.ElementTree(root).write(temporary, encoding="utf-8", xml_declaration=True)
