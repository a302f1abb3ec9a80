"""A header that promises more than the file holds."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

from tests.hostile.inputs.odd import any_of
from tests.hostile.inputs.sound import on_slide
from tests.hostile.trials import Attempt

SHARE = 6


def make(random: Random, folder: Path) -> Attempt:
    size = any_of(random, 40_000, 300_000, 2**20, 2**31 - 1, 2**32 - 1)
    side = any_of(random, 256, 4096, 65536, 16, 2**31)
    width, height = any_of(random, (size, size), (size, 256), (256, size))
    tiles = any_of(random, 0, 1, 1, 2)
    tags: list[tuple[int, int, int, int]] = [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, 1, 8),
        (259, 3, 1, any_of(random, 1, 7, 8)),
        (262, 3, 1, any_of(random, 2, 1, 6)),
        (277, 3, 1, any_of(random, 3, 1)),
    ]
    if random.random() < 0.7:
        tags += [
            (322, 4, 1, side),
            (323, 4, 1, side),
            (324, 4, tiles, 8),
            (325, 4, tiles, any_of(random, 0, 10)),
        ]
    else:
        tags += [
            (273, 4, tiles, 8),
            (278, 4, 1, any_of(random, 1, 16, height)),
            (279, 4, tiles, any_of(random, 0, 10)),
        ]
    body = b"".join(struct.pack("<HHII", *tag) for tag in sorted(tags))
    (folder / "slide.tif").write_bytes(
        b"II*\0" + struct.pack("<I", 16) + bytes(8) + struct.pack("<H", len(tags)) + body + bytes(4)
    )
    return on_slide(random, "slide.tif")
