"""Places where neither truth nor detections count: discs, boxes, polygons, and a margin along the border."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import shapely
from shapely.geometry import Point, box
from shapely.geometry.base import BaseGeometry

from metaphase.detections.formats.contract import load_json
from metaphase.detections.formats.qupath import features
from metaphase.detections.matching import Points
from metaphase.evaluation.cohort import Cohort
from metaphase.tables import TableError, read_table, require_columns, require_numbers

Regions = dict[str, list[BaseGeometry]]
"""Shapes in level-0 pixels for each case."""


def read_regions(path: str | Path, cohort: Cohort) -> Regions:
    """Read the regions to ignore.

    GeoJSON (one file, or a folder of them named after their slides): every shape is ignored; a point needs
    `radius_um` among its properties. A CSV has the columns slide and either `wkt`; or `x, y, width, height`
    of a box, its top-left corner first; or `x, y, radius_um` of a disc.
    """
    path = Path(path)
    if path.is_dir() or path.suffix.lower() in (".geojson", ".json"):
        files = sorted(path.glob("*.*json")) if path.is_dir() else [path]
        return _by_case(
            [(file.stem, shape) for file in files for shape in _shapes(file, cohort)], cohort, path
        )
    frame = read_table(path)
    require_columns(frame, ("slide",), path)
    require_numbers(frame, ("x", "y", "width", "height", "radius_um"), path)
    rows = frame.to_dict("records")
    return _by_case([(str(row["slide"]), _shape(row, cohort, path)) for row in rows], cohort, path)


def point_regions(points: pd.DataFrame, cohort: Cohort, radius_um: float) -> Regions:
    """Discs around the truth's `ignore` points."""
    mpp = cohort.mpp_by_case()
    regions: Regions = defaultdict(list)
    radii = (
        points["radius_um"].fillna(radius_um) if "radius_um" in points.columns else [radius_um] * len(points)
    )
    for slide, x, y, radius in zip(points["slide"], points["x"], points["y"], radii, strict=True):
        regions[slide].append(Point(x, y).buffer(radius / mpp[slide], quad_segs=32))
    return regions


def merged(parts: Sequence[Regions]) -> dict[str, BaseGeometry]:
    """One shape a slide out of all its regions."""
    cases = {case for part in parts for case in part}
    return {
        case: shapely.union_all([shape for part in parts for shape in part.get(case, [])]) for case in cases
    }


def counts(
    places: Points, size: tuple[float, float], region: BaseGeometry | None, border: float
) -> npt.NDArray[np.bool_]:
    """Which points of a slide count: those outside `region` and not within `border`; all in pixels."""
    inside = np.ones(len(places), bool)
    if border > 0:
        inside &= ((places >= border) & (places < np.array(size) - border)).all(axis=1)
    if region is not None:
        inside &= ~shapely.intersects_xy(region, places[:, 0], places[:, 1])
    return inside


def _shapes(path: Path, cohort: Cohort) -> list[BaseGeometry]:
    if not load_json(path):
        return []
    mpp = cohort.mpp_by_name()
    shapes = []
    for feature, shape in features(path):
        radius = (feature.get("properties") or {}).get("radius_um")
        if shape.area == 0 and (radius is None or path.stem not in mpp):
            raise TableError(
                f"a {shape.geom_type} has no area and no radius_um",
                path=path,
                next_step="draw a closed shape, or give the point a property radius_um",
            )
        shapes.append(shape.buffer(float(radius) / mpp[path.stem]) if radius is not None else shape)
    return shapes


def _shape(row: dict[Any, Any], cohort: Cohort, path: Path) -> BaseGeometry:
    def has(*names: str) -> bool:
        return all(name in row and not pd.isna(row[name]) for name in names)

    if has("wkt"):
        try:
            drawn: BaseGeometry = shapely.from_wkt(row["wkt"])
        except shapely.errors.ShapelyError as error:
            raise TableError(f"no shape: {row['wkt']!r}", path=path, next_step="write it as WKT") from error
        return drawn
    if has("x", "y", "width", "height"):
        return box(row["x"], row["y"], row["x"] + row["width"], row["y"] + row["height"])
    if has("x", "y", "radius_um"):
        mpp = cohort.mpp_by_name().get(str(row["slide"]), np.nan)
        return Point(row["x"], row["y"]).buffer(row["radius_um"] / mpp, quad_segs=32)
    raise TableError(
        f"a row for slide {row['slide']} describes no region",
        path=path,
        next_step="give wkt, or x, y, width, height, or x, y, radius_um",
    )


def _by_case(shapes: list[tuple[str, BaseGeometry]], cohort: Cohort, path: Path) -> Regions:
    case_of = cohort.case_names([slide for slide, _ in shapes], str(path))
    regions: Regions = defaultdict(list)
    for slide, shape in shapes:
        regions[case_of[slide]].append(shape)
    return regions
