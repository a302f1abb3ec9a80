"""From pyramid levels to any physical resolution, without seams and without shifts.

Pixel i of the output covers level-0 columns [x + i*scale, x + (i+1)*scale). Each output pixel is a
weighted mean whose weights depend only on that interval, so a tile read alone equals the same part of
a larger read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from PIL import Image

from metaphase.errors import RegionError
from metaphase.geometry import Box

if TYPE_CHECKING:
    from metaphase.slides.contract import RGB, Level

KERNEL = Image.Resampling.BICUBIC
KERNEL_RADIUS = 2
"""Reach of the kernel, in pixels of the coarser of the two grids."""
MAX_SOURCE_PX = 16_000_000
"""Larger sources are read in pieces, so that a thumbnail of a gigapixel level stays small in memory."""
COARSER_TOLERANCE = 0.02
"""A level this much coarser than asked is still used; the finer one would cost several times the decoding."""
ALIGNED_PX = 0.01
"""Below this distance from the level's own pixel grid, pixels are copied and not resampled."""


class Pyramid(Protocol):
    """The part of a slide that resampling needs."""

    @property
    def levels(self) -> tuple[Level, ...]:
        """The pyramid, finest level first."""

    def read_level(self, level: int, box: Box) -> RGB:
        """Pixels of `box` in the plane of `level`."""


def best_level(levels: Sequence[Level], scale: float) -> int:
    """Index of the coarsest level that still holds the detail of `scale` level-0 pixels per pixel."""
    enough = [i for i, level in enumerate(levels) if level.downsample <= scale * (1 + COARSER_TOLERANCE)]
    return max(enough, key=lambda i: levels[i].downsample, default=0)


def read_resampled(pyramid: Pyramid, x: float, y: float, width: int, height: int, scale: float) -> RGB:
    """Read `width` x `height` pixels of `scale` level-0 pixels each, from level-0 (x, y) on."""
    _check_region(x, y, width, height, scale)
    level = best_level(pyramid.levels, scale)
    downsample = pyramid.levels[level].downsample
    return _read_scaled(pyramid, level, x / downsample, y / downsample, width, height, scale / downsample)


def _read_scaled(
    pyramid: Pyramid, level: int, left: float, top: float, width: int, height: int, ratio: float
) -> RGB:
    """Read output pixels of `ratio` level pixels each, from (left, top) of the level's plane on."""
    if _aligned(left, top, width, height, ratio):
        return pyramid.read_level(level, Box(round(left), round(top), width, height))
    source = _source_box(left, top, width, height, ratio)
    if source.area <= MAX_SOURCE_PX or max(width, height) == 1:
        return _resample(pyramid.read_level(level, source), source, left, top, width, height, ratio)
    out = np.empty((height, width, 3), np.uint8)
    if width >= height:
        half = width // 2
        out[:, :half] = _read_scaled(pyramid, level, left, top, half, height, ratio)
        out[:, half:] = _read_scaled(pyramid, level, left + half * ratio, top, width - half, height, ratio)
    else:
        half = height // 2
        out[:half] = _read_scaled(pyramid, level, left, top, width, half, ratio)
        out[half:] = _read_scaled(pyramid, level, left, top + half * ratio, width, height - half, ratio)
    return out


def _resample(
    pixels: RGB, source: Box, left: float, top: float, width: int, height: int, ratio: float
) -> RGB:
    """Columns, then rows: left to itself, Pillow goes by the shape, and roundings would differ."""
    x, y = left - source.x, top - source.y
    across = (x, 0, x + width * ratio, source.height)
    narrowed = Image.fromarray(pixels).resize((width, source.height), KERNEL, box=across)
    return np.asarray(narrowed.resize((width, height), KERNEL, box=(0, y, width, y + height * ratio)))


def _source_box(left: float, top: float, width: int, height: int, ratio: float) -> Box:
    """The level pixels that some output pixel's kernel touches."""
    reach = KERNEL_RADIUS * max(ratio, 1.0) + 1
    x, y = math.floor(left - reach), math.floor(top - reach)
    right, bottom = math.ceil(left + width * ratio + reach), math.ceil(top + height * ratio + reach)
    return Box(x, y, right - x, bottom - y)


def _aligned(left: float, top: float, width: int, height: int, ratio: float) -> bool:
    drift = abs(ratio - 1) * max(width, height)
    return max(drift, abs(left - round(left)), abs(top - round(top))) < ALIGNED_PX


def _check_region(x: float, y: float, width: int, height: int, scale: float) -> None:
    if width < 1 or height < 1:
        raise RegionError(
            f"a region of {width} x {height} pixels is empty", next_step="ask for at least 1 x 1 pixel"
        )
    if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(scale) and scale > 0):
        raise RegionError(
            f"region at ({x}, {y}) with {scale} level-0 pixels per pixel makes no sense",
            next_step="give finite coordinates and a resolution above 0",
        )
