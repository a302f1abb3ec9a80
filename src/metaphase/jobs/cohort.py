"""A cohort: its H&E slides with resolution and tissue, by path or manifest; index and tables of all results.

All rows of the index lie beside the page in `index.js`, for search, sorting, filter and paging; the page
holds the first.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd

from metaphase.base.errors import (
    MetaphaseError,
    MissingResolutionError,
    ResultWarning,
    ResultWarnings,
    UsageError,
)
from metaphase.base.files import write_text
from metaphase.base.foreign import readable_name
from metaphase.base.parallel import ordered_map
from metaphase.base.provenance import account_of, fingerprint_of
from metaphase.base.sharing.batch import Batch, BatchWatch, known_failures, one_at_a_time, run_batch
from metaphase.base.tables import (
    Remark,
    case_folder,
    natural,
    read_manifest,
    read_table,
    stated_number,
    write_table,
)
from metaphase.counting.clinical import COLUMNS, counts_row
from metaphase.detections.files import joined, result_folders, write_detections
from metaphase.detections.table import DETECTIONS, OPERATING_POINTS, SUMMARY, DetectionSet
from metaphase.images.tissue.finding import TissueSource, find_tissue, save_overlay, save_tissue
from metaphase.jobs.results import CANDIDATES, REPORT, SCHEMA, SlideResult, load_result
from metaphase.reports.pages import render
from metaphase.slides.opening import SlideSource, is_called_slide, sources_with
from metaphase.version import __version__

AT_ONCE = 8
"""Slides that are looked at together before a run: storage far away answers slowly."""


@dataclass(frozen=True)
class CohortSlide:
    """An H&E slide with its name, and where its tissue comes from."""

    name: str
    """What its results are called: a manifest's case, the stem of the file, the name of a DICOM folder."""
    slide: SlideSource
    tissue: TissueSource = field(default_factory=TissueSource)


def slides_in(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Slides, of folders those directly inside; and what else lies there that is none."""
    found, others = list[Path](), list[Path]()
    for path in paths:
        if not path.is_dir() or is_called_slide(path):
            found.append(path)
            continue
        inside = sorted(path.iterdir(), key=lambda one: natural(one.name))
        inside = [one for one in inside if not one.name.startswith(".")]
        slides = [one for one in inside if is_called_slide(one) and ".tissue." not in one.name]
        if not slides:
            raise UsageError("no slide in the folder", path=path, next_step="give the folder with the slides")
        parts = {one.with_suffix("") for one in slides if one.suffix.lower() == ".mrxs"}
        others += [one for one in inside if one not in slides and one not in parts]
        found += slides
    return found, others


def named_slides(
    slides: Iterable[Path | SlideSource], *, mpp: float | None = None, tissue: str = ""
) -> dict[str, CohortSlide]:
    """Slides by their files' stems; those of one name have the names of their folders before it.

    `mpp` is that of paths to slides that state none.
    """
    found: dict[str, CohortSlide] = {}
    slides, source = list(slides), TissueSource.stated(tissue)
    if source.mask is not None and len(slides) > 1:
        raise UsageError(
            f"one tissue mask is given for {len(slides)} slides",
            path=source.mask,
            next_step="name each slide's mask in the column tissue of a manifest, or run them one by one",
        )
    stated = iter(sources_with([slide for slide in slides if not isinstance(slide, SlideSource)], mpp))
    given = [slide if isinstance(slide, SlideSource) else next(stated) for slide in slides]
    for slide, name in zip(given, _distinct_names([slide.path for slide in given]), strict=True):
        if name in found:
            raise UsageError(
                f"its outputs would overwrite those of {found[name].slide.path}",
                path=slide.path,
                next_step="name each slide once, or name them in a manifest",
            )
        found[name] = CohortSlide(name, slide, source)
    return found


def _distinct_names(paths: Sequence[Path]) -> list[str]:
    """The stems; where several are the same, with as many folders before them as it takes.

    >>> _distinct_names([Path("a/he.tif"), Path("b/he.tif"), Path("c.tif")])
    ['a-he', 'b-he', 'c']
    """
    ways = [(*path.parts[:-1], path.resolve().name if path.is_dir() else path.stem) for path in paths]
    names = [way[-1] for way in ways]
    for folders in range(1, max(map(len, ways), default=0)):
        often = Counter(names)
        names = [
            "-".join(part.strip("/\\:.") for part in way[-folders - 1 :]).strip("-")
            if often[name] > 1
            else name
            for way, name in zip(ways, names, strict=True)
        ]
    return [readable_name(name) for name in names]


def without_resolution(slides: Iterable[CohortSlide]) -> dict[str, MissingResolutionError]:
    """What to tell of slides that state no resolution, by name, before a model is loaded for them.

    Slides that cannot be opened fail when their turn comes.
    """
    unstated, slides = dict[str, MissingResolutionError](), list(slides)
    stated = ordered_map(lambda one: one.slide.effective_mpp, slides, threads=AT_ONCE, ahead=4 * AT_ONCE)
    for one, mpp in zip(slides, stated, strict=True):
        if mpp is not None:
            continue
        try:
            with one.slide.open() as slide:
                _ = slide.mpp
        except MissingResolutionError as error:
            unstated[one.name] = error
        except MetaphaseError:
            continue
    return unstated


def cohort_slides(
    manifest: str | Path, split: str = "", *, mpp: float | None = None, tissue: str = ""
) -> list[CohortSlide]:
    """The H&E slides of a manifest, with what it says of their resolution and tissue; else what is given."""
    table = read_manifest(manifest)
    table = table[(table["he"] != "") & ((table["split"] == split) | (not split))]
    found = [cohort_slide(row, tissue=tissue) for row in table.to_dict("records")]
    silent = iter(sources_with([one.slide.path for one in found if one.slide.mpp is None], mpp))
    return [replace(one, slide=next(silent)) if one.slide.mpp is None else one for one in found]


def cohort_slide(row: Mapping[Any, Any], *, tissue: str = "") -> CohortSlide:
    """The H&E slide of a manifest's row."""
    return CohortSlide(
        case_folder("", str(row["case"])).name,
        SlideSource(Path(str(row["he"])), stated_number(row, "mpp")),
        TissueSource.stated(str(row.get("tissue") or tissue)),
    )


# ---- `metaphase tissue`: the outlines of slides, for people and for `--tissue` ----


@dataclass(frozen=True)
class Outlined:
    """The tissue of a slide, and the files that show it, the picture last."""

    slide: Path
    area_mm2: float
    fraction: float
    """Of what the scanner filled."""
    files: tuple[Path, ...]
    warnings: ResultWarnings


def outline_slides(
    slides: Mapping[str, CohortSlide], output: str | Path, *, watch: BatchWatch | None = None
) -> Batch[Outlined]:
    """Write mask, polygons and picture of each slide's tissue; a bad slide is recorded, the others go on."""
    folder = Path(output)

    def outline(item: CohortSlide, _progress: object) -> Outlined:
        with item.slide.open() as slide:
            mask = find_tissue(slide)
            files = (*save_tissue(mask, folder, item.name), save_overlay(slide, mask, folder, item.name))
            whole_mm2 = slide.bounds.area * (slide.mpp / 1000) ** 2
        return Outlined(item.slide.path, mask.area_mm2, mask.area_mm2 / whole_mm2, files, mask.warnings)

    return run_batch({str(item.slide.path): item for item in slides.values()}, outline, folder, watch)


INDEX, COUNTS = "index.html", "counts.csv"
ROWS = "index.js"
ASSIGNED, BEFORE, AFTER = "const SLIDES = ", ', "rows": [\n', "\n]};\n"
"""Around them: a script may be loaded where a page that is a file may fetch nothing."""
COUNTED = COLUMNS[: COLUMNS.index("area_mm2") + 1]
"""First columns of `counts.csv`."""
PAGE_ROWS = 50
NAMED_AT_MOST = 20
"""Slides of a warning, and failed ones, that the page itself names."""
Row = Mapping[str, Any]
"""A slide: its row of `counts.csv`, `warnings` by their codes, and `shown` and `may_be` as they are read."""


def write_cohort_index(
    path: Path,
    rows: Sequence[Row],
    failed: Mapping[str, str],
    by_code: Mapping[str, ResultWarning],
    kinds: Mapping[str, tuple[str, str]],
) -> None:
    """Write the index of `rows`, the highest count first; `failed` tells why slides have no result.

    `by_code` has the words of the first slide with a warning, by code; `kinds` what each kind of count is,
    and what its interval means.
    """
    codes = {code: [row["case"] for row in rows if code in row["warnings"]] for code in by_code}
    ordered = sorted(rows, key=lambda row: -1.0 if row["count"] is None else row["count"], reverse=True)
    page = render(
        "cohort.html",
        "cohort.js",
        beside=ROWS,
        rows=ordered[:PAGE_ROWS],
        links={row["case"]: quote(row["report"]) for row in ordered[:PAGE_ROWS]},
        total=len(rows),
        failed=failed,
        warned=sum(bool(row["warnings"]) for row in rows),
        warnings=sorted(codes.items(), key=lambda one: -len(one[1])),
        by_code=by_code,
        everywhere=[code for code in codes if len(codes[code]) == len(rows)],
        kinds=kinds,
        most=NAMED_AT_MOST,
    )
    write_text(path, page)


def write_rows(path: Path, made: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Write rows as the page reads them, one a line, after what is said about all of them."""
    columns = list(rows[0]) if rows else []
    lines = ",\n".join(json.dumps([row[name] for name in columns], allow_nan=False) for row in rows)
    head = json.dumps({**made, "columns": columns, "checksum": fingerprint_of(lines)}, allow_nan=False)
    write_text(path, f"{ASSIGNED}{head[:-1]}{BEFORE}{lines}{AFTER}")


def read_rows(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What `write_rows` wrote; nothing where it is not as it was written."""
    try:
        head, _, lines = path.read_text(encoding="utf-8").removeprefix(ASSIGNED).partition(BEFORE)
        made, lines = json.loads(f"{head}}}"), lines.removesuffix(AFTER)
        if made["checksum"] != fingerprint_of(lines):
            return {}, []
        return made, [dict(zip(made["columns"], row, strict=True)) for row in json.loads(f"[{lines}]")]
    except (OSError, ValueError, KeyError, TypeError):
        return {}, []


# ---- all slides of a cohort ----

OTHERWISE = ResultWarning(
    "made-otherwise",
    "searched or counted with settings other than those of the tables, and left out of the tables",
    "run all slides with the same settings, or use one folder per setting",
)


@dataclass(frozen=True)
class CohortFolder:
    """All slides that lie in a folder of results, whoever put them there, and those that failed."""

    rows: tuple[dict[str, Any], ...]
    """Made with one setting."""
    otherwise: tuple[dict[str, Any], ...]
    """Made with others: one table cannot hold both."""
    failed: Mapping[str, str]
    fresh: frozenset[str]
    """Slides that are new or changed since the index was last written."""


def write_cohort(output: str | Path, points: Mapping[str, Any] | None = None) -> CohortFolder:
    """Write the index of all reports and the tables of all slides from the folders of the slides.

    Their setting is that of `points`, or what most of them have. What index and tables say of slides that are
    as they were is kept. Others may put slides into the folder at the same time, and write all this after
    this one has: whoever is the last has all of them.
    """
    output = Path(output)
    with one_at_a_time(output, "index"):
        made, kept = read_rows(output / ROWS)
        made = made if made.get("version") == [__version__, SCHEMA] else {}
        cohort = _load_cohort(output, kept if made else (), points)
        rows = [
            *cohort.rows,
            *({**one, "warnings": [OTHERWISE.code, *one["warnings"]]} for one in cohort.otherwise),
        ]
        by_code, kinds = _words(output, rows)
        write_table(output / COUNTS, _counts(rows))
        tables = {}
        for file in (DETECTIONS, CANDIDATES):
            if cohort.rows:
                is_kept = bool(made) and made["tables"].get(file) == _stamp(output, file)
                _write_table(output / file, cohort, is_kept)
                tables[file] = _stamp(output, file)
            else:
                (output / file).unlink(missing_ok=True)
        write_rows(output / ROWS, {"version": [__version__, SCHEMA], "tables": tables}, rows)
        write_cohort_index(output / INDEX, rows, cohort.failed, by_code, kinds)
    return cohort


def _load_cohort(
    output: Path, kept: Iterable[dict[str, Any]], points: Mapping[str, Any] | None
) -> CohortFolder:
    failed = {failure.name: failure.message for failure in known_failures(output)}
    known, rows, fresh = {row["folder"]: row for row in kept}, [], []
    for folder in result_folders(output):
        if folder.name in failed:
            continue
        stamp = _stamp(folder, SUMMARY, DETECTIONS, CANDIDATES)
        row = known.get(folder.name)
        if row is None or row["stamp"] != stamp:
            try:
                row = _cohort_row(load_result(folder), stamp)
            except MetaphaseError as error:
                failed[folder.name] = str(error)
                continue
            fresh.append(row["case"])
        rows.append(row | {"warnings": [code for code in row["warnings"] if code != OTHERWISE.code]})
    keys = [row["setting"] for row in rows]
    usual = statistics.mode(keys or [""]) if points is None else _setting(points)
    return CohortFolder(
        tuple(row for row in rows if row["setting"] == usual),
        tuple(row for row in rows if row["setting"] != usual),
        failed,
        frozenset(fresh),
    )


def _stamp(folder: Path, *files: str) -> str:
    """Tells files that were written anew."""
    states = []
    for file in files:
        with suppress(FileNotFoundError):
            state = (folder / file).stat()
            states.append((file, state.st_mtime_ns, state.st_size))
    return fingerprint_of(states)[:12]


def _cohort_row(result: SlideResult, stamp: str) -> dict[str, Any]:
    """A slide's row in the index; `counts.csv` has its part up to `report`."""
    summary, count, folder = result.summary, result.in_force, result.folder.name
    row = counts_row(result.name, summary)
    return {name: row[name] for name in COUNTED} | {
        "counted_mm2": summary["counted_mm2"],
        "detections": summary["detections"],
        "warnings": list(dict.fromkeys(one.code for one in result.warnings)),
        "report": f"{folder}/{REPORT}",
        "shown": count.text,
        "may_be": count.interval_text,
        "folder": folder,
        "setting": _setting(result.points),
        "stamp": stamp,
    }


def _counts(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The counts in force of slides, a row each, and where their reports lie."""
    table = [{**row, "warnings": len(row["warnings"])} for row in rows]
    return pd.DataFrame(table, columns=[*COUNTED, "counted_mm2", "detections", "warnings", "report"])


def _words(
    output: Path, rows: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, ResultWarning], dict[str, tuple[str, str]]]:
    """What the first slide with each warning says of it, and what each kind of count means."""
    by_code, kinds = dict[str, ResultWarning](), dict[str, tuple[str, str]]()
    for row in rows:
        new = [code for code in row["warnings"] if code not in by_code]
        if new or row["kind"] not in kinds:
            with suppress(MetaphaseError):  # somebody works on it just now
                result = load_result(output / row["folder"])
                said = {one.code: one for one in (OTHERWISE, *result.warnings)}
                by_code |= {code: said[code] for code in new if code in said}
                kinds.setdefault(row["kind"], (result.in_force.kind_text, result.in_force.interval_note))
    return by_code, kinds


def _setting(points: Mapping[str, Any]) -> str:
    return fingerprint_of(account_of(points))[:12]


def _write_table(path: Path, cohort: CohortFolder, is_kept: bool) -> None:
    """Points of all slides as one table, in their order; where it `is_kept`, unchanged slides stay."""
    order = {row["case"]: position for position, row in enumerate(cohort.rows)}
    parts = []
    if is_kept:
        table = read_table(path)
        table = table[table["slide"].isin(set(order) - cohort.fresh)]
        parts = [DetectionSet(table, tuple(table["slide"].unique()))]
    there = {name for part in parts for name in part.slides}
    new = [row for row in cohort.rows if row["case"] not in there]
    folders = {row["case"]: path.parent / row["folder"] for row in cohort.rows}
    parts += [DetectionSet(read_table(folders[row["case"]] / path.name), (row["case"],)) for row in new]
    whole = joined(parts, path)
    positions = whole.table["slide"].map(order).to_numpy()
    table = whole.table.iloc[np.argsort(positions, kind="stable")].reset_index(drop=True)
    table.attrs[OPERATING_POINTS] = Remark(load_result(next(iter(folders.values()))).stated)
    write_detections(DetectionSet(table, tuple(order)), path, "parquet")
