"""A compressed tile that unpacks to more, or less, or something else than its tile."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.inputs.odd import any_of
from tests.hostile.inputs.sound import ASSETS, ZEROS, on_slide, picture, tiff_bytes
from tests.hostile.trials import Attempt

SHARE = 4


def make(random: Random, folder: Path) -> Attempt:
    import imagecodecs

    data = bytearray(tiff_bytes(random, any_of(random, "jpeg", "zlib", "lzw", "packbits")))
    side = any_of(random, 16, 63, 65, 128, 4000, 9000)
    kind = random.randrange(4)
    if kind == 0:
        tile = imagecodecs.jpeg8_encode(picture(side, min(side, 256)))
    elif kind == 1:
        tile = (ASSETS / f"zeros{any_of(random, *ZEROS)}.zlib").read_bytes()
    elif kind == 2:
        header = bytearray(imagecodecs.jpeg8_encode(picture(64, 64)))
        position = header.find(b"\xff\xc0") + 5
        header[position : position + 4] = struct.pack(
            ">HH", any_of(random, 1, 65535, 20000), any_of(random, 1, 65535, 30000)
        )
        tile = bytes(header)
    else:
        tile = random.randbytes(500)
    import tifffile

    with tifffile.TiffFile(io.BytesIO(bytes(data))) as opened:
        page = opened.pages.first
        counts = page.tags["TileByteCounts"]
        offsets = page.tags["TileOffsets"]
    start = len(data)
    data += tile
    _put(data, offsets, random.randrange(9), start)
    _put(data, counts, 0, len(tile))
    _put(data, offsets, 0, start)
    (folder / "slide.tif").write_bytes(bytes(data))
    return on_slide(random, "slide.tif")


def _put(data: bytearray, tag: Any, index: int, value: int) -> None:
    form = {3: "<H", 4: "<I", 16: "<Q"}[int(tag.dtype)]
    struct.pack_into(
        form, data, tag.valueoffset + index * struct.calcsize(form), value & 0xFFFF if form == "<H" else value
    )
