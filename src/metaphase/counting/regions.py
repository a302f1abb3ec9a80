"""Where figures count: regions that people outline, and the place of the count that they choose.

A region is filled by the even-odd rule, so that holes and parts need no further word. What lies in no region
to include, where there is one, or in a region to exclude does not count.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import NAMESPACE_OID, uuid5

import numpy as np
import shapely
from pydantic import Field
from shapely.geometry.base import BaseGeometry

from metaphase.base.arrays import Floats, Integers, Mask, Points
from metaphase.base.errors import UsageError, several
from metaphase.base.provenance import fingerprint_of
from metaphase.base.typed import Stored
from metaphase.images.tissue.finding import TissueMask

DECIMALS = 1
"""Of corners, in level-0 pixels, as of positions."""
LEAST_PX2 = 1.0
"""A region with less area has none."""
MOST_CORNERS = 20_000
"""Of a region: a hand that draws for an hour leaves fewer."""
PAIRS = 4_000_000
"""Crossings that are looked at together."""

Corners = tuple[tuple[float, float], ...]
Kind = Literal["include", "exclude"]
NAMES: dict[str, Kind] = {
    "tumour": "include",
    "invasive tumour": "include",
    "DCIS": "exclude",
    "necrosis": "exclude",
    "out of focus": "exclude",
    "artefact": "exclude",
}
"""What regions are usually called, and what that says of them."""
_ALSO = {"tumor": "tumour", "invasive tumor": "invasive tumour", "invasive": "invasive tumour"}
_ALSO |= {"artifact": "artefact"}


class Region(Stored):
    """An outlined part of a slide."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f-]{36}$")]
    """Stays the same however often it is changed."""
    kind: Kind
    """Whether figures count in it, or do not."""
    name: Annotated[str, Field(min_length=1, max_length=64)]
    """What it is: tumour, DCIS, necrosis, out of focus, artefact, or anything else."""
    polygons: tuple[tuple[Corners, ...], ...]
    """Its parts: each an outer ring and those of its holes, of corners (x, y) in level-0 pixels."""
    note: str = ""
    """What was mended when it came in."""
    filed: bool = False
    """Whether it stands as a file says it."""

    def says(self, other: Region) -> bool:
        """Whether another says the same, wherever both come from."""
        return self.model_copy(update={"note": other.note, "filed": other.filed}) == other

    @property
    def edges(self) -> Floats:
        """(n, 4), x and y of both ends of each edge."""
        rings = [np.asarray(ring) for polygon in self.polygons for ring in polygon]
        return np.concatenate([np.hstack([ring, np.roll(ring, -1, axis=0)]) for ring in rings])

    @property
    def shape(self) -> shapely.MultiPolygon:
        """The same for shapely."""
        return shapely.MultiPolygon([(polygon[0], polygon[1:]) for polygon in self.polygons])

    def holds(self, points: Points) -> Mask:
        """Which points (n, 2) lie inside."""
        shape = self.shape
        shapely.prepare(shape)
        return np.asarray(shapely.contains_xy(shape, points))

    def drawn(self, tissue: TissueMask) -> Mask:
        """Which pixels of a mask have their middle inside."""
        rows, columns = tissue.mask.shape
        edges = (self.edges - (tissue.x, tissue.y) * 2) / tissue.scale
        ends = np.zeros((rows, columns + 1), np.uint8)
        for row, where in _crossings(edges, rows):
            column = np.clip(np.ceil(where - 0.5), 0, columns).astype(np.int64)
            np.bitwise_xor.at(ends, (row, column), 1)
        return np.asarray(np.bitwise_xor.accumulate(ends, axis=1)[:, :-1], bool)


def _crossings(edges: Floats, rows: int) -> Iterator[tuple[Integers, Floats]]:
    """Where edges cross the middles of rows of pixels: which row, and x; some at a time."""
    x, y, other_x, other_y = edges.T
    first, last = (
        np.clip(np.ceil(end(y, other_y) - 0.5), 0, rows).astype(np.int64) for end in (np.minimum, np.maximum)
    )
    number = last - first
    upto = np.cumsum(number)
    crossing = np.flatnonzero(number)
    parts = np.flatnonzero(np.diff(upto[crossing] // PAIRS)) + 1
    for part in np.split(crossing, parts):
        edge = np.repeat(part, number[part])
        line = (
            first[edge]
            + np.arange(len(edge))
            - np.repeat(np.cumsum(number[part]) - number[part], number[part])
        )
        slope = (other_x[edge] - x[edge]) / (other_y[edge] - y[edge])
        yield line, x[edge] + (line + 0.5 - y[edge]) * slope


class Place(Stored):
    """Where a person counts instead of in the densest circle: another circle, or ten fields side by side."""

    x: float
    """Middle, in level-0 pixels."""
    y: float
    """Middle, in level-0 pixels."""
    field_diameter_mm: Annotated[float, Field(ge=0.4, le=0.69)] | None = None
    """Diameter of each of ten fields in mm; without it, the circle of the count lies there."""

    def fields_px(self, mpp: float) -> list[tuple[float, float, float]]:
        """x, y and radius of ten fields, in rows of three, four and three that touch; none for a circle."""
        if self.field_diameter_mm is None:
            return []
        side = 1000 * self.field_diameter_mm / mpp
        rows = ((3, -1), (4, 0), (3, 1))
        return [
            (self.x + (place - (number - 1) / 2) * side, self.y + row * side * math.sqrt(3) / 2, side / 2)
            for number, row in rows
            for place in range(number)
        ]


class Scope(Stored):
    """Where figures of a slide count; anywhere on its tissue, unless people say otherwise."""

    regions: tuple[Region, ...] = ()
    """What people outlined."""
    place: Place | None = None
    """Where they count; null for the densest circle."""

    def account(self) -> dict[str, Any]:
        """What decides a count."""
        names = [f"{region.kind} {region.name} {region.id}" for region in self.regions]
        outlines = [fingerprint_of(region.polygons) for region in self.regions]
        regions = dict(zip(names, outlines, strict=True))
        return {"regions": regions, "place": None if self.place is None else self.place.model_dump()}

    @property
    def key(self) -> str:
        """Tells it from others; empty where all counts."""
        return fingerprint_of(self.account()) if self != Scope() else ""

    @property
    def text(self) -> str:
        """For reading: `in tumour, without DCIS; ten fields of 0.5 mm at a chosen place`."""
        words = []
        for kind, word in (("include", "in"), ("exclude", "without")):
            names = Counter(region.name for region in self.regions if region.kind == kind)
            listed = (name if number == 1 else f"{name} ({number})" for name, number in names.items())
            words += [f"{word} {', '.join(listed)}"] if names else []
        parts = [", ".join(words)] if words else []
        if self.place is not None:
            diameter = self.place.field_diameter_mm
            parts.append(
                f"{'a circle' if diameter is None else f'ten fields of {diameter:g} mm'} at a chosen place"
            )
        return "; ".join(parts)

    def holds(self, points: Points) -> Mask:
        """Which points (n, 2) count here."""
        return self._within([region.holds(points) for region in self.regions], len(points))

    def tissue(self, tissue: TissueMask) -> TissueMask:
        """The tissue on which figures count."""
        if not self.regions:
            return tissue
        drawn = [region.drawn(tissue).ravel() for region in self.regions]
        here = self._within(drawn, tissue.mask.size).reshape(tissue.mask.shape)
        return replace(tissue, mask=tissue.mask & here)

    def _within(self, held: list[Mask], number: int) -> Mask:
        by_kind = {
            kind: [inside for inside, region in zip(held, self.regions, strict=True) if region.kind == kind]
            for kind in ("include", "exclude")
        }
        included = np.any(by_kind["include"], axis=0) if by_kind["include"] else np.ones(number, bool)
        return np.asarray(included & ~np.any(by_kind["exclude"], axis=0) if by_kind["exclude"] else included)

    def shape(self, mpp: float) -> BaseGeometry | None:
        """Where the middle of the circle may lie, in micrometres; None for anywhere."""
        if not self.regions:
            return None
        whole = shapely.box(-1e9, -1e9, 1e9, 1e9)
        parts = {
            kind: shapely.union_all([region.shape for region in self.regions if region.kind == kind])
            for kind in ("include", "exclude")
        }
        where = parts["include"] if not parts["include"].is_empty else whole
        return shapely.transform(shapely.difference(where, parts["exclude"]), lambda corners: corners * mpp)


# ---- regions that come in ----


def kind_of(label: str) -> tuple[Kind, str]:
    """Kind and name of a class: `Exclude: follicle`, or a name that says it.

    >>> kind_of("Tumor"), kind_of("Exclude: follicle")
    (('include', 'tumour'), ('exclude', 'follicle'))
    """
    said, _, name = label.partition(": ")
    if name and said.lower() in ("include", "exclude"):
        return ("include" if said.lower() == "include" else "exclude"), name
    lowered = {known.lower(): known for known in NAMES}
    known = lowered.get(_ALSO.get(label.lower(), label).lower())
    if known is None:
        raise UsageError(
            f"the class {label!r} does not say whether figures count there",
            next_step=f"call it `Include: {label}` or `Exclude: {label}`; known are {', '.join(NAMES)}",
        )
    return NAMES[known], known


def is_of_region(label: str) -> bool:
    """Whether a class says that figures count somewhere, or do not."""
    try:
        kind_of(label)
    except UsageError:
        return False
    return True


def region_of(kind: Kind, name: str, shape: BaseGeometry, *, id: str = "", filed: bool = False) -> Region:  # noqa: A002 -- as GeoJSON calls it
    """A region of any shape with an area; what crosses itself is mended, and the region says so."""
    name = " ".join(name.split())[:64]
    if not name.isprintable() or not name:
        raise UsageError(f"a region is called {name!r}", next_step="give it a name that can be printed")
    what = f"the region {name}"
    if shapely.get_num_coordinates(shape) > MOST_CORNERS:
        corners = shapely.get_num_coordinates(shape)
        raise UsageError(f"{what} has {corners:,} corners", next_step=f"draw it with up to {MOST_CORNERS:,}")
    if not np.isfinite(shapely.get_coordinates(shape)).all():
        raise UsageError(f"{what} has a corner that is not a number", next_step="draw it again")
    note = "" if shape.is_valid else "crossed itself, and was mended"
    polygons = _polygons(shape)
    if sum(part.area for part in polygons) < LEAST_PX2:
        raise UsageError(f"{what} has no area", next_step="draw it around what it is to hold")
    rings = tuple(
        tuple(
            tuple((float(x), float(y)) for x, y in np.asarray(ring.coords)[:-1, :2].tolist())
            for ring in (part.exterior, *part.interiors)
        )
        for part in polygons
    )
    known = id.lower()
    if not (len(known) == 36 and set(known) <= set("0123456789abcdef-")):
        known = str(uuid5(NAMESPACE_OID, json.dumps([kind, name, rings])))
    return Region(id=known, kind=kind, name=name, polygons=rings, note=note, filed=filed)


def _polygons(shape: BaseGeometry) -> list[shapely.Polygon]:
    """Its polygons, sound and with corners to a tenth; as they are where they are so already."""
    rounded = shapely.transform(shape, lambda corners: corners.round(DECIMALS))
    if not rounded.is_valid:
        rounded = shapely.set_precision(shapely.make_valid(shape), 10**-DECIMALS)
        rounded = shapely.transform(rounded, lambda corners: corners.round(DECIMALS))
    parts = [rounded]
    while any(hasattr(part, "geoms") for part in parts):
        parts = [inner for part in parts for inner in getattr(part, "geoms", (part,))]
    return [part for part in parts if isinstance(part, shapely.Polygon) and part.area > 0]


def on_slide(region: Region, width: int, height: int, path: Path | None = None) -> Region:
    """A region as far as it lies on a slide of this size in level-0 pixels."""
    left, top, right, bottom = region.shape.bounds
    if left >= 0 and top >= 0 and right <= width and bottom <= height:
        return region
    inside = shapely.intersection(region.shape, shapely.box(0, 0, width, height))
    if inside.area < LEAST_PX2:
        raise UsageError(
            f"the region {region.name}, from {left:g}, {top:g} to {right:g}, {bottom:g}, is not on "
            f"the slide of {width} x {height} px",
            path=path,
            next_step="draw it in level-0 pixels of this very slide",
        )
    note = "; ".join(filter(None, (region.note, "reached beyond the slide, and was cut")))
    made = region_of(region.kind, region.name, inside, id=region.id, filed=region.filed)
    return made.model_copy(update={"note": note})


ANYWHERE = Scope()


def notes_of(regions: tuple[Region, ...]) -> str:
    """What was mended, in a line; empty where nothing was."""
    mended = [f"{region.name} {region.note}" for region in regions if region.note]
    return f"{several(len(mended), 'region')}: {'; '.join(mended)}" if mended else ""
