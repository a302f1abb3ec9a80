"""A cohort whose cases, paths or numbers are odd; nothing may be written beside the results."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.hostile.inputs.odd import HUGE, ODD_VALUES, any_of
from tests.hostile.inputs.sound import ASSETS, quoted
from tests.hostile.trials import Attempt

SHARE = 6


def make(random: Random, folder: Path) -> Attempt:
    slide = str(ASSETS / "slide.tif")
    heads = ["case", "he", "phh3", "laboratory", "split", "mpp", "tissue", "patient", "area_mm2"]
    rows = [
        ["c1", slide, "", "a", "test", "0.25", "whole", "p", "3"],
        ["c2", slide, "", "a", "test", "", "whole", "p", ""],
    ]
    for _ in range(random.randint(1, 2)):
        value = any_of(random, *ODD_VALUES)
        line = any_of(random, heads, *rows)
        line[random.randrange(len(heads))] = "9" * 400 if value is HUGE else str(value)
    text = "\n".join(",".join(map(quoted, row)) for row in [heads, *rows]) + "\n"
    (folder / "manifest.csv").write_bytes(text.encode("utf-8", "surrogatepass"))
    (folder / "points.csv").write_text("slide,x,y,probability,label\nc1,1,2,0.9,mitosis\n")
    model = str(ASSETS / "tiny.safetensors")
    commands = (
        ("detect", "--manifest", "manifest.csv", "-o", "out", "--model", model),
        ("score", "points.csv", "--manifest", "manifest.csv"),
        ("convert", "points.csv", "--manifest", "manifest.csv", "-o", "out", "--to", "coco"),
        ("phh3", "candidates", "manifest.csv", "-w", "out"),
    )
    before = _outside(folder)

    def stayed_inside(printed: str) -> str:
        new = sorted(_outside(folder) - before)
        escapes = "escape sequence printed" if "\x1b" in printed else ""
        return f"wrote {new[0]}" if new else escapes

    return Attempt(any_of(random, *commands), always=stayed_inside)


def _outside(folder: Path) -> set[str]:
    """Whatever lies beside and above the folder of results, as far as a child may reach."""
    near = {str(path) for path in folder.iterdir() if path.name not in ("out", "manifest.csv")}
    above = {
        str(path)
        for path in folder.parent.iterdir()
        if path.name not in ("said.txt", "command.json", "verdict.json")
    }
    return near | above | {str(path) for path in Path("/etc").glob("x*")}
