"""A labelling project with odd items, settings or answers."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.inputs.odd import HUGE, ODD_VALUES, any_of, bytes_changed, json_bytes, tree_changed
from tests.hostile.inputs.sound import quoted
from tests.hostile.trials import Attempt

SHARE = 4


def make(random: Random, folder: Path) -> Attempt:
    home = folder / "project"
    home.mkdir()
    heads, rows = (
        ["item", "slide", "x", "y", "case", "mpp"],
        [["i1", "s.tif", "1", "2", "c", ""], ["i2", "s.tif", "5", "6", "c", ""]],
    )
    answers = [
        ["observer", "item", "answer", "seconds", "time"],
        ["Anna", "i1", "mitosis", "1.5", ""],
        ["Bob", "i1", "not", "2", ""],
    ]
    about: Any = {
        "title": "t",
        "question": "q",
        "answers": [{"name": "mitosis", "key": "a"}, {"name": "not", "key": "b"}],
        "close_um": 64,
    }
    which = random.randrange(3)
    value = any_of(random, *ODD_VALUES)
    cell = "9" * 400 if value is HUGE else str(value)
    if which == 0:
        line = any_of(random, heads, *rows)
        line[random.randrange(len(line))] = cell
    elif which == 1:
        line = any_of(random, *answers)
        line[random.randrange(len(line))] = cell
    else:
        about, _, _ = tree_changed(random, about)
    (home / "project.json").write_bytes(json_bytes(random, about))
    for name, table in (("project/items.csv", [heads, *rows]), ("answers.csv", answers)):
        text = "\n".join(",".join(map(quoted, row)) for row in table) + "\n"
        data = text.encode("utf-8", "surrogatepass")
        (folder / name).write_bytes(bytes_changed(random, data) if random.random() < 0.1 else data)
    if random.random() < 0.15:
        (home / "answers.sqlite").write_bytes(
            any_of(random, b"", b"x" * 5000, random.randbytes(5000), b"SQLite format 3\0" + bytes(100))
        )
    return Attempt(
        any_of(
            random,
            ("label", "import", "project", "answers.csv"),
            ("label", "export", "project", "o.csv"),
            ("label", "merge", "project"),
        )
    )
