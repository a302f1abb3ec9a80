"""The fast path: tiled (or stripped) TIFF pyramids, decoded in parallel by imagecodecs.

Serves Aperio SVS, generic pyramids, OME-TIFF and whatever OpenSlide does not know but tifffile does.
Pixels equal OpenSlide's. Nothing larger than one region and its tiles is held in memory.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from metaphase.errors import SlideError
from metaphase.geometry import Box
from metaphase.parallel import available_cores
from metaphase.slides.contract import RGB, WHITE, Slide, SlideInfo
from metaphase.slides.pixels import as_rgb
from metaphase.slides.tiff_layout import Chunks, TiffLayout


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
