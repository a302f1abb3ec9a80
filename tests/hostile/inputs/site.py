"""A laboratory's profile with one value of another type, or broken bytes."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from metaphase.counting.populations import BINS, DRAWN, SPREADS
from tests.hostile.inputs.odd import any_of, json_bytes, tree_changed, unsound
from tests.hostile.inputs.sound import ASSETS, SEARCH
from tests.hostile.trials import Attempt, must_refuse, right

SHARE = 3
DRAWS = 6
NUMBERS = (
    *DRAWN,
    "floor",
    "area_mm2",
    "answers",
    "squares",
)


def profile() -> dict[str, Any]:
    """A sound one, for the assets' own detections."""
    stated = json.loads((ASSETS / "out" / "slide" / "summary.json").read_bytes())["operating_points"]
    about = {"value": 0.5, "low": 0.4, "high": 0.6}
    rates = {"recall": about, "false_per_mm2": about, "precision": about}
    return {
        "format": 2, "name": "here", "made": "2026-01-01", "model": stated["model"],
        "searched_with": stated["searched_with"], "slides": ["slide"], "area_mm2": 1.0, "answers": 100,
        "squares": 20, "observers": ["Anna"], "design": {}, "reviewer": {"missed": 0.0, "false_alarms": 0.0},
        "deltas": {"mitoses": 0.5, "count": 0.5}, "at": {"mitoses": rates, "count": rates},
        "found": about, "mitoses_per_mm2": about, "answered": {"slide": [[10.0, 10.0, 1.0]]},
        "draws": {
            "floor": -2.2, "others": [[-0.1 * step for step in range(BINS)]] * DRAWS,
            "mitoses": [[0.1 * step for step in range(BINS)]] * DRAWS, "share": [-3.0] * DRAWS,
            "around": [0.5] * DRAWS, "spreads": [[0.3] * len(SPREADS)] * DRAWS, "missed": [0.1] * DRAWS,
        },
    }  # fmt: skip


def make(random: Random, folder: Path) -> Attempt:
    tree: Any = profile()
    if random.random() < 0.5:  # what counts most is a small part of the file
        tree["draws"], path, value = tree_changed(random, tree["draws"])
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
