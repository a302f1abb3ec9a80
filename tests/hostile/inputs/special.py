"""Something that is no plain file, wherever a file is read."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from random import Random

from tests.hostile.inputs.odd import any_of
from tests.hostile.inputs.sound import ASSETS
from tests.hostile.trials import Attempt

SHARE = 4


def make(random: Random, folder: Path) -> Attempt:
    name = any_of(
        random,
        "x.tif",
        "x.csv",
        "x.parquet",
        "x.geojson",
        "x.json",
        "x.xml",
        "x.sqlite",
        "x.toml",
        "x.png",
        "x.safetensors",
    )
    path = folder / name
    kind = random.randrange(7)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(name)
    elif kind == 2:
        path.symlink_to(any_of(random, "/dev/zero", "/dev/random", "/dev/full", "/dev/null", "/dev/tty"))
    elif kind == 3:
        path.symlink_to(name)
    elif kind == 4:
        path.mkdir()
    elif kind == 5:
        path.symlink_to("nowhere")
    else:
        path.symlink_to(any_of(random, "/proc/self/mem", "/proc/self/environ", "/proc/kmsg"))
    slide, weights = str(ASSETS / "slide.tif"), str(ASSETS / "tiny.safetensors")
    (folder / "points.csv").write_text("slide,x,y,probability,label\nc1,1,2,0.9,mitosis\n")
    (folder / "project").mkdir()
    (folder / "project" / any_of(random, "items.csv", "project.json", "answers.sqlite")).symlink_to(
        folder / name
    )
    commands: tuple[tuple[str, ...], ...] = (
        ("info", name),
        ("tissue", name, "-o", "out"),
        ("convert", name, "-o", "out.csv", "--mpp", "0.25"),
        ("score", name, "--mpp", "0.25"),
        ("detect", slide, "-o", "out", "--model", name),
        ("detect", slide, "-o", "out", "--model", weights, "--tissue", name),
        ("detect", "--manifest", name, "-o", "out", "--model", weights),
        ("detect", name, "-o", "out", "--model", weights, "--tissue", "whole", "--mpp", "0.25"),
        ("detect", slide, "-o", name, "--model", weights, "--tissue", "whole"),
        ("run", name, "--status"),
        ("simulate", "out", "--config", name),
        ("model", "info", name),
        ("score", "points.csv", "--card", name, "--mpp", "0.25"),
        ("label", "export", "project", "o.csv"),
        ("label", "import", "project", name),
        ("convert", "points.csv", "-o", name),
        ("train", name, "-o", "out"),
    )
    return Attempt(any_of(random, *commands))
