"""Streaming writer of tiled pyramidal BigTIFF that OpenSlide, tifffile and QuPath read.

Level-0 tiles arrive row by row and are written as they come. Coarser levels are reduced from them on
the way, one band of tiles a level in memory, spooled to disk as finished tiles and appended at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import cv2
import imagecodecs
import numpy as np
import numpy.typing as npt
from pydantic import Field
from tifffile import TiffWriter

from metaphase.base.arrays import RGB
from metaphase.base.errors import UsageError
from metaphase.base.files import atomic_path
from metaphase.base.parallel import available_cores, ordered_map
from metaphase.base.settings import settings
from metaphase.version import __version__

Pixels = npt.NDArray[Any]
Reduction = Literal["mean", "max"]
GLASS_PX, FADE_PX, GLASS = 256, 16, 244
"""Width of the glass around fields that are joined, how far they fade into it, and how bright it is."""
SUBSAMPLING = (2, 2)
"""Of the colours of JPEG tiles, as most scanners have it."""
_OPENCV_MEANS = ("uint8", "uint16", "int16", "float32", "float64")


@settings
class PyramidFormat:
    """How a pyramid is stored; by default as scanners store slides."""

    mpp: Annotated[float, Field(gt=0, lt=1000)]
    """Micrometres per level-0 pixel, written into the resolution tags of every level."""
    tile_px: Annotated[int, Field(ge=16, multiple_of=16)] = 512
    """Side of a tile; a multiple of 16."""
    quality: Annotated[int, Field(ge=1, le=100)] | None = 85
    """JPEG quality, 1 to 100; None stores without loss (zlib)."""
    reduction: Reduction = "mean"
    """How four pixels become one of the next level."""

    @classmethod
    def probabilities(cls, mpp: float, tile_px: int = 512) -> PyramidFormat:
        """A map whose peaks must stay visible when zoomed out: stored exactly, reduced by the maximum."""
        return cls(mpp, tile_px, quality=None, reduction="max")


def write_pyramid(
    path: str | Path,
    tiles: Iterable[Pixels],
    width: int,
    height: int,
    form: PyramidFormat,
    *,
    threads: int | None = None,
) -> None:
    """Write a `width` x `height` image given as level-0 tiles, row by row, to a new file.

    Tiles are (h, w, 3) uint8 for RGB, or (h, w) of any integer or float type for lossless formats; those at
    the right and bottom edge may be smaller than `tile_px`. The file appears whole or not at all, and the
    same tiles give the same bytes.
    """
    if width < 1 or height < 1:
        raise UsageError(
            f"an image of {width} x {height} pixels cannot be written", next_step="give at least 1 x 1"
        )
    source = iter(tiles)
    first = next(source, None)
    if first is None:
        raise ValueError("there are no tiles to write")
    sizes = [(width, height)]
    while max(sizes[-1]) > form.tile_px:  # odd edges are cut off, as scanners do
        sizes.append((max(1, sizes[-1][0] // 2), max(1, sizes[-1][1] // 2)))
    workers = threads or available_cores()
    with atomic_path(path) as temporary, ExitStack() as spools:
        coarser: list[_CoarserLevel] = []
        for i in range(len(sizes) - 1, 0, -1):
            spool = spools.enter_context(temporary.with_name(f"level{i}").open("w+b"))
            finer, own = (_grid(size, form.tile_px) for size in sizes[i - 1 : i + 1])
            coarser.insert(0, _CoarserLevel(spool, form, finer, own, coarser[:1]))
        padded = _feed(first, source, sizes[0], form.tile_px, coarser[:1])
        encoded = ordered_map(partial(_encode, form=form), padded, threads=workers, ahead=2 * workers)
        with TiffWriter(temporary, bigtiff=True) as tiff:
            for level, data in enumerate([encoded, *(level.encoded() for level in coarser)]):
                per_cm = 10_000 / (form.mpp * 2**level)
                tiff.write(
                    data,
                    shape=(sizes[level][1], sizes[level][0], *first.shape[2:]),
                    dtype=first.dtype,
                    tile=(form.tile_px, form.tile_px),
                    photometric="rgb" if first.ndim == 3 else "minisblack",
                    compression="zlib" if form.quality is None else "jpeg",
                    subsampling=None if form.quality is None else SUBSAMPLING,
                    subfiletype=int(level > 0),
                    resolution=(per_cm, per_cm),
                    resolutionunit="CENTIMETER",
                    software=f"metaphase {__version__}" if level == 0 else False,
                    metadata=None,
                )


def write_fields(path: str | Path, fields: Sequence[RGB], mpp: float) -> None:
    """Write fields of view of one size as one slide: two in a row, which fade into the glass around them."""
    height, width = fields[0].shape[:2]
    fades = (np.clip(np.arange(side) / FADE_PX, 0, 1) for side in (height, width))
    rows, columns = (np.minimum(fade, fade[::-1])[:, None] for fade in fades)
    share = np.minimum(rows, columns.T)[..., None]
    down, right = height + GLASS_PX, width + GLASS_PX
    slide = np.full((GLASS_PX + -(-len(fields) // 2) * down, GLASS_PX + 2 * right, 3), GLASS, np.uint8)
    for number, pixels in enumerate(fields):
        y, x = GLASS_PX + number // 2 * down, GLASS_PX + number % 2 * right
        slide[y : y + height, x : x + width] = np.rint(GLASS + share * (pixels - np.float64(GLASS)))
    form, (rows_px, columns_px) = PyramidFormat(mpp), slide.shape[:2]
    side = form.tile_px
    corners = product(range(0, rows_px, side), range(0, columns_px, side))
    tiles = (slide[y : y + side, x : x + side] for y, x in corners)
    write_pyramid(path, tiles, columns_px, rows_px, form)


@dataclass
class _CoarserLevel:
    """Gathers the halved tiles of the finer level in a band and spools its own tiles as they fill."""

    spool: BinaryIO
    form: PyramidFormat
    finer_grid: tuple[int, int]
    grid: tuple[int, int]
    coarser: list[_CoarserLevel]
    """The next level, where there is one."""
    lengths: list[int] = field(default_factory=list)
    band: Pixels | None = None

    def add(self, column: int, row: int, tile: Pixels) -> None:
        """Take tile (column, row) of the finer level; tiles come row by row."""
        side, half = self.form.tile_px, self.form.tile_px // 2
        if self.band is None:
            width = max(self.grid[0] * side, self.finer_grid[0] * half)
            self.band = np.zeros((side, width, *tile.shape[2:]), tile.dtype)
        y = row % 2 * half
        self.band[y : y + half, column * half : (column + 1) * half] = _reduce(tile, self.form.reduction)
        columns, rows = self.finer_grid
        if column == columns - 1 and (row % 2 or row == rows - 1):
            self._flush(row // 2, self.band)
            self.band = None

    def _flush(self, row: int, band: Pixels) -> None:
        columns, rows = self.grid
        if row >= rows:
            return
        for column in range(columns):
            tile = band[:, column * self.form.tile_px : (column + 1) * self.form.tile_px]
            self.lengths.append(self.spool.write(_encode(tile, self.form)))
            for level in self.coarser:
                level.add(column, row, tile)

    def encoded(self) -> Iterator[bytes]:
        """The finished tiles, in order."""
        self.spool.seek(0)
        for length in self.lengths:
            yield self.spool.read(length)


def _feed(
    first: Pixels, others: Iterator[Pixels], size: tuple[int, int], side: int, coarser: list[_CoarserLevel]
) -> Iterator[Pixels]:
    """Check and pad the level-0 tiles, show each to the next level, pass it on."""
    tiles = chain([first], others)
    columns, rows = _grid(size, side)
    for index in range(columns * rows):
        row, column = divmod(index, columns)
        expected = (min(side, size[1] - row * side), min(side, size[0] - column * side))
        tile = next(tiles, None)
        if tile is None or tile.shape[:2] not in (expected, (side, side)):
            what = "no tile" if tile is None else f"a tile of shape {tile.shape}"
            raise ValueError(f"{what} at column {column}, row {row}: expected {expected}")
        padding = [(0, side - tile.shape[0]), (0, side - tile.shape[1]), *[(0, 0)] * (tile.ndim - 2)]
        padded = np.pad(tile, padding, mode="edge")
        for level in coarser:
            level.add(column, row, padded)
        yield padded
    if next(others, None) is not None:
        raise ValueError(f"more than {columns} x {rows} tiles")


def _encode(tile: Pixels, form: PyramidFormat) -> bytes:
    tile = np.ascontiguousarray(tile)
    if form.quality is None:
        return bytes(imagecodecs.zlib_encode(tile.tobytes(), level=6))
    return bytes(
        imagecodecs.jpeg8_encode(
            tile,
            level=form.quality,
            colorspace="RGB",
            outcolorspace="YCBCR",
            subsampling=SUBSAMPLING,
        )
    )


def _reduce(tile: Pixels, reduction: Reduction) -> Pixels:
    """Half the width and height."""
    if reduction == "mean" and tile.dtype.name in _OPENCV_MEANS:
        return np.asarray(cv2.resize(tile, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA))
    quads = tile.reshape(tile.shape[0] // 2, 2, tile.shape[1] // 2, 2, *tile.shape[2:])
    if reduction == "max":
        return np.asarray(quads.max(axis=(1, 3)))
    return np.asarray(quads.mean(axis=(1, 3)).round().astype(tile.dtype))


def _grid(size: tuple[int, int], tile_px: int) -> tuple[int, int]:
    """Columns and rows of tiles."""
    return -(-size[0] // tile_px), -(-size[1] // tile_px)
