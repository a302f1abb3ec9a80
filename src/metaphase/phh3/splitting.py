"""Separate what grew together: two mitoses bridged by haze, or a mitosis that touches a fibre.

A component that is large or irregular is looked at again by itself: its darkest parts, if they are large
enough, are components of their own.
"""

from __future__ import annotations

import cv2
import numpy as np

from metaphase.geometry import Box
from metaphase.parallel import ordered_map
from metaphase.phh3.brown import UNIT, BrownScale, amounts
from metaphase.phh3.components import ROW_CODE, Components, Mask, label_tile
from metaphase.phh3.config import CandidateConfig
from metaphase.phh3.features import ellipse_filling
from metaphase.phh3.plane import SearchPlane

LARGE_UM2 = 100.0
"""Larger components are looked at again; most mitoses have 20 to 80 um2."""
REGULAR_FILLING = 0.85
"""Components that fill less of their ellipse are looked at again."""
WIDEST_PX = 1024
"""Components of a larger bounding box are smears, and not looked at."""
CORE_SHARE = 0.5
"""The core of a component has at least this share of its peak ..."""
SATURATED_DAB = 2.5
"""... which counts up to this amount only: denser pixels are noise or black pigment."""


def split_fused(
    components: Components,
    plane: SearchPlane,
    scale: BrownScale,
    level: int,
    config: CandidateConfig,
    threads: int,
) -> Components:
    """The components, with those that grew together replaced by their dark cores.

    Components beyond the greatest area of a candidate stay as they are: in pigment and folds there would be
    more dark cores than people could ever look at.
    """
    smallest, largest = config.area_px(plane.mpp)
    doubtful = np.flatnonzero(_doubtful(components, plane.mpp) & (components.of("area") <= largest))

    def split(row: np.int64) -> Components:
        whole = components[row : row + 1]
        cores = find_cores(whole, plane, scale, level)
        cores = cores[cores.of("area") >= smallest]
        return cores if len(cores) else whole

    parts = list(ordered_map(split, doubtful, threads=threads, ahead=4 * threads))
    return Components.joined([components[np.delete(np.arange(len(components)), doubtful)], *parts])


def find_cores(whole: Components, plane: SearchPlane, scale: BrownScale, level: int) -> Components:
    """Components of the darkest pixels of the one component `whole`."""
    box = _bounds(whole)
    rgb = plane.read(box)
    dab = amounts(scale.dab, rgb)
    own = _own_pixels(dab >= level, whole, box)
    peak = min(int(whole.of("peak")[0]), round(SATURATED_DAB / UNIT))
    core = own & (dab >= max(level, CORE_SHARE * peak))
    return label_tile(box, core, dab, amounts(scale.haematoxylin, rgb[core])).components


def _doubtful(components: Components, mpp: float) -> Mask:
    width = components.of("right") + components.of("minus_left")
    height = components.of("bottom") + components.of("minus_top")
    large = components.of("area") * mpp**2 > LARGE_UM2
    irregular = ellipse_filling(components) < REGULAR_FILLING
    return (large | irregular) & (width <= WIDEST_PX) & (height <= WIDEST_PX)


def _bounds(whole: Components) -> Box:
    right, bottom, minus_left, minus_top = (
        int(whole.of(name)[0]) for name in ("right", "bottom", "minus_left", "minus_top")
    )
    return Box(-minus_left, -minus_top, right + minus_left, bottom + minus_top)


def _own_pixels(brown: Mask, whole: Components, box: Box) -> Mask:
    """The pixels of the component itself; its last pixel tells which of the box's components it is."""
    row, column = divmod(int(whole.of("last")[0]), ROW_CODE)
    labels = np.asarray(cv2.connectedComponents(brown.view(np.uint8), connectivity=8)[1], np.int32)
    own: Mask = labels == labels[row - box.y, column - box.x]
    return own
