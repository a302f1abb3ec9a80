"""Tissue or not, from pixels alone.

Stain shows in two ways: by colour, however smooth, and by darkness, if it has structure; shading has
neither. What is stained and not ink is joined to pieces, and pieces that look like dirt are dropped.
"""

from __future__ import annotations

import math

import cv2
import numpy as np

from metaphase.errors import UsageError
from metaphase.slides import RGB
from metaphase.tissue.background import GRAIN_UM, Appearance, measure_appearance
from metaphase.tissue.config import TissueConfig
from metaphase.tissue.ink import find_ink
from metaphase.tissue.morphology import (
    Mask,
    closed,
    eroded,
    opened,
    piece_areas,
    without_coreless_objects,
    without_small_holes,
    without_small_objects,
)

NOISE_FACTOR = 5.0
"""Stain stands out from the noise on glass by this many standard deviations."""
LEAST_DENSITY = 0.01
"""Colour without any darkening is not stain: JPEG spreads colour beyond the edge of tissue."""
LEAST_HUE = 0.12
"""Least colour, relative to the density: a tint of dark grey is not a stain."""
LEAST_GRAIN = 1.5
"""Least structure of grey stain (levels of 255); smooth grey is shading, or thin ink."""
SPECK_UM2 = 1500.0
"""Gaps are not bridged towards pieces smaller than this."""
LEAST_COLOURED_SHARE = 0.05
"""A piece with a smaller share of coloured pixels is grey."""
GREY_SIZE_FACTOR = 10.0
"""A grey piece must be this many times larger than a coloured one to be tissue."""


def segment_tissue(rgb: RGB, mpp: float, config: TissueConfig | None = None) -> Mask:
    """Where `rgb` (height, width, 3; `mpp` um/px) shows tissue, as a mask of the same height and width.

    A finer image is averaged down to the working resolution first; a coarser one is taken as it is.
    """
    config = config or TissueConfig()
    _check_image(rgb, mpp)
    height, width = rgb.shape[:2]
    mask = _segment(_averaged(rgb, config.mpp / mpp), max(config.mpp, mpp), config)
    return cv2.resize(mask.astype(np.uint8), (width, height), interpolation=cv2.INTER_NEAREST) > 0


def _segment(rgb: RGB, mpp: float, config: TissueConfig) -> Mask:
    look = measure_appearance(rgb, mpp)
    ink = find_ink(look.absorbance, mpp)
    coloured = _coloured(look, config)
    stained = (coloured | _dense(look, mpp, config)) & ~ink
    tissue = _bridged(stained, mpp, config)
    tissue = without_small_holes(tissue, config.min_hole_um2 / mpp**2) & ~ink
    tissue = _without_threads(tissue, coloured, config.thread_um / 2 / mpp)
    return _without_debris(tissue, coloured, config.min_object_um2 / mpp**2)


def _coloured(look: Appearance, config: TissueConfig) -> Mask:
    """Stain that shows by its colour."""
    density = look.density
    least = np.maximum(max(config.min_colour, NOISE_FACTOR * look.noise), LEAST_HUE * density)
    return np.asarray((look.colour > least) & (density > LEAST_DENSITY), np.bool_)


def _dense(look: Appearance, mpp: float, config: TissueConfig) -> Mask:
    """Stain that shows by its darkness, however faint, but with structure."""
    grainy = look.grain > max(LEAST_GRAIN, 2 * look.glass_grain)
    structured = eroded(grainy, GRAIN_UM / 2 / mpp)
    return (look.density > max(config.min_density, NOISE_FACTOR * look.noise)) & structured


def _bridged(stained: Mask, mpp: float, config: TissueConfig) -> Mask:
    """Close narrow gaps, except towards specks."""
    walls = without_small_objects(stained, SPECK_UM2 / mpp**2)
    return closed(walls, config.bridge_um / 2 / mpp) | stained


def _without_threads(mask: Mask, coloured: Mask, radius_px: float) -> Mask:
    """Drop thin grey parts, and pieces that are thin throughout."""
    thick = opened(mask, radius_px)
    return without_coreless_objects(thick | (mask & coloured), core=thick)


def _without_debris(mask: Mask, coloured: Mask, min_area_px: float) -> Mask:
    """Drop small pieces, and grey ones unless they are much larger."""
    labels, areas = piece_areas(mask)
    coloured_areas = np.bincount(labels[coloured & mask], minlength=len(areas))
    grey = coloured_areas < LEAST_COLOURED_SHARE * areas
    keep = areas >= np.where(grey, GREY_SIZE_FACTOR, 1.0) * min_area_px
    return np.asarray(keep[labels] & mask, np.bool_)


def _averaged(rgb: RGB, factor: float) -> RGB:
    """The image made `factor` times smaller by averaging; unchanged where `factor` is 1 or less."""
    if factor <= 1:
        return rgb
    height, width = (max(1, round(side / factor)) for side in rgb.shape[:2])
    return np.asarray(cv2.resize(rgb, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


def _check_image(rgb: RGB, mpp: float) -> None:
    if rgb.ndim != 3 or rgb.shape[2] != 3 or rgb.dtype != np.uint8 or rgb.size == 0:
        raise UsageError(
            f"an array of shape {rgb.shape} and type {rgb.dtype} is not an image",
            next_step="give (height, width, 3) uint8 RGB",
        )
    if not (math.isfinite(mpp) and mpp > 0):
        raise UsageError(f"{mpp} um/px makes no sense", next_step="give a resolution above 0")
