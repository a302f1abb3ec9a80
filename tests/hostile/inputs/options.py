"""An option with a number that cannot be, or with text."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.hostile.inputs.odd import any_of
from tests.hostile.inputs.sound import ASSETS
from tests.hostile.trials import Attempt, must_refuse, right

SHARE = 6
NUMERIC_OPTIONS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("detect", "{slide}", "-o", "out", "--tissue", "whole", "--model", "{model}"): (
        "--mpp",
        "--threshold",
        "theta1",
        "theta2",
        "suppress_um",
        "smooth_um",
        "floor",
        "tile_px",
        "batch",
        "--device",
        "precision",
        "--format",
        "--tissue",
        "--model",
    ),
    ("score", "points.csv", "--mpp", "0.25", "--area", "5"): (
        "--mpp",
        "--area",
        "theta1",
        "theta2",
        "field_diameter_mm",
        "--threshold",
    ),
    ("convert", "points.csv", "-o", "out.csv"): ("--mpp", "--threshold", "--suppress-um", "--to"),
    ("evaluate", "mitoses", "--truth", "points.csv", "--predictions", "points.csv", "--mpp", "0.25"): (
        "radius_um",
        "border_um",
        "samples",
        "--threshold",
        "method",
        "--by",
        "--split",
    ),
    ("info", "{slide}"): ("--mpp",),
    ("tissue", "{slide}", "-o", "out"): ("--mpp",),
    ("simulate", "-o", "out", "--width", "300", "--height", "300", "--cases", "1", "--centres", "1"): (
        "--cases",
        "--width",
        "--height",
        "--centres",
        "--seed",
    ),
}


def make(random: Random, folder: Path) -> Attempt:
    command = any_of(random, *NUMERIC_OPTIONS)
    option = any_of(random, *NUMERIC_OPTIONS[command])
    value = any_of(
        random,
        "nan",
        "inf",
        "-inf",
        "-1",
        "0",
        "1e308",
        "1e-308",
        "1e-9",
        "5",
        "-0.0",
        "9" * 400,
        "x",
        "",
        " ",
        "mps",
        "cuda:99",
        "meta",
        "../x",
        ".",
        "\x1b[31m",
        "1e5",
        "0.5",
        "٣",
    )
    (folder / "points.csv").write_text(
        "slide,x,y,probability,label\nc1,1,2,0.9,mitosis\nc1,50,60,0.7,mitosis\n"
    )
    names = {"{slide}": str(ASSETS / "slide.tif"), "{model}": str(ASSETS / "tiny.safetensors")}
    judge = (
        must_refuse
        if value in ("nan", "inf", "-inf", "1e308") and option not in ("--by", "--split")
        else right
    )
    stated = [option, value] if option.startswith("--") else ["--set", f"{option}={value}"]
    arguments = [*(names.get(part, part) for part in command), *stated]

    def quiet(printed: str) -> str:
        return "escape sequence printed" if "\x1b" in printed else ""

    return Attempt(arguments, judge, quiet)
