"""Grand-Challenge points with one member of another type."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from tests.hostile.inputs.odd import json_bytes, tree_changed, unsound
from tests.hostile.inputs.sound import on_table
from tests.hostile.trials import Attempt, must_refuse, right

SHARE = 4


def make(random: Random, folder: Path) -> Attempt:
    tree = {
        "type": "Multiple points",
        "name": "x",
        "version": {"major": 1, "minor": 0},
        "points": [
            {"name": "mitotic figure", "point": [0.1, 0.2, 0], "probability": 0.9},
            {"point": [1, 2, 0]},
        ],
    }
    changed, path, value = tree_changed(random, tree)
    data = json_bytes(random, changed)
    wrong = unsound(path, value, ("point", "probability")) and path[-1] != 2
    wrong = wrong and data == json.dumps(changed).encode("utf-8", "surrogatepass")
    (folder / "a.json").write_bytes(data)
    return on_table(random, "a.json", must_refuse if wrong else right)
