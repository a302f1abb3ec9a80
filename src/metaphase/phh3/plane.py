"""The plane that is searched: whole pixels of one pyramid level, or whole multiples of them.

Nothing is interpolated, so each pixel of the plane is the same however the plane is cut into tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from metaphase.geometry import Box
from metaphase.slides import RGB, MaskGrid, Slide, TilePlan, plan_tiles

COARSER_TOLERANCE = 1.25
"""A level may be this many times coarser than asked."""


@dataclass(frozen=True)
class SearchPlane:
    """A slide at about the asked resolution."""

    slide: Slide
    level: int
    factor: int
    """Pixels of the level along each side of a pixel of the plane."""

    @property
    def scale(self) -> float:
        """Level-0 pixels per pixel of the plane."""
        return self.factor * self.slide.levels[self.level].downsample

    @property
    def mpp(self) -> float:
        """Micrometres per pixel of the plane."""
        return self.scale * self.slide.mpp

    def plan(self, tile_px: int, mask: MaskGrid) -> TilePlan:
        """Tiles of the plane that touch the mask, row by row."""
        whole = Box(0, 0, self.slide.width, self.slide.height)
        return plan_tiles(whole, self.slide.mpp, mpp=self.mpp, tile_px=tile_px, mask=mask)

    def read(self, box: Box) -> RGB:
        """Pixels of a box of the plane; each is the mean of `factor` x `factor` pixels of the level."""
        n = self.factor
        pixels = self.slide.read_level(self.level, Box(box.x * n, box.y * n, box.width * n, box.height * n))
        if n == 1:
            return pixels
        size = (box.width, box.height)
        return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8)


def search_plane(slide: Slide, mpp: float) -> SearchPlane:
    """The plane nearest to `mpp`, from the level that costs least."""
    wanted = mpp / slide.mpp
    steps = [level.downsample for level in slide.levels]
    level = max((i for i, step in enumerate(steps) if step <= COARSER_TOLERANCE * wanted), default=0)
    return SearchPlane(slide, level, max(1, round(wanted / steps[level])))
