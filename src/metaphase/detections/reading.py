"""Read detections or truth from any of the formats people have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from metaphase.detections.formats.contract import Format, ReadContext, Resolution, load_json
from metaphase.detections.formats.registry import FORMATS, NAMES
from metaphase.detections.naming import slide_of_stem
from metaphase.detections.table import COLUMNS, DetectionSet
from metaphase.tables import TableError


def read_detections(path: str | Path, *, mpp: Resolution = None, slide: str | None = None) -> DetectionSet:
    """Read a file, or a folder of files, in any known format.

    `mpp` is needed for formats in millimetres. `slide` names the slide of a single file that names none; by
    default that is the file's stem. A file without points says that its slide was looked at.
    """
    path = Path(path)
    if path.is_dir():
        return _read_folder(path, mpp)
    if not path.is_file():
        raise TableError("no such file or folder", path=path, next_step="check the path")
    return format_of(path).read(path, ReadContext(slide or slide_of_stem(path.stem), mpp))


def format_of(path: Path) -> Format:
    """The format of a file, by its suffix and, for JSON, by what it holds."""
    suffix = path.suffix.lower()
    candidates = [known for known in FORMATS if suffix in known.suffixes]
    if suffix == ".json":
        content = load_json(path)
        candidates = [known for known in FORMATS if known.holds(content)]
    if not candidates:
        raise TableError(
            "is of no known format",
            path=path,
            next_step=f"known are {', '.join(NAMES)}",
        )
    return candidates[0]


def joined(parts: Sequence[DetectionSet], source: str | Path) -> DetectionSet:
    """Several sets as one; a slide that two of them cover is an error, for which is right is unknown."""
    _refuse_repeated(parts, source)
    filled = [part.table for part in parts if len(part.table)]
    table = pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=list(COLUMNS))
    return DetectionSet(table, tuple(slide for part in parts for slide in part.slides), str(source))


def _read_folder(folder: Path, mpp: Resolution) -> DetectionSet:
    suffixes = {suffix for known in FORMATS for suffix in known.suffixes}
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in suffixes)
    if not paths:
        raise TableError("holds no file of a known format", path=folder, next_step="check the folder")
    return joined([read_detections(path, mpp=mpp) for path in paths], folder)


def _refuse_repeated(parts: Sequence[DetectionSet], source: str | Path) -> None:
    seen: dict[str, str] = {}
    for part in parts:
        for slide in part.slides:
            if slide in seen:
                raise TableError(
                    f"slide {slide} is in {Path(seen[slide]).name} and in {Path(part.source).name}",
                    path=source,
                    next_step="keep one file a slide, or one table for all",
                )
            seen[slide] = part.source
