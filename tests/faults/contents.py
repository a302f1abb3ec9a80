"""What a folder says, without what two undisturbed runs say differently: times and random names."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from metaphase.base.tables import read_table
from metaphase.reports.cohort import ROWS, read_rows

RUNS = re.compile(r"seconds|_s$|^time$|^check$|^stamp$|^uuid$|^versions?$")
"""Keys of JSON that tell of the run and not of its result."""
SECONDS = re.compile(r"\d[\d.e-]* (mm²/)?(s|ms|min)\b|data:image/[a-z]+;base64,[A-Za-z0-9+/=]+".encode())


def contents(folder: Path) -> dict[str, Any]:
    """What its files say, by their names."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    names = {path.relative_to(folder).as_posix(): path for path in files}
    return {
        name: "" if is_left_over(name) else _content(path)
        for name, path in names.items()
        if not name.endswith(("-wal", "-shm"))
    }


def is_left_over(name: str) -> bool:
    """Whether a file is one that a killed process could not remove: hidden, and read by nobody."""
    return any(part.startswith(".") for part in Path(name).parts)


def _content(path: Path) -> Any:
    if path.name == ROWS:
        made, rows = read_rows(path)
        return [sorted(made), _without_times(rows)]
    if path.suffix == ".json":
        return _without_times(json.loads(path.read_text(encoding="utf-8")))
    if path.suffix == ".parquet":
        table = read_table(path)
        return [table.to_csv(), json.dumps(table.attrs, sort_keys=True)]
    if path.suffix == ".sqlite":
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT observer, item, answer FROM log ORDER BY sequence").fetchall()
    return SECONDS.sub(b"", path.read_bytes()) if path.suffix == ".html" else path.read_bytes()


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(one) for key, one in value.items() if not RUNS.search(key)}
    return [_without_times(one) for one in value] if isinstance(value, list) else value
