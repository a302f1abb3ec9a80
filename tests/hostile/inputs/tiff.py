"""A TIFF with a broken directory, header or tile."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

from tests.hostile.inputs.odd import any_of, bytes_changed
from tests.hostile.inputs.sound import on_slide, tiff_bytes
from tests.hostile.trials import Attempt

SHARE = 22
_TAGS = (
    254, 256, 257, 258, 259, 262, 266, 270, 273, 274, 277, 278, 279, 282, 283, 284, 296, 305, 317, 320, 322,
    323, 324, 325, 330, 338, 339, 347, 530, 532, 33550, 34665, 65535,
)  # fmt: skip


def make(random: Random, folder: Path) -> Attempt:
    data = broken_tiff(random)
    file = folder / any_of(random, "slide.tif", "slide.tiff", "slide.svs", "slide.png", "slide.ndpi", "slide")
    file.write_bytes(data)
    return on_slide(random, file.name)


def broken_tiff(random: Random) -> bytes:
    """A TIFF with one or two things changed."""
    data = bytearray(tiff_bytes(random))
    for _ in range(random.randint(1, 2)):
        how = random.randrange(10)
        if how < 7:
            _change_tag(random, data)
        elif how == 7:
            data = bytearray(bytes_changed(random, bytes(data)))
        elif how == 8:
            data[4:8] = struct.pack("<I", any_of(random, 0, 1, 7, 8, len(data), len(data) - 2, 2**32 - 1))
        else:
            data = data[: random.randrange(len(data) + 1)]
    return bytes(data)


def _change_tag(random: Random, data: bytearray) -> None:
    """One entry of the first or second directory gets another tag, type, count or value."""
    big = bytes(data[2:3]) == b"+"
    entry, inline = (20, 8) if big else (12, 4)
    offset_form, count_form = ("<Q", "<Q") if big else ("<I", "<H")
    try:
        (offset,) = struct.unpack_from(offset_form, data, 8 if big else 4)
        (number,) = struct.unpack_from(count_form, data, offset)
        start = offset + (8 if big else 2)
        if random.random() < 0.2:
            (second,) = struct.unpack_from(offset_form, data, start + number * entry)
            if second:
                start, (number,) = second + (8 if big else 2), struct.unpack_from(count_form, data, second)
            if random.random() < 0.3:  # directories that lead nowhere, or round in a circle
                value = any_of(random, offset, len(data), 2**31, start)
                struct.pack_into(offset_form, data, start + number * entry, value)
                return
        position = start + random.randrange(max(1, number)) * entry
        how = random.randrange(5)
        if how == 0:
            struct.pack_into("<H", data, position, any_of(random, *_TAGS))
        elif how == 1:
            struct.pack_into("<H", data, position + 2, any_of(random, *range(20), 65535))
        elif how == 2:
            size = any_of(random, 0, 1, 2, 3, 5, 1000, 2**31 - 1, 2**32 - 1)
            struct.pack_into("<Q" if big else "<I", data, position + 4, size)
        else:
            value = any_of(
                random, 0, 1, 2, 3, 5, 6, 7, 8, 16, 17, 255, 4096, 65535, 300_000, 2**31 - 1, 2**32 - 1
            )
            struct.pack_into("<I", data, position + entry - inline, value)
    except struct.error:
        data[:] = bytes_changed(random, bytes(data))
