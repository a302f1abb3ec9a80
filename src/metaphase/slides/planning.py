"""Which tiles to read: a pure function of sizes, resolution and a mask."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from metaphase.errors import UsageError
from metaphase.geometry import Box
from metaphase.slides.contract import WORKING_MPP


@dataclass(frozen=True, slots=True)
class Tile:
    """One piece of work, in pixels of the plan's plane: cores partition the plane, halos overlap."""

    core: Box
    outer: Box


@dataclass(frozen=True)
class TilePlan:
    """Tiles over a part of a slide at one resolution.

    The plan's plane has its origin at level-0 (x, y), and each of its pixels is `scale` level-0 pixels wide.
    """

    tiles: tuple[Tile, ...]
    x: int
    y: int
    width: int
    height: int
    mpp: float
    scale: float

    def to_level0(self, x: float, y: float) -> tuple[float, float]:
        """Level-0 position of a point of the plan's plane; (0, 0) is the corner of the first pixel."""
        return self.x + x * self.scale, self.y + y * self.scale


@dataclass(frozen=True)
class MaskGrid:
    """A coarse yes/no map over level 0, from (x, y) on; its pixels are `scale` level-0 pixels wide."""

    mask: npt.NDArray[np.bool_]
    x: float
    y: float
    scale: float


def plan_tiles(
    bounds: Box,
    slide_mpp: float,
    *,
    mpp: float = WORKING_MPP,
    tile_px: int = 1024,
    halo_px: int = 0,
    mask: MaskGrid | None = None,
) -> TilePlan:
    """Cover `bounds` (level-0 pixels) with tiles at `mpp`; with a mask, only where a core touches it.

    Tiles come row by row, so that neighbours share what a reader has just decoded.
    """
    if tile_px < 1 or halo_px < 0 or bounds.area == 0:
        raise UsageError(
            f"no tiles of {tile_px} px with a halo of {halo_px} px fit {bounds.width} x {bounds.height} px",
            next_step="give a tile of at least 1 px, a halo of at least 0 px and a region that is not empty",
        )
    scale = mpp / slide_mpp
    width, height = (max(1, math.ceil(side / scale - 1e-6)) for side in (bounds.width, bounds.height))
    cores = [
        Box(x, y, min(tile_px, width - x), min(tile_px, height - y))
        for y in range(0, height, tile_px)
        for x in range(0, width, tile_px)
    ]
    if mask is not None:
        touched = _touched(cores, bounds, scale, mask)
        cores = [core for core, keep in zip(cores, touched, strict=True) if keep]
    tiles = tuple(Tile(core, core.grown(halo_px)) for core in cores)
    return TilePlan(tiles, bounds.x, bounds.y, width, height, mpp, scale)


def _touched(cores: list[Box], bounds: Box, scale: float, mask: MaskGrid) -> npt.NDArray[np.bool_]:
    """Whether each core overlaps a true pixel of the mask, by sums over a summed-area table."""
    edges = np.array([(c.x, c.y, c.right, c.bottom) for c in cores], float) * scale
    edges += (bounds.x - mask.x, bounds.y - mask.y) * 2
    edges /= mask.scale
    low, high = np.floor(edges[:, :2] + 1e-9), np.ceil(edges[:, 2:] - 1e-9)
    rows, columns = mask.mask.shape
    x0, x1 = (np.clip(side[:, 0], 0, columns).astype(int) for side in (low, high))
    y0, y1 = (np.clip(side[:, 1], 0, rows).astype(int) for side in (low, high))
    table = np.zeros((rows + 1, columns + 1), np.int64)
    table[1:, 1:] = mask.mask.cumsum(0, dtype=np.int64).cumsum(1)
    inside: npt.NDArray[np.int64] = table[y1, x1] - table[y0, x1] - table[y1, x0] + table[y0, x0]
    return inside > 0
