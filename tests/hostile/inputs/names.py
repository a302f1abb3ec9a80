"""A sound file with an odd name; two slides, of which one must not take the other with it."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

from tests.hostile.inputs.odd import any_of
from tests.hostile.inputs.sound import ASSETS
from tests.hostile.trials import Attempt

SHARE = 4


def make(random: Random, folder: Path) -> Attempt:
    stem = any_of(
        random,
        b"\xff\xfe",
        b"a\nb",
        b"\x1b[31mred",
        b"a" * 240,
        "é".encode(),
        b"NA",
        b"None",
        b"=1+2",
        b"-x",
        b" ",
        b"a b",
        b"%2F",
        b"..a",
        b"$(id)",
        b"<b>",
        b"{x}",
        b"[bold]",
        b"\xe2\x80\xaegnp",
        b"CON",
        b"x" * 249,
        b"nan",
        b"1e5",
        b"0001",
    )
    slide = (ASSETS / "slide.tif").read_bytes()
    name = stem + any_of(random, b".tif", b".tif", b".csv")
    if name.endswith(b".csv"):
        (folder / os.fsdecode(name)).write_text("x,y,probability\n1,2,0.9\n")
        command: tuple[str | bytes, ...] = any_of(
            random,
            ("convert", b"./" + name, "-o", "out.csv"),
            ("convert", b"./" + name, "-o", "out", "--to", "qupath"),
            ("score", b"./" + name, "--mpp", "0.25", "--area", "3"),
            ("convert", b"./" + name, "-o", "out.sqlite"),
            ("convert", b"./" + name, "-o", "out", "--to", "asap"),
        )
    else:
        (folder / os.fsdecode(name)).write_bytes(slide)
        (folder / "sound.tif").write_bytes(slide)
        weights = str(ASSETS / "tiny.safetensors")
        command = any_of(
            random,
            ("info", b"./" + name),
            ("info", b"./" + name, "--json"),
            ("tissue", b"./" + name, "-o", "out"),
            ("detect", b"./" + name, "sound.tif", "-o", "out", "--tissue", "whole", "--model", weights),
            (
                "detect",
                b"./" + name,
                "-o",
                "out",
                "--tissue",
                "whole",
                "--model",
                weights,
                "--format",
                "csv",
                "--json",
            ),
        )
    both = "sound.tif" in command

    def went_on(printed: str) -> str:
        if "\x1b" in printed:
            return "escape sequence printed"
        lost = both and not Path("out/sound/report.html").is_file()
        return "the other slide was lost" if lost or (both and not Path("out/index.html").is_file()) else ""

    return Attempt(command, always=went_on)
