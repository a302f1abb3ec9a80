"""Detections as CSV with odd cells, headers or bytes."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.hostile.inputs.odd import HUGE, ODD_VALUES, any_of, bytes_changed
from tests.hostile.inputs.sound import COLUMNS, POINTS, on_table, quoted
from tests.hostile.trials import Attempt, Judge, must_refuse, right

SHARE = 8


def make(random: Random, folder: Path) -> Attempt:
    rows = [list(map(str, COLUMNS)), *([str(cell) for cell in row] for row in POINTS)]
    for _ in range(random.randint(1, 2)):
        row, column = random.randrange(len(rows)), random.randrange(5)
        value = any_of(random, *ODD_VALUES)
        rows[row][column] = "9" * 400 if value is HUGE else str(value)
    numbers = [column for column in range(1, 4) if rows[0][column] == COLUMNS[column]]
    spoilt = any(row[column] in ("nan", "inf", "-inf", "True", "x") for row in rows[1:] for column in numbers)
    judge: Judge = must_refuse if spoilt else right
    how = random.randrange(12)
    separator = any_of(random, ",", ",", ",", ";", "\t")
    text = "\n".join(separator.join(quoted(cell) for cell in row) for row in rows) + "\n"
    data = text.encode("utf-8", "surrogatepass")
    if how == 0:
        data = text.encode("utf-16", "surrogatepass")
    elif how == 1:
        data = bytes_changed(random, data)
    elif how == 2:
        data = data.replace(b"s", b"\xff\xfe", 1)
    elif how == 3:
        data = b"\0" * 100 + data
    if how < 4 or separator != ",":
        judge = right
    (folder / "points.csv").write_bytes(data)
    return on_table(random, "points.csv", judge)
