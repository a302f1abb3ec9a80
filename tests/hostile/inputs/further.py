"""Slides of extras: an OME-Zarr with odd metadata or broken chunks, a CZI with bytes changed."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from tests.hostile.inputs.odd import any_of, bytes_changed, tree_changed
from tests.hostile.inputs.sound import on_slide, picture
from tests.hostile.trials import Attempt

SHARE = 5


def make(random: Random, folder: Path) -> Attempt:
    from tests.slides.test_further import write_czi, write_zarr

    if random.random() < 0.3:
        path = write_czi(folder / "a.czi", picture(200, 200))
        path.write_bytes(bytes_changed(random, path.read_bytes()))
        return on_slide(random, path.name)
    path = write_zarr(folder / "a.zarr", picture(200, 200), version=any_of(random, 2, 3))
    files = sorted(file for file in path.rglob("*") if file.is_file())
    for file in random.sample(files, any_of(random, 1, 1, 2)):
        stated = file.name in ("zarr.json", ".zattrs", ".zarray", ".zgroup")
        if stated and random.random() < 0.8:
            file.write_text(json.dumps(tree_changed(random, json.loads(file.read_text()))[0]))
        else:
            file.write_bytes(bytes_changed(random, file.read_bytes()))
    return on_slide(random, path.name)
