"""TIAToolbox's AnnotationStore: SQLite, one file per slide, in level-0 pixels; TIAViz shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from metaphase.base.foreign import finite, parse_json
from metaphase.base.later import pandas as pd
from metaphase.base.tables import TableError
from metaphase.detections.formats.contract import (
    NO_CLASS,
    PROBABILITY_NAMES,
    Context,
    Format,
    found_in,
    name_of,
    records,
    stated_probability,
)
from metaphase.detections.formats.databases import columns_of, new_database, open_database, rows_of
from metaphase.detections.table import COLUMNS, MITOSIS, DetectionSet, identities

_SCHEMA = """
CREATE TABLE metadata (key TEXT UNIQUE, value TEXT);
INSERT INTO metadata VALUES ('version', '"1.0.1"'), ('compression', '"zlib"'), ('compression_level', '9');
CREATE VIRTUAL TABLE rtree USING rtree(id, min_x, max_x, min_y, max_y);
CREATE TABLE annotations (id INTEGER PRIMARY KEY, key TEXT UNIQUE, objtype TEXT, cx FLOAT NOT NULL,
    cy FLOAT NOT NULL, geometry BLOB, properties TEXT, area FLOAT NOT NULL);
"""
"""Version 1.0.1. A point is its centre alone: `geometry` holds outlines."""
CLASS_NAMES = ("type", "class")
"""Properties that name a class: of TIAToolbox's own networks, and of masks and GeoJSON."""


def read(path: Path, context: Context) -> DetectionSet:
    """Every annotation by its centre, with its class and probability; other properties become columns.

    Without a class, a point is a mark of a mitosis, and an outline is unclassified.
    """
    with _open(path) as connection:
        drawn = rows_of(connection, "annotations", "id cx cy objtype properties").sort_values("id")
        outline = drawn["objtype"].fillna("Point") != "Point"
        unnamed = outline.map({True: NO_CLASS, False: MITOSIS})
        facts = [_facts(*row, path) for row in zip(drawn["properties"], unnamed, strict=True)]
        x, y = ([finite(value) for value in drawn[name]] for name in ("cx", "cy"))
    frame = pd.DataFrame(facts, columns=None if facts else ["probability", "label"])
    frame = frame.assign(slide=context.slide, x=x, y=y)
    return found_in(path, frame, (context.slide,), {"outlines (their centres are kept)": int(outline.sum())})


def _facts(text: Any, unnamed: str, path: Path) -> dict[str, Any]:
    """Probability, label and whatever else an annotation says of itself; what is nested stays JSON."""
    properties = parse_json(text)
    if not isinstance(properties, dict):
        raise TypeError("the properties of an annotation are no JSON object")
    named = {name.strip().lower(): name for name in properties}
    stated = next((named[name] for name in PROBABILITY_NAMES if name in named), None)
    kind = next((named[name] for name in CLASS_NAMES if name in named), None)
    label = properties.get(kind)
    probability = stated_probability(properties.get(stated), path)
    return {"probability": probability, "label": unnamed if label is None else str(label)} | {
        name: json.dumps(value) if isinstance(value, dict | list) else value
        for name, value in properties.items()
        if name not in (stated, kind) and name.strip().lower() not in COLUMNS
    }


def write(detections: DetectionSet, path: Path, context: Context) -> None:  # noqa: ARG001 -- in pixels
    """Points with the properties `type`, by which TIAViz colours, and `probability`, then other columns."""
    table = detections.table
    own = (*COLUMNS, CLASS_NAMES[0])
    names = ["probability", *(name for name in table.columns if name.strip().lower() not in own)]
    properties = [
        json.dumps({"type": name_of(label), **facts}, default=str, separators=(",", ":"))
        for label, facts in zip(table["label"], records(table, names), strict=True)
    ]
    x, y = (table[name].tolist() for name in ("x", "y"))
    number = range(1, len(table) + 1)
    with new_database(path, _SCHEMA) as connection:
        connection.executemany(
            "INSERT INTO annotations VALUES (?, ?, 'Point', ?, ?, NULL, ?, 0)",
            zip(number, identities(table), x, y, properties, strict=True),
        )
        connection.executemany(
            "INSERT INTO rtree VALUES (?, ?, ?, ?, ?)", zip(number, x, x, y, y, strict=True)
        )


def _open(path: Path) -> Any:
    needs = "it needs the table annotations with cx, cy and properties; export it again from TIAToolbox"
    return open_database(path, what="is not an AnnotationStore of TIAToolbox", next_step=needs)


def is_store(path: Path) -> bool:
    """Whether an SQLite file is an AnnotationStore; what cannot be opened is none."""
    try:
        with _open(path) as connection:
            return {"key", "cx", "cy", "properties"} <= columns_of(connection, "annotations")
    except TableError:
        return False


TIATOOLBOX = Format(
    "tiatoolbox",
    (".db",),
    read,
    write,
    one_slide=True,
    title="TIAToolbox AnnotationStore",
    recognises=is_store,
)
