"""Comparable pictures of two stains: how much nuclear stain each place holds.

Haematoxylin marks nuclei in both stains; in immunohistochemistry the brown of a positive nucleus stands for
the haematoxylin that it hides. Sums of densities are linear in the logarithm of the pixels, so one table
look-up per channel does the deconvolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt

from metaphase.geometry import Box
from metaphase.registration.correlation import Image
from metaphase.slides import RGB, Slide, plan_tiles, read_tiles
from metaphase.stain.deconvolution import H_DAB_RESIDUAL, HE_RESIDUAL
from metaphase.stain.guess import StainGuess, guess_stain
from metaphase.tissue import TissueMask, find_tissue

Stain = Literal["H&E", "DAB", "unknown"]

FINE_PX, COARSE_PX = 1.0, 12.0
"""The band of detail that is compared, as the widths of two Gaussians in pixels: nuclei at 0.5 um/px."""
DARKEST_PERCENT = 99.0
"""Density is cut at this percentile: pigment and clumps of brown must not outweigh the nuclei."""


@dataclass(frozen=True)
class View:
    """A slide with what registering it needs: its stain and where its tissue is."""

    slide: Slide
    stain: StainGuess
    tissue: TissueMask

    @property
    def size_um(self) -> tuple[float, float]:
        """Width and height of level 0."""
        return self.slide.width * self.slide.mpp, self.slide.height * self.slide.mpp

    def density(self, x_um: float, y_um: float, width: int, height: int, mpp: float) -> Image:
        """Nuclear density (height, width) at `mpp`, its top-left corner at (x_um, y_um) of the slide."""
        own = self.slide.mpp
        return nuclear_density(self.slide.read(x_um / own, y_um / own, width, height, mpp), self.stain.name)


def view(slide: Slide) -> View:
    """Find the tissue of a slide and guess its stain."""
    tissue = find_tissue(slide)
    return View(slide, guess_stain(slide.thumbnail()), tissue)


def nuclear_density(rgb: RGB, stain: Stain) -> Image:
    """Natural-log optical density of nuclear stain (height, width), at least 0."""
    table = _table(stain)
    density = sum(table[channel][rgb[..., channel]] for channel in range(3))
    return np.maximum(np.asarray(density, np.float32), 0)


@lru_cache(maxsize=3)
def _table(stain: Stain) -> npt.NDArray[np.float32]:
    """What each value of each channel (3, 256) adds to the density."""
    levels = -np.log((np.arange(256) + 1) / 256)
    if stain == "H&E":
        weights = HE_RESIDUAL.inverse[:, 0]
    elif stain == "DAB":
        weights = H_DAB_RESIDUAL.inverse[:, :2].sum(axis=1)
    else:
        weights = np.full(3, 1 / 3)
    return (weights[:, None] * levels).astype(np.float32)


def detail(density: Image) -> Image:
    """Density without what is too fine or too coarse to compare."""
    cut = np.minimum(density, np.percentile(density, DARKEST_PERCENT).astype(np.float32))
    fine = cv2.GaussianBlur(cut, (0, 0), FINE_PX)
    return np.asarray(fine - cv2.GaussianBlur(cut, (0, 0), COARSE_PX), np.float32)


def overview(view: View, mpp: float) -> Image:
    """Nuclear density of the whole slide, level-0 origin at pixel (0, 0), and 0 off the tissue."""
    slide = view.slide
    whole = Box(0, 0, slide.width, slide.height)
    plan = plan_tiles(whole, slide.mpp, mpp=mpp, tile_px=256, mask=view.tissue.grid)
    density = np.zeros((plan.height, plan.width), np.float32)
    for tile, pixels in read_tiles(slide, plan):
        core = tile.core
        density[core.y : core.bottom, core.x : core.right] = nuclear_density(pixels, view.stain.name)
    return density * tissue_share(view.tissue, slide.mpp, density.shape, mpp)


def tissue_share(tissue: TissueMask, slide_mpp: float, shape: tuple[int, int], mpp: float) -> Image:
    """The mask (0 to 1) at another resolution, level-0 origin at pixel (0, 0)."""
    step = mpp / slide_mpp / tissue.scale
    matrix = np.array(
        [
            [step, 0, (0.5 * step - 0.5) - tissue.x / tissue.scale],
            [0, step, (0.5 * step - 0.5) - tissue.y / tissue.scale],
        ]
    )
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    mask = tissue.mask.astype(np.float32)
    return np.asarray(cv2.warpAffine(mask, matrix, shape[::-1], flags=flags), np.float32)
