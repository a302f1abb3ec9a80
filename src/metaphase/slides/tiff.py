"""Tiled TIFFs without OpenSlide: tifffile finds the tiles, imagecodecs decodes them in threads.

Serves Aperio SVS, generic pyramids, OME-TIFF and whatever OpenSlide does not know but tifffile does.
Pixels equal OpenSlide's. Nothing larger than one region and its tiles is held in memory.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tifffile import COMPRESSION, PHOTOMETRIC, TiffFile, TiffPage

from metaphase.base.arrays import RGB
from metaphase.base.errors import SlideError
from metaphase.base.geometry import Box
from metaphase.base.parallel import available_cores
from metaphase.slides.contract import WHITE, Slide, SlideInfo, as_rgb
from metaphase.slides.metadata import ome_mpp, tiff_tag_mpp

# ---- what a TIFF file holds ----

DECODABLE = frozenset(
    {
        COMPRESSION.NONE,
        COMPRESSION.LZW,
        COMPRESSION.JPEG,
        COMPRESSION.ADOBE_DEFLATE,
        COMPRESSION.DEFLATE,
        COMPRESSION.PACKBITS,
        COMPRESSION.ZSTD,
        COMPRESSION.WEBP,
    }
)
"""Codecs whose result equals OpenSlide's, or that OpenSlide lacks; JPEG 2000 stays with OpenSlide."""
COLOUR_MODELS = (PHOTOMETRIC.RGB, PHOTOMETRIC.YCBCR, PHOTOMETRIC.MINISBLACK)
MAX_CHUNK_PX = 64_000_000
"""A single tile or strip above this would fill the memory; such files are refused."""
ASPECT_TOLERANCE = 0.05


@dataclass(frozen=True)
class Chunks:
    """The grid of tiles (or strips) of one level."""

    page: TiffPage
    width: int
    height: int
    across: int

    @classmethod
    def of(cls, page: TiffPage) -> Chunks:
        """The chunk grid of a page."""
        height, width = page.chunks[:2]
        return cls(page, width, height, -(-page.imagewidth // width))

    def covering(self, box: Box) -> list[int]:
        """Indices of the chunks that `box` touches, row by row."""
        columns = range(box.x // self.width, -(-box.right // self.width))
        rows = range(box.y // self.height, -(-box.bottom // self.height))
        return [row * self.across + column for row in rows for column in columns]

    def place(self, index: int) -> Box:
        """The box of a chunk in the plane of its level."""
        row, column = divmod(index, self.across)
        return Box(column * self.width, row * self.height, self.width, self.height)


@dataclass(frozen=True)
class TiffLayout:
    """An open TIFF file and what was found in it."""

    file: BinaryIO
    pages: tuple[TiffPage, ...]
    """The full image and its reduced copies, finest first."""
    mpp: tuple[float, float] | None
    """(x, y) micrometres per pixel as the file states them."""

    def close(self) -> None:
        """Release the file."""
        self.file.close()


def open_layout(path: Path) -> TiffLayout:
    """Parse the file's directories and check that all image data is there."""
    with ExitStack() as on_failure:
        file = on_failure.enter_context(path.open("rb"))
        try:
            tiff = TiffFile(file)
            if not len(tiff.pages):
                raise ValueError("it holds no image")
            pages = pyramid_pages(tiff)
            layout = TiffLayout(file, pages, stated_mpp(tiff))
            end = max(offset + size for page in pages for offset, size in _data_ranges(page))
        except Exception as error:
            raise SlideError(
                f"damaged or truncated TIFF ({error})", path=path, next_step="copy or export the file again"
            ) from error
        if end > (size := path.stat().st_size):
            raise SlideError(
                f"truncated: image data should end at byte {end:,}, the file has {size:,}",
                path=path,
                next_step="copy or export the file again",
            )
        on_failure.pop_all()
    return layout


def pyramid_pages(tiff: TiffFile) -> tuple[TiffPage, ...]:
    """The full image and its reduced copies, finest first, from the page chain and from SubIFDs."""
    full = tiff.pages.first
    chained = [page.aspage() for page in tiff.pages[1:]]
    subpages = [] if full.pages is None else [page.aspage() for page in full.pages]
    reduced = [page for page in [*chained, *subpages] if _is_reduction(page, full)]
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
        return f"colour model {PHOTOMETRIC(page.photometric).name} is not RGB or grey"
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
    return tiff_tag_mpp(
        tags.valueof("XResolution"), tags.valueof("YResolution"), int(tags.valueof("ResolutionUnit") or 2)
    )


def _is_reduction(page: TiffPage, full: TiffPage) -> bool:
    """Whether a page is a smaller copy of the full image; labels, macro images and thumbnails are not."""
    if page.is_tiled != full.is_tiled or (not page.is_tiled and not page.is_reduced):
        return False
    alike = page.dtype == full.dtype and page.samplesperpixel == full.samplesperpixel
    aspect = (page.imagewidth * full.imagelength) / (page.imagelength * full.imagewidth)
    small = min(page.imagewidth, page.imagelength) < 1 / ASPECT_TOLERANCE
    return alike and page.compression in DECODABLE and (small or abs(aspect - 1) <= ASPECT_TOLERANCE)


def _data_ranges(page: TiffPage) -> zip[tuple[int, int]]:
    """(offset, size) of each tile or strip."""
    return zip(page.dataoffsets, page.databytecounts, strict=True)


# ---- the fast path ----


class TiffSlide(Slide):
    """A TIFF pyramid read tile by tile, several tiles at once."""

    def __init__(self, layout: TiffLayout, info: SlideInfo, threads: int | None = None) -> None:
        super().__init__(info)
        self._levels = tuple(Chunks.of(page) for page in layout.pages)
        self._layout = layout
        self._lock = threading.Lock()
        self._threads = threads or available_cores()
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="decode")

    def _decode(self, level: int, box: Box) -> RGB:
        indices = self._levels[level].covering(box)
        out = np.empty((box.height, box.width, 3), np.uint8)
        if len(indices) == 1 or self._threads == 1:
            self._paste(level, indices, box, out)
            return out
        shares = [indices[i :: self._threads] for i in range(min(self._threads, len(indices)))]
        for done in [self._pool.submit(self._paste, level, share, box, out) for share in shares]:
            done.result()
        return out

    def _paste(self, level: int, indices: list[int], box: Box, out: RGB) -> None:
        """Decode the chunks and write their part of `box` into `out`."""
        for index in indices:
            place = self._levels[level].place(index)
            part = place.intersection(box)
            target, source = part.moved(-box.x, -box.y), part.moved(-place.x, -place.y)
            pixels = self._chunk(level, index)
            out[target.y : target.bottom, target.x : target.right] = pixels[
                source.y : source.bottom, source.x : source.right
            ]

    def _chunk(self, level: int, index: int) -> RGB:
        chunks = self._levels[level]
        page, size = chunks.page, chunks.page.databytecounts[index]
        if size == 0:  # the scanner left this tile out
            return np.full((chunks.height, chunks.width, 3), WHITE, np.uint8)
        try:
            data = self._bytes(page.dataoffsets[index], size)
            pixels = page.decode(data, index, jpegtables=page.jpegtables)[0]
            if pixels is None:
                raise ValueError("no pixels")
        except Exception as error:
            place = chunks.place(index)
            raise SlideError(
                f"level {level} cannot be decoded at ({place.x}, {place.y}) ({error})",
                path=self.info.path,
                next_step="the file is damaged: copy or export it again",
            ) from error
        return as_rgb(pixels[0])

    def _bytes(self, offset: int, size: int) -> bytes:
        handle = self._layout.file
        if hasattr(os, "pread"):
            return os.pread(handle.fileno(), size, offset)
        with self._lock:  # Windows has no positioned read
            handle.seek(offset)
            return handle.read(size)

    def close(self) -> None:
        """Release the file and the decoding threads."""
        self._pool.shutdown(cancel_futures=True)
        self._layout.close()
