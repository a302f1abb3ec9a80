"""What a format is (`Format`), and how labels look in other programs: names, colours, the probability."""

from __future__ import annotations

import colorsys
import gzip
import json
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from metaphase.base.errors import OutputError, ResultWarning
from metaphase.base.files import write_text
from metaphase.base.foreign import RAISE_LIMITS, check_plain, finite, parse_json, parsing, raised
from metaphase.base.later import pandas as pd
from metaphase.base.tables import TableError, as_text, slide_names
from metaphase.detections.table import (
    BELOW,
    COLUMNS,
    COUNTED,
    IGNORE,
    LOOKALIKE,
    MITOSIS,
    DetectionSet,
    detection_set,
)

# ---- what a format gets and gives ----

MARKER_UM = 12.5
"""Side of the box or circle around a detection: MIDOG's 50 pixels of 0.25 um."""
POSITION_DECIMALS = 3
"""Decimals of written pixel positions."""

Resolution = float | Mapping[str, float] | None
"""Micrometres per level-0 pixel: one for all slides, one for each slide by name, or unknown."""


def resolution_of(mpp: Resolution, slide: str) -> float | None:
    """The resolution of one slide by the best of its names that is known, None where none is."""
    if isinstance(mpp, Mapping):
        mpp = next((mpp[name] for name in slide_names(slide) if name in mpp), None)
    return mpp if mpp is not None and mpp > 0 else None


HOTSPOT = "Hotspot"
"""Class of the circle that was counted; readers do not take it for a detection."""
HOTSPOT_CORNERS = 64
Circle = tuple[float, float, float]
"""x, y and radius, in level-0 pixels."""


def ring(circle: Circle, corners: int = HOTSPOT_CORNERS) -> list[list[float]]:
    """Corners of a circle, anticlockwise, the first again at the end."""
    x, y, radius = circle
    angles = np.arange(corners + 1) % corners * (2 * math.pi / corners)
    around = np.stack([x + radius * np.cos(angles), y + radius * np.sin(angles)], axis=1)
    corners_px: list[list[float]] = around.round(POSITION_DECIMALS).tolist()
    return corners_px


@dataclass(frozen=True)
class Context:
    """What the caller knows about slides and a file may not say."""

    slide: str = ""
    """The slide of a file to be read that names none."""
    mpp: Resolution = None
    """For formats in millimetres, and for the size of boxes and circles."""
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Width and height in level-0 pixels, for formats that state them."""
    sources: Mapping[str, Path] = field(default_factory=dict)
    """File or folder of each slide, for formats that refer to it."""
    hotspots: Mapping[str, Sequence[Circle]] = field(default_factory=dict)
    """What was counted of each slide, for formats that have shapes: its densest circle, or ten fields."""

    def mpp_of(self, slide: str, path: Path, purpose: str) -> float:
        """The resolution of one slide; where it is unknown, an error that says what it is needed for."""
        value = resolution_of(self.mpp, slide)
        if value is None:
            raise OutputError(
                f"the resolution of slide {slide} is not known, and {purpose} needs it",
                path=path,
                next_step="give it with --mpp, or with --manifest, a table of case and mpp",
            )
        return value


@dataclass(frozen=True)
class Format:
    """A file format: its name, how to know it, how to read and write it."""

    name: str
    suffixes: tuple[str, ...]
    """Endings of its files; the first is given to new ones."""
    read: Callable[[Path, Context], DetectionSet]
    write: Callable[[DetectionSet, Path, Context], None]
    """Writes one file whole or not at all."""
    needs: str = ""
    """What a file must hold, as advice where it cannot be read."""
    packed: tuple[str, ...] = ()
    """Endings of its compressed files, which are read and not written."""
    one_slide: bool = False
    """Whether a file holds the points of one slide and does not say which."""
    title: str = ""
    """What people call it; by default its name."""
    holds: Callable[[Any], bool] | None = None
    """Of JSON formats: whether parsed JSON is of this format."""
    recognises: Callable[[Path], bool] | None = None
    """Whether a file is of this format, by its content; asked where several formats share its ending."""
    shares_ending: bool = False
    """Whether an earlier format has its ending, so that its file names must say which they are."""
    all_columns: bool = False
    """Whether a file holds all columns, `counted` among them; in others a class tells what does not count."""

    @property
    def endings(self) -> tuple[str, ...]:
        """Those of files that are read."""
        return (*self.suffixes, *self.packed)

    @property
    def own_ending(self) -> str:
        """An ending that no other format has."""
        return f".{self.name}{self.suffixes[0]}"

    @property
    def ending(self) -> str:
        """What follows the name of a new file."""
        return self.own_ending if self.shares_ending or ".json" in self.suffixes else self.suffixes[0]


def load_json(path: Path) -> Any:
    """Parsed JSON, also of a compressed file, or an error that names the file."""
    size = check_plain(path, TableError)
    with parsing(path, "cannot be read as JSON", next_step="check that it is complete", error=TableError):
        return parse_json(_unpacked(path, size))


MOST_UNPACKED = 64 << 20
PACKING = 200
"""A packed file may become so many bytes, or so many times as large, whichever is more."""


def _unpacked(path: Path, size: int) -> bytes:
    suffix, limit = path.suffix.lower(), raised(max(MOST_UNPACKED, size * PACKING))
    if suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
            if len(members) != 1:
                raise ValueError(f"it contains {len(members)} files instead of one")
            with archive.open(members[0]) as packed:
                content = packed.read(limit + 1)
    elif suffix == ".gz":
        with gzip.open(path) as packed:
            content = packed.read(limit + 1)
    else:
        return path.read_bytes()
    if len(content) > limit:
        raise TableError(f"unpacks to more than {limit:,} bytes", path=path, next_step=RAISE_LIMITS)
    return content


def other_archive(path: Path) -> bool:
    """Whether a file is an archive of anything but GeoJSON: such files may lie beside detections."""
    if path.suffix.lower() != ".zip" or not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return not any(name.lower().endswith(".geojson") for name in archive.namelist())


def save_json(path: Path, content: Any) -> None:
    """Write compact JSON; the numbers of detections are finite, so that every parser reads it."""
    write_text(path, json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


# ---- what a file holds and the table does not ----


Row = tuple[str, float, float, float | None, str]
"""A point: slide, x, y, probability (None where none is stated) and class."""


def found_in(
    path: Path,
    points: pd.DataFrame | Sequence[Row],
    slides: tuple[str, ...],
    left_out: Mapping[str, int] | None = None,
) -> DetectionSet:
    """The points of a file and the slides that it covers.

    There is a warning for each kind of object in the file that became no point, with their number.
    """
    table = points if isinstance(points, pd.DataFrame) else pd.DataFrame(points, columns=list(COLUMNS))
    detections = detection_set(table, slides, path)
    warnings = (
        ResultWarning("objects-left-out", f"{path.name}: {count} {kind} left out")
        for kind, count in (left_out or {}).items()
        if count
    )
    return replace(detections, warnings=(*detections.warnings, *warnings))


NO_CLASS = "unclassified"
"""Label of an object that nobody has given a class and that is not there because somebody marked it."""

NAMES = {
    MITOSIS: "mitotic figure",
    BELOW: "mitotic figure: below count threshold",
    LOOKALIKE: "non-mitotic figure",
    IGNORE: "Ignore*",
}
"""MIDOG's names for the classes, and QuPath's for what does not count; `common_label` knows them all."""
COLOURS = {
    MITOSIS: (220, 30, 40),
    BELOW: (240, 150, 40),
    LOOKALIKE: (30, 110, 220),
    IGNORE: (150, 150, 150),
}
PROBABILITY_NAMES = ("probability", "score", "confidence", "detection probability", "prob")
"""What other programs call it."""

_NOTE = re.compile(r"\bp=([0-9.]+(?:e[-+]?[0-9]+)?)$")


def by_class(detections: DetectionSet) -> DetectionSet:
    """The set with mitoses that do not enter the count in a class of their own, in place of the column."""
    table = detections.table
    if COUNTED not in table.columns:
        return detections
    below = (table["label"] == MITOSIS) & (as_text(table[COUNTED]).str.lower() == "false")
    classed = table.assign(label=table["label"].mask(below, BELOW)).drop(columns=COUNTED)
    return replace(detections, table=classed)


def class_numbers(labels: Iterable[str]) -> dict[str, int]:
    """Numbers from 1: mitosis and look-alike as in MIDOG, whether present or not, then the others."""
    ordered = dict.fromkeys((MITOSIS, LOOKALIKE, *sorted(labels)))
    return {label: number for number, label in enumerate(ordered, start=1)}


def name_of(label: str) -> str:
    """The class name to write for a label."""
    return NAMES.get(label, label)


def colour_of(label: str) -> tuple[int, ...]:
    """Red, green and blue (0 to 255) of a label; one that is not ours has a hue by its name alone."""
    if label in COLOURS:
        return COLOURS[label]
    hue = zlib.crc32(label.encode()) / 2**32
    return tuple(round(255 * part) for part in colorsys.hsv_to_rgb(hue, 0.75, 0.8))


def hex_colour(label: str) -> str:
    """The colour of a label as #rrggbb."""
    return "#{:02x}{:02x}{:02x}".format(*colour_of(label))


def probability_note(probability: float) -> str:
    """A probability for formats that only have room for a remark.

    >>> probability_note(0.973125)
    'p=0.973125'
    """
    return f"p={probability:.6g}"


def noted_probability(note: object) -> float | None:
    """The probability at the end of a remark, None where there is none or where it is not text."""
    match = _NOTE.search(note) if isinstance(note, str) else None
    return float(match[1]) if match else None


def stated_probability(value: Any, path: Path) -> float | None:
    """A probability as a file gives it, None where there is none; anything but a number is an error."""
    advice = "give numbers from 0 to 1, or leave the column out; NaN comes from a broken network"
    with parsing(path, "a probability is missing or NaN", next_step=advice, error=TableError):
        return None if value is None else finite(value)


def records(table: pd.DataFrame, names: list[str]) -> Iterator[dict[str, Any]]:
    """Each row's values that are there: JSON has neither NaN nor infinity."""
    there = (table[names].notna() & ~table[names].isin([math.inf, -math.inf])).to_numpy(bool)
    columns = [table[name].tolist() for name in names]
    for row, kept in enumerate(there):
        yield {name: column[row] for name, column, keep in zip(names, columns, kept, strict=True) if keep}
