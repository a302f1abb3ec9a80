"""A laboratory's profile with one value of another type, or broken bytes."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from metaphase.counting.likely import LEVELS, SHAPES
from tests.hostile.inputs.odd import any_of, json_bytes, tree_changed, unsound
from tests.hostile.inputs.sound import ASSETS, SEARCH
from tests.hostile.trials import Attempt, must_refuse, right

SHARE = 3
NUMBERS = ("area_mm2", "answers", "sure", "a", "b", "missed", "false_alarms")


def profile() -> dict[str, Any]:
    """A sound one, for the assets' own detections."""
    stated = json.loads((ASSETS / "out" / "slide" / "summary.json").read_bytes())["operating_points"]
    about = {"value": 0.5, "low": 0.4, "high": 0.6}
    likely = [round(-0.01 * number, 3) for number in range(len(LEVELS) * len(SHAPES))]
    return {
        "format": 4, "name": "here", "made": "2026-01-01", "model": stated["model"],
        "searched_with": stated["searched_with"], "slides": ["a", "b", "slide"], "area_mm2": 1.0,
        "answers": 100, "observers": ["Anna"], "design": {}, "error": {"missed": 0.0, "false_alarms": 0.0},
        "deltas": {"mitoses": 0.5, "count": 0.5}, "precision": {"mitoses": about, "count": about},
        "sure": [20, 15], "shapes": {"a": likely, "b": likely[::-1]},
        "answered": {"slide": [[10.0, 10.0, 1.0]]},
    }  # fmt: skip


def make(random: Random, folder: Path) -> Attempt:
    tree: Any = profile()
    if random.random() < 0.5:  # what counts most is a small part of the file
        part = any_of(random, "shapes", "answered", "error", "sure")
        tree[part], path, value = tree_changed(random, tree[part])
        path = (part, *path)
    else:
        tree, path, value = tree_changed(random, tree)
    data = json_bytes(random, tree)
    wrong = unsound(path, value, NUMBERS) and data == json.dumps(tree).encode("utf-8", "surrogatepass")
    (folder / "site.json").write_bytes(data)
    table = str(ASSETS / "out" / "candidates.parquet")
    commands = (
        ("score", table, "--mpp", "0.25", "--site", "site.json"),
        ("score", table, "--mpp", "0.25", "--site", "site.json", "-o", "out.csv"),
        (*SEARCH, "--site", "site.json"),
    )

    def quiet(printed: str) -> str:
        return "escape sequence printed" if "\x1b" in printed else ""

    return Attempt(any_of(random, *commands), must_refuse if wrong else right, quiet)
