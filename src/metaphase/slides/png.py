"""Whether a PNG holds all its rows: decoders fill up those that are missing, and say nothing."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

SIGNATURE_BYTES = 8
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
PIECE_BYTES = 1 << 20


def check_png(path: Path) -> None:
    """Refuse, as a `ValueError`, a file whose pixels are fewer than its header states."""
    needed = held = 0
    unpacker = zlib.decompressobj()
    with path.open("rb") as file:
        file.seek(SIGNATURE_BYTES)
        while len(head := file.read(8)) == 8:
            size, kind = struct.unpack(">I4s", head)
            end = file.tell() + size + 4
            if kind == b"IHDR":
                needed = _bytes_needed(file.read(size))
            elif kind == b"IDAT":
                while size and (piece := file.read(min(size, PIECE_BYTES))):
                    size -= len(piece)
                    held += _unpacked(unpacker, piece)
            file.seek(end)
    held += len(unpacker.flush())
    if held < needed:
        raise ValueError(f"the file holds {held:,} of {needed:,} bytes")


def _bytes_needed(header: bytes) -> int:
    """Of all rows, each with a byte that tells how it is packed; of interlaced images, without these."""
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header[:13])
    bits = depth * CHANNELS[colour]
    return int(width * height * bits // 8) if interlaced else int(height * (1 + -(-width * bits // 8)))


def _unpacked(unpacker: zlib._Decompress, piece: bytes) -> int:
    """How many bytes a piece stands for, of which a million at a time are kept."""
    held = 0
    while piece and not unpacker.eof:
        held += len(unpacker.decompress(piece, PIECE_BYTES))
        piece = unpacker.unconsumed_tail
    return held
