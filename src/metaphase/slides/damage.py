"""Damage that decoders pass over in silence: pixels that are missing, left over, or like no scan."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple, cast

import cv2
import imagecodecs
import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image
from tifffile import COMPRESSION

from metaphase.base.arrays import RGB, AnyFloats, Box, Floats32

# ---- JPEG: do the data end where the pixels do ----

SLACK_BYTES = 8
"""Decoders read so far ahead; where a sound stream ends is known to this many bytes."""
ZERO_RUN, BLANK_BLOCKS = 32, 5
"""So many zeros occur only where blocks are blank, and then so many of them and more lie side by side."""
_END = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])", re.DOTALL)
_RESTART = re.compile(rb"\xff([\xd0-\xd7])")
_TABLES = (0xC4, 0xC8, 0xCC)
"""Markers among those of frames that begin none."""


class JpegFrame(NamedTuple):
    """What a JPEG says before its pixels."""

    width: int
    height: int
    marker: int
    """0xC0 and 0xC1: one after another (baseline); others refine them again and again."""
    components: int
    scanned: int
    """Components in the first scan."""
    start: int
    """Where the pixels begin."""


def jpeg_frame(data: bytes) -> JpegFrame:
    """The frame of a JPEG; a `ValueError` where none comes before its pixels."""
    offset, frame = 2, (0, 0, 0, 0)
    while offset + 10 <= len(data) and data[offset] == 0xFF:
        marker, length = data[offset + 1], int.from_bytes(data[offset + 2 : offset + 4])
        if 0xC0 <= marker <= 0xCF and marker not in _TABLES:
            height, width = (int.from_bytes(data[offset + at : offset + at + 2]) for at in (5, 7))
            frame = (width, height, marker, data[offset + 9])
        if marker == 0xDA and frame[2]:
            return JpegFrame(*frame, data[offset + 4], offset + 2 + length)
        offset += 1 if marker == 0xFF else 2 + length
    raise ValueError("a JPEG without a frame before its pixels")


def check_jpeg(data: bytes, tables: bytes | None = None) -> None:
    """Refuse, as a `ValueError` or `OSError`, a JPEG whose data end before its pixels do, or after.

    libjpeg goes on with grey or wrong pixels and only counts a warning, which neither imagecodecs nor Pillow
    hands on. But a decoder that is given no end asks for more: it must need the last bytes, and no further
    ones. Pixels are decoded at an eighth of their size. Those with several scans are taken as they are.
    """
    frame = jpeg_frame(data)
    if frame.marker not in (0xC0, 0xC1) or frame.scanned != frame.components:
        return
    marker = _END.search(data, frame.start)
    if marker and marker[1] != b"\xd9":
        raise ValueError(f"marker {marker[1].hex()} among its pixels")
    end = marker.start() if marker else len(data)
    restarts = _RESTART.findall(data, frame.start, end)
    if any(restart[0] != 0xD0 + number % 8 for number, restart in enumerate(restarts)):
        raise ValueError("parts of its pixels are missing or out of order")
    known = data[:2] if tables is None else data[:2] + tables[2:-2]
    last = max(frame.start, end - SLACK_BYTES)
    fed = _Fed(known + data[2:last], data[last:end] + bytes(SLACK_BYTES))
    with Image.open(cast(BinaryIO, fed), formats=["JPEG"]) as image:
        image.draft("L", (1, 1))
        blocks = np.asarray(image).reshape(image.height, image.width, -1)
    if not fed.all_read:
        raise ValueError("its pixels end before its data")
    if data.find(bytes(ZERO_RUN), frame.start, end) >= 0:
        alike = (blocks[:, 1:] == blocks[:, :-1]).all(axis=2)
        wide = alike.shape[1] >= BLANK_BLOCKS
        if wide and not sliding_window_view(alike, BLANK_BLOCKS, axis=1).all(axis=-1).any():
            raise ValueError("zeros in the place of pixels")


class _Fed:
    """A file in two pieces, which knows whether the second one was asked for."""

    def __init__(self, head: bytes, tail: bytes) -> None:
        self._head, self._tail = io.BytesIO(head), tail
        self.seek, self.tell = self._head.seek, self._head.tell
        self.all_read = False

    def read(self, size: int = -1) -> bytes:
        piece = self._head.read(size)
        if not piece and not self.all_read:
            self.all_read = True
            return self._tail
        return piece


# ---- other packed pixels: are there as many as there should be ----


def check_packed(data: bytes, compression: int, size: int) -> None:
    """Refuse, as a `ValueError`, LZW and PackBits data that unpack to another number of bytes.

    Decoders cut off what is too much; the other codecs have checksums, or none at all.
    """
    unpack = {COMPRESSION.LZW: imagecodecs.lzw_decode, COMPRESSION.PACKBITS: imagecodecs.packbits_decode}
    if compression in unpack:
        held = len(unpack[COMPRESSION(compression)](data))
        if held != size:
            raise ValueError(f"{held:,} bytes where {size:,} should be")


# ---- pixels that no scan has ----

PLAIN_RANGE = 24
"""Pixels of blank glass differ by less."""
SEGMENT_PX, OVERLAP_PX = 32, 16
"""Neighbouring rows are compared in segments of this length, tiles with so much of their neighbours."""
SEAM_RATIOS = {2: 5.0, 4: 3.4, 8: 2.7}
"""At a seam of so many segments, neighbouring rows differ so many times more than rows above and below it.
Sound images of five scanners have at most 4.1, 2.8 and 2.4."""
SEAM_LEVELS = 2.0
"""Added to both: of smaller differences nothing can be said."""
NEAR_ROWS = 4
PLAIN_ROWS, GLASS = 12, 200
"""So many equal rows make a plain area, unless they are as bright as glass."""
CELL_PX = 256
NOISE_ROWS, NOISE_LEVELS = 4, 65.0
"""So many rows that differ so much are noise: of random bytes 85, of sound fields at most 48."""


def is_plain(pixels: npt.NDArray[np.uint8]) -> bool:
    """Whether pixels (height, width, samples) are all about the same."""
    return bool(np.ptp(pixels, axis=(0, 1)).max() < PLAIN_RANGE)


def cell_of(box: Box) -> tuple[int, int]:
    """Where a flaw is; those of one cell count as one."""
    return box.x // CELL_PX, box.y // CELL_PX


def odd_parts(pixels: RGB) -> Iterator[tuple[str, Box]]:
    """Parts of a picture (height, width, 3) that no scan has: seams, plain areas that are not glass, noise.

    Damage that decodes begins and ends at straight lines, where all pixels differ from their neighbours:
    microscopes are not that sharp. One channel tells, for where channels are mixed up, all of them jump.
    """
    green = np.ascontiguousarray(pixels[..., 1])
    yield from _odd_rows(green)
    for kind, box in _odd_rows(np.ascontiguousarray(green.T)):
        if kind == "seam":
            yield kind, Box(box.y, box.x, box.height, box.width)


def _odd_rows(green: npt.NDArray[np.uint8]) -> Iterator[tuple[str, Box]]:
    segments = green.shape[1] // SEGMENT_PX
    if len(green) <= PLAIN_ROWS or not segments:
        return
    green = green[:, : segments * SEGMENT_PX]
    steps = _means(cv2.absdiff(green[1:], green[:-1]).astype(np.uint8, copy=False))
    for length, ratio in SEAM_RATIOS.items():
        if segments >= length:
            for row, segment in np.argwhere(_seams(steps, length) > ratio).tolist():
                yield "seam", Box(segment * SEGMENT_PX, row, length * SEGMENT_PX, 2)
    plain = steps == 0
    if plain.any():
        plain &= _means(green[1:]) < GLASS
    for kind, odd, rows in (("plain area", plain, PLAIN_ROWS), ("noise", steps > NOISE_LEVELS, NOISE_ROWS)):
        if odd.any():
            whole = cv2.erode(
                odd.astype(np.uint8), np.ones((rows, 1), np.uint8), anchor=(0, 0), borderValue=0
            )
            for row, segment in np.argwhere(whole).tolist():
                yield kind, Box(segment * SEGMENT_PX, row, SEGMENT_PX, rows)


def _means(values: npt.NDArray[np.uint8]) -> Floats32:
    means = cv2.boxFilter(values, cv2.CV_32F, (SEGMENT_PX, 1), anchor=(0, 0), borderType=cv2.BORDER_REPLICATE)
    return np.ascontiguousarray(means[:, ::SEGMENT_PX], np.float32)


def _seams(steps: AnyFloats, length: int) -> AnyFloats:
    """How much more neighbouring rows differ than others nearby, of every so many segments."""
    sums = np.pad(np.cumsum(steps, axis=1, dtype=np.float32), ((0, 0), (1, 0)))
    steps = (sums[:, length:] - sums[:, :-length]) / length
    padded = np.pad(steps, ((NEAR_ROWS, NEAR_ROWS), (0, 0)), mode="edge")
    near = [padded[at : at + len(steps)] for at in range(2 * NEAR_ROWS + 1)]
    usual = np.maximum(_second(*near[:NEAR_ROWS]), _second(*near[NEAR_ROWS + 1 :]))
    ratios: AnyFloats = steps / (usual + SEAM_LEVELS)
    ratios[:NEAR_ROWS] = ratios[-NEAR_ROWS:] = 0
    return ratios


def _second(a: AnyFloats, b: AnyFloats, c: AnyFloats, d: AnyFloats) -> AnyFloats:
    """The second largest of four, one of which may be odd itself."""
    least = np.minimum(np.maximum(a, b), np.maximum(c, d))
    return np.asarray(np.maximum(least, np.maximum(np.minimum(a, b), np.minimum(c, d))))
