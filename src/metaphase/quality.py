"""Is a slide fit for the networks: is it in focus, and are its colours like those of the training slides?"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import cv2
import numpy as np

from metaphase.errors import SlideError
from metaphase.slides import RGB, WORKING_MPP, Slide
from metaphase.stain.density import optical_density, stained_density
from metaphase.tissue import TissueMask

FIELD_PX = 256
BLUR_UM = (0.5, 1.0, 2.0)
"""Sharpness compares detail between the first two sizes with detail between the last two."""
SHARP_FIELD = 0.6
"""Real 40x fields of four scanners have 0.67 or more (5th percentile), at most 0.60 when blurred by 1 um."""
BLURRED_SHARE = 0.25
"""A slide with more blurred fields than this is worth a warning."""
COLOUR_RATIO = 1.9
"""Training augmentation covers about this factor in the optical density of a channel."""


@dataclass(frozen=True, slots=True)
class Quality:
    """What sampled tissue fields look like."""

    fields: int
    """Fields looked at; with none, there was no tissue to judge."""
    blurred_share: float
    """Share of the fields that are out of focus."""
    optical_density: tuple[float, float, float]
    """Mean optical density (base 10) of stained pixels in red, green and blue."""


def slide_quality(slide: Slide, tissue: TissueMask, *, fields: int = 32, seed: int = 0) -> Quality:
    """Judge focus and colour from fields at random places of the tissue."""
    rows, columns = np.nonzero(tissue.mask)
    if not len(rows):
        return Quality(0, 0.0, (0.0, 0.0, 0.0))
    chosen = np.random.default_rng(seed).choice(len(rows), min(fields, len(rows)), replace=False)
    reach = FIELD_PX / 2 * WORKING_MPP / slide.mpp
    xs = tissue.x + (columns[chosen] + 0.5) * tissue.scale - reach
    ys = tissue.y + (rows[chosen] + 0.5) * tissue.scale - reach
    images = []
    for x, y in zip(xs, ys, strict=True):
        with suppress(SlideError):  # who needs those pixels will say that they are damaged
            images.append(slide.read(float(x), float(y), FIELD_PX, FIELD_PX))
    if not images:
        return Quality(0, 0.0, (0.0, 0.0, 0.0))
    blurred = float(np.mean([sharpness(image) < SHARP_FIELD for image in images]))
    red, green, blue = stained_density(np.stack(images))
    return Quality(len(images), blurred, (float(red), float(green), float(blue)))


def sharpness(image: RGB, mpp: float = WORKING_MPP) -> float:
    """Fine detail (0.5 to 1 um) relative to coarser detail (1 to 2 um); about 0.7 to 1.2 when in focus."""
    density = optical_density(image).mean(axis=2)
    fine, middle, coarse = (cv2.GaussianBlur(density, (0, 0), size / mpp) for size in BLUR_UM)
    detail = float(np.std(middle - coarse))
    return float(np.std(fine - middle)) / detail if detail > 1e-6 else 0.0


def quality_doubts(quality: Quality, trained_on: tuple[float, float, float] | None = None) -> tuple[str, ...]:
    """Warnings for the user; `trained_on` is the mean optical density of the model's training slides."""
    doubts = []
    if quality.blurred_share > BLURRED_SHARE:
        doubts.append(
            f"{quality.blurred_share:.0%} of {quality.fields} sampled tissue fields are out of focus: "
            "mitoses there are missed, scan the slide again if you can"
        )
    if quality.fields and trained_on is not None:
        ratio = np.maximum(quality.optical_density, 1e-3) / np.maximum(trained_on, 1e-3)
        furthest = float(np.exp(np.abs(np.log(ratio)).max()))
        if furthest > COLOUR_RATIO:
            doubts.append(
                f"the stain is far from that of the training slides (a colour channel differs {furthest:.1f} "
                "times): look at the gallery before trusting the count"
            )
    return tuple(doubts)
