"""The folder of a cohort: which of its slides its commands ask for, the index and the tables of these.

`index.html`, `counts.csv`, `detections.parquet` and `candidates.parquet` hold what the last command asked
for: slides of another model or other settings, and those that no command asks for any more, are listed apart.
`cohort.json` keeps what was asked for.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from metaphase.analysis.record import COUNTS, INDEX, REPORT, SlideResult, load_result
from metaphase.base.errors import MetaphaseError, OutputError, ResultWarning
from metaphase.base.files import explained, refuse_link, stored_path, write_text
from metaphase.base.foreign import is_file
from metaphase.base.later import pandas as pd
from metaphase.base.provenance import account_of, fingerprint_of
from metaphase.base.remote import is_url
from metaphase.base.sharing.batch import forget_failures, known_failures, one_at_a_time
from metaphase.base.tables import Remark, read_table, write_table
from metaphase.base.typed import Stored, read_typed
from metaphase.counting.clinical import COLUMNS, counts_row
from metaphase.detections.files import joined, result_folders, write_detections
from metaphase.detections.table import CANDIDATES, DETECTIONS, OPERATING_POINTS, SUMMARY, DetectionSet
from metaphase.labels.observers.positions import ANSWERS
from metaphase.reports.cohort import ROWS, methods_text, read_rows, write_cohort_index, write_rows
from metaphase.reports.record import SCHEMA
from metaphase.version import __version__

ASKED = "cohort.json"
EARLIER = "earlier results"
"""What asks for slides that were there before anybody said what is asked for."""
REMOVED = "removed"
"""Folder for results that a command has pruned."""
DIGITS = 4
"""Of the measures in `counts.csv`; `summary.json` has all."""
WHOLE = ("likely", "likely_low", "likely_high")
"""Whole numbers of which some may be missing."""
PIXELS = ("hotspot_x", "hotspot_y", "hotspot_radius_px")
OTHERWISE = "searched or counted by another model or with other settings"
NOT_ASKED = "no longer asked for"
PRUNE = "run all slides with the same settings, use one folder per setting, or give --prune"


class Asked(Stored):
    """What the commands of a folder ask for."""

    format: Literal[1] = 1
    slides: dict[str, tuple[str, ...]]
    """Names of slides by what asked for them: a manifest, a folder, a file."""
    setting: str
    """Tells model and settings of the last command from others."""

    @property
    def names(self) -> set[str]:
        """All slides that are asked for."""
        return {name for names in self.slides.values() for name in names}


@dataclass(frozen=True)
class CohortFolder:
    """All slides that lie in a folder of results, whoever put them there, and those that failed."""

    rows: tuple[dict[str, Any], ...]
    """What is asked for, made with one setting."""
    apart: tuple[dict[str, Any], ...]
    """The others, each with its `reason`."""
    failed: Mapping[str, str]
    fresh: frozenset[str]
    """Slides that are new or changed since the index was last written."""
    pruned: tuple[str, ...] = ()
    """What was moved away."""


def ask_for(
    output: str | Path, points: Mapping[str, Any], asked: Mapping[str, Sequence[str]], *, alone: bool = False
) -> None:
    """Note what a command asks for, at which operating points, before it begins.

    It adds to what others asked for, or replaces what one of the same name did; whatever is gone from the
    disk asks for nothing any more. `alone`, nothing else is asked for.
    """
    output = Path(output)
    with one_at_a_time(output, "index"):
        now = {
            stored_path(name, output) if Path(name).is_absolute() else name: tuple(slides)
            for name, slides in asked.items()
        }
        known = None if alone else _asked(output)
        if known is not None:
            before = {name: slides for name, slides in known.slides.items() if _still_asks(output, name)}
        else:
            new = {name for slides in now.values() for name in slides}
            there = (
                [] if alone else [folder.name for folder in result_folders(output) if folder.name not in new]
            )
            before = {EARLIER: tuple(there)} if there else {}
        wanted = Asked(slides=before | now, setting=_setting(points))
        if wanted != known:
            write_text(output / ASKED, wanted.model_dump_json(indent=1) + "\n")


def _asked(output: Path) -> Asked | None:
    """What is asked for of a folder; None where nobody ever said."""
    path = output / ASKED
    again = "remove it, and run metaphase detect again for all slides of the folder"
    return (
        read_typed(path, Asked, "does not say what was asked for", next_step=again) if is_file(path) else None
    )


def _still_asks(output: Path, name: str) -> bool:
    """Whether a manifest, with or without a split, a folder or a file is still there."""
    there = ((output / one).exists() for one in (name, name.rpartition(" ")[0]))
    return name == EARLIER or is_url(name) or any(there)


def write_cohort(output: str | Path, *, prune: bool = False) -> CohortFolder:
    """Write the index of all reports and the tables of all slides from the folders of the slides.

    Their setting is that of the last command, or what most of them have. What index and tables say of slides
    that are as they were is kept. With `prune`, results that are not asked for are moved to the folder
    `removed`. Others may put slides into the folder at the same time, and write all this after this one has:
    whoever is the last has all of them.
    """
    output = Path(output)
    with one_at_a_time(output, "index"):
        wanted = _asked(output)
        if wanted is not None:
            forget_failures(output, wanted.names)
        made, kept = read_rows(output / ROWS)
        made = made if made.get("version") == [__version__, SCHEMA] else {}
        cohort = _load_cohort(output, [*kept, *made.get("apart", ())] if made else (), wanted)
        if prune and cohort.apart:
            pruned = tuple(_prune(output, row["folder"]) for row in cohort.apart)
            cohort = replace(cohort, apart=(), pruned=pruned)
        by_code, methods = _words(output, cohort.rows)
        locked = list[OutputError]()
        with _going_on(locked):
            write_table(output / COUNTS, _counts(cohort.rows))
        tables = {}
        for file in (DETECTIONS, CANDIDATES):
            with _going_on(locked):
                if cohort.rows:
                    is_kept = bool(made) and made["tables"].get(file) == _stamp(output, file)
                    _write_table(output / file, cohort, is_kept)
                    tables[file] = _stamp(output, file)
                else:
                    with explained(output / file):
                        (output / file).unlink(missing_ok=True)
        said = {"version": [__version__, SCHEMA], "tables": tables, "apart": cohort.apart}
        write_rows(output / ROWS, said, cohort.rows)
        write_cohort_index(output / INDEX, cohort.rows, cohort.apart, cohort.failed, by_code, methods)
    if locked:
        raise locked[0]
    return cohort


@contextmanager
def _going_on(locked: list[OutputError]) -> Iterator[None]:
    """Collect the error of a table that is open in a spreadsheet, so that the others are still written."""
    try:
        yield
    except OutputError as error:
        locked.append(error)


def _prune(output: Path, name: str) -> str:
    """Move a slide's results to the folder `removed`, and say under which name; nothing is deleted."""
    number, target = 1, output / REMOVED / name
    while target.exists():
        number += 1
        target = output / REMOVED / f"{name}-{number}"
    refuse_link(target.parent)
    with explained(target):
        target.parent.mkdir(exist_ok=True)
        (output / name).rename(target)
    answered = f" (with answers of people: {ANSWERS})" if (target / ANSWERS).is_file() else ""
    return f"{target.name}{answered}"


def _load_cohort(output: Path, kept: Iterable[dict[str, Any]], wanted: Asked | None) -> CohortFolder:
    failed = {failure.name: failure.message for failure in known_failures(output)}
    known, rows, fresh = {row["folder"]: row for row in kept}, [], []
    names = None if wanted is None or not wanted.slides else wanted.names
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
        rows.append({key: value for key, value in row.items() if key != "reason"})
    settings = [row["setting"] for row in rows if names is None or row["folder"] in names]
    usual = wanted.setting if wanted is not None else statistics.mode(settings or [""])
    alike, apart = [], []
    for row in rows:
        is_asked = names is None or row["folder"] in names
        if is_asked and row["setting"] == usual:
            alike.append(row)
        else:
            apart.append(row | {"reason": OTHERWISE if is_asked else NOT_ASKED})
    return CohortFolder(tuple(alike), tuple(apart), failed, frozenset(fresh))


def _stamp(folder: Path, *files: str) -> str:
    """A key that changes when files are written anew."""
    states = []
    for file in files:
        with suppress(FileNotFoundError):
            state = (folder / file).stat()
            states.append((file, state.st_mtime_ns, state.st_size))
    return fingerprint_of(states)[:12]


def _cohort_row(result: SlideResult, stamp: str) -> dict[str, Any]:
    """A slide's row in the index; `counts.csv` has its part up to `report`."""
    record, folder = result.record, result.folder.name
    row = counts_row(result.name, record)
    known = {name: None if row[name] != row[name] else row[name] for name in COLUMNS}  # no NaN in JSON
    return known | {
        "detections": record.detections,
        "warnings": list(dict.fromkeys(warning.code for warning in result.warnings)),
        "model": record.operating_points.model,
        "report": f"{folder}/{REPORT}",
        "text": record.text,
        "interval_text": record.interval_text,
        "folder": folder,
        "setting": _setting(result.points),
        "stamp": stamp,
    }


def _counts(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The counts in force of slides, a row each, and where their reports lie."""
    table = [{**row, "warnings": len(row["warnings"])} for row in rows]
    columns = [*COLUMNS, "detections", "warnings", "model", "report"]
    brief = [{name: _brief(name, row[name]) for name in columns} for row in table]
    return pd.DataFrame(brief, columns=columns).astype(dict.fromkeys(WHOLE, "Int64"))


def _brief(name: str, value: Any) -> Any:
    """A value for reading: measures to four significant digits, positions to a tenth of a pixel.

    A threshold stays as it is: by it, `evaluate` tells which rows are meant.
    """
    if name == "threshold" or not isinstance(value, float) or not math.isfinite(value):
        return value
    return round(value, 1) if name in PIXELS else float(f"{value:.{DIGITS}g}")


def _words(output: Path, rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, ResultWarning], str]:
    """What the first slide with each warning says of it, and how the first of all, and so the others, was
    counted: one that is counted anywhere, if there is one."""
    by_code, methods = dict[str, ResultWarning](), ""
    people = {
        "reviewed": sum(row["kind"] == "reviewed" for row in rows),
        "scoped": sum(bool(row["scope"]) for row in rows),
    }
    for row in sorted(rows, key=lambda row: bool(row["scope"])):
        new = [code for code in row["warnings"] if code not in by_code]
        if new or not methods:
            with suppress(MetaphaseError):  # somebody works on it just now
                result = load_result(output / row["folder"])
                said = {warning.code: warning for warning in result.warnings}
                by_code |= {code: said[code] for code in new if code in said}
                methods = methods or methods_text(result.record, result.points, len(rows), **people)
    return by_code, methods


def _setting(points: Mapping[str, Any]) -> str:
    return fingerprint_of(account_of(points))[:12]


def _write_table(path: Path, cohort: CohortFolder, is_kept: bool) -> None:
    """Points of all slides as one table, in their order; where it `is_kept`, unchanged slides stay."""
    order = {row["case"]: position for position, row in enumerate(cohort.rows)}
    parts: list[DetectionSet] = []
    if is_kept:
        table = read_table(path)
        table = table[table["slide"].isin(set(order) - cohort.fresh)]
        parts = [DetectionSet(table, tuple(table["slide"].unique()))]
    there = {name for part in parts for name in part.slides}
    new = [row for row in cohort.rows if row["case"] not in there]
    folders = {row["case"]: path.parent / row["folder"] for row in cohort.rows}
    parts += [DetectionSet(read_table(folders[row["case"]] / path.name), (row["case"],)) for row in new]
    stated = parts[-1].table.attrs.get(OPERATING_POINTS, {})
    whole = joined(parts, path)
    positions = whole.table["slide"].map(order).to_numpy()
    table = whole.table.iloc[np.argsort(positions, kind="stable")].reset_index(drop=True)
    table.attrs[OPERATING_POINTS] = Remark(stated)
    write_detections(DetectionSet(table, tuple(order)), path, "parquet")
