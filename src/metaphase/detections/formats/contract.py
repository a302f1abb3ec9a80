"""What a format reader gets and gives, and the small things that all of them need."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metaphase.detections.table import DetectionSet
from metaphase.tables import TableError


@dataclass(frozen=True)
class ReadContext:
    """What a file may not say itself."""

    slide: str
    """The slide of a file that names none: its stem, unless the caller knows better."""
    mpp: float | Mapping[str, float] | None = None
    """Micrometres per level-0 pixel, for formats in millimetres: one for all slides, or one a slide."""

    def mpp_of(self, slide: str, path: Path) -> float:
        """The resolution of one slide; an error that says what to give where it is unknown."""
        value = self.mpp.get(slide) if isinstance(self.mpp, Mapping) else self.mpp
        if value is None or not value > 0:
            raise TableError(
                f"its points are in millimetres and the resolution of slide {slide} is not known",
                path=path,
                next_step="give it with --mpp, or in the column mpp of the manifest",
            )
        return value


@dataclass(frozen=True)
class Format:
    """A file format: its name, how to know it, how to read it."""

    name: str
    suffixes: tuple[str, ...]
    holds: Callable[[Any], bool]
    """Whether parsed JSON is of this format; formats that are not JSON answer False."""
    read: Callable[[Path, ReadContext], DetectionSet]


def load_json(path: Path) -> Any:
    """Parsed JSON, or an error that names the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TableError(
            f"cannot be read as JSON ({error})", path=path, next_step="check that it is complete"
        ) from error


def never(_: Any) -> bool:
    """No JSON file is of this format."""
    return False
