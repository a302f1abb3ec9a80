"""What a picture shows that its file cannot know: whether it has colours, and nuclei of a likely size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

import cv2
import numpy as np

from metaphase.base.arrays import RGB, Floats, Floats32
from metaphase.base.errors import ResultWarning, ResultWarnings, SlideError
from metaphase.images.stain.deconvolution import STAINED_OD, channel_mean, is_grey, optical_density
from metaphase.images.tissue.finding import GREY, IN_COLOUR
from metaphase.slides.backends import CHECK_MPP
from metaphase.slides.contract import Slide

# ---- nuclei as round dark objects, at the scale that shows most of them ----

SOUGHT_PX = 12.0
"""Pictures are resized so that the diameter that is sought has so many pixels."""
DIAMETERS_PX = 6.3 * 2 ** (np.arange(11) / 3)
"""These are sought, and are found up to 1.5 times as large or small."""
STANDS_OUT = 0.35
"""How much darker nuclei are than what is around them: standard deviations of that difference."""
LEAST_SOLID, MOST_OBLONG = 0.88, 2.2
"""Share of its convex hull that a nucleus fills; its length over its width."""
FEWEST_NUCLEI = 40


def nuclear_diameter_px(pictures: Sequence[RGB]) -> float:
    """Median diameter of the nuclei in pictures of one resolution, by area; NaN where there are too few.

    Nothing is supposed of the resolution: of several sizes, that counts of which round objects cover most.
    """
    reds = [np.ascontiguousarray(optical_density(picture)[..., 0]) for picture in pictures]
    objects = [
        np.vstack([_round_objects(red, SOUGHT_PX / sought) for red in reds]) for sought in DIAMETERS_PX
    ]
    covered = np.convolve([float(sized[:, 1].sum()) for sized in objects], (0.25, 0.5, 0.25), "same")
    best = int(np.argmax(covered))
    diameters, weights = np.vstack(objects[max(0, best - 1) : best + 2]).T
    if len(diameters) < FEWEST_NUCLEI:
        return math.nan
    order = np.argsort(diameters)
    middle = np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)
    return float(diameters[order][middle])


def _round_objects(red: Floats32, scale: float) -> Floats:
    """(n, 2): diameter in pixels, and area times contrast, of round objects of the size that is sought."""
    how = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    resized = cv2.resize(red, None, fx=scale, fy=scale, interpolation=how)
    height, width = resized.shape
    contrast = cv2.GaussianBlur(resized, (0, 0), SOUGHT_PX / 8) - cv2.GaussianBlur(resized, (0, 0), SOUGHT_PX)
    dark = (contrast > STANDS_OUT * contrast.std()).astype(np.uint8)
    outlines, _ = cv2.findContours(dark, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    objects = []
    for outline in outlines:
        left, top, across, down = cv2.boundingRect(outline)
        cut = left == 0 or top == 0 or left + across == width or top + down == height
        if cut or not SOUGHT_PX / 2 < max(across, down) < 3 * SOUGHT_PX:
            continue
        border = len(outline) / 2  # outlines go through the middle of pixels
        area = cv2.contourArea(outline) + border
        diameter = math.sqrt(4 * area / math.pi)
        sides = cv2.minAreaRect(outline)[1]
        if (
            2 / 3 * SOUGHT_PX < diameter < 1.5 * SOUGHT_PX
            and area > LEAST_SOLID * (cv2.contourArea(cv2.convexHull(outline)) + border)
            and max(sides) < MOST_OBLONG * max(1, min(sides))
        ):
            darkest = contrast[top : top + down, left : left + across].max()
            objects.append((diameter / scale, area / scale**2 * float(darkest)))
    return np.array(objects).reshape(-1, 2)


# ---- what they say about a slide's resolution ----

VIEWED_MPP, WINDOW_PX, WINDOWS = 0.5, 384, 6
"""Resolution, size and number of the windows that are looked at."""
MOST_TRIES = 100
"""Small pictures have no room for so many."""
USUAL_UM = 7.9
SMALLEST_UM, LARGEST_UM = 5.2, 12.0


def nuclear_diameter_um(slide: Slide) -> float:
    """Median diameter of the slide's nuclei, if its stated resolution is right; NaN where few are seen."""
    mpp = max(VIEWED_MPP, slide.mpp)
    pictures = []
    for x, y, width, height in _windows(slide, mpp):
        with suppress(SlideError):  # who needs those pixels will say that they are damaged
            pictures.append(slide.read(x, y, width, height, mpp))
    return nuclear_diameter_px(pictures) * mpp if pictures else math.nan


def _windows(slide: Slide, mpp: float) -> list[tuple[float, float, int, int]]:
    """Corners (level 0) and sizes (pixels of `mpp`) of windows at random positions of the darker tissue."""
    box, scale = slide.bounds, mpp / slide.mpp
    width, height = (max(1, min(WINDOW_PX, int(side / scale))) for side in (box.width, box.height))
    span = np.array([width, height]) * scale
    room = np.array([box.width, box.height]) - span
    thumbnail = slide.thumbnail(1024)
    density = channel_mean(optical_density(thumbnail))
    stained = density > STAINED_OD
    if not stained.any():
        return []
    places = np.argwhere(stained & (density >= np.median(density[stained])))[:, ::-1] + 0.5
    chosen = np.random.default_rng(0).choice(places, MOST_TRIES) / thumbnail.shape[1::-1]
    corners: list[Floats] = []
    for corner in np.clip(chosen * (box.width, box.height) - span / 2, 0, room):
        if len(corners) < WINDOWS and all((abs(corner - other) >= 0.7 * span).any() for other in corners):
            corners.append(corner)
    return [(float(x + box.x), float(y + box.y), width, height) for x, y in corners]


def look_warnings(slide: Slide) -> ResultWarnings:
    """Warnings where the picture is grey, or nuclei have no likely size at the stated resolution."""
    if is_grey(slide.thumbnail()):
        return (ResultWarning("grey", GREY, IN_COLOUR),)
    diameter_um = nuclear_diameter_um(slide) if slide.info.resolution else math.nan
    if math.isnan(diameter_um) or SMALLEST_UM <= diameter_um <= LARGEST_UM:
        return ()
    fitting = slide.mpp * USUAL_UM / diameter_um
    text = (
        f"at {slide.mpp:.3g} um/px nuclei would measure {diameter_um:.1f} um, and those of most tissue have "
        f"{SMALLEST_UM:g} to {LARGEST_UM:g} um: about {fitting:.2g} um/px would fit"
    )
    return (ResultWarning("nuclear-size", text, f"look whether the scale bar fits cells, and {CHECK_MPP}"),)
