"""SQLite files: those of strangers, who may have built them to do harm, and new ones."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from metaphase.base.errors import OutputError
from metaphase.base.files import atomic_path
from metaphase.base.foreign import parsing, raised
from metaphase.base.later import pandas as pd
from metaphase.base.tables import TableError

STEPS = 1_000_000
"""SQLite says after so many of its steps that it is still at work ..."""
STEPS_ALLOWED = 200
"""... and is stopped when it did so this often, and once more for each of as many bytes: some seconds."""


@contextmanager
def open_database(path: Path, *, what: str, next_step: str) -> Iterator[sqlite3.Connection]:
    """A read-only connection; whatever fails becomes an error that says what the file is not."""
    address = f"{path.resolve().as_uri()}?mode=ro"
    with (
        parsing(path, what, next_step=next_step, error=TableError),
        closing(sqlite3.connect(address, uri=True)) as connection,
    ):
        # Text that is no UTF-8 stays readable; a schema that runs code, or pages in a circle, ends.
        connection.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
        connection.execute("PRAGMA trusted_schema = OFF")
        steps = iter(range(raised(STEPS_ALLOWED + path.stat().st_size // STEPS)))
        connection.set_progress_handler(lambda: int(next(steps, None) is None), STEPS)
        yield connection


_KIND = "SELECT type FROM sqlite_master WHERE name = ? COLLATE NOCASE AND type IN ('table', 'view')"


def rows_of(connection: sqlite3.Connection, table: str, columns: str) -> pd.DataFrame:
    """Columns of a table; those that its version did not have yet are empty."""
    (kind,) = connection.execute(_KIND, (table,)).fetchone() or ("table",)
    if kind != "table":
        raise sqlite3.DatabaseError(f"{table} is a {kind}")
    there = columns_of(connection, table)
    chosen = ", ".join(name if name in there else f"NULL AS {name}" for name in columns.split())
    return pd.read_sql_query(f"SELECT {chosen} FROM {table}", connection)


def columns_of(connection: sqlite3.Connection, table: str) -> set[str]:
    """The columns of a table; none where there is no such table."""
    return {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}


@contextmanager
def new_database(path: Path, schema: str) -> Iterator[sqlite3.Connection]:
    """An empty database of these tables, which appears whole or not at all."""
    with (
        atomic_path(path) as temporary,
        parsing(path, "cannot write the database", next_step="check the disk", error=OutputError),
        closing(sqlite3.connect(temporary)) as connection,
    ):
        # No journal: a file that is not finished is thrown away whole.
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + schema)
        yield connection
        connection.commit()
