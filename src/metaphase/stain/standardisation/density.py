"""Optical density of 8-bit colours, and which pixels are glass or tissue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from metaphase.stain.deconvolution import Vector
from metaphase.stain.errors import TooLittleTissueError
from metaphase.stain.pixels import RGB

Floats = npt.NDArray[np.floating[Any]]

GLASS_DENSITY = 0.12
"""Natural-log density below which a pixel is glass: 226 of 255."""
TISSUE_DENSITY = 0.18
"""Natural-log density, above that of the glass, from which a pixel is tissue."""
FADE = 0.02
"""Width, in density, of the soft border between glass and tissue."""
BLACK_DENSITY = 3.0
"""Above this a pixel is pen, fold or the edge of the scan."""
TISSUE_CHROMA = 0.06
"""Least difference between the densities of a tissue pixel's channels; dust and shadows are grey."""
MIN_TISSUE_PIXELS = 2_000
"""With fewer, no method has anything to fit: at 1 um/px this is a twentieth of a square millimetre."""
MIN_VARIATION = 0.02
"""Least standard deviation of the density of tissue."""


def to_density(colours: Floats) -> Floats:
    """Natural-log density of colours in [0, 255]; 0 for white, 5.5 for black."""
    return np.asarray(-np.log((colours + 1) / 256))


def from_density(density: Floats) -> Floats:
    """Colours in [0, 255] of densities; what would be brighter than white is white."""
    return np.asarray(np.clip(np.exp(-density) * 256 - 1, 0, 255))


def vector(values: Floats) -> Vector:
    """Three numbers of an array as plain floats."""
    first, second, third = (float(value) for value in values)
    return first, second, third


def is_tissue(density: Floats) -> npt.NDArray[np.bool_]:
    """Which densities (..., 3), taken above the glass, belong to stained tissue."""
    mean = density.mean(axis=-1)
    coloured = np.ptp(density, axis=-1) > TISSUE_CHROMA
    return np.asarray((mean > TISSUE_DENSITY) & (mean < BLACK_DENSITY) & coloured)


def tissue_weight(density: Floats) -> Floats:
    """(n, 1): from 0 for glass to 1 for tissue, of densities (n, 3) above the glass."""
    return odds((density.mean(axis=1) - TISSUE_DENSITY / 2) / FADE)


def odds(logit: Floats) -> Floats:
    """Probability (n, 1) of log odds (n,)."""
    return np.asarray(1 / (1 + np.exp(-np.clip(logit, -50, 50))))[:, None]


@dataclass(frozen=True)
class Stained:
    """Densities of a sample: of its glass (3,), and of its tissue pixels (n, 3) above the glass."""

    glass: Floats
    tissue: Floats


def stained(pixels: RGB) -> Stained:
    """Split a sample of pixels (..., 3) into glass and tissue, or say that there is too little tissue."""
    density = to_density(pixels.reshape(-1, 3).astype(np.float32))
    bright = density[density.mean(axis=1) < GLASS_DENSITY]
    glass = np.median(bright, axis=0) if len(bright) >= MIN_TISSUE_PIXELS else np.zeros(3, np.float32)
    above = density - glass
    tissue = above[is_tissue(above)]
    if len(tissue) < MIN_TISSUE_PIXELS:
        raise TooLittleTissueError(
            f"only {len(tissue)} of {len(density)} sampled pixels are stained tissue, "
            f"{MIN_TISSUE_PIXELS} are needed to fit the stain",
            next_step="check that this is a stained slide and in focus, or use a saved transform",
        )
    if tissue.mean(axis=1).std() < MIN_VARIATION:
        raise TooLittleTissueError(
            "all stained pixels have the same colour",
            next_step="check that this is a scan of stained tissue",
        )
    return Stained(glass, tissue)
