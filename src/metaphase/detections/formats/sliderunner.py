"""SlideRunner SQLite: the databases of CCMCT, CMC, TUPAC alternative labels and of SlideRunner itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pandas as pd

from metaphase.base.errors import OutputError
from metaphase.base.files import atomic_path
from metaphase.base.tables import TableError
from metaphase.detections.formats.contract import (
    Format,
    ReadContext,
    WriteContext,
    hex_colour,
    name_of,
    never,
    noted_probability,
    ordered,
    probability_note,
)
from metaphase.detections.table import DetectionSet, detection_set, identities

_COORDINATES = """
SELECT a.uid AS annotation, s.filename AS slide, c.name AS label, {note} AS note,
    p.coordinateX AS x, p.coordinateY AS y
FROM Annotations a
JOIN Annotations_coordinates p ON p.annoId = a.uid
JOIN Slides s ON s.uid = a.slide
LEFT JOIN Classes c ON c.uid = a.agreedClass
"""
_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA user_version = 1;
CREATE TABLE Slides (uid INTEGER PRIMARY KEY AUTOINCREMENT, filename TEXT, width INTEGER, height INTEGER,
    EXACTUSER INTEGER DEFAULT 0, directory TEXT, uuid TEXT, exactImageID TEXT);
CREATE TABLE Classes (uid INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, color TEXT);
CREATE TABLE Persons (uid INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, isExactUser INTEGER DEFAULT 0);
CREATE TABLE Annotations (uid INTEGER PRIMARY KEY AUTOINCREMENT, slide INTEGER, guid TEXT,
    lastModified REAL DEFAULT 0, deleted INTEGER DEFAULT 0, type INTEGER, agreedClass INTEGER,
    description TEXT);
CREATE TABLE Annotations_coordinates (uid INTEGER PRIMARY KEY AUTOINCREMENT, coordinateX INTEGER,
    coordinateY INTEGER, coordinateZ INTEGER DEFAULT 0, slide INTEGER, annoId INTEGER, orderIdx INTEGER);
CREATE TABLE Annotations_label (uid INTEGER PRIMARY KEY AUTOINCREMENT, person INTEGER DEFAULT 0,
    class INTEGER, exact_id INTEGER, annoId INTEGER);
CREATE TABLE Log (uid INTEGER PRIMARY KEY AUTOINCREMENT, dateTime FLOAT, labelId INTEGER);
"""
"""The tables SlideRunner checks for; it adds its own triggers to a database of version 1 when it opens it.

No journal: a file that is not finished is thrown away whole.
"""
SPOT = 1
"""SlideRunner's number for an annotation that is a point."""
PERSON = 1
NO_CLASS = "unclassified"
"""Label of an annotation whose observers have not agreed on a class."""


def read(path: Path, context: ReadContext) -> DetectionSet:  # noqa: ARG001 -- the database names its slides
    """Every annotation that is not deleted, by the centre of its coordinates, with its agreed class."""
    with database(path) as connection:
        columns = {row[1] for row in connection.execute("PRAGMA table_info(Annotations)")}
        only_kept = " WHERE COALESCE(a.deleted, 0) = 0" if "deleted" in columns else ""
        note = "a.description" if "description" in columns else "NULL"
        corners = pd.read_sql_query(_COORDINATES.format(note=note) + only_kept, connection)
    slides = tuple(slide_sizes(path)["filename"])
    by_annotation = corners.groupby("annotation", sort=True)
    table = by_annotation[["slide", "label"]].first()
    low, high = by_annotation[["x", "y"]].min(), by_annotation[["x", "y"]].max()
    table[["x", "y"]] = (low + high) / 2
    table["label"] = table["label"].fillna(NO_CLASS)
    notes = corners.drop_duplicates("annotation").set_index("annotation")["note"]
    table["probability"] = [noted_probability(notes[number]) for number in table.index]
    return detection_set(table.reset_index(), slides, path)


def slide_sizes(path: Path) -> pd.DataFrame:
    """The slides of a database: `filename, width, height`."""
    with database(path) as connection:
        return pd.read_sql_query("SELECT filename, width, height FROM Slides ORDER BY uid", connection)


@contextmanager
def database(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection; what is no SlideRunner database becomes an error that says so."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            yield connection
    except (sqlite3.Error, pd.errors.DatabaseError) as error:
        raise TableError(
            f"is no SlideRunner database ({error})",
            path=path,
            next_step="it needs the tables Slides, Annotations, Annotations_coordinates and Classes",
        ) from error


def write(detections: DetectionSet, path: Path, context: WriteContext) -> None:
    """Spots at whole pixels, labelled by one annotator called metaphase; the probability is the description.

    A point that is unclassified stays without a label, for people to give it one.
    """
    content = {"Persons": pd.DataFrame({"uid": [PERSON], "name": ["metaphase"]})}
    content |= _named_tables(detections, context) | _spot_tables(detections)
    try:
        with atomic_path(path) as temporary, closing(sqlite3.connect(temporary)) as connection:
            connection.executescript(_SCHEMA)
            for name, frame in content.items():
                frame.to_sql(name, connection, if_exists="append", index=False)
    except (sqlite3.Error, pd.errors.DatabaseError) as error:
        raise OutputError(
            f"cannot write the database ({error})", path=path, next_step="check the disk"
        ) from error


def _named_tables(detections: DetectionSet, context: WriteContext) -> dict[str, pd.DataFrame]:
    """Slides and classes; SlideRunner fills in sizes and folders when it opens the slides."""
    sizes = [context.sizes.get(slide, (None, None)) for slide in detections.slides]
    slides = pd.DataFrame(sizes, columns=["width", "height"], dtype=object)
    slides = slides.assign(uid=range(1, len(slides) + 1), filename=list(detections.slides), directory="")
    labels = _class_ids(detections)
    classes = pd.DataFrame(
        {
            "uid": list(labels.values()),
            "name": [name_of(label) for label in labels],
            "color": [hex_colour(label) for label in labels],
        }
    )
    return {"Slides": slides, "Classes": classes}


def _spot_tables(detections: DetectionSet) -> dict[str, pd.DataFrame]:
    """One annotation a point, with its only coordinate and its only label."""
    table = detections.table
    uid = pd.Series(range(1, len(table) + 1), table.index)
    slide = table["slide"].map({name: number for number, name in enumerate(detections.slides, start=1)})
    agreed = table["label"].map(_class_ids(detections)).fillna(0).astype(int)
    notes = [probability_note(value) for value in table["probability"]]
    x, y = (table[name].round().astype(int) for name in ("x", "y"))
    spots = {"uid": uid, "slide": slide, "type": SPOT, "agreedClass": agreed}
    places = {"annoId": uid, "slide": slide, "coordinateX": x, "coordinateY": y, "orderIdx": 1}
    labels = pd.DataFrame({"annoId": uid, "person": PERSON, "class": agreed})
    return {
        "Annotations": pd.DataFrame(spots | {"guid": identities(table), "description": notes}),
        "Annotations_coordinates": pd.DataFrame(places),
        "Annotations_label": labels[labels["class"] > 0],
    }


def _class_ids(detections: DetectionSet) -> dict[str, int]:
    labels = set(detections.table["label"]) - {NO_CLASS}
    return {label: number for number, label in enumerate(ordered(labels), start=1)}


SLIDERUNNER = Format("sliderunner", (".sqlite", ".sqlite3", ".db"), never, read, write)
