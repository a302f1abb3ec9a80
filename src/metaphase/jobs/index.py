"""All slides that lie in a folder of results: one table of them, and one page that leads to their reports.

All rows lie beside the page in `index.js`, for search, sorting, filter and paging; the page holds the first.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd

from metaphase.base.errors import Caution, MetaphaseError
from metaphase.base.files import write_text
from metaphase.base.provenance import account_of, fingerprint_of
from metaphase.base.sharing.batch import known_failures, one_at_a_time
from metaphase.base.tables import Remark, read_table, write_table
from metaphase.counting.clinical import COLUMNS, counts_row
from metaphase.detections import DetectionSet, joined, write_detections
from metaphase.detections.files import result_folders
from metaphase.detections.table import DETECTIONS, OPERATING_POINTS, SUMMARY
from metaphase.jobs.results import CANDIDATES, REPORT, SCHEMA, SlideResult, load_result
from metaphase.reports.pages import render
from metaphase.version import __version__

INDEX, COUNTS = "index.html", "counts.csv"
ROWS = "index.js"
ASSIGNED, BEFORE, AFTER = "const SLIDES = ", ', "rows": [\n', "\n]};\n"
"""Around them: a script may be loaded where a page that is a file may fetch nothing."""
PAGE_ROWS = 50
NAMED_AT_MOST = 20
"""Slides of a warning, and failed ones, that the page itself names."""
Row = Mapping[str, Any]
"""A slide: its row of `counts.csv`, `warnings` by their codes, and `shown` and `may_be` as they are read."""


def write_cohort_index(
    path: Path,
    rows: Sequence[Row],
    failed: Mapping[str, str],
    told: Mapping[str, Caution],
    kinds: Mapping[str, tuple[str, str]],
) -> None:
    """Write the index of `rows`, the highest count first; `failed` tells why slides have no result.

    `told` has the words of the first slide with a warning, by its code; `kinds` what each kind of count is,
    and what its interval means.
    """
    codes = {code: [row["case"] for row in rows if code in row["warnings"]] for code in told}
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
        told=told,
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

OTHERWISE = Caution(
    "made-otherwise",
    "searched or counted with other settings than the slides of the tables, and left out of these",
    "run all slides with the same settings, or each setting into a folder of its own",
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
        told, kinds = _words(output, rows)
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
        write_cohort_index(output / INDEX, rows, cohort.failed, told, kinds)
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
    return {name: row[name] for name in COLUMNS[: COLUMNS.index("area_mm2") + 1]} | {
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
    table = pd.DataFrame([{**row, "warnings": len(row["warnings"])} for row in rows])
    return table.loc[:, :"report"] if rows else pd.DataFrame(columns=list(COLUMNS))


def _words(
    output: Path, rows: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Caution], dict[str, tuple[str, str]]]:
    """What the first slide with each warning says of it, and what each kind of count means."""
    told, kinds = dict[str, Caution](), dict[str, tuple[str, str]]()
    for row in rows:
        new = [code for code in row["warnings"] if code not in told]
        if new or row["kind"] not in kinds:
            with suppress(MetaphaseError):  # somebody works on it just now
                result = load_result(output / row["folder"])
                said = {one.code: one for one in (OTHERWISE, *result.warnings)}
                told |= {code: said[code] for code in new if code in said}
                kinds.setdefault(row["kind"], (result.in_force.kind_text, result.in_force.interval_note))
    return told, kinds


def _setting(points: Mapping[str, Any]) -> str:
    return fingerprint_of(account_of(points))[:12]


def _write_table(path: Path, cohort: CohortFolder, is_kept: bool) -> None:
    """Points of all slides as one table, in their order; where it `is_kept`, unchanged slides stay."""
    order = {row["case"]: place for place, row in enumerate(cohort.rows)}
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
    places = whole.table["slide"].map(order).to_numpy()
    table = whole.table.iloc[np.argsort(places, kind="stable")].reset_index(drop=True)
    table.attrs[OPERATING_POINTS] = Remark(load_result(next(iter(folders.values()))).stated)
    write_detections(DetectionSet(table, tuple(order)), path, "parquet")
