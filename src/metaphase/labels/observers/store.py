"""The answers: a log in SQLite, each one on the disk before the browser hears it is saved; and as CSV."""

from __future__ import annotations

import contextlib
import csv
import math
import os
import re
import sqlite3
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from uuid import NAMESPACE_OID, uuid4, uuid5

from metaphase.base.errors import UsageError
from metaphase.base.files import refuse_link
from metaphase.base.foreign import parsing, read_bytes
from metaphase.base.later import pandas as pd
from metaphase.base.tables import TableError, delimiter_of, named, text_of_cell, write_table
from metaphase.labels.observers.project import ITEMS, LabellingError, Project, load_project

APPLICATION_ID = 0x6D706C62
"""Marks the file as ours (SQLite's application_id)."""
Said = tuple[str, str, str | None]
"""Observer, item and answer of an entry."""
VERSION = 1
BUSY_S = 10.0
MAX_SECONDS = 24 * 3600.0
MAX_NAME = 64

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE log (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    uuid TEXT NOT NULL UNIQUE,
    observer TEXT NOT NULL CHECK (observer <> ''),
    item TEXT NOT NULL,
    number INTEGER NOT NULL,
    answer TEXT,
    seconds REAL NOT NULL CHECK (seconds >= 0),
    time TEXT NOT NULL
);
CREATE INDEX log_observer_item ON log (observer, item, sequence);
CREATE TRIGGER log_is_not_changed BEFORE UPDATE ON log
    BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE TRIGGER log_is_not_cut BEFORE DELETE ON log
    BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE VIEW current AS
    SELECT sequence, observer, item, answer, seconds, time FROM log
    WHERE sequence IN (SELECT MAX(sequence) FROM log GROUP BY observer, item) AND answer IS NOT NULL;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
COMMIT;
"""


_LATEST = "SELECT MAX(time) FROM log WHERE time GLOB '????-??-??T??:??:??.???+00:00'"
"""The latest time in the log, of those in the form of `now`."""


def now() -> str:
    """The time in UTC, to the millisecond, as answers carry it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line to write into the log; no answer (None) withdraws what was given before."""

    observer: str
    item: str
    answer: str | None
    seconds: float = 0.0
    time: str = ""
    """By default that of its writing."""
    uuid: str = field(default_factory=lambda: str(uuid4()))
    """Written once only, however often it is sent."""


@dataclass(frozen=True, slots=True)
class Given:
    """The answer that stands: the latest of one observer to one item."""

    observer: str
    item: str
    answer: str
    seconds: float
    time: str


def clean_observer(name: str) -> str:
    """A name fit for tables: one line, single spaces, starting with a letter or digit."""
    clean = re.sub(r"\s+", " ", unicodedata.normalize("NFC", name)).strip()
    if not clean or len(clean) > MAX_NAME or not clean.isprintable() or not clean[0].isalnum():
        raise UsageError(
            f"{name[:MAX_NAME]!r} cannot be an observer's name",
            next_step=f"give up to {MAX_NAME} printable characters, a letter or digit first",
        )
    return clean


class AnswerLog:
    """A log of answers in one file, which its owner alone may read. Safe to use from several threads, and
    beside other processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._latest = ""
        with self._explained():
            self._connection = _connect(path)

    def record(self, observer: str, item: str, answer: str | None, seconds: float = 0.0) -> None:
        """Write one answer, or withdraw it (None); it is on the disk when this returns."""
        self.record_many([Entry(observer, item, answer, seconds)])

    def record_many(self, entries: Iterable[Entry]) -> int:
        """Write entries together, all or none, and return how many were new (by their uuid)."""
        with self._lock, self._explained(), self._transaction() as connection:
            names = {name.casefold(): name for name in self._observers()}
            rows, taken, stamp = [], dict[str, Said](), self._stamp()
            for entry in entries:
                self._check(entry)
                name = clean_observer(entry.observer)
                name = names.setdefault(name.casefold(), name)
                number = self._number(entry.item)
                uuid = self._free(entry.uuid, (name, entry.item, entry.answer), taken)
                time = entry.time or stamp
                rows.append((uuid, name, entry.item, number, entry.answer, entry.seconds, time))
            before = connection.total_changes
            connection.executemany(
                "INSERT INTO log (uuid, observer, item, number, answer, seconds, time)"
                " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (uuid) DO NOTHING",
                rows,
            )
            return connection.total_changes - before

    def _stamp(self) -> str:
        """The time, never before that of an earlier answer: where the clock jumps, the order stays."""
        self._latest = self._latest or self._connection.execute(_LATEST).fetchone()[0] or ""
        self._latest = max(self._latest, now())
        return self._latest

    def _free(self, uuid: str, said: Said, taken: dict[str, Said]) -> str:
        """The uuid to write an entry under: its own, or where another entry has that, one made of both.

        So what is sent again is written once, and what says something else is written all the same.
        """
        known = self._connection.execute(
            "SELECT observer, item, answer FROM log WHERE uuid = ?", (uuid,)
        ).fetchone()
        if taken.setdefault(uuid, known or said) == said:
            return uuid
        return str(uuid5(NAMESPACE_OID, f"{uuid} {said}"))

    def current(self, observer: str | None = None) -> list[Given]:
        """The answers that stand, oldest first; of one observer, or of all."""
        where, values = ("", ()) if observer is None else ("WHERE observer = ?", (self.known(observer),))
        rows = self._rows(
            f"SELECT observer, item, answer, seconds, time FROM current {where} ORDER BY sequence", values
        )
        return [Given(*row) for row in rows]

    def known(self, observer: str) -> str:
        """The observer's name as first written: `ANNA` is the `Anna` who began."""
        name = clean_observer(observer)
        return {other.casefold(): other for other in self.observers()}.get(name.casefold(), name)

    def observers(self) -> list[str]:
        """Everybody who ever answered, by name."""
        with self._lock, self._explained():
            return self._observers()

    def seconds_spent(self, observer: str) -> float:
        """All the time an observer spent, that on withdrawn and changed answers included."""
        rows = self._rows("SELECT TOTAL(seconds) FROM log WHERE observer = ?", (self.known(observer),))
        return float(rows[0][0])

    def changes(self) -> dict[str, int]:
        """How often each observer withdrew or replaced an answer."""
        query = "SELECT observer, COUNT(*) - COUNT(DISTINCT item) FROM log GROUP BY observer"
        return dict(self._rows(query))

    def close(self) -> None:
        """Release the database."""
        with self._lock:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _observers(self) -> list[str]:
        return [name for (name,) in self._connection.execute("SELECT DISTINCT observer FROM log ORDER BY 1")]

    def _rows(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock, self._explained():
            return self._connection.execute(query, values).fetchall()

    def _check(self, entry: Entry) -> None:
        if not (math.isfinite(entry.seconds) and 0 <= entry.seconds <= MAX_SECONDS):
            raise UsageError(f"{entry.seconds} seconds make no sense", next_step="give 0 up to a day")

    def _number(self, item: str) -> int:  # noqa: ARG002 -- for logs whose items have one
        """What tells an item from another of the same name."""
        return 0

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
        except BaseException:
            self._connection.rollback()
            raise
        self._connection.commit()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite quotes a damaged schema as it is
            raise _explanation(error, self.path) from error


class AnswerStore(AnswerLog):
    """The answers of a project.

    Opening checks the file, and that the items answered so far are still those of the project.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        super().__init__(project.answers_path)
        try:
            with self._explained():
                self._check_items()
        except BaseException:
            self.close()
            raise

    def _number(self, item: str) -> int:
        return self.project.by_name[item].number

    def _check(self, entry: Entry) -> None:
        if entry.item not in self.project.by_name:
            raise UsageError(f"{entry.item!r} is not an item", next_step=f"name one of {ITEMS}")
        if entry.answer is not None and entry.answer not in self.project.answer_names:
            raise UsageError(
                f"{entry.answer!r} is not an answer", next_step=f"give {', '.join(self.project.answer_names)}"
            )
        super()._check(entry)

    def _check_items(self) -> None:
        """Refuse answers to items that have since left `items.csv` or moved: nobody saw the new ones."""
        query = "SELECT DISTINCT item, number FROM log WHERE sequence IN (SELECT sequence FROM current)"
        numbers = {item.name: item.number for item in self.project.items}
        odd = [item for item, number in self._connection.execute(query) if numbers.get(item) != number]
        if odd:
            raise LabellingError(
                f"{len(odd)} items were changed or removed after they were answered: {named(odd)}",
                path=self.project.folder / ITEMS,
                next_step="put back their rows (new rows may be added), or start a new project folder",
            )


def _connect(path: Path) -> sqlite3.Connection:
    """Open or make the database. FULL makes each commit wait for the disk, also in WAL mode."""
    refuse_link(path)
    _keep_private(path)
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _keep_private(path: Path) -> None:
    """New answers are their owner's only; from older ones strangers are shut out, and a group keeps its own.

    SQLite gives the files that it makes beside a database the same permissions.
    """
    with contextlib.suppress(OSError):  # SQLite says what is wrong
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        elif path.is_file() and path.stat().st_mode & 0o007:
            path.chmod(path.stat().st_mode & 0o770)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    (tables,) = connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
    if not tables:
        try:
            connection.executescript(_SCHEMA)
        except sqlite3.OperationalError as error:
            connection.rollback()
            if "already exists" not in str(error):  # another process was first
                raise
    (found,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if found != APPLICATION_ID or version > VERSION:
        what = "was written by a newer version" if found == APPLICATION_ID else "is some other database"
        raise LabellingError(what, path=path, next_step="update metaphase, or move the file away")
    (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if state != "ok":
        raise sqlite3.DatabaseError(state)


def _explanation(error: Exception, path: Path) -> LabellingError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        what = "is locked by another program, or lies on a disk that knows no locks"
        advice = "close that program, or move the folder to another disk, and try again"
        return LabellingError(what, path=path, next_step=advice)
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return LabellingError(f"cannot be written ({error})", path=path, next_step="free some disk space")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return LabellingError(
            f"cannot be opened ({error})", path=path, next_step="check that you may write to the folder"
        )
    return LabellingError(
        f"the answers are damaged ({error})",
        path=path,
        next_step=f"restore a copy, or save what is left with: sqlite3 {path.name} .recover > saved.sql",
    )


# ---- answers as CSV, to and from other labelling tools ----

COLUMNS = ("observer", "item", "answer", "seconds", "time")
REQUIRED = COLUMNS[:3]


@dataclass(frozen=True)
class Imported:
    """How many answers an import took, and which it left."""

    added: int
    replaced: int
    """Answers that the same observer had given otherwise before."""
    unchanged: int


def export_answers(folder: Path, path: Path) -> int:
    """Write the answers that stand to a CSV and return how many there are."""
    with AnswerStore(load_project(folder)) as store:
        given = store.current()
    rows = [(one.observer, one.item, one.answer, one.seconds, one.time) for one in given]
    write_table(path, pd.DataFrame(rows, columns=list(COLUMNS)))
    return len(rows)


def import_answers(folder: Path, path: Path) -> Imported:
    """Take answers from a CSV (observer, item, answer; seconds and time where known), all or none.

    An answer that already stands is left alone, so that importing twice changes nothing.
    """
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
    delimiter = delimiter_of(text.partition("\n")[0])
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
    _refuse(odd, f"unknown answers (known: {', '.join(project.answer_names)})", path)
    entries = [_entry(row, meaning, path) for row in rows]
    times = Counter(map(_key, entries))
    twice = [f"{entry.item} by {entry.observer}" for entry in entries if times[_key(entry)] > 1]
    _refuse(twice, "answered more than once", path)
    return entries


def _entry(row: dict[str, str], meaning: dict[str, str], path: Path) -> Entry:
    known: dict[str, Any] = {}
    for column, parse in (("seconds", _seconds), ("time", _time)):
        try:
            known[column] = parse(row[column])
        except ValueError as error:
            raise TableError(
                f"item {row['item']}: {row[column]!r} is not a valid {column}",
                path=path,
                next_step="correct the cell, or leave it empty",
            ) from error
    return Entry(clean_observer(row["observer"]), row["item"], meaning[row["answer"].casefold()], **known)


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
