"""The similarity made finer, resolution by resolution.

The paper averages the cross-correlation heat maps of 10 random tiles and takes the peak as the shift. A
rotation or a scale moves each tile's peak by an amount that follows from its place, so the maps are averaged
once for every rotation and scale in question, each moved accordingly; the highest average wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import cv2
import numpy as np
import numpy.typing as npt

from metaphase.base.arrays import Points
from metaphase.labels.registration.coarse import Similarity, about, fit_robustly
from metaphase.labels.registration.config import RegistrationConfig
from metaphase.labels.registration.correlation import Image, find_peak
from metaphase.labels.registration.tiles import SlidePair, TileShape, heat_maps, tissue_places

STEP = 4.0
"""Each round works at a resolution so many times finer than the one before."""
UNCERTAIN_PX = 6.0
"""How many pixels of the round before the similarity may be off, anywhere on the slide."""
GRID_PX = 1.5
"""Finest steps of the rotation and the scale, as pixels at the outermost tile."""
BLUR_PX = 1.2
"""Heat maps are smoothed by this much before averaging, since the steps are not finer."""


@dataclass(frozen=True)
class Vote:
    """The best rotation and scale about `centre_um`, with the peak of the averaged heat map."""

    centre_um: Points
    rotation_rad: float
    scale: float
    shift_um: Points
    height: float


def align(
    pair: SlidePair, start: Similarity, start_mpp: float, mpp: float, config: RegistrationConfig
) -> Similarity | None:
    """Refine `start`, right to a few pixels of `start_mpp`, down to `mpp`; None without common tissue."""
    similarity, rng = start, np.random.default_rng(config.seed)
    level = start_mpp
    while level > mpp:
        before, level = level, max(level / STEP, mpp)
        search_px = round(UNCERTAIN_PX * before / level) + 4
        shape = TileShape(tile_px_for(pair, level, config.tile_px), search_px, level)
        places = tissue_places(pair, similarity, shape.tile_um, config.tiles, rng)
        if not len(places):
            return None
        maps = np.stack(list(heat_maps(pair, similarity, places, shape)))
        vote = averaged_peak(maps, places, level, UNCERTAIN_PX * before)
        similarity = _updated(similarity, maps, places, vote, level)
    return similarity


def tile_px_for(pair: SlidePair, mpp: float, tile_px: int) -> int:
    """Tiles are no larger than half of the shorter side of either slide."""
    shortest_um = min(*pair.he.size_um, *pair.phh3.size_um)
    return int(min(tile_px, max(16, shortest_um / 2 / mpp)))


def averaged_peak(maps: npt.NDArray[np.float32], places_um: Points, mpp: float, reach_um: float) -> Vote:
    """The shift, rotation and scale that make the average of the heat maps (n, side, side) highest.

    Rotations and scales are tried as far as they move the outermost tile by `reach_um`.
    """
    centre = places_um.mean(axis=0)
    arms = places_um - centre
    longest = max(float(np.linalg.norm(arms, axis=1).max()), 1e-6)
    step = GRID_PX * mpp / longest
    most = min(reach_um / longest, MAX_CHANGE) if len(places_um) > 2 else 0.0
    smooth = [np.asarray(cv2.GaussianBlur(heat, (0, 0), BLUR_PX), np.float32) for heat in maps]

    def height(change: tuple[float, float]) -> float:
        return float(_averaged(smooth, _moved(arms, *change) / mpp).max())

    wide = 2 * step * np.arange(-int(most / step / 2), int(most / step / 2) + 1)
    turn, growth = max(product(wide, wide), key=height)
    near = step * np.array([-1.0, 0.0, 1.0]) if most else np.zeros(1)
    turn, growth = max(product(turn + near, growth + near), key=height)
    peak = find_peak(_averaged(smooth, _moved(arms, turn, growth) / mpp), 0)
    return Vote(centre, float(turn), 1 + float(growth), np.array([peak.x, peak.y]) * mpp, peak.height)


MAX_CHANGE = 0.06
"""Rotation (radians) and scale change beyond the start that are tried at most."""


def _moved(arms: Points, turn: float, growth: float) -> Points:
    """How far a small turn and growth move the ends of the arms."""
    return growth * arms + turn * np.stack([-arms[:, 1], arms[:, 0]], axis=1)


def _averaged(maps: list[Image], offsets_px: Points) -> Image:
    """The mean of the maps, each read `offsets_px` further on; 0 beyond their edges."""
    side = maps[0].shape[0]
    total = np.zeros((side, side), np.float32)
    for heat, (dx, dy) in zip(maps, np.rint(offsets_px).astype(int), strict=True):
        if max(abs(dx), abs(dy)) < side:
            to_y, from_y = _overlap(dy, side)
            to_x, from_x = _overlap(dx, side)
            total[to_y, to_x] += heat[from_y, from_x]
    return total / np.float32(len(maps))


def _overlap(offset: int, side: int) -> tuple[slice, slice]:
    return slice(max(0, -offset), side - max(0, offset)), slice(max(0, offset), side - max(0, -offset))


def _updated(
    similarity: Similarity, maps: npt.NDArray[np.float32], places_um: Points, vote: Vote, mpp: float
) -> Similarity:
    """Join the vote to the similarity, then fit it to the tiles' own peaks near the voted one."""
    step = about(vote.centre_um, vote.scale, vote.rotation_rad, vote.shift_um)
    expected = step.apply(places_um) - places_um
    shifts, heights = own_peaks(maps, expected / mpp)
    if len(places_um) < MIN_TILES:
        return similarity.after(step)
    target = places_um + shifts * mpp
    fitted = fit_robustly(places_um, target, np.maximum(heights, 1e-3) ** 2, tolerance=OWN_PX * mpp)
    return similarity.after(fitted)


MIN_TILES = 4
"""With fewer tiles their own peaks cannot correct each other."""
OWN_PX = 6
"""A tile's own peak lies within so many pixels of where the vote expects it."""


def own_peaks(maps: npt.NDArray[np.float32], expected_px: Points) -> tuple[Points, npt.NDArray[np.float64]]:
    """Each map's highest place near the expected one, in pixels from the centre, and its height."""
    side = maps.shape[1]
    middle = (side - 1) // 2
    shifts, heights = np.zeros_like(expected_px), np.zeros(len(maps))
    for index, (heat, (x, y)) in enumerate(zip(maps, expected_px, strict=True)):
        column, row = (int(np.clip(round(v) + middle, OWN_PX, side - 1 - OWN_PX)) for v in (x, y))
        near = heat[row - OWN_PX : row + OWN_PX + 1, column - OWN_PX : column + OWN_PX + 1]
        peak = find_peak(near, 0)
        shifts[index] = peak.x + column - middle, peak.y + row - middle
        heights[index] = peak.height
    return shifts, heights
