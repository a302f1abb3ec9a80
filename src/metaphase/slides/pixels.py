"""Samples of any kind to opaque RGB."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from metaphase.slides.contract import RGB, WHITE


def as_rgb(pixels: npt.NDArray[np.uint8]) -> RGB:
    """(height, width, samples) of grey, RGB or RGBA to RGB over white."""
    samples = pixels.shape[2]
    if samples == 4:
        return over_white(pixels)
    return np.repeat(pixels, 3, axis=2) if samples == 1 else pixels


def over_white(rgba: npt.NDArray[np.uint8]) -> RGB:
    """Composite (height, width, 4) pixels over white."""
    rgb = np.ascontiguousarray(rgba[..., :3])
    holes = rgba[..., 3] < WHITE
    if holes.any():
        weight = rgba[holes, 3:].astype(np.uint16)
        blended = (rgb[holes] * weight + WHITE * (WHITE - weight) + WHITE // 2) // WHITE
        rgb[holes] = blended.astype(np.uint8)
    return rgb
