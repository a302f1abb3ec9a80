"""Settings as TOML with one value of another type, or text that is none."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.inputs.odd import HUGE, any_of, bytes_changed, tree_changed
from tests.hostile.trials import Attempt

SHARE = 5
TOML = {
    "simulate": {"cases": 1, "width": 512, "height": 512, "mitoses_per_mm2": [250, 450], "seed": 3},
    "labels": {"positive_um": 12.5},
    "sets": {"easy_negatives": 40, "mpp": 0.5},
    "training": {"augment": "RB", "batch": 16, "epochs": 1, "augmentation": {"translation_px": 3}},
    "ensemble": {"networks": 2, "gamma": 0.2},
    "students": {"gammas": [0.2]},
    "test": {"suppress_um": 12.5},
}


def make(random: Random, folder: Path) -> Attempt:
    name = any_of(random, "run", "run", "experiments", "simulate", "phh3", "train")
    tree: Any = TOML if name in ("run", "experiments") else dict(TOML["simulate"])
    changed, _, _ = tree_changed(random, tree)
    text = _toml(changed)
    data = text.encode("utf-8", "surrogatepass")
    how = random.randrange(10)
    if how == 0:
        data = b"a = " + b"[" * 100_000
    elif how == 1:
        data = b"cases = " + b"9" * 6000
    elif how == 2:
        data = bytes_changed(random, data)
    elif how == 3:
        data = b"[" + b"a." * 50_000 + b"a]\n" + data
    (folder / "a.toml").write_bytes(data)
    (folder / "manifest.csv").write_text("case,he,phh3,laboratory,split\n")
    commands: dict[str, tuple[str, ...]] = {
        "run": ("run", "a.toml", "--status", "-o", "out"),
        "experiments": ("experiments", "a.toml", "--status", "-o", "out"),
        "simulate": ("simulate", "out", "--config", "a.toml", "--width", "300", "--cases", "0"),
        "phh3": ("phh3", "candidates", "manifest.csv", "-w", "out", "--config", "a.toml"),
        "train": ("train", "a.toml", "-o", "out"),
    }
    return Attempt(commands[name])


def _toml(tree: Any, where: str = "") -> str:
    if not isinstance(tree, dict):
        return f"value = {_toml_value(tree)}\n"
    plain = [
        f"{json.dumps(key)} = {_toml_value(value)}"
        for key, value in tree.items()
        if not isinstance(value, dict)
    ]
    tables = [
        f"[{where}{json.dumps(key)}]\n" + _toml(value, f"{where}{json.dumps(key)}.")
        for key, value in tree.items()
        if isinstance(value, dict)
    ]
    return "\n".join([*plain, *tables]) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, float | int):
        return str(value) if value is not HUGE else "9" * 400
    return any_of(Random(0), "1979-05-27") if value is None else json.dumps(value)
