"""A broken TIFF or transform for the commands that change colours, register and measure."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.inputs.odd import any_of, json_bytes, tree_changed
from tests.hostile.inputs.sound import ASSETS
from tests.hostile.inputs.tiff import broken_tiff
from tests.hostile.trials import Attempt

SHARE = 4


def make(random: Random, folder: Path) -> Attempt:
    (folder / "slide.tif").write_bytes(broken_tiff(random))
    tree: Any = {
        "method": "hsd",
        "source": {"mean": [0.1, 0.2, 0.3], "spread": [0.1, 0.1, 0.1]},
        "target": {"mean": [0.1, 0.2, 0.3], "spread": [0.1, 0.1, 0.1]},
    }
    (folder / "saved.json").write_bytes(json_bytes(random, tree_changed(random, tree)[0]))
    sound = str(ASSETS / "slide.tif")
    commands = (
        ("stain", "deconvolve", "slide.tif", "-o", "out"),
        ("stain", "standardise", "slide.tif", "-o", "out.png", "--mpp", "0.25"),
        (
            "stain",
            "standardise",
            sound,
            "-o",
            "out.png",
            "--template",
            any_of(random, "slide.tif", "saved.json"),
        ),
        ("stain", "standardise", sound, "-o", "out.tif", "--transform", "saved.json"),
        ("register", sound, "slide.tif", "-o", "out", "--mpp", "0.25", "--set", "any_stains=true"),
        ("register", sound, sound, "-o", "out", "--set", "transform=shifts", "--annotations", "saved.json"),
    )
    return Attempt(any_of(random, *commands))
