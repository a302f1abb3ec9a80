"""Small slides with dark dots at known positions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from metaphase.base.arrays import RGB, Box
from metaphase.images.tissue.finding import TissueMask
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.writer import PyramidFormat, write_pyramid

MPP = 0.25


def noisy_tissue(height: int, width: int, seed: int = 0) -> RGB:
    """Pink noise of many ties around the threshold of 0.6."""
    rng = np.random.default_rng(seed)
    base = np.array([200, 110, 150]) + rng.integers(-12, 13, (height, width, 1)) * 3
    return base.clip(0, 255).astype(np.uint8)


def dotted(height: int, width: int, dots: npt.ArrayLike, seed: int = 0, radius_px: int = 8) -> RGB:
    """Tissue with dark discs centred on the pixels `dots` (x, y)."""
    pixels = noisy_tissue(height, width, seed)
    y, x = np.mgrid[:height, :width]
    for column, row in np.atleast_2d(np.asarray(dots)):
        away = (x - column) ** 2 + (y - row) ** 2
        pixels[away <= radius_px**2] = (60, 30, 90)
        pixels[row, column] = (20, 10, 50)
    return pixels


def everywhere(slide: ArraySlide) -> TissueMask:
    """A mask that calls all of a slide tissue."""
    return TissueMask(np.ones((1, 1), np.bool_), MPP, 0, 0, float(max(slide.width, slide.height)))


def write_slide(path: Path, pixels: RGB) -> Path:
    """A tiled TIFF of the pixels."""
    height, width = pixels.shape[:2]
    slide = ArraySlide(pixels, mpp=MPP)
    boxes = (Box(x, y, 256, 256) for y in range(0, height, 256) for x in range(0, width, 256))
    inside = (box.intersection(Box(0, 0, width, height)) for box in boxes)
    tiles = (slide.read_level(0, box) for box in inside)
    write_pyramid(path, tiles, width, height, PyramidFormat(mpp=MPP, tile_px=256, quality=95))
    return path
