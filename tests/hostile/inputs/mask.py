"""A tissue mask that is broken, huge, or of another slide."""

from __future__ import annotations

import io
import json
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.inputs.odd import any_of, bytes_changed, json_bytes, tree_changed, unsound
from tests.hostile.inputs.sound import ASSETS
from tests.hostile.trials import Attempt, Judge, must_refuse, right

SHARE = 4


def make(random: Random, folder: Path) -> Attempt:
    import numpy as np
    from PIL import Image, PngImagePlugin

    position: Any = {"mpp": 1.0, "x": 0, "y": 0, "scale": 4.0}
    changed, path, value = tree_changed(random, position)
    judge: Judge = right
    if path and unsound(path, value, ("mpp", "x", "y", "scale")):
        judge = must_refuse
    text = PngImagePlugin.PngInfo()
    key = "metaphase-tissue"
    stated = json_bytes(random, changed).decode("latin-1")
    if stated != json.dumps(changed):
        judge = right
    text.add_text(key, stated)
    shape = any_of(random, (48, 48), (48, 48), (1, 1), (5, 500), (48, 48, 3), (9000, 9000))
    out = io.BytesIO()
    Image.fromarray(np.full(shape, 255, np.uint8)).save(out, "PNG", pnginfo=text, compress_level=1)
    data = out.getvalue()
    if random.random() < 0.2:
        data, judge = bytes_changed(random, data), right
    (folder / "mask.png").write_bytes(data)
    slide, weights = str(ASSETS / "slide.tif"), str(ASSETS / "tiny.safetensors")
    return Attempt(
        ("detect", slide, "-o", "out", "--tissue", "mask.png", "--mpp", "0.25", "--model", weights), judge
    )
