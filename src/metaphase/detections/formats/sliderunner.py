"""SlideRunner SQLite: the databases of CCMCT, CMC, TUPAC alternative labels and of SlideRunner itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from metaphase.base.later import pandas as pd
from metaphase.base.tables import TableError, as_text, named, numbers_of, require_numbers
from metaphase.detections.formats.contract import (
    NO_CLASS,
    Context,
    Format,
    class_numbers,
    found_in,
    hex_colour,
    name_of,
    noted_probability,
    probability_note,
)
from metaphase.detections.formats.databases import new_database, open_database, rows_of
from metaphase.detections.table import COLUMNS, DetectionSet, identities

_SCHEMA = """
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
"""The tables SlideRunner checks for; it adds its own triggers to a database of version 1 when it opens it."""
SPOT = 1
"""SlideRunner's number for an annotation that is a point."""
PERSON = 1


_database = partial(
    open_database,
    what="is not a SlideRunner database",
    next_step="it needs the tables Slides, Annotations, Annotations_coordinates and Classes",
)


def read(path: Path, context: Context) -> DetectionSet:  # noqa: ARG001 -- the database names its slides
    """Every annotation that is not deleted, by the centre of its coordinates, with its agreed class."""
    slides = listed_slides(path)
    with _database(path) as connection:
        drawn = rows_of(connection, "Annotations", "uid slide deleted agreedClass description")
        corners = rows_of(connection, "Annotations_coordinates", "annoId coordinateX coordinateY")
        classes = rows_of(connection, "Classes", "uid name").set_index("uid")["name"]
    require_numbers(corners, ("coordinateX", "coordinateY"), path)
    positions = corners.rename(columns={"coordinateX": "x", "coordinateY": "y"})
    positions = positions.assign(x=numbers_of(positions["x"]), y=numbers_of(positions["y"]))
    by_annotation = positions.groupby("annoId")[["x", "y"]]
    centres = (by_annotation.min() + by_annotation.max()) / 2
    drawn = drawn[drawn["deleted"].fillna(0) == 0].set_index("uid").sort_index()
    table = drawn.join(centres.dropna()).assign(
        slide=drawn["slide"].map(slides["slide"]),
        label=drawn["agreedClass"].map(classes).fillna(NO_CLASS),
        probability=drawn["description"].astype(object).map(noted_probability),
    )
    placed, listed = table["x"].notna(), table["slide"].notna()
    left_out = {
        "annotations without coordinates": int((~placed).sum()),
        "annotations of slides that it does not list": int((placed & ~listed).sum()),
    }
    return found_in(path, table.loc[placed & listed, list(COLUMNS)], tuple(slides["slide"]), left_out)


def listed_slides(path: Path) -> pd.DataFrame:
    """The slides of a database by their number: `slide, filename, directory, width, height`.

    `slide` is the name, which no other slide of the database has: the file's, and where files of several
    folders have the same, as much of the end of their folders before it as tells them apart.
    """
    with _database(path) as connection:
        slides = rows_of(connection, "Slides", "uid filename directory width height")
    slides = slides.set_index("uid").sort_index()
    slides[["filename", "directory"]] = slides[["filename", "directory"]].apply(as_text)
    if (slides["filename"] == "").any():
        raise TableError(
            f"slide {slides.index[slides['filename'] == ''][0]} has no file name",
            path=path,
            next_step="complete the table Slides, or remove the slide in SlideRunner",
        )
    slides.insert(0, "slide", _names(slides["filename"], slides["directory"]))
    repeated = slides["slide"][slides["slide"].duplicated()]
    if len(repeated):
        raise TableError(
            f"lists more than one slide {named(repeated)}, and their directories do not tell them apart",
            path=path,
            next_step="give them different directories in the table Slides, or remove the copies",
        )
    return slides


def _names(files: Iterable[str], directories: Iterable[str]) -> list[str]:
    """A name for each slide; slides that nothing tells apart keep the same one."""
    paths = [(*folders(directory), file) for file, directory in zip(files, directories, strict=True)]
    names = {path: path[-1] for path in paths}
    for file in set(names.values()):
        alike = [path for path in paths if path[-1] == file]
        length = 1
        while length < max(map(len, alike)) and len({path[-length:] for path in alike}) < len(alike):
            length += 1
        names |= {path: "/".join(path[-length:]) for path in alike}
    return [names[path] for path in paths]


def folders(directory: str) -> list[str]:
    """The folders of a path of any system, outermost first.

    >>> folders("D:\\\\tupac\\\\05"), folders("/data/tupac/05/"), folders("")
    (['D:', 'tupac', '05'], ['data', 'tupac', '05'], [])
    """
    return [part for part in re.split(r"[/\\]", directory) if part not in ("", ".")]


def write(detections: DetectionSet, path: Path, context: Context) -> None:
    """Spots at whole pixels, labelled by one annotator called metaphase; the probability is the description.

    A point that is unclassified stays without a label, for people to give it one.
    """
    table = detections.table
    sizes = [context.sizes.get(slide, (None, None)) for slide in detections.slides]
    slides = pd.DataFrame(sizes, columns=["width", "height"], dtype=object)  # else SlideRunner fills them in
    slides[["directory", "filename"]] = _positions(detections.slides)
    classes = class_numbers(set(table["label"]) - {NO_CLASS})
    uid = pd.Series(range(1, len(table) + 1), table.index)
    slide = table["slide"].map({name: number for number, name in enumerate(detections.slides, start=1)})
    agreed = table["label"].map(classes).fillna(0).astype(int)
    notes = [probability_note(value) for value in table["probability"]]
    x, y = (table[name].round().astype(int) for name in ("x", "y"))
    spots = {"uid": uid, "slide": slide, "type": SPOT, "agreedClass": agreed}
    positions = {"annoId": uid, "slide": slide, "coordinateX": x, "coordinateY": y, "orderIdx": 1}
    labels = pd.DataFrame({"annoId": uid, "person": PERSON, "class": agreed})
    named = {"name": [name_of(label) for label in classes], "color": [hex_colour(label) for label in classes]}
    content = {
        "Persons": pd.DataFrame({"uid": [PERSON], "name": ["metaphase"]}),
        "Slides": slides.assign(uid=range(1, len(slides) + 1)),
        "Classes": pd.DataFrame({"uid": list(classes.values()), **named}),
        "Annotations": pd.DataFrame(spots | {"guid": identities(table), "description": notes}),
        "Annotations_coordinates": pd.DataFrame(positions),
        "Annotations_label": labels[labels["class"] > 0],
    }
    with new_database(path, _SCHEMA) as connection:
        for name, frame in content.items():
            frame.to_sql(name, connection, if_exists="append", index=False)


def _positions(slides: Sequence[str]) -> list[tuple[str, str]]:
    """Directory and file of each slide, where they read back as its name; else the name is the file."""
    positions = {}
    for file in {slide.rpartition("/")[2] for slide in slides}:
        alike = [slide for slide in slides if slide.rpartition("/")[2] == file]
        directories = [slide.rpartition("/")[0] for slide in alike]
        same = _names([file] * len(alike), directories) == alike
        for slide, directory in zip(alike, directories, strict=True):
            positions[slide] = (directory, file) if same else ("", slide)
    return [positions[slide] for slide in slides]


SLIDERUNNER = Format("sliderunner", (".sqlite", ".sqlite3", ".db"), read, write, title="SlideRunner SQLite")
