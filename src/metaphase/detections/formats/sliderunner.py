"""SlideRunner SQLite: the databases of CCMCT, CMC, TUPAC alternative labels and of SlideRunner itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pandas as pd

from metaphase.detections.formats.contract import Format, ReadContext, never
from metaphase.detections.table import DetectionSet, detection_set
from metaphase.tables import TableError

_COORDINATES = """
SELECT a.uid AS annotation, s.filename AS slide, c.name AS label, p.coordinateX AS x, p.coordinateY AS y
FROM Annotations a
JOIN Annotations_coordinates p ON p.annoId = a.uid
JOIN Slides s ON s.uid = a.slide
LEFT JOIN Classes c ON c.uid = a.agreedClass
"""
NO_CLASS = "unclassified"
"""Label of an annotation whose observers have not agreed on a class."""


def read(path: Path, context: ReadContext) -> DetectionSet:  # noqa: ARG001 -- the database names its slides
    """Every annotation that is not deleted, by the centre of its coordinates, with its agreed class."""
    with database(path) as connection:
        columns = {row[1] for row in connection.execute("PRAGMA table_info(Annotations)")}
        only_kept = " WHERE COALESCE(a.deleted, 0) = 0" if "deleted" in columns else ""
        corners = pd.read_sql_query(_COORDINATES + only_kept, connection)
    slides = tuple(slide_sizes(path)["filename"])
    by_annotation = corners.groupby("annotation", sort=True)
    table = by_annotation[["slide", "label"]].first()
    low, high = by_annotation[["x", "y"]].min(), by_annotation[["x", "y"]].max()
    table[["x", "y"]] = (low + high) / 2
    table["label"] = table["label"].fillna(NO_CLASS)
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


SLIDERUNNER = Format("sliderunner", (".sqlite", ".sqlite3", ".db"), never, read)
