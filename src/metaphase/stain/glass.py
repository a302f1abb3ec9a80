"""The colour of empty glass, which tells the tint of lamp and camera from stain."""

from __future__ import annotations

import numpy as np

from metaphase.stain.pixels import RGB, Floats

DARKEST_GLASS, MAX_GLASS_TINT = 180, 0.2
"""Glass is brighter than this in every channel, and its channels differ by no more than this share."""


def glass_colour(thumbnail: RGB) -> Floats:
    """The median colour (3) of the brightest pixels; white where these are too dark or coloured for glass."""
    pixels = thumbnail.reshape(-1, 3)
    light = pixels.mean(axis=1)
    glass = np.median(pixels[light >= np.percentile(light, 99)], axis=0).astype(np.float32)
    believable = glass.min() > DARKEST_GLASS and np.ptp(glass) < MAX_GLASS_TINT * glass.max()
    return glass if believable else np.full(3, 255, np.float32)


def white_balanced(image: RGB, glass: Floats) -> RGB:
    """The image as if glass were white: a tint of lamp or camera would pass for a stain."""
    return np.minimum(image * (255 / glass), 255).astype(np.uint8)
