"""What is dark on a slide without being tissue: pen, black borders, areas that were not scanned.

Stains have characteristic ratios between their channels. Ratios of absorbance over real fields at 4 um/px:
red to green at most 0.85 in H&E and 1.3 in haematoxylin with DAB; blue to green at most 0.65 in H&E. Blue
and green inks absorb red light far more than green, red ink absorbs blue about as much as green but hardly
any red, and black absorbs everything alike. A pen also draws strokes that are wide and even, where dark
tissue is speckled: only what fills a disc counts.
"""

from __future__ import annotations

import cv2
import numpy as np

from metaphase.tissue.background import Floats
from metaphase.tissue.morphology import Mask, dilated, opened, without_coreless_objects

STROKE_UM = 80.0
"""A pen stroke is at least this wide."""
FRINGE_UM = 150.0
"""How far thin, smeared ink of the same hue reaches from a stroke."""
RIM_UM = 16.0
"""The blurred edge of a stroke, whose hue cannot be told."""
INKED_TISSUE_DENSITY = 0.9
"""Darker areas that touch a stroke are tissue under ink, which nobody can read."""


def find_ink(absorbance: Floats, mpp: float) -> Mask:
    """Pen marks, black borders and black unscanned areas, from absorbance (3, height, width)."""
    ink = np.zeros(absorbance.shape[1:], np.bool_)
    for core, fringe in (_cool_ink(absorbance), _red_ink(absorbance), _black_ink(absorbance)):
        stroke = opened(core, STROKE_UM / 2 / mpp)
        if stroke.any():
            smeared = fringe & dilated(stroke, FRINGE_UM / mpp)
            ink |= without_coreless_objects(stroke | smeared, core=stroke)
    if ink.any():
        ink = without_coreless_objects(ink | _too_dark(absorbance, mpp), core=ink)
    return dilated(ink, RIM_UM / mpp)


def _cool_ink(absorbance: Floats) -> tuple[Mask, Mask]:
    """Blue, green and turquoise ink: the core of strokes, and their fringe."""
    red, green, blue = absorbance
    core = ((red > 0.4) & (red > 1.5 * green)) | ((red > 1.2) & (red > green) & (blue < 0.4 * red))
    return core, (red > 0.15) & (red > 1.3 * green)


def _red_ink(absorbance: Floats) -> tuple[Mask, Mask]:
    """Red ink: the core of strokes, and their fringe."""
    red, green, blue = absorbance
    core = (green > 0.6) & (blue > 0.75 * green) & (red < 0.3 * green)
    return core, (green > 0.15) & (blue > 0.7 * green) & (red < 0.35 * green)


def _black_ink(absorbance: Floats) -> tuple[Mask, Mask]:
    """Black ink, the black frame of a scan, black filling: the core, and the fringe."""
    least, spread, mean = absorbance.min(axis=0), np.ptp(absorbance, axis=0), absorbance.mean(axis=0)
    core = ((least > 0.5) & (spread < 0.2 * least)) | (least > 2.0)
    return core, (mean > 0.15) & (spread < 0.25 * mean)


def _too_dark(absorbance: Floats, mpp: float) -> Mask:
    side = max(1, round(STROKE_UM / mpp))
    density = cv2.blur(np.minimum(absorbance.mean(axis=0), 1), (side, side))
    return opened(density > INKED_TISSUE_DENSITY, STROKE_UM / 2 / mpp)
