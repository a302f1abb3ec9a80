"""What an earlier run and its review left, with one file damaged, for the commands that read it back."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from random import Random

from tests.hostile.inputs.odd import any_of, bytes_changed, json_bytes, tree_changed, unsound
from tests.hostile.inputs.sound import ASSETS, DRAW
from tests.hostile.trials import Attempt, Judge, must_refuse, right

SHARE = 6
NUMBERS = ("mpp", "delta", "threshold", "area_mm2", "radius_um", "low_threshold", "high_threshold")
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("review", "apply", "out"),
    ("review", "apply", "out", "--json"),
    ("review", "export", "out", "-o", "truth.csv"),
    ("review", "import", "out", "--from", "out/slide/detections.geojson", "--observer", "Anna"),
    DRAW,
    ("score", "out"),
    ("view", "out", "--port", "70000"),
)
"""The last one ends before it serves."""


def make(random: Random, folder: Path) -> Attempt:
    shutil.copytree(ASSETS / "reviewed", folder / "out")
    files = sorted(path for path in (folder / "out").rglob("*") if path.is_file())
    read = [path for path in files if path.suffix in (".json", ".parquet", ".sqlite", ".png", ".geojson")]
    victim = any_of(random, *read, *(path for path in read if path.suffix == ".json"))
    data, judge = victim.read_bytes(), right
    command = any_of(random, *COMMANDS)
    how = random.randrange(8)
    if how == 0:
        victim.unlink()
        any_of(random, Path.mkdir, os.mkfifo, lambda _: None)(victim)
    elif victim.suffix == ".json" and how < 7:
        changed, path, value = tree_changed(random, json.loads(data))
        written = json_bytes(random, changed)
        victim.write_bytes(written)
        if written == json.dumps(changed).encode("utf-8", "surrogatepass"):
            judge = _judge(victim.name, command, unsound(path, value, NUMBERS))
    else:
        victim.write_bytes(bytes_changed(random, data))
    return Attempt(command, judge)


def _judge(name: str, command: tuple[str, ...], wrong: bool) -> Judge:
    """A number that is none must not become a count, where the command counts by this file."""
    counts = command[:2] == ("review", "apply") and name == "summary.json"
    return must_refuse if wrong and counts else right
