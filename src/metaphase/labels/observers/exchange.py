"""Answers as CSV, to and from other labelling tools."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pandas as pd

from metaphase.base.foreign import parsing, read_bytes
from metaphase.base.tables import TableError, named, text_of_cell, write_table
from metaphase.labels.observers.project import Project, load_project
from metaphase.labels.observers.store import MAX_SECONDS, AnswerStore, Entry, Given, clean_observer, now

Value = TypeVar("Value")

COLUMNS = ("observer", "item", "answer", "seconds", "time")
REQUIRED = COLUMNS[:3]


@dataclass(frozen=True)
class Imported:
    """What an import did."""

    added: int
    replaced: int
    """Answers that the same observer had given otherwise before."""
    unchanged: int


def export_answers(folder: str | Path, path: str | Path) -> int:
    """Write the answers that stand to a CSV and return how many there are."""
    with AnswerStore(load_project(folder)) as store:
        given = store.current()
    rows = [(one.observer, one.item, one.answer, one.seconds, one.time) for one in given]
    write_table(path, pd.DataFrame(rows, columns=list(COLUMNS)))
    return len(rows)


def import_answers(folder: str | Path, path: str | Path) -> Imported:
    """Take answers from a CSV (observer, item, answer; seconds and time where known), all or none.

    An answer that already stands is left alone, so that importing twice changes nothing.
    """
    path = Path(path)
    project = load_project(folder)
    entries = _entries(project, _read_rows(path), path)
    with AnswerStore(project) as store:
        standing = {_key(one): one.answer for one in store.current()}
        new = [entry for entry in entries if standing.get(_key(entry)) != entry.answer]
        store.record_many(new)
    replaced = sum(_key(entry) in standing for entry in new)
    return Imported(len(new) - replaced, replaced, len(entries) - len(new))


def _key(answer: Entry | Given) -> tuple[str, str]:
    return answer.observer.casefold(), answer.item


def _read_rows(path: Path) -> list[dict[str, str]]:
    """All cells as text (observer `01` stays so); tolerates what spreadsheets add: a mark, semicolons."""
    data = read_bytes(path, TableError)
    with parsing(path, "cannot be read", next_step="give a CSV file in UTF-8", error=TableError):
        text = data.decode("utf-8-sig")
    header = text.partition("\n")[0]
    delimiter = ";" if ";" in header and "," not in header else ","
    reader = csv.DictReader(text.splitlines(), delimiter=delimiter, restval="")
    columns = [name.strip().lower() for name in reader.fieldnames or []]
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise TableError(
            f"the table has no column {', '.join(missing)}",
            path=path,
            next_step=f"name the columns {', '.join(COLUMNS)}",
        )
    reader.fieldnames = columns
    return [{name: text_of_cell(row.get(name, "").strip()) for name in COLUMNS} for row in reader]


def _entries(project: Project, rows: list[dict[str, str]], path: Path) -> list[Entry]:
    meaning = {answer.label.casefold(): answer.name for answer in project.settings.answers if answer.label}
    meaning |= {name.casefold(): name for name in project.answer_names}
    _refuse([row["item"] for row in rows if row["item"] not in project.by_name], "unknown items", path)
    odd = [repr(row["answer"]) for row in rows if row["answer"].casefold() not in meaning]
    _refuse(odd, f"unknown answers (known are {', '.join(project.answer_names)})", path)
    entries = [
        Entry(
            clean_observer(row["observer"]),
            row["item"],
            meaning[row["answer"].casefold()],
            _parsed(row, "seconds", _seconds, path),
            _parsed(row, "time", _time, path),
        )
        for row in rows
    ]
    times = Counter(map(_key, entries))
    twice = [f"{entry.item} by {entry.observer}" for entry in entries if times[_key(entry)] > 1]
    _refuse(twice, "answered more than once", path)
    return entries


def _parsed(row: dict[str, str], column: str, parse: Callable[[str], Value], path: Path) -> Value:
    try:
        return parse(row[column])
    except ValueError as error:
        raise TableError(
            f"item {row['item']}: {row[column]!r} makes no sense as {column}",
            path=path,
            next_step="correct the cell, or leave it empty",
        ) from error


def _seconds(text: str) -> float:
    value = float(text or 0)
    if not 0 <= value <= MAX_SECONDS:
        raise ValueError(text)
    return value


def _time(text: str) -> str:
    if not text:
        return now()
    return datetime.fromisoformat(text).astimezone(UTC).isoformat(timespec="milliseconds")


def _refuse(found: list[str], what: str, path: Path) -> None:
    if found:
        raise TableError(f"{what}: {named(found)}", path=path, next_step="correct the rows and import again")
