"""How much light stained pixels absorb: the colour of a slide in three numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from metaphase.stain.pixels import RGB, WHITE, Floats

STAINED_OD = 0.08
"""Mean optical density (base 10) of a pixel that holds stain and not glass."""


def optical_density(image: RGB) -> Floats:
    """Optical density (base 10) of each channel, float32 of the image's shape."""
    levels = -np.log10((np.arange(WHITE + 1, dtype=np.float32) + 1) / (WHITE + 1))
    density: Floats = levels[image]
    return density


def stained_density(images: RGB) -> npt.NDArray[np.float64]:
    """Mean optical density of the stained pixels of RGB images (..., 3), one number a channel."""
    density = optical_density(images).reshape(-1, 3)
    stained = density[density.mean(axis=1) > STAINED_OD]
    return stained.mean(axis=0, dtype=float) if len(stained) else np.zeros(3)
