"""SlideRunner's database with odd cells, tables that are something else, or broken pages."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.inputs.odd import any_of, bytes_changed
from tests.hostile.inputs.sound import on_table
from tests.hostile.trials import Attempt

SHARE = 5


def make(random: Random, folder: Path) -> Attempt:
    from metaphase.detections.formats.sliderunner import _SCHEMA

    file = folder / "a.sqlite"
    connection = sqlite3.connect(file)
    connection.text_factory = bytes
    connection.executescript(_SCHEMA)
    rows: dict[str, list[list[Any]]] = {
        "Slides (uid, filename, width, height, directory)": [
            [1, "s1.tif", 100, 100, "d"],
            [2, "s2.tif", 5, 5, ""],
        ],
        "Classes (uid, name)": [[1, "mitosis"], [2, "other"]],
        "Annotations (uid, slide, deleted, type, agreedClass, description)": [
            [1, 1, 0, 1, 1, "p=0.9"],
            [2, 2, 0, 1, 2, ""],
        ],
        "Annotations_coordinates (annoId, coordinateX, coordinateY)": [[1, 10, 20], [2, 5, 6]],
    }
    for _ in range(random.randint(1, 2)):
        row = any_of(random, *rows[any_of(random, *rows)])
        odd = any_of(
            random,
            None,
            "text",
            b"\xff\xfe",
            1e300,
            math.inf,
            -1,
            0,
            2**62,
            1.5,
            "",
            "\ud800".encode("utf-8", "surrogatepass"),
            "x" * 300,
            "../x",
        )
        row[random.randrange(len(row))] = odd
    for table, values in rows.items():
        marks = ", ".join("?" * len(values[0]))
        for row in values:
            try:
                connection.execute(f"INSERT INTO {table} VALUES ({marks})", row)
            except sqlite3.Error:
                continue
    if random.random() < 0.2:
        connection.execute("UPDATE Slides SET filename = CAST(x'ff00fe' AS TEXT) WHERE uid = 1")
    if random.random() < 0.1:
        connection.execute("DROP TABLE Annotations_coordinates")
        endless = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
        connection.execute(
            f"CREATE VIEW Annotations_coordinates AS {endless} "
            "SELECT 1 AS annoId, n AS coordinateX, n AS coordinateY FROM c"
        )
    connection.commit()
    connection.close()
    if random.random() < 0.3:
        file.write_bytes(bytes_changed(random, file.read_bytes()))
    return on_table(random, file.name)
