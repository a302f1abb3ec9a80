"""Slides of pixels that somebody has: in memory (NumPy, PIL), or behind an array that reads them when asked
(dask, zarr, xarray, HDF5), which is read block by block and never whole.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from metaphase.base.arrays import RGB, Box
from metaphase.base.errors import SlideError, UsageError
from metaphase.slides.backends import slide_info
from metaphase.slides.contract import Slide, as_rgb

SAMPLES = (3, 4)
"""Of a pixel: RGB, or RGBA."""
BLOCK_PX, MOST_BLOCK_PX = 1024, 4096
"""Side of the blocks that are read at once: whole chunks, where these are not larger."""
CACHE_BYTES = 160_000_000
"""Of blocks that are kept, for neighbouring reads want the same: a row of 50,000 px in blocks of 1,024."""
OVERSHOOT = 1e-3
"""Floats may leave 0 to 1 by so much: resampling does that."""
GIVE_RGB = "give (height, width, 3) of RGB: the networks know H&E by its colours"
FLOATS = "floats go from 0 to 1: divide them by the largest value that they can have, often 255"
BAND_PX = 16_000_000


def is_pixels(value: object) -> bool:
    """Whether something is an array or an image, whosever it is."""
    return isinstance(value, Image.Image) or (hasattr(value, "shape") and hasattr(value, "dtype"))


class ArraySlide(Slide):
    """One level of pixels (height, width, 3 or 4), uint8 or floats from 0 to 1; transparent is white."""

    def __init__(
        self, pixels: Any, mpp: float | None = None, *, path: Path | None = None, vendor: str = "array"
    ) -> None:
        self._pixels, self._path = _checked(pixels, path), path
        height, width = self._pixels.shape[:2]
        super().__init__(slide_info(path, "array", [(width, height)], None, mpp, vendor=vendor, warnings=()))
        self._sides = _block_sides(self._pixels)
        if self._sides is not None:
            self._block = lru_cache(max(1, CACHE_BYTES // (3 * self._sides[0] * self._sides[1])))(self._read)
        elif self._pixels.dtype.kind == "f":
            self._refuse_range(self._pixels)

    def _decode(self, level: int, box: Box) -> RGB:  # noqa: ARG002 -- there is one level
        if self._sides is None:
            return self._rgb(self._pixels[box.slices])
        out, (high, wide) = np.empty((box.height, box.width, 3), np.uint8), self._sides
        for row in range(box.y // high, -(-box.bottom // high)):
            for column in range(box.x // wide, -(-box.right // wide)):
                block = Box(column * wide, row * high, wide, high)
                part = box.intersection(block)
                pixels = self._block(row, column)[part.moved(-block.x, -block.y).slices]
                out[part.moved(-box.x, -box.y).slices] = pixels
        return out

    def close(self) -> None:
        """Let go of blocks that are kept."""
        if self._sides is not None:
            self._block.cache_clear()

    def _read(self, row: int, column: int) -> RGB:
        high, wide = self._sides or (0, 0)
        box = Box(column * wide, row * high, wide, high)
        with self.decoding(0, box, SlideError):
            pixels = np.asarray(self._pixels[box.slices])
        if pixels.dtype.kind == "f":
            self._refuse_range(pixels)
        return self._rgb(pixels)

    def _rgb(self, pixels: Any) -> RGB:
        if pixels.dtype.kind == "f":
            pixels = np.rint(np.clip(pixels, 0, 1) * 255).astype(np.uint8)
        return np.array(as_rgb(pixels))

    def _refuse_range(self, pixels: Any) -> None:
        low, high = float(pixels.min()), float(pixels.max())
        if np.isnan(low):
            what = "has pixels that are NaN"
            raise SlideError(f"{self.name} {what}", path=self._path, next_step="fill them: 1.0 is white")
        if low < -OVERSHOOT or high > 1 + OVERSHOOT:
            what = f"{self.name} has values from {low:.4g} to {high:.4g}"
            raise SlideError(what, path=self._path, next_step=FLOATS)


def _checked(pixels: Any, path: Path | None) -> Any:
    """What is array-like as (height, width, 3 or 4) of uint8 or floats; nothing that is elsewhere is read."""
    if isinstance(pixels, Image.Image):
        coloured = len(pixels.getbands()) >= SAMPLES[0] or pixels.mode.startswith("P")
        pixels = opaque(pixels) if coloured else np.asarray(pixels)
    elif not is_pixels(pixels):
        raise UsageError(
            f"{type(pixels).__name__} is not a slide",
            next_step="give a path, or pixels with their mpp: an array (height, width, 3) of RGB or an image",
        )
    axes = [str(name) for name in getattr(pixels, "dims", ())]
    if len(axes) == 3 and {"y", "x"} < set(axes):  # xarray says which axis is which
        pixels = pixels.transpose("y", "x", ...)
    if not hasattr(pixels, "chunks"):
        pixels = np.asarray(pixels)
    if problem := _problem(tuple(pixels.shape), np.dtype(pixels.dtype)):
        what, advice = problem
        raise SlideError(
            f"an array of shape {tuple(pixels.shape)} and type {pixels.dtype} {what}",
            path=path,
            next_step=advice,
        )
    return pixels


def _problem(shape: tuple[int, ...], kind: np.dtype[Any]) -> tuple[str, str] | None:
    """What an array is, that is no image in colours, and what to do about it."""
    if 0 in shape:
        return "has no pixels", GIVE_RGB
    if len(shape) == 4:
        return "is several images", "give them one by one: mp.detect(list(pixels))"
    if len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 2)):
        return "is grey", GIVE_RGB
    if len(shape) != 3 or shape[2] not in SAMPLES:
        if len(shape) == 3 and shape[0] in SAMPLES:
            return "has its channels first", "move them to the end: numpy.moveaxis(pixels, 0, -1)"
        return "is not an image", GIVE_RGB
    if kind.kind == "u" and kind.itemsize == 2:
        return "has 16 bits", "bring it to 8, as (pixels >> 8).astype('uint8') where all 16 are in use"
    if kind != np.uint8 and kind.kind != "f":
        return "is not of uint8 or float", "if its values go from 0 to 255, give pixels.astype('uint8')"
    return None


def _block_sides(pixels: Any) -> tuple[int, int] | None:
    """Height and width of the blocks to read; None where the pixels are in memory."""
    if isinstance(pixels, np.ndarray):
        return None
    chunks = getattr(pixels, "shards", None) or pixels.chunks or (BLOCK_PX, BLOCK_PX)
    sides = [int(np.max(chunk)) for chunk in chunks[:2]]
    high, wide = (min(MOST_BLOCK_PX, side * -(-BLOCK_PX // side)) for side in sides)
    return high, wide


def opaque(image: Image.Image) -> RGB:
    """All pixels as RGB over white, a band of rows at a time: other modes need a multiple of the memory."""
    mode = "RGBA" if image.has_transparency_data else "RGB"
    image.load()
    if image.mode == "RGB" == mode:
        return np.asarray(image)
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    rows = max(1, BAND_PX // max(1, image.width))
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height)))
        pixels[top : top + rows] = as_rgb(np.asarray(band.convert(mode)))
    return pixels
