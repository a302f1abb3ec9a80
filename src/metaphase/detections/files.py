"""Detections from and to files of any format."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from metaphase.base.errors import OutputError, UsageError, require
from metaphase.base.foreign import check_plain, parsing, plugins, read_json, readable_name
from metaphase.base.later import pandas as pd
from metaphase.base.tables import TableError, natural, read_manifest, rows_by_name
from metaphase.detections.formats.asap import ASAP
from metaphase.detections.formats.coco import COCO
from metaphase.detections.formats.contract import (
    Circle,
    Context,
    Format,
    Resolution,
    by_class,
    load_json,
    other_archive,
)
from metaphase.detections.formats.dicom import DICOM, holds_annotations
from metaphase.detections.formats.grand_challenge import GRAND_CHALLENGE
from metaphase.detections.formats.qupath import GEOJSON
from metaphase.detections.formats.sliderunner import SLIDERUNNER
from metaphase.detections.formats.tabular import CSV, PARQUET
from metaphase.detections.formats.tiatoolbox import TIATOOLBOX
from metaphase.detections.matching import suppress
from metaphase.detections.table import (
    CANDIDATES,
    COLUMNS,
    DETECTIONS,
    OPERATING_POINTS,
    SUMMARY,
    DetectionSet,
    file_stem,
    slide_of_stem,
)
from metaphase.slides.backends import check_flag

# ---- all formats in one table ----

FORMATS = (PARQUET, CSV, GEOJSON, ASAP, GRAND_CHALLENGE, COCO, SLIDERUNNER, TIATOOLBOX, DICOM)
OWN = frozenset(known.name for known in FORMATS)
"""A file that is written without a word about its format is of one of these, whatever is installed."""


def known_formats() -> dict[str, Format]:
    """All by name: ours, and those that other packages add."""
    formats: dict[str, Format] = {}
    for known in (*FORMATS, *plugins("metaphase.formats").values()):
        shared = any(known.suffixes[0] in other.suffixes for other in formats.values())
        formats.setdefault(known.name, replace(known, shares_ending=shared))
    return formats


def format_titles() -> str:
    """All formats as people call them, in a line."""
    return ", ".join(known.title or known.name for known in known_formats().values())


# ---- read detections or truth from any of the formats people have ----


def read_detections(
    path: str | Path, *, mpp: Resolution = None, slide: str | None = None, every: bool = False
) -> DetectionSet:
    """Read a file, or a folder of files, in any known format.

    `mpp` is needed for formats in millimetres. `slide` names the slide of a single file that names none; by
    default that is the file's stem. A file without points says that its slide was looked at. `every` takes
    those below the thresholds of results, too.
    """
    path = Path(path)
    if path.is_dir():
        results = result_folders(path)
        parts = [
            read_detections(file, mpp=mpp, slide=file.parent.name if file.parent in results else None)
            for file in detection_files(path, every=every)
        ]
        return joined(parts, path)
    if not path.exists():
        raise TableError("no such file or folder", path=path, next_step="check the path")
    check_plain(path, TableError)
    stem = readable_name(path.name[: len(path.name) - len(_ending(path))])
    chosen = format_of(path)
    advice = chosen.needs or f"check that it is a complete file of the format {chosen.name}"
    with parsing(path, "its content cannot be understood", next_step=advice, error=TableError):
        detections = chosen.read(path, Context(slide or slide_of_stem(stem), mpp))
    return replace(detections, slides=(slide,)) if slide and not detections.slides else detections


def result_folders(path: str | Path) -> list[Path]:
    """The folders of slides in a folder of results, or the one that it is; none in any other folder."""
    path = Path(path)
    if (path / SUMMARY).is_file():
        return [path]
    return sorted(
        (file.parent for file in path.glob(f"*/{SUMMARY}")), key=lambda folder: natural(folder.name)
    )


def detection_files(path: Path, *, every: bool = False) -> list[Path]:
    """The files that `read_detections` reads: those of a known format in a folder, or the file itself.

    Of results of `metaphase detect`, the table of each slide.
    """
    if not path.is_dir():
        return [path]
    tables = [folder / (CANDIDATES if every else DETECTIONS) for folder in result_folders(path)]
    if tables := [table for table in tables if table.is_file()]:
        return tables
    endings = {ending for known in known_formats().values() for ending in known.endings}
    files = sorted(
        file
        for file in path.iterdir()  # among which may be other archives and other DICOM objects
        if _ending(file) in endings
        and not other_archive(file)
        and not (file.suffix.lower() == ".dcm" and not holds_annotations(file))
    )
    if not files:
        raise TableError("holds no file of a known format", path=path, next_step="check the folder")
    return files


def format_of(path: Path) -> Format:
    """The format of a file, by its ending and, where several share that, by what it holds."""
    ending, formats = _ending(path), list(known_formats().values())
    candidates = [known for known in formats if ending in known.endings]
    if ending == ".json":
        content = load_json(path)
        candidates = [known for known in formats if known.holds and known.holds(content)]
    elif len(candidates) > 1:  # those that know their files come first
        silent = [known for known in candidates if known.recognises is None]
        candidates = [known for known in candidates if known.recognises and known.recognises(path)] + silent
    if not candidates:
        raise TableError("has no known format", path=path, next_step=f"choose one of {format_titles()}")
    return candidates[0]


def _ending(path: Path) -> str:
    """The ending by which a file's format is known; compressed files have two suffixes."""
    packed = (ending for known in known_formats().values() for ending in known.packed)
    return next((ending for ending in packed if path.name.lower().endswith(ending)), path.suffix.lower())


def joined(parts: Sequence[DetectionSet], source: str | Path) -> DetectionSet:
    """Several sets as one; a slide that two of them cover is an error, for which is right is unknown."""
    seen: dict[str, str] = {}
    for part in parts:
        for slide in part.slides:
            if slide in seen:
                raise TableError(
                    f"slide {slide} is in {Path(seen[slide]).name} and in {Path(part.source).name}",
                    path=source,
                    next_step="keep one file per slide, or one table for all",
                )
            seen[slide] = part.source
    filled = [part.table for part in parts if len(part.table)]
    table = pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=list(COLUMNS))
    warnings = tuple(warning for part in parts for warning in part.warnings)
    return DetectionSet(table, tuple(seen), str(source), warnings)


# ---- write detections in any of the formats people use ----


def write_detections(
    detections: DetectionSet,
    path: str | Path,
    format: str | None = None,  # noqa: A002 -- what everybody calls it
    *,
    mpp: Resolution = None,
    sizes: Mapping[str, tuple[int, int]] | None = None,
    sources: Mapping[str, Path] | None = None,
    hotspots: Mapping[str, Sequence[Circle]] | None = None,
) -> list[Path]:
    """Write one file, or a folder with one file per slide, and say which files were written.

    A `path` that ends as files of the format do is a file; any other is a folder, and then `format` must
    be named. Each file appears whole or not at all. `mpp` is needed for Grand-Challenge and COCO; `sizes`
    (width and height in level-0 pixels by slide) is stated where a format has room for it; `sources` (the
    slides' files) are needed for DICOM, which refers to them; `hotspots` (x, y and radius in level-0 pixels)
    become shapes in the formats that have shapes.
    """
    path = Path(path)
    chosen = format_for(path, format)
    context = Context("", mpp, sizes or {}, sources or {}, hotspots or {})
    covered = tuple(dict.fromkeys((*detections.slides, *detections.table["slide"])))
    detections = replace(detections, slides=covered)
    detections = detections if chosen.all_columns else by_class(detections)
    if path.suffix.lower() in chosen.suffixes:
        if chosen.one_slide and len(detections.slides) != 1:
            raise UsageError(
                f"a file of the format {chosen.name} holds one slide, and there are {len(detections.slides)}",
                path=path,
                next_step=f"name a folder and give --to {chosen.name}",
            )
        chosen.write(detections, path, context)
        return [path]
    _refuse_alike(detections.slides, path)
    table, files = detections.table, []
    parts = dict(iter(table.groupby("slide", sort=False)))
    for slide in detections.slides:
        part = parts.get(slide, table.iloc[:0]).reset_index(drop=True)
        files.append(path / (file_stem(slide) + chosen.suffixes[0]))
        chosen.write(DetectionSet(part, (slide,), detections.source), files[-1], context)
    return files


def _refuse_alike(slides: Sequence[str], path: Path) -> None:
    """Refuse names that many systems take for one: case, and how accents are coded, tell no files apart."""
    seen: dict[str, str] = {}
    for slide in slides:
        key = unicodedata.normalize("NFC", unicodedata.normalize("NFC", slide).casefold())
        if seen.setdefault(key, slide) != slide:
            raise OutputError(
                f"the files of slides {seen[key]} and {slide} may have the same name",
                path=path,
                next_step="write one csv or parquet file for all slides",
            )


def format_for(path: Path, name: str | None = None) -> Format:
    """The format of a file or folder to be written, by its name or else by the suffix of `path`."""
    suffix, formats = path.suffix.lower(), known_formats()
    every = ", ".join(sorted(formats))
    fitting = [known for known in formats.values() if path.name.lower().endswith(known.own_ending)]
    fitting = fitting or [known for known in formats.values() if suffix in known.suffixes]
    if name is None:
        fitting = [known for known in fitting if known.name in OWN] or fitting
        if len(fitting) == 1:
            return fitting[0]
        raise UsageError(
            "its name fits several formats" if fitting else "its name does not say the format",
            path=path,
            next_step=f"give --to with one of {', '.join(known.name for known in fitting) or every}",
        )
    chosen = formats.get(name.lower())
    if chosen is None:
        raise UsageError(f"there is no format {name!r}", next_step=f"choose one of {every}")
    if fitting and chosen not in fitting:
        raise UsageError(
            f"files of the format {chosen.name} do not end in {suffix}",
            path=path,
            next_step=f"end the name in {chosen.suffixes[0]}, or name a folder",
        )
    return chosen


# ---- from any format to any other ----


def convert_detections(
    inputs: Sequence[str | Path],
    output: str | Path,
    format: str | None = None,  # noqa: A002 -- as in write_detections
    *,
    mpp: float | None = None,
    manifest: str | Path | None = None,
    threshold: float | None = None,
    suppress_um: float | None = None,
    slide: str | Path | None = None,
) -> tuple[DetectionSet, list[Path]]:
    """Read files and folders of any format and write all their slides to `output`; what and where.

    `mpp` holds for all slides; else the manifest's columns mpp, width and height are used, for slides named
    by case, by file, or by the end of either. Points below `threshold` are left out, and of points of one
    slide and label nearer than `suppress_um` all but the most probable; their slides are not. `slide` is the
    file or folder of the only slide, for DICOM; else the manifest's column he names them.
    """
    if mpp is not None:
        check_flag(mpp, None)
    require(threshold is None or 0 <= threshold <= 1, "the threshold", threshold, "from 0 to 1")
    far = suppress_um is None or 0 < suppress_um < math.inf
    require(far, "--suppress-um", suppress_um, "of micrometres above 0, as 7.5")
    format_for(Path(output), format)
    context = _known_slides(inputs, manifest)
    if mpp is not None:
        context = replace(context, mpp=mpp)
    detections = joined([read_detections(path, mpp=context.mpp) for path in inputs], output)
    if threshold is not None:
        detections = detections.at_least(threshold)
    if suppress_um is not None:
        detections = _suppressed(detections, suppress_um, context, Path(output))
    sources = context.sources
    if slide is not None:
        if len(detections.slides) != 1:
            raise UsageError(
                f"one slide is given for the detections of {len(detections.slides)}",
                path=slide,
                next_step="name the slides' files in the column he of a manifest",
            )
        sources = {detections.slides[0]: Path(slide)}
    files = write_detections(
        detections, output, format, mpp=context.mpp, sizes=context.sizes, sources=sources
    )
    return detections, files


def _known_slides(inputs: Sequence[str | Path], manifest: str | Path | None) -> Context:
    """What a manifest says of slides, by each name that means one, else results of `metaphase detect`."""
    facts: list[tuple[str, float, float, float, str]] = []  # name, mpp, width, height, file
    if manifest is not None:
        table = read_manifest(manifest)
        numbers = table.reindex(columns=["mpp", "width", "height"]).astype(float).fillna(0).to_numpy()
        files = table["he"].tolist()
        names = rows_by_name(table).items()
        facts = [(name, *numbers[rows[0]].tolist(), files[rows[0]]) for name, rows in names if len(rows) == 1]
    what, again = "is not a summary", "run metaphase detect again"
    for file in (folder / SUMMARY for path in inputs for folder in result_folders(path)):
        summary = read_json(file, what, next_step=again)
        with parsing(file, what, next_step=again):
            mpp, width, height = (float(summary[name]) for name in ("mpp", "width", "height"))
            facts.append((str(summary["name"]), mpp, width, height, summary["slide"]))
    facts.reverse()  # what is stated first counts
    return Context(
        mpp={name: mpp for name, mpp, *_ in facts if mpp > 0},
        sizes={name: (int(w), int(h)) for name, _, w, h, _ in facts if min(w, h) > 0},
        sources={name: Path(file) for name, *_, file in facts if file},
    )


def _suppressed(detections: DetectionSet, distance_um: float, context: Context, output: Path) -> DetectionSet:
    """The points without those that have a more probable one of their label nearer than `distance_um`."""
    table = detections.table
    kept: list[int] = []
    for (slide, _), points in table.groupby(["slide", "label"], sort=False):
        mpp = context.mpp_of(str(slide), output, "suppression within a distance")
        x, y, probability = (points[name].to_numpy() for name in ("x", "y", "probability"))
        kept.extend(points.index[suppress(x * mpp, y * mpp, probability, distance_um)])
    left = detections.with_table(table.loc[sorted(kept)])
    for point in left.table.attrs.get(OPERATING_POINTS, {}).values():
        if isinstance(point, dict) and "suppress_um" in point:
            point["suppress_um"] = max(point["suppress_um"], distance_um)
    return left
