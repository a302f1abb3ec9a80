"""What an earlier run left, with one file damaged: the result is the same, or there is an error."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.inputs.odd import any_of, bytes_changed, json_bytes, tree_changed
from tests.hostile.inputs.sound import ASSETS, SEARCH
from tests.hostile.trials import Attempt

SHARE = 1


def make(random: Random, folder: Path) -> Attempt:
    shutil.copytree(ASSETS / "out", folder / "out")
    undisturbed = _numbers(folder / "out" / "slide" / "summary.json")
    files = sorted(path for path in (folder / "out").rglob("*") if path.is_file())
    victim = any_of(random, *files)
    data = victim.read_bytes()
    how = random.randrange(6)
    if how == 0:
        victim.unlink()
        victim.mkdir()
    elif how == 1:
        victim.unlink()
        os.mkfifo(victim)
    elif victim.suffix == ".json" and how < 5:
        changed, _, _ = tree_changed(random, json.loads(data))
        victim.write_bytes(json_bytes(random, changed))
    else:
        victim.write_bytes(bytes_changed(random, data))
    if random.random() < 0.3:
        (folder / "out" / "errors.log").mkdir(exist_ok=True)
    if random.random() < 0.4:
        for note in (folder / "out" / "slide" / "stages").glob("search*.json"):
            if note.is_file():
                note.unlink()
        (folder / "out" / "slide" / "tiles.journal").write_bytes(
            any_of(random, b"", bytes(100), b'{"job": "x"}\n' + bytes(60), b"\xff" * 50)
        )

    def same(_printed: str) -> str:
        now = _numbers(folder / "out" / "slide" / "summary.json")
        return "" if now == undisturbed else f"{victim.name}: {undisturbed} became {now}"

    return Attempt(SEARCH, same)


def _numbers(summary: Path) -> Any:
    if not summary.is_file():
        return None
    content = json.loads(summary.read_text())
    return [
        content["detections"],
        content["count"],
        content["grade"],
        content["mpp"],
        content["tissue_mm2"],
    ]
