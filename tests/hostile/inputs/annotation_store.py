"""TIAToolbox's AnnotationStore with odd cells, tables that are something else, or broken pages."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.inputs.odd import ODD_VALUES, any_of, bytes_changed, tree_changed
from tests.hostile.inputs.sound import on_table
from tests.hostile.trials import Attempt

SHARE = 5


def make(random: Random, folder: Path) -> Attempt:
    from metaphase.detections.formats.tiatoolbox import _SCHEMA

    file = folder / "a.db"
    properties: Any = {"type": "Mitotic_Figure", "probability": 0.9, "parts": [1, {"a": None}], "rank": 3}
    rows: list[list[Any]] = []
    for number in range(3):
        text = json.dumps(tree_changed(random, properties)[0] if random.random() < 0.5 else properties)
        rows.append([number + 1, f"k{number}", "Point", 10.5, 20.25, None, text, 0])
    for _ in range(random.randint(0, 2)):
        row = rows[random.randrange(3)]
        odd = any_of(random, *ODD_VALUES, b"\xff\xfe", "[" * 100_000, '{"a":' * 100_000)
        row[random.randrange(len(row))] = odd
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(_SCHEMA)
        for row in rows:
            try:
                connection.execute("INSERT INTO annotations VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            except (sqlite3.Error, OverflowError, UnicodeEncodeError):
                continue
        _change_schema(random, connection)
        connection.commit()
    if random.random() < 0.3:
        file.write_bytes(bytes_changed(random, file.read_bytes()))
    return on_table(random, file.name)


ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
AS_ELSE = "key, 'Point' AS objtype, cx, cy, properties"


def _change_schema(random: Random, connection: sqlite3.Connection) -> None:
    """Now and then, the table is a view that never ends, a column that is computed, or of another kind."""
    change = any_of(
        random,
        *[""] * 6,
        "ALTER TABLE annotations RENAME TO kept; CREATE VIEW annotations AS "
        f"{ENDLESS} SELECT n AS id, {AS_ELSE} FROM c, kept;",
        "ALTER TABLE annotations DROP COLUMN objtype; ALTER TABLE annotations ADD COLUMN objtype "
        "AS (hex(zeroblob(100000000)));",
        "ALTER TABLE annotations DROP COLUMN properties;",
        "DROP TABLE annotations; CREATE VIRTUAL TABLE annotations USING rtree(key, cx, properties, cy, id);",
        "DROP TABLE rtree; DROP TABLE metadata;",
    )
    connection.executescript(change)
