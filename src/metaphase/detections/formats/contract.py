"""What a format gets and gives, and the small things that all of them need."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metaphase.artifacts import write_text
from metaphase.detections.table import DetectionSet
from metaphase.errors import OutputError
from metaphase.tables import TableError

MARKER_UM = 12.5
"""Side of the box or circle around a detection: MIDOG's 50 pixels of 0.25 um."""
PLACE_DECIMALS = 3
"""Decimals of written pixel places."""

Resolution = float | Mapping[str, float] | None
"""Micrometres per level-0 pixel: one for all slides, one a slide by name, or unknown."""


def resolution_of(mpp: Resolution, slide: str) -> float | None:
    """The resolution of one slide, None where it is unknown."""
    value = mpp.get(slide) if isinstance(mpp, Mapping) else mpp
    return value if value is not None and value > 0 else None


@dataclass(frozen=True)
class ReadContext:
    """What a file may not say itself."""

    slide: str
    """The slide of a file that names none: its stem, unless the caller knows better."""
    mpp: Resolution = None
    """For formats in millimetres."""

    def mpp_of(self, slide: str, path: Path) -> float:
        """The resolution of one slide; an error that says what to give where it is unknown."""
        value = resolution_of(self.mpp, slide)
        if value is None:
            raise TableError(
                f"its points are in millimetres and the resolution of slide {slide} is not known",
                path=path,
                next_step="give it with --mpp, or in the column mpp of the manifest",
            )
        return value


@dataclass(frozen=True)
class WriteContext:
    """What a format may need to know about slides that the detections do not say."""

    mpp: Resolution = None
    """For formats in millimetres, and for the size of boxes and circles."""
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Width and height in level-0 pixels, for formats that state them."""

    def mpp_of(self, slide: str, path: Path, purpose: str) -> float:
        """The resolution of one slide; an error that says what it is needed for where it is unknown."""
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
    holds: Callable[[Any], bool]
    """Whether parsed JSON is of this format; formats that are not JSON answer False."""
    read: Callable[[Path, ReadContext], DetectionSet]
    write: Callable[[DetectionSet, Path, WriteContext], None]
    """Writes one file whole or not at all."""
    one_slide: bool = False
    """Whether a file holds the points of one slide and does not say which."""


def load_json(path: Path) -> Any:
    """Parsed JSON, or an error that names the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TableError(
            f"cannot be read as JSON ({error})", path=path, next_step="check that it is complete"
        ) from error


def save_json(path: Path, content: Any) -> None:
    """Write compact JSON; the numbers of detections are finite, so that every parser reads it."""
    write_text(path, json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def never(_: Any) -> bool:
    """No JSON file is of this format."""
    return False
