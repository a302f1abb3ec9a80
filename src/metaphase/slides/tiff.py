"""Tiled TIFFs without OpenSlide: tifffile finds the tiles, imagecodecs decodes them in threads.

Serves Aperio SVS, generic pyramids, OME-TIFF and whatever OpenSlide does not know but tifffile does.
Pixels equal OpenSlide's. Nothing larger than one region and its tiles is held in memory.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from tifffile import COMPRESSION, EXTRASAMPLE, PHOTOMETRIC, PLANARCONFIG, RESUNIT, TiffFile, TiffPage

from metaphase.base.arrays import RGB, Box
from metaphase.base.errors import SlideError
from metaphase.base.foreign import RAISE_LIMITS, check_plain, raised
from metaphase.base.parallel import available_cores
from metaphase.base.remote import RemoteFile, reported_as
from metaphase.slides.backends import micrometres, ome_mpp
from metaphase.slides.contract import (
    COPY_AGAIN,
    DamagedPixelsError,
    Slide,
    SlideInfo,
    as_rgb,
    blank,
    closed_on_failure,
    damage,
)
from metaphase.slides.damage import check_jpeg, check_packed, is_plain, jpeg_frame

# ---- what a TIFF file holds ----

CODECS = ("NONE", "LZW", "JPEG", "ADOBE_DEFLATE", "DEFLATE", "PACKBITS", "ZSTD", "WEBP")
DECODABLE = frozenset(COMPRESSION[name] for name in CODECS)
"""Codecs whose result equals OpenSlide's, or that OpenSlide lacks; JPEG 2000 stays with OpenSlide."""
COLOUR_MODELS = (PHOTOMETRIC.RGB, PHOTOMETRIC.YCBCR, PHOTOMETRIC.MINISBLACK)
MAX_CHUNK_PX = 64_000_000
"""A single tile or strip above this would fill the memory; such files are refused."""
ASPECT_TOLERANCE = 0.05
PER_UNIT_UM = {2: 25_400.0, 3: 10_000.0, 4: 1000.0, 5: 1.0}
"""TIFF's numbers of units: inch, centimetre, millimetre, um."""
HEADER_BYTES = 8
MOST_DIRECTORIES = 4096
MOST_PX_OF_LITTLE = 100_000_000
MOST_PX_A_BYTE = 50_000
"""An image may promise so many pixels, or so many for each byte of its file: blank tiles take few bytes."""


class Chunks:
    """The grid of tiles (or strips) of one level."""

    def __init__(self, page: TiffPage) -> None:
        self.page = page
        self.height, self.width = page.chunks[:2]
        self.across = -(-page.imagewidth // self.width)

    def covering(self, box: Box) -> list[int]:
        """Indices of the chunks that `box` touches, row by row."""
        columns = range(box.x // self.width, -(-box.right // self.width))
        rows = range(box.y // self.height, -(-box.bottom // self.height))
        return [row * self.across + column for row in rows for column in columns]

    @cached_property
    def shared(self) -> frozenset[int]:
        """Offsets at which several chunks lie: fit for blank ones only."""
        tiles = zip(self.page.dataoffsets, self.page.databytecounts, strict=True)
        times = Counter(offset for offset, size in tiles if size)
        return frozenset(offset for offset, number in times.items() if number > 1)

    def position(self, index: int) -> Box:
        """The box of a chunk in the plane of its level."""
        row, column = divmod(index, self.across)
        return Box(column * self.width, row * self.height, self.width, self.height)


class TiffLayout(NamedTuple):
    """An open TIFF file and what was found in it."""

    file: BinaryIO
    pages: tuple[TiffPage, ...]
    """The full image and its reduced copies, finest first."""
    mpp: tuple[float, float] | None
    """(x, y) micrometres per pixel as the file states them."""
    images: int
    """Images of the full size, of which the first is read."""


def open_layout(path: Path) -> TiffLayout:
    """Parse the file's directories and check that all image data is there."""
    size = check_plain(path, SlideError, remote=True)
    with reported_as(SlideError):
        file = path.open("rb")
    with closed_on_failure(file):
        with reported_as(SlideError), damage(path, "damaged or truncated TIFF"):
            tiff = TiffFile(file)
            if not len(tiff.pages):
                raise ValueError("it holds no image")
            _check_page(tiff.pages.first)
            pages = pyramid_pages(tiff)
            for page in pages[1:]:
                _check_page(page)
            alike = sum(page.aspage().shape == tiff.pages.first.shape for page in tiff.pages)
            layout = TiffLayout(file, pages, stated_mpp(tiff), alike)
            ranges = (zip(page.dataoffsets, page.databytecounts, strict=True) for page in pages)
            end = max(offset + size for parts in ranges for offset, size in parts)
        if end > size:
            raise SlideError(
                f"truncated: image data should end at byte {end:,}, the file has {size:,}",
                path=path,
                next_step=COPY_AGAIN,
            )
        width, height = pages[0].imagewidth, pages[0].imagelength
        if width * height > raised(max(MOST_PX_OF_LITTLE, size * MOST_PX_A_BYTE)):
            raise SlideError(
                f"states {width:,} x {height:,} pixels in {size:,} bytes", path=path, next_step=RAISE_LIMITS
            )
    return layout


def _check_page(page: TiffPage) -> None:
    """Refuse tags whose values do not fit together, which tifffile takes as they come."""
    numbers = (page.imagewidth, page.imagelength, page.samplesperpixel, page.planarconfig, page.compression)
    if not all(isinstance(number, int) and number > 0 for number in numbers):
        raise ValueError(f"an image of {page.imagewidth} x {page.imagelength} x {page.samplesperpixel}")
    if not isinstance(page.photometric, int):
        raise TypeError(f"colour model {page.photometric}")
    height, width = page.chunks[:2]
    if not all(isinstance(side, int) and side > 0 for side in (height, width)):
        raise ValueError(f"tiles or strips of {page.chunks}")
    wanted = -(-page.imagelength // height) * -(-page.imagewidth // width)
    wanted *= page.samplesperpixel if page.planarconfig != PLANARCONFIG.CONTIG else 1
    offsets, counts = page.dataoffsets, page.databytecounts
    if not len(offsets) == len(counts) == wanted:
        raise ValueError(
            f"{len(offsets)} positions and {len(counts)} sizes of tiles or strips, and {wanted} are needed"
        )
    if not all(isinstance(number, int) and number >= 0 for number in (*offsets, *counts)):
        raise ValueError("impossible positions of tiles or strips")
    if not any(counts):
        raise ValueError("all its tiles or strips are empty")


def pyramid_pages(tiff: TiffFile) -> tuple[TiffPage, ...]:
    """The full image and its reduced copies, finest first, from the page chain and from SubIFDs."""
    full = tiff.pages.first
    if len(tiff.pages) + len(full.subifds or ()) > raised(MOST_DIRECTORIES):
        raise ValueError(f"more than {MOST_DIRECTORIES:,} directories; {RAISE_LIMITS}")
    others = (page.aspage() for page in (*tiff.pages[1:], *(full.pages or ())))
    reduced = [page for page in others if _is_reduction(page, full)]
    pages = [full]
    for page in sorted(reduced, key=lambda page: -page.imagewidth):
        if page.imagewidth < pages[-1].imagewidth:
            pages.append(page)
    return tuple(pages)


def not_bright_field(page: TiffPage) -> str | None:
    """Why a page is no bright-field picture that can be read in parts, or None where it is one."""
    if page.dtype != np.uint8:
        return f"{page.bitspersample}-bit samples are not bright-field RGB"
    if page.samplesperpixel not in (1, 3, 4) or (page.samplesperpixel > 1 and page.planarconfig != 1):
        layout = "interleaved" if page.planarconfig == 1 else "in planes"
        return f"{page.samplesperpixel} samples per pixel, {layout}, are not bright-field RGB"
    if page.photometric not in COLOUR_MODELS or (page.samplesperpixel == 4 and not page.extrasamples):
        names = {int(model): model.name for model in PHOTOMETRIC}
        return f"colour model {names.get(page.photometric, page.photometric)} is not RGB or grey"
    if page.photometric == PHOTOMETRIC.YCBCR and page.compression != COMPRESSION.JPEG:
        return "YCbCr without JPEG compression is not supported"
    if page.chunks[0] * page.chunks[1] > MAX_CHUNK_PX:
        return f"one strip holds {page.chunks[1]} x {page.chunks[0]} pixels, too many to read in parts"
    return None


def stated_mpp(tiff: TiffFile) -> tuple[float, float] | None:
    """(x, y) mpp from OME-XML or, without it, from the resolution tags."""
    page = tiff.pages.first
    if tiff.is_ome and tiff.ome_metadata and (mpp := ome_mpp(tiff.ome_metadata)):
        return mpp
    tags = page.tags
    unit = tags.valueof("ResolutionUnit", 2)  # as TIFF has it where nothing is stated; 1 means no unit
    named = (tiff.imagej_metadata or {}).get("unit") if tiff.is_imagej else None
    if unit == RESUNIT.NONE and isinstance(named, str):
        unit = named.replace("\\u00B5", "µ")  # as ImageJ spells it
    size = PER_UNIT_UM.get(unit) if isinstance(unit, int) else micrometres(str(unit))
    match tags.valueof("XResolution"), tags.valueof("YResolution"):
        case ((int(x), int(of_x)), (int(y), int(of_y))) if size and x and of_x and y and of_y:  # rationals
            return size * of_x / x, size * of_y / y
    return None


def _is_reduction(page: TiffPage, full: TiffPage) -> bool:
    """Whether a page is a smaller copy of the full image; labels, macro images and thumbnails are not."""
    if page.is_tiled != full.is_tiled or (not page.is_tiled and not page.is_reduced):
        return False
    alike = page.dtype == full.dtype and page.samplesperpixel == full.samplesperpixel
    aspect = (page.imagewidth * full.imagelength) / (page.imagelength * full.imagewidth)
    small = min(page.imagewidth, page.imagelength) < 1 / ASPECT_TOLERANCE
    return alike and page.compression in DECODABLE and (small or abs(aspect - 1) <= ASPECT_TOLERANCE)


# ---- the fast path ----


class TiffSlide(Slide):
    """A TIFF pyramid read tile by tile, several tiles at once."""

    def __init__(self, layout: TiffLayout, info: SlideInfo) -> None:
        super().__init__(info)
        self._levels = tuple(Chunks(page) for page in layout.pages)
        self._file = layout.file
        self._lock = threading.Lock()
        for page in layout.pages:  # tifffile reads these when asked, from the file that threads share
            _ = page.jpegtables, page.decode
        self._pool = ThreadPoolExecutor(available_cores(), thread_name_prefix="decode")

    def _decode(self, level: int, box: Box) -> RGB:
        indices, page = self._levels[level].covering(box), self._levels[level].page
        out = np.empty((box.height, box.width, 3), np.uint8)
        with reported_as(SlideError):
            if isinstance(self._file, RemoteFile):
                self._file.fetch((page.dataoffsets[index], page.databytecounts[index]) for index in indices)
            if len(indices) == 1:
                self._paste(level, box, out, indices[0])
            else:
                list(self._pool.map(partial(self._paste, level, box, out), indices))
        return out

    def _paste(self, level: int, box: Box, out: RGB, index: int) -> None:
        """Decode a chunk and write its part of `box` into `out`."""
        position = self._levels[level].position(index)
        part = position.intersection(box)
        pixels = self._chunk(level, index)[part.moved(-position.x, -position.y).slices]
        out[part.moved(-box.x, -box.y).slices] = pixels

    def _chunk(self, level: int, index: int) -> RGB:
        chunks = self._levels[level]
        position = chunks.position(index)
        if chunks.page.databytecounts[index] == 0:  # the scanner left this tile out
            return blank(position)
        try:
            with self.decoding(level, position):
                return self._decoded(chunks, index)
        except DamagedPixelsError:
            if self.flaws is None:
                raise
            self.note_undecodable(level, position)
            return blank(position)

    def _decoded(self, chunks: Chunks, index: int) -> RGB:
        """The pixels of a chunk; whatever speaks against them is an error."""
        page, offset = chunks.page, chunks.page.dataoffsets[index]
        if offset < HEADER_BYTES:
            raise ValueError("it would begin in the header of the file")
        data = self._bytes(offset, page.databytecounts[index])
        position = chunks.position(index)
        needed = position.intersection(Box(0, 0, page.imagewidth, page.imagelength))
        if page.compression == COMPRESSION.JPEG:
            frame = jpeg_frame(data)
            if frame.width > chunks.width or frame.height > chunks.height:
                size = f"{frame.width} x {frame.height}"
                raise ValueError(f"{size} pixels in a tile of {chunks.width} x {chunks.height}")
        if self.flaws is not None:
            if page.compression == COMPRESSION.JPEG:
                check_jpeg(data, page.jpegtables)
            shape = position if page.is_tiled else needed
            check_packed(data, page.compression, shape.area * page.samplesperpixel)
        pixels = page.decode(data, index, jpegtables=page.jpegtables)[0]
        if pixels is None:
            raise ValueError("no pixels")
        if pixels.shape[1] < needed.height or pixels.shape[2] < needed.width:
            raise ValueError(f"{pixels.shape[2]} x {pixels.shape[1]} pixels")
        if offset in chunks.shared and not is_plain(pixels[0]):
            raise ValueError("other tiles have the same bytes")
        return as_rgb(pixels[0], premultiplied=EXTRASAMPLE.ASSOCALPHA in page.extrasamples[:1])

    def _bytes(self, offset: int, size: int) -> bytes:
        handle = self._file
        if isinstance(handle, RemoteFile):
            return handle.at(offset, size)
        if hasattr(os, "pread"):
            return bytes(os.pread(handle.fileno(), size, offset))
        with self._lock:  # Windows has no positioned read
            handle.seek(offset)
            return handle.read(size)

    def close(self) -> None:
        """Release the file and the decoding threads."""
        self._pool.shutdown(cancel_futures=True)
        self._file.close()
