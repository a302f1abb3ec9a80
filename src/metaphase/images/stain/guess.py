"""Which stain a slide has, by its colours beside those of its glass.

Eosin absorbs green and little else, so an H&E slide owes more than 40 % of its optical density to the green
channel. Haematoxylin with DAB (PHH3 and its like) absorbs the three channels more evenly and stays
below 38 %, however much or little brown there is. A red chromogen (AEC, Fast Red) would pass for
eosin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from metaphase.base.arrays import RGB, Floats32
from metaphase.images.stain.pixels import channel_mean, optical_density, rgb_uint8

# ---- the colour of empty glass ----

DARKEST_GLASS, MAX_GLASS_TINT = 180, 0.2
"""Glass is brighter than this in every channel, and its channels differ by no more than this share."""


def glass_colour(thumbnail: RGB) -> Floats32:
    """The median colour (3) of the brightest pixels; white where these are too dark or coloured for glass."""
    pixels = thumbnail.reshape(-1, 3)
    light = channel_mean(pixels)
    glass = np.median(pixels[light >= np.percentile(light, 99)], axis=0).astype(np.float32)
    believable = glass.min() > DARKEST_GLASS and np.ptp(glass) < MAX_GLASS_TINT * glass.max()
    return glass if believable else np.full(3, 255, np.float32)


def white_balanced(image: RGB, glass: Floats32) -> RGB:
    """The image as if glass were white: a tint of lamp or camera would pass for a stain."""
    return np.minimum(image * (255 / glass), 255).astype(np.uint8)


# ---- which stain is this ----


BOUNDARY = 0.39
"""Green share between the stains. Real fields: H&E above 0.43 (32 um crops above 0.40), DAB below 0.37."""
SLOPE = 60.0
"""Confidence is logistic in the green share: 0.86 at 0.03 from the boundary, 0.95 at 0.05."""
MIN_OD, MAX_OD = 0.04, 1.2
"""Mean optical density (base 10) of pixels that are neither glass nor black."""
MIN_CHROMA = 0.05
"""Least difference between the channels' optical densities of a pixel that has a colour."""
MIN_COLOURED = 0.002
"""Least fraction of coloured pixels; a thumbnail of a tiny biopsy has little more."""
MIN_PLAUSIBLE = 0.6
"""Least fraction of coloured density that a mixture of histological stains can explain."""
MIN_TEXTURE = 0.003
"""Least standard deviation of density: tissue is never of one colour."""
MAX_PIXELS = 250_000


@dataclass(frozen=True, slots=True)
class StainGuess:
    """The likelier stain and how sure that is, from 0.5 (a toss-up) to 1; unknown has confidence 0."""

    name: Literal["H&E", "DAB", "unknown"]
    confidence: float


UNKNOWN = StainGuess("unknown", 0.0)


def guess_stain(image: npt.NDArray[Any]) -> StainGuess:
    """Guess the stain of a thumbnail, a field, or a stack of fields (..., h, w, 3).

    Glass, grey, one-colour and otherwise implausible images are "unknown".
    """
    density = _coloured_density(_sample(rgb_uint8(image).reshape(-1, 3)))
    if density is None:
        return UNKNOWN
    amount = density.sum(axis=1)
    share = density / amount[:, None]
    plausible = share[:, 1] > np.maximum(0.27, np.minimum(share[:, 0], share[:, 2]))
    if amount[plausible].sum() < MIN_PLAUSIBLE * amount.sum():
        return UNKNOWN
    green = float(density[plausible, 1].sum() / amount[plausible].sum())
    certainty = 1 / (1 + np.exp(-SLOPE * abs(green - BOUNDARY)))
    return StainGuess("H&E" if green > BOUNDARY else "DAB", float(certainty))


def _sample(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """At most MAX_PIXELS of (n, 3), spread evenly without a stride that could lock onto columns."""
    if len(pixels) <= MAX_PIXELS:
        return pixels
    return pixels[np.random.default_rng(0).integers(0, len(pixels), MAX_PIXELS)]


def _coloured_density(pixels: npt.NDArray[np.uint8]) -> Floats32 | None:
    """Optical density (n, 3) of the coloured pixels, or None where these cannot be tissue."""
    density = optical_density(pixels)
    mean, (red, green, blue) = channel_mean(density), density.T
    spread = np.maximum(np.maximum(red, green), blue) - np.minimum(np.minimum(red, green), blue)
    coloured = (mean > MIN_OD) & (mean < MAX_OD) & (spread > MIN_CHROMA)
    if coloured.mean() < MIN_COLOURED or mean[coloured].std() < MIN_TEXTURE:
        return None
    result: Floats32 = density[coloured]
    return result
