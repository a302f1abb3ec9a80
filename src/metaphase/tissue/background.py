"""The bare glass of a slide: how bright it is, how it is tinted, how it shades from place to place.

Everything else is measured against it, as absorbance: minus the natural logarithm of the light that
is left. Shading (lamp, lens, edge of the coverslip) is grey, stain is not; so the tint of the glass is
taken once for the slide, and only its brightness may vary from place to place.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from metaphase.slides import RGB
from metaphase.tissue.morphology import Mask

Floats = npt.NDArray[np.float32]

MIN_GLASS_LEVEL = 150
"""Glass is brighter than this in every channel (of 255), however dim the lamp."""
MAX_GLASS_TINT = 0.15
"""Largest difference between the channels of glass, relative to the brightest."""
MAX_GLASS_GRAIN = 3.0
"""Largest standard deviation of the brightness (levels of 255, within `GRAIN_UM`) on glass."""
GRAIN_UM = 60.0
"""Width of the window in which grain is measured: some nuclei wide, narrower than a fat cell."""
MIN_GLASS_SHARE = 0.001
"""With less glass than this share of the scanned area, its brightness is taken from the brightest pixels."""
DIMMEST_ASSUMED_GLASS = 230.0
"""Where no glass is in view it is assumed to be at least this bright."""
STRAIGHT_UM = 100.0
MIN_FILLING_STRAIGHTNESS = 0.38
"""Pure white is filling if this share of its edge lies on straight lines of `STRAIGHT_UM` or more. Drawn
slides: 0.5 and more around filling, 0.25 and less around saturated glass."""
SHADING_RANGE = 0.25
"""Shading beyond this absorbance is not believed."""
MAX_SHADING_TINT = 0.03
"""Glass differs from the tint of the slide's glass by no more than this absorbance between channels."""
SHADING_CELL_UM = 500.0
"""Shading is measured once per cell of this width ..."""
SHADING_SMOOTHING_CELLS = 2.0
"""... and smoothed with a Gaussian of this many cells."""
_LOG_LEVELS: Floats = np.log(np.maximum(np.arange(256), 1)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Appearance:
    """How a slide looks relative to its glass, and how the glass itself scatters."""

    absorbance: Floats
    """(3, height, width), natural logarithm."""
    grain: Floats
    """(height, width), standard deviation of the brightness nearby, in levels of 255."""
    noise: float
    """Standard deviation of the absorbance on glass; 0 where no glass is in view."""
    glass_grain: float
    """Median grain on glass; 0 where no glass is in view."""

    @property
    def density(self) -> Floats:
        """Mean absorbance of the channels: how dark."""
        return np.asarray(self.absorbance.mean(axis=0), np.float32)

    @property
    def colour(self) -> Floats:
        """Largest difference of absorbance between channels: how coloured."""
        return np.asarray(np.ptp(self.absorbance, axis=0), np.float32)


def measure_appearance(rgb: RGB, mpp: float) -> Appearance:
    """Absorbance of each pixel of `rgb` (height, width, 3) relative to the glass around it, and the grain."""
    planes = np.ascontiguousarray(np.moveaxis(rgb, 2, 0))
    grain = _grain(planes, mpp)
    unscanned = _unscanned_white(planes, mpp)
    glass = _glass_pixels(planes, grain) & ~unscanned
    absorbance = np.log(_glass_colour(planes, glass, ~unscanned))[:, None, None] - _LOG_LEVELS[planes]
    density = np.asarray(absorbance.mean(axis=0), np.float32)
    flat = glass & (np.abs(density) < SHADING_RANGE) & (np.ptp(absorbance, axis=0) < MAX_SHADING_TINT)
    absorbance -= _shading(density, flat, mpp)
    glass_grain = float(np.median(grain[flat])) if flat.any() else 0.0
    return Appearance(absorbance, grain, _noise(density, flat), glass_grain)


def _grain(planes: RGB, mpp: float) -> Floats:
    side = max(3, round(GRAIN_UM / mpp))
    light = planes.mean(axis=0, dtype=np.float32)
    variance = cv2.blur(light * light, (side, side)) - cv2.blur(light, (side, side)) ** 2
    return np.asarray(np.sqrt(np.maximum(variance, 0)), np.float32)


def _glass_pixels(planes: RGB, grain: Floats) -> Mask:
    """Pixels that are bright, nearly grey and smooth."""
    brightest, darkest = planes.max(axis=0), planes.min(axis=0)
    grey = brightest - darkest <= MAX_GLASS_TINT * brightest
    return np.asarray((darkest > MIN_GLASS_LEVEL) & grey & (grain < MAX_GLASS_GRAIN), np.bool_)


def _unscanned_white(planes: RGB, mpp: float) -> Mask:
    """Areas of pure white (254 after JPEG) that a scanner filled in, known by their straight edges.

    Glass may be as white where the camera is saturated, but its edge then follows the tissue.
    """
    white = cv2.medianBlur((planes.min(axis=0) >= 254).astype(np.uint8), 5)
    if _straightness(white, mpp) < MIN_FILLING_STRAIGHTNESS:
        return np.zeros(white.shape, np.bool_)
    return cv2.erode(white, np.ones((3, 3), np.uint8)) > 0


def _straightness(area: npt.NDArray[np.uint8], mpp: float) -> float:
    """Share of the edge of `area` (0 and 1) that runs straight along rows or columns; 0 without an edge."""
    line = np.ones((max(2, round(STRAIGHT_UM / mpp)), 1), np.uint8)
    edge = straight = 0
    padded = np.pad(area, 1, mode="edge")
    for way in (padded, padded.T):
        steps = np.ascontiguousarray(way[:, 1:] != way[:, :-1]).astype(np.uint8)
        edge += int(np.count_nonzero(steps))
        straight += int(np.count_nonzero(cv2.morphologyEx(steps, cv2.MORPH_OPEN, line)))
    return straight / max(edge, 1)


def _glass_colour(planes: RGB, glass: Mask, scanned: Mask) -> Floats:
    """The colour of the brightest smooth area: pale tissue may be smooth too, but not as bright as glass."""
    if not scanned.any():
        return np.full(3, 255, np.float32)
    if np.count_nonzero(glass) < MIN_GLASS_SHARE * np.count_nonzero(scanned):
        brightest = np.percentile(planes[:, scanned], 99.9, axis=1)
        return np.clip(brightest, DIMMEST_ASSUMED_GLASS, 255).astype(np.float32)
    pixels = planes[:, glass]
    light = pixels.mean(axis=0, dtype=np.float32)
    return np.asarray(np.median(pixels[:, light >= np.percentile(light, 99) - 8], axis=1), np.float32)


def _shading(density: Floats, flat: Mask, mpp: float) -> Floats:
    """Brightness of the glass from place to place: a lower quartile per cell, smoothed over empty cells."""
    height, width = density.shape
    cell = max(1, round(SHADING_CELL_UM / mpp))
    rows, columns = -(-height // cell), -(-width // cell)
    level, weight = np.zeros((2, rows, columns), np.float32)
    for row in range(rows):
        for column in range(columns):
            area = np.s_[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell]
            glass = density[area][flat[area]]
            if glass.size:
                level[row, column], weight[row, column] = np.percentile(glass, 25), glass.size / cell**2
    sigma = SHADING_SMOOTHING_CELLS
    total = cv2.GaussianBlur(weight, (0, 0), sigma, borderType=cv2.BORDER_REPLICATE)
    smooth = cv2.GaussianBlur(level * weight, (0, 0), sigma, borderType=cv2.BORDER_REPLICATE) / (total + 1e-6)
    whole = cv2.resize(smooth, (columns * cell, rows * cell), interpolation=cv2.INTER_LINEAR)
    return np.asarray(whole[:height, :width], np.float32)


def _noise(density: Floats, flat: Mask) -> float:
    """Standard deviation from one pixel of glass to the next, blind to shading; 0 without glass."""
    beside = flat[:, 1:] & flat[:, :-1]
    if not beside.any():
        return 0.0
    steps = np.abs(np.diff(density, axis=1)[beside])
    return float(np.percentile(steps, 90) / (1.645 * np.sqrt(2)))
