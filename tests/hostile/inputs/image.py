"""A plain image: broken, of an odd kind, or of a size that its header makes up."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from random import Random

from tests.hostile.inputs.odd import any_of, bytes_changed
from tests.hostile.inputs.sound import on_slide, picture
from tests.hostile.trials import Attempt

SHARE = 9


def make(random: Random, folder: Path) -> Attempt:
    from PIL import Image

    out = io.BytesIO()
    kind = any_of(
        random, "PNG", "PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "ICO", "TGA", "EPS", "PCX"
    )
    mode = any_of(random, "RGB", "RGBA", "L", "P", "1", "LA", "CMYK", "I;16", "F")
    made = Image.fromarray(picture(64, 64))
    try:
        made.convert(mode).save(out, kind)
    except (OSError, ValueError, KeyError):
        out = io.BytesIO()
        made.save(out, "PNG")
    data, sound = out.getvalue(), False
    if random.random() < 0.7:
        data = bytes_changed(random, data)
    if random.random() < 0.25:
        width, height = any_of(
            random, (9000, 9000), (100_000, 1), (1, 2**31 - 1), (13_000, 13_000), (0, 5), (2**31 - 1,) * 2
        )
        rows = any_of(random, 0, 1, min(height, 9000))
        data, sound = png_bytes(width, height, rows=rows), rows == height
    if random.random() < 0.1:
        data = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n%%EndComments\n(x) run\nshowpage\n"
    name = any_of(random, "a.png", "a.jpg", "a.tif", "a.eps", "a.gif", "a.svs", "a.dcm", "a.mrxs", "a.vms")
    (folder / name).write_bytes(data)
    return on_slide(random, name, search=not sound)


def png_bytes(width: int, height: int, *, rows: int) -> bytes:
    """A PNG of one colour with a true or made-up size, packed to almost nothing."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packer = zlib.compressobj(1)
    row = b"\0" + b"\xe0\xaa\xcc" * min(width, 20_000)
    packed = b"".join(packer.compress(row) for _ in range(rows)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
