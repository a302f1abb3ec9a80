"""What is not tissue: glass and its shading, and pen marks.

Everything else is measured against it, as absorbance: minus the natural logarithm of the light that
is left. Shading (lamp, lens, edge of the coverslip) is grey, stain is not; so the tint of the glass is
taken once for the slide, and only its brightness may vary from position to position.

Stains have characteristic ratios between their channels. Ratios of absorbance over real fields at 4 um/px:
red to green at most 0.85 in H&E and 1.3 in haematoxylin with DAB; blue to green at most 0.65 in H&E. Blue
and green inks absorb red light far more than green, red ink absorbs blue about as much as green but hardly
any red, and black absorbs everything alike. A pen also draws strokes that are wide and even, where dark
tissue is speckled: only what fills a disc counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import cv2
import numpy as np
import numpy.typing as npt

from metaphase.base.arrays import RGB, Box, Floats32, Mask

Labels = npt.NDArray[np.int32]

# ---- binary morphology with discs, and connected pieces ----


def _morphed(operation: int, mask: Mask, radius_px: float) -> Mask:
    """Morphology with a disc, on the mask continued beyond the image border by repeating its edge.

    The disc holds all pixels within the radius; below one pixel that is a single one, which changes nothing.
    """
    reach = int(radius_px)
    y, x = np.ogrid[-reach : reach + 1, -reach : reach + 1]
    disc = np.asarray(x * x + y * y <= radius_px * radius_px + 1e-6, np.uint8)
    padded = np.pad(mask.astype(np.uint8), 2 * reach, mode="edge")
    inside = Box(2 * reach, 2 * reach, mask.shape[1], mask.shape[0])
    return cv2.morphologyEx(padded, operation, disc)[inside.slices] > 0


dilated = partial(_morphed, cv2.MORPH_DILATE)
"""The mask grown by a disc."""
eroded = partial(_morphed, cv2.MORPH_ERODE)
"""The mask shrunk by a disc."""
opened = partial(_morphed, cv2.MORPH_OPEN)
"""The parts of the mask that a disc fits into."""
closed = partial(_morphed, cv2.MORPH_CLOSE)
"""The mask with the gaps filled that a disc does not fit into."""


def piece_areas(mask: Mask, *, connectivity: int = 8) -> tuple[Labels, Labels]:
    """A label for each pixel (0 outside the mask) and the area in pixels by label."""
    _, labels, stats, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=connectivity)
    return np.asarray(labels, np.int32), np.asarray(stats[:, cv2.CC_STAT_AREA], np.int32)


def without_small_objects(mask: Mask, min_area_px: float) -> Mask:
    """The mask without connected pieces (8 neighbours) smaller than `min_area_px`."""
    labels, areas = piece_areas(mask)
    return (areas >= min_area_px)[labels] & mask


def without_small_holes(mask: Mask, min_area_px: float) -> Mask:
    """The mask with holes (4 neighbours) smaller than `min_area_px` filled; gaps at the border are none."""
    outside = np.pad(~mask, 1, constant_values=True)
    labels, areas = piece_areas(outside, connectivity=4)
    filled = (areas < min_area_px) & (np.arange(len(areas)) != labels[0, 0])
    return np.asarray(filled[labels] & outside, np.bool_)[1:-1, 1:-1] | mask


def without_coreless_objects(mask: Mask, core: Mask) -> Mask:
    """The connected pieces (8 neighbours) of the mask that hold some of `core`."""
    labels, areas = piece_areas(mask)
    keep = np.zeros(len(areas), np.bool_)
    keep[labels[core & mask]] = True
    return keep[labels] & mask


# ---- the bare glass of a slide ----


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
_LOG_LEVELS: Floats32 = np.log(np.maximum(np.arange(256), 1)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class SlideLook:
    """How a slide looks relative to its glass, and how the glass itself scatters."""

    absorbance: Floats32
    """(3, height, width), natural logarithm."""
    grain: Floats32
    """(height, width), standard deviation of the brightness nearby, in levels of 255."""
    noise: float
    """Standard deviation of the absorbance on glass; 0 where no glass is in view."""
    glass_grain: float
    """Median grain on glass; 0 where no glass is in view."""

    @property
    def density(self) -> Floats32:
        """Mean absorbance of the channels: how dark."""
        return np.asarray(self.absorbance.mean(axis=0), np.float32)

    @property
    def colour(self) -> Floats32:
        """Largest difference of absorbance between channels: how coloured."""
        return np.asarray(np.ptp(self.absorbance, axis=0), np.float32)


def measure_appearance(rgb: RGB, mpp: float) -> SlideLook:
    """Absorbance of each pixel of `rgb` (height, width, 3) relative to the glass around it, and the grain."""
    planes = np.ascontiguousarray(np.moveaxis(rgb, 2, 0))
    side = max(3, round(GRAIN_UM / mpp))
    light = planes.mean(axis=0, dtype=np.float32)
    variance = cv2.blur(light * light, (side, side)) - cv2.blur(light, (side, side)) ** 2
    grain = np.asarray(np.sqrt(np.maximum(variance, 0)), np.float32)
    unscanned = _unscanned_white(planes, mpp)
    brightest, darkest = planes.max(axis=0), planes.min(axis=0)
    grey = brightest - darkest <= MAX_GLASS_TINT * brightest
    glass = (darkest > MIN_GLASS_LEVEL) & grey & (grain < MAX_GLASS_GRAIN) & ~unscanned
    absorbance = np.log(_glass_colour(planes, glass, ~unscanned))[:, None, None] - _LOG_LEVELS[planes]
    density = np.asarray(absorbance.mean(axis=0), np.float32)
    flat = glass & (np.abs(density) < SHADING_RANGE) & (np.ptp(absorbance, axis=0) < MAX_SHADING_TINT)
    absorbance -= _shading(density, flat, mpp)
    glass_grain = float(np.median(grain[flat])) if flat.any() else 0.0
    return SlideLook(absorbance, grain, _noise(density, flat), glass_grain)


def _unscanned_white(planes: RGB, mpp: float) -> Mask:
    """Areas of pure white (254 after JPEG) that a scanner filled in, known by their straight edges.

    Glass may be as white where the camera is saturated, but its edge then follows the tissue.
    """
    white = cv2.medianBlur((planes.min(axis=0) >= 254).astype(np.uint8), 5)
    line = np.ones((max(2, round(STRAIGHT_UM / mpp)), 1), np.uint8)
    edge = straight = 0
    padded = np.pad(white, 1, mode="edge")
    for way in (padded, padded.T):
        steps = np.ascontiguousarray(way[:, 1:] != way[:, :-1]).astype(np.uint8)
        edge += int(np.count_nonzero(steps))
        straight += int(np.count_nonzero(cv2.morphologyEx(steps, cv2.MORPH_OPEN, line)))
    if straight / max(edge, 1) < MIN_FILLING_STRAIGHTNESS:
        return np.zeros(white.shape, np.bool_)
    return cv2.erode(white, np.ones((3, 3), np.uint8)) > 0


def _glass_colour(planes: RGB, glass: Mask, scanned: Mask) -> Floats32:
    """The colour of the brightest smooth area: pale tissue may be smooth too, but not as bright as glass."""
    if not scanned.any():
        return np.full(3, 255, np.float32)
    if np.count_nonzero(glass) < MIN_GLASS_SHARE * np.count_nonzero(scanned):
        brightest = np.percentile(planes[:, scanned], 99.9, axis=1)
        return np.clip(brightest, DIMMEST_ASSUMED_GLASS, 255).astype(np.float32)
    pixels = planes[:, glass]
    light = pixels.mean(axis=0, dtype=np.float32)
    return np.asarray(np.median(pixels[:, light >= np.percentile(light, 99) - 8], axis=1), np.float32)


def _shading(density: Floats32, flat: Mask, mpp: float) -> Floats32:
    """Brightness of the glass at each position: a lower quartile per cell, smoothed over empty cells."""
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


def _noise(density: Floats32, flat: Mask) -> float:
    """Standard deviation from one pixel of glass to the next, blind to shading; 0 without glass."""
    beside = flat[:, 1:] & flat[:, :-1]
    if not beside.any():
        return 0.0
    steps = np.abs(np.diff(density, axis=1)[beside])
    return float(np.percentile(steps, 90) / (1.645 * np.sqrt(2)))


# ---- what is dark on a slide without being tissue ----

STROKE_UM = 80.0
"""A pen stroke is at least this wide."""
FRINGE_UM = 150.0
"""How far thin, smeared ink of the same hue reaches from a stroke."""
RIM_UM = 16.0
"""The blurred edge of a stroke, whose hue is not known."""
INKED_TISSUE_DENSITY = 0.9
"""Darker areas that touch a stroke are tissue under ink, which nobody can read."""


def find_ink(absorbance: Floats32, mpp: float) -> Mask:
    """Pen marks, black borders and black unscanned areas, from absorbance (3, height, width)."""
    red, green, blue = absorbance
    least, spread, mean = absorbance.min(axis=0), np.ptp(absorbance, axis=0), absorbance.mean(axis=0)
    kinds = {  # the core of strokes, and their fringe
        "blue, green and turquoise": (
            ((red > 0.4) & (red > 1.5 * green)) | ((red > 1.2) & (red > green) & (blue < 0.4 * red)),
            (red > 0.15) & (red > 1.3 * green),
        ),
        "red": (
            (green > 0.6) & (blue > 0.75 * green) & (red < 0.3 * green),
            (green > 0.15) & (blue > 0.7 * green) & (red < 0.35 * green),
        ),
        "black, and the black frame and filling of a scan": (
            ((least > 0.5) & (spread < 0.2 * least)) | (least > 2.0),
            (mean > 0.15) & (spread < 0.25 * mean),
        ),
    }
    ink = np.zeros(absorbance.shape[1:], np.bool_)
    for core, fringe in kinds.values():
        stroke = opened(core, STROKE_UM / 2 / mpp)
        if stroke.any():
            smeared = fringe & dilated(stroke, FRINGE_UM / mpp)
            ink |= without_coreless_objects(stroke | smeared, core=stroke)
    if ink.any():
        side = max(1, round(STROKE_UM / mpp))
        density = cv2.blur(np.minimum(mean, 1), (side, side))
        dark = opened(density > INKED_TISSUE_DENSITY, STROKE_UM / 2 / mpp)
        ink = without_coreless_objects(ink | dark, core=ink)
    return dilated(ink, RIM_UM / mpp)
