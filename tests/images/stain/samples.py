"""Small pictures that look enough like stained tissue to fit on."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from metaphase.base.arrays import RGB
from metaphase.images.stain.deconvolution import HE_RESIDUAL, StainMatrix, combine, to_uint8

BAD_IMAGES = {
    "white": np.full((32, 32, 3), 255, np.uint8),
    "black": np.zeros((32, 32, 3), np.uint8),
    "one colour": np.full((32, 32, 3), (200, 100, 160), np.uint8),
    "grey": np.full((32, 32, 3), 77, np.uint8),
    "one pixel": np.full((1, 1, 3), (200, 100, 160), np.uint8),
    "one row": np.full((1, 40, 3), (200, 100, 160), np.uint8),
}


def tissue(
    seed: int = 0,
    *,
    matrix: StainMatrix = HE_RESIDUAL,
    strength: tuple[float, float] = (1.2, 0.6),
    side: int = 192,
) -> RGB:
    """Eosin of varying thickness with haematoxylin nuclei on it, and a stripe of glass."""
    rng = np.random.default_rng(seed)
    eosin = strength[1] * (1 + 2 * ndimage.gaussian_filter(rng.normal(size=(side, side)), 4))
    seeds = ndimage.gaussian_filter((rng.random((side, side)) < 0.004).astype(float), 3)
    nuclei = strength[0] * np.clip(seeds / seeds.max() * 3, 0, 1) * rng.uniform(0.7, 1.3, (side, side))
    stains = np.stack([nuclei + 0.05, eosin * (nuclei < 0.5) + 0.1, np.zeros_like(nuclei)], axis=-1)
    stains[:, : side // 6] = 0.02
    return to_uint8(combine(np.maximum(stains, 0), matrix))
