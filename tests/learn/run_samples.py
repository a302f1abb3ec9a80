"""A finished run so small that it takes seconds, made once for all tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from metaphase.learn.chain import Chain
from metaphase.learn.config import RunConfig, run_config
from metaphase.learn.run import run_chain
from tests.sharing import made_once

TINY: dict[str, Any] = {
    "simulate": {
        "cases": 3, "centres": 2, "training_share": 0.67, "width": 640, "height": 640, "seed": 5,
        "workers": 1, "mitoses_per_mm2": [600, 600],
    },
    "sets": {
        "easy_negatives": 40, "hard_negatives": 60, "validation_positives": 1.0, "validation_negatives": 0.5,
    },
    "training": {
        "augment": "R", "batch": 16, "epochs": 2, "samples_per_epoch": 32, "normalisation": "batch",
    },
    "ensemble": {"networks": 2, "gamma": 0.04},
    "students": {"gammas": [0.04]},
    "test": {"bootstrap": 50, "suppress_um": 12.5},
    "experiments": {"seeds": 1},
}  # fmt: skip
TINY_LAB = """
[phh3]
epochs = 1
samples_per_epoch = 48
batch = 16
normalisation = "batch"
augment = "R"

[run.training]
augment = "R"
batch = 2

[run.dense]
student_steps = 2
gammas = [0.0625, 0.0625]
beside = "simulated"
"""
"""What `lab.toml` says at its end, for a laboratory of seconds."""


def tiny_config(**tables: dict[str, Any]) -> RunConfig:
    """The settings of the finished run, with those of some tables changed."""
    merged = {name: dict(values) for name, values in TINY.items()}
    for name, values in tables.items():
        merged[name] = {**merged.get(name, {}), **values}
    return run_config(merged, Path())


@cache
def finished_workspace() -> Path:
    """Workspace of the finished run; copy it before changing anything."""
    return made_once("run", lambda folder: run_chain(Chain(tiny_config(), folder, "cpu")))
