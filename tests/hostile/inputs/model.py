"""A model whose card, weights or name is odd."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from pathlib import Path
from random import Random

from tests.hostile.inputs.odd import any_of, bytes_changed, json_bytes, tree_changed
from tests.hostile.inputs.sound import ASSETS
from tests.hostile.trials import Attempt, Judge, must_refuse, right

SHARE = 6


def make(random: Random, folder: Path) -> Attempt:
    weights = (ASSETS / "tiny.safetensors").read_bytes()
    card = json.loads((ASSETS / "tiny.json").read_bytes())
    judge: Judge = right
    how = random.randrange(10)
    if how < 6:
        card, path, value = tree_changed(random, card)
        number = path and path[-1] in ("delta", "suppress_um", "theta1", "theta2", "gamma", "mpp")
        if number and isinstance(value, float) and not math.isfinite(value):
            judge = must_refuse
    elif how < 8:
        (size,) = struct.unpack_from("<Q", weights)
        header = json.loads(weights[8 : 8 + size])
        header, _, _ = tree_changed(random, header)
        text = json_bytes(random, header)
        weights = (
            struct.pack("<Q", any_of(random, len(text), 0, 2**63, len(weights))) + text + weights[8 + size :]
        )
    else:
        weights = bytes_changed(random, weights)
    if how >= 6 and isinstance(card, dict):
        card["weights_sha256"] = hashlib.sha256(weights).hexdigest()
    data = json_bytes(random, card)
    if data != json.dumps(card).encode("utf-8", "surrogatepass"):
        judge = right
    (folder / "m.safetensors").write_bytes(weights)
    (folder / "m.json").write_bytes(data)
    slide = str(ASSETS / "slide.tif")
    (folder / "points.csv").write_text("slide,x,y,probability,label\nc1,1,2,0.9,mitosis\n")
    commands = (
        ("model", "info", "m.safetensors"),
        ("model", "info", "m.json", "--json"),
        ("detect", slide, "-o", "out", "--tissue", "whole", "--mpp", "0.25", "--model", "m.safetensors"),
        ("score", "points.csv", "--card", "m.json", "--mpp", "0.25"),
        ("model", "package", "m.safetensors", "-o", "n.safetensors"),
    )
    command = any_of(random, *commands)
    if command[0] == "score" and how < 6 and path[-1:] in [("gamma",), ("mpp",)]:
        judge = right  # of the card, only the operating points are read
    return Attempt(command, judge)
