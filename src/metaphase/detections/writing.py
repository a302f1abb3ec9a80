"""Write detections in any of the formats people use."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path

from metaphase.detections.formats.contract import Format, Resolution, WriteContext
from metaphase.detections.formats.registry import FORMATS, NAMES
from metaphase.detections.naming import file_stem
from metaphase.detections.table import DetectionSet
from metaphase.errors import OutputError, UsageError


def write_detections(
    detections: DetectionSet,
    path: str | Path,
    format: str | None = None,  # noqa: A002 -- what everybody calls it
    *,
    mpp: Resolution = None,
    sizes: Mapping[str, tuple[int, int]] | None = None,
) -> list[Path]:
    """Write one file, or a folder with one file a slide, and say which files were written.

    A `path` that ends as files of the format do is a file; any other is a folder, and then `format` must
    be named. Each file appears whole or not at all. `mpp` is needed for Grand-Challenge and COCO; `sizes`
    (width and height in level-0 pixels by slide) is stated where a format has room for it.
    """
    path = Path(path)
    chosen = format_for(path, format)
    context = WriteContext(mpp, sizes or {})
    covered = tuple(dict.fromkeys((*detections.slides, *detections.table["slide"])))
    detections = DetectionSet(detections.table, covered, detections.source)
    if path.suffix.lower() in chosen.suffixes:
        _refuse_several(detections, path, chosen)
        chosen.write(detections, path, context)
        return [path]
    _refuse_same_files(detections.slides, path)
    written = []
    for part in _by_slide(detections):
        target = path / (file_stem(part.slides[0]) + chosen.suffixes[0])
        chosen.write(part, target, context)
        written.append(target)
    return written


def format_for(path: Path, name: str | None = None) -> Format:
    """The format of a file or folder to be written, by its name or else by the suffix of `path`."""
    suffix = path.suffix.lower()
    fitting = [known for known in FORMATS if suffix in known.suffixes]
    if name is None:
        return _only(fitting, path)
    chosen = next((known for known in FORMATS if known.name == name.lower()), None)
    if chosen is None:
        raise UsageError(f"there is no format {name!r}", next_step=f"known are {', '.join(NAMES)}")
    if fitting and chosen not in fitting:
        raise UsageError(
            f"files of the format {chosen.name} do not end in {suffix}",
            path=path,
            next_step=f"end the name in {chosen.suffixes[0]}, or name a folder",
        )
    return chosen


def _only(fitting: list[Format], path: Path) -> Format:
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join(known.name for known in fitting) or ", ".join(NAMES)
    raise UsageError(
        "its name leaves the format open" if fitting else "its name does not say the format",
        path=path,
        next_step=f"give --to with one of {names}",
    )


def _by_slide(detections: DetectionSet) -> Iterator[DetectionSet]:
    table = detections.table
    parts = dict(iter(table.groupby("slide", sort=False)))
    for slide in detections.slides:
        part = parts.get(slide, table.iloc[:0]).reset_index(drop=True)
        yield DetectionSet(part, (slide,), detections.source)


def _refuse_several(detections: DetectionSet, path: Path, chosen: Format) -> None:
    if chosen.one_slide and len(detections.slides) != 1:
        raise UsageError(
            f"a file of the format {chosen.name} holds one slide, and there are {len(detections.slides)}",
            path=path,
            next_step=f"name a folder and give --to {chosen.name}",
        )


def _refuse_same_files(slides: tuple[str, ...], folder: Path) -> None:
    """On many systems, names that differ in case or in how accents are coded are one file."""
    seen: dict[str, str] = {}
    for slide in slides:
        key = unicodedata.normalize("NFC", unicodedata.normalize("NFC", slide).casefold())
        if key in seen:
            raise OutputError(
                f"the files of slides {seen[key]} and {slide} may be the same",
                path=folder,
                next_step="write one csv or parquet file for all slides",
            )
        seen[key] = slide
