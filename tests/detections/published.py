"""Annotation files as other programs write them, made from their published formats."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# ---- SlideRunner ----

OLD = {
    "Slides": "uid filename width height directory",
    "Classes": "uid name",
    "Annotations": "uid slide type agreedClass",
    "Annotations_coordinates": "uid coordinateX coordinateY slide annoId orderIdx",
}
"""The columns of the first version."""
NEW = {
    "Slides": "uid filename width height EXACTUSER directory uuid exactImageID",
    "Classes": "uid name color",
    "Annotations": "uid slide guid lastModified deleted type agreedClass description clickable",
    "Annotations_coordinates": "uid coordinateX coordinateY coordinateZ slide annoId orderIdx",
}
SPOT, AREA, POLYGON, CIRCLE, IMAGE = 1, 2, 3, 5, 6


@dataclass(frozen=True)
class Drawn:
    """An annotation on the slide of a number, counted from 1."""

    slide: int
    positions: Sequence[tuple[float | None, float | None]]
    agreed: int | None = 1
    type: int = SPOT
    deleted: int | None = 0
    note: str | None = None


def write_database(
    path: Path,
    slides: Iterable[tuple[str | None, str | None]],
    drawn: Iterable[Drawn],
    classes: Sequence[str | None] = ("Mitotic figure", "Non-Mitotic cell"),
    columns: dict[str, str] = NEW,
) -> Path:
    """A database of slides (file, directory); columns that nobody fills are NULL."""
    with closing(sqlite3.connect(path)) as connection:

        def insert(table: str, **values: Any) -> None:
            known = {name: value for name, value in values.items() if name in columns[table].split()}
            marks = ",".join("?" * len(known))
            connection.execute(
                f"INSERT INTO {table} ({','.join(known)}) VALUES ({marks})", tuple(known.values())
            )

        for table, names in columns.items():
            others = ", ".join(names.split()[1:])
            connection.execute(f"CREATE TABLE {table} (uid INTEGER PRIMARY KEY, {others})")
        for name in classes:
            insert("Classes", name=name)
        for file, directory in slides:
            insert("Slides", filename=file, directory=directory, width=2000, height=2000)
        for number, one in enumerate(drawn, start=1):
            facts = {"agreedClass": one.agreed, "deleted": one.deleted, "description": one.note}
            insert("Annotations", uid=number, slide=one.slide, type=one.type, **facts)
            for order, (x, y) in enumerate(one.positions, start=1):
                position = {"coordinateX": x, "coordinateY": y, "orderIdx": order}
                insert("Annotations_coordinates", annoId=number, slide=one.slide, **position)
        connection.commit()
    return path


# ---- QuPath ----

SQUARE = [[[0, 0], [10, 0], [10, 10], [0, 10], [0, 0]]]


def feature(
    kind: str | None, geometry: dict[str, Any] | None, *children: dict[str, Any], **properties: Any
) -> dict[str, Any]:
    """An object of QuPath; `kind` is its objectType, `children` the objects inside."""
    said = ({"objectType": kind} if kind else {}) | properties
    if children:
        said["childObjects"] = list(children)
    identity = "7f0e1a3e-0c1d-4e53-9d57-5a3f6c3b1a01"
    return {"type": "Feature", "id": identity, "geometry": geometry, "properties": said}


def shape(kind: str, coordinates: Any, **plane: Any) -> dict[str, Any]:
    """A geometry; QuPath says the plane where it is not the first."""
    return {"type": kind, "coordinates": coordinates} | plane


def write_geojson(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


# ---- ASAP ----


def drawing(kind: str, group: str, *positions: tuple[float, float], orders: Sequence[int] = ()) -> str:
    """An annotation of ASAP; `orders` are the numbers of its coordinates where they do not count up."""
    numbers = orders or range(len(positions))
    corners = "".join(
        f'<Coordinate Order="{n}" X="{x}" Y="{y}" />' for n, (x, y) in zip(numbers, positions, strict=True)
    )
    return (
        f'<Annotation Name="Annotation 0" Type="{kind}" PartOfGroup="{group}" Color="#F4FA58">'
        f"<Coordinates>{corners}</Coordinates></Annotation>"
    )


def write_asap(path: Path, drawings: Iterable[str], groups: dict[str, str] | None = None) -> Path:
    """A file of ASAP with groups and the groups that these are part of."""
    listed = "".join(
        f'<Group Name="{name}" PartOfGroup="{parent}" Color="#64FE2E"><Attributes /></Group>'
        for name, parent in (groups or {}).items()
    )
    text = (
        f"<ASAP_Annotations><Annotations>{''.join(drawings)}</Annotations>"
        f"<AnnotationGroups>{listed}</AnnotationGroups></ASAP_Annotations>"
    )
    path.write_text(f'<?xml version="1.0"?>\n{text}', encoding="utf-8")
    return path
