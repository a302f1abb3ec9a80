"""The global part of a registration: two overviews, the similarity between them, and it made finer.

Points (x, y) are handled as complex numbers x + iy: a similarity is z -> a z + b, or a conj(z) + b for a
slide that was scanned upside down.
"""

from __future__ import annotations

import cmath
import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, ClassVar, Literal

import cv2
import numpy as np
import numpy.typing as npt
from pydantic import Field, NonNegativeInt, PositiveFloat

from metaphase.base.arrays import Floats, Floats32, Points
from metaphase.base.settings import settings
from metaphase.labels.registration.correlation import Image, correlate_masked, find_peak
from metaphase.labels.registration.tiles import SlidePair, TileShape, heat_maps, tissue_positions

# ---- the global part of a registration ----


@dataclass(frozen=True, slots=True)
class Similarity:
    """PHH3 to H&E micrometres: mirror x if so, turn and scale about (0, 0), then shift."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    scale: float = 1.0
    rotation_rad: float = 0.0
    shift_x_um: float = 0.0
    shift_y_um: float = 0.0
    mirrored: bool = False

    @property
    def matrix(self) -> Points:
        """The linear part (2, 2)."""
        cosine, sine = np.cos(self.rotation_rad), np.sin(self.rotation_rad)
        turn = self.scale * np.array([[cosine, -sine], [sine, cosine]])
        return turn * (-1.0, 1.0) if self.mirrored else turn

    @property
    def shift_um(self) -> Points:
        """Shift in micrometres, an array (2,)."""
        return np.array([self.shift_x_um, self.shift_y_um])

    def apply(self, points: npt.ArrayLike) -> Points:
        """H&E micrometres (n, 2) of PHH3 micrometres (n, 2)."""
        return np.asarray(points, np.float64) @ self.matrix.T + self.shift_um

    def invert(self, points: npt.ArrayLike) -> Points:
        """PHH3 micrometres (n, 2) of H&E micrometres (n, 2)."""
        return (np.asarray(points, np.float64) - self.shift_um) @ np.linalg.inv(self.matrix).T

    def after(self, first: Similarity) -> Similarity:
        """The similarity that applies `first` (not mirrored) and then this one."""
        turn = -first.rotation_rad if self.mirrored else first.rotation_rad
        shift = self.apply(first.shift_um[None])[0]
        angle = self.rotation_rad + turn
        return Similarity(self.scale * first.scale, angle, float(shift[0]), float(shift[1]), self.mirrored)


def fit_similarity(source: Points, target: Points, weights: Floats, *, mirrored: bool = False) -> Similarity:
    """The weighted least-squares similarity from `source` to `target`; one point gives a shift alone."""
    z = (source * (-1.0 if mirrored else 1.0, 1.0)) @ (1, 1j)
    w = target @ (1, 1j)
    share = weights / weights.sum()
    z0, w0 = complex(share @ z), complex(share @ w)
    spread = float(share @ np.abs(z - z0) ** 2)
    a = complex(share @ (np.conj(z - z0) * (w - w0))) / spread if spread > 0 else 1 + 0j
    b = w0 - a * z0
    return Similarity(abs(a), cmath.phase(a), b.real, b.imag, mirrored)


def fit_robustly(
    source: Points, target: Points, weights: Floats, tolerance: float, *, mirrored: bool = False
) -> Similarity:
    """Like `fit_similarity`, with points that miss by more than about `tolerance` losing their say."""
    fitted = fit_similarity(source, target, weights, mirrored=mirrored)
    for _ in range(ROUNDS):
        miss = np.linalg.norm(target - fitted.apply(source), axis=1)
        reach = max(tolerance, 3 * float(np.median(miss)))
        trust = weights * np.clip(1 - (miss / reach) ** 2, 0, 1) ** 2
        fitted = fit_similarity(source, target, trust + 1e-9, mirrored=mirrored)
    return fitted


ROUNDS = 10
"""Reweighting rounds; the weights settle within a few."""


# ---- where to begin ----

MIN_OVERLAP = 0.3
"""At least this share of the smaller slide lies on the other one."""
SHRINK = 4
"""How much smaller the overviews are in the first round."""
EXPECTED_DEG = np.arange(-6.0, 6.1, 2.0)
"""Rotations of slides that were put into the scanner alike ..."""
ALL_DEG = np.arange(-180.0, 180.0, 4.0)
"""... and of slides that were not."""
REFINING_DEG = (2.0, 1.0)
"""Steps of the angle in the second round; the alignment that follows bears a degree or two."""
DIFFERENT_RAD, DIFFERENT_SCALE = math.radians(5), 0.06
"""Guesses that differ by more than either are different; the scales as their logarithms."""
SCALES = np.geomspace(0.4, 2.5, 38)
"""Where stated resolutions contradict each other."""


Guess = tuple[float, Similarity]
"""Its score, and a similarity that is right to a few pixels of the overview."""


def search(
    he: Image,
    phh3: Image,
    mpp: float,
    angles_deg: npt.ArrayLike,
    keep: int,
    *,
    scales: npt.ArrayLike = (1.0,),
    mirrored: bool = False,
) -> list[Similarity]:
    """The best `keep` different guesses, refined at the overviews' resolution, best first."""
    starts = [
        Similarity(float(scale), math.radians(angle), mirrored=mirrored)
        for angle, scale in product(np.asarray(angles_deg), np.asarray(scales))
    ]
    small = _shrunk(he), _shrunk(phh3), SHRINK * mpp
    chosen: list[Similarity] = []
    for start in sorted(starts, key=lambda start: -best_shift(*small, start)[0]):
        if len(chosen) < keep and all(_different(start, other) for other in chosen):
            chosen.append(start)
    refined = sorted((_refined(he, phh3, mpp, start) for start in chosen), key=lambda guess: -guess[0])
    return [similarity for _, similarity in refined]


def best_shift(he: Image, phh3: Image, mpp: float, start: Similarity) -> Guess:
    """The best shift for the orientation and scale of `start`, over overviews of one resolution.

    The score is Fisher's z of the correlation times the root of the overlapping share.
    """
    height, width = phh3.shape
    corners = np.array([[0, 0], [width, 0], [0, height], [width, height]]) @ start.matrix.T
    low, high = corners.min(axis=0), corners.max(axis=0)
    columns, rows = np.maximum(np.ceil(high - low - 1e-6), 1).astype(int).tolist()
    turn = np.column_stack([start.matrix, start.matrix @ (0.5, 0.5) - 0.5 - low])
    image, mask = (
        np.asarray(cv2.warpAffine(part, turn, (columns, rows), flags=cv2.INTER_LINEAR), np.float32)
        for part in (phh3, np.ones_like(phh3))
    )
    heat = correlate_masked(he, image, mask, MIN_OVERLAP)
    overlaps = [
        np.sqrt(np.convolve(np.ones(a), np.ones(b)) / min(a, b))
        for a, b in zip(he.shape, image.shape, strict=True)
    ]
    score = np.arctanh(np.clip(heat, -0.99, 0.99)) * np.outer(*overlaps)
    row, column = np.unravel_index(int(score.argmax()), score.shape)
    x, y = ((column - columns + 1, row - rows + 1) - low) * mpp
    return float(score[row, column]), replace(start, shift_x_um=float(x), shift_y_um=float(y))


def _different(one: Similarity, other: Similarity) -> bool:
    turn = abs((one.rotation_rad - other.rotation_rad + math.pi) % math.tau - math.pi)
    return turn > DIFFERENT_RAD or abs(math.log(one.scale / other.scale)) > DIFFERENT_SCALE


def _refined(he: Image, phh3: Image, mpp: float, start: Similarity) -> Guess:
    """Try angles around the best so far, in ever smaller steps."""
    best = best_shift(he, phh3, mpp, start)
    for step in REFINING_DEG:
        turns = [best[1].rotation_rad + math.radians(turn) for turn in (-step, step)]
        around = [best_shift(he, phh3, mpp, replace(start, rotation_rad=turn)) for turn in turns]
        best = max(best, *around, key=lambda guess: guess[0])
    return best


def _shrunk(image: Image) -> Image:
    height, width = (max(8, side // SHRINK) for side in image.shape)
    whole = image[: height * SHRINK, : width * SHRINK]
    return np.asarray(cv2.resize(whole, (width, height), interpolation=cv2.INTER_AREA), np.float32)


# ---- how a pair of slides is registered, in physical units where it matters ----


@settings
class RegistrationConfig:
    """Settings of a registration. Sizes in pixels are pixels at `mpp`, so they grow with it."""

    mpp: PositiveFloat = 0.5
    """Finest resolution at which tiles are compared, in um/px; a coarser slide sets its own."""
    seed: NonNegativeInt = 0
    """Seed of the random tiles."""
    tiles: Annotated[int, Field(ge=3)] = 10
    """Pairs of tiles whose heat maps are averaged at each resolution (the paper's 10)."""
    tile_px: Annotated[int, Field(ge=64)] = 256
    """Side of the tiles: 128 um at the finest resolution, more at coarser ones."""
    coarse_px: Annotated[int, Field(ge=128)] = 384
    """Longer side of the overviews with which the search starts."""
    checks: Annotated[int, Field(ge=8)] = 100
    """Fresh pairs of tiles that the verdict rests on."""
    controls: NonNegativeInt = 400
    """At most so many tiles, spread over the tissue, measure the local field ..."""
    control_spacing_um: PositiveFloat = 75.0
    """... no closer to each other than this."""
    search_px: Annotated[int, Field(ge=8)] = 40
    """How far from the expected position a tile is looked for: 20 um."""
    tolerance_px: PositiveFloat = 8.0
    """Tiles agree when their shifts differ by no more than this: 4 um."""
    neighbours: Annotated[int, Field(ge=3)] = 8
    """How many measured shifts nearby make a consensus."""
    max_scale_error: PositiveFloat = 0.02
    """A larger difference between the slides' scales means that one stated resolution is wrong."""
    any_stains: bool = False
    """Accept pairs that are not H&E with brown immunohistochemistry."""
    transform: Literal["smooth", "shifts"] = "smooth"
    """`smooth`: a similarity, a field, and points that are checked. `shifts`, as in the paper: one shift of
    the slide, and one of each point by its own tiles, whatever its neighbours say."""


# ---- the similarity made finer, resolution by resolution ----
#
# The paper averages the cross-correlation heat maps of 10 random tiles and takes the peak as the shift. A
# rotation or a scale moves each tile's peak by an amount that follows from its place, so the maps are
# averaged once for every rotation and scale in question, each moved accordingly; the highest average wins.

STEP = 4.0
"""Each round works at a resolution so many times finer than the one before."""
UNCERTAIN_PX = 6.0
"""How many pixels of the round before the similarity may be off, anywhere on the slide."""
GRID_PX = 1.5
"""Finest steps of the rotation and the scale, as pixels at the outermost tile."""
BLUR_PX = 1.2
"""Heat maps are smoothed by this much before averaging, since the steps are not finer."""


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
        positions = tissue_positions(pair, similarity, shape.tile_um, config.tiles, rng)
        if not len(positions):
            return None
        maps = np.stack(list(heat_maps(pair, similarity, positions, shape)))
        step = averaged_peak(maps, positions, level, UNCERTAIN_PX * before)
        if len(positions) >= MIN_TILES:
            shifts, heights = own_peaks(maps, (step.apply(positions) - positions) / level)
            trust = np.maximum(heights, 1e-3) ** 2
            step = fit_robustly(positions, positions + shifts * level, trust, tolerance=OWN_PX * level)
        similarity = similarity.after(step)
    return similarity


def tile_px_for(pair: SlidePair, mpp: float, tile_px: int) -> int:
    """Tiles are no larger than half of the shorter side of either slide."""
    shortest_um = min(*pair.he.size_um, *pair.phh3.size_um)
    return int(min(tile_px, max(16, shortest_um / 2 / mpp)))


def averaged_peak(maps: Floats32, positions_um: Points, mpp: float, reach_um: float) -> Similarity:
    """The shift, rotation and scale that make the average of the heat maps (n, side, side) highest.

    Rotations and scales are tried as far as they move the outermost tile by `reach_um`.
    """
    centre = positions_um.mean(axis=0)
    arms = positions_um - centre
    longest = max(float(np.linalg.norm(arms, axis=1).max()), 1e-6)
    step = GRID_PX * mpp / longest
    most = min(reach_um / longest, MAX_CHANGE) if len(positions_um) > 2 else 0.0
    smooth = [
        np.pad(np.asarray(cv2.GaussianBlur(heat, (0, 0), BLUR_PX), np.float32), len(heat)) for heat in maps
    ]

    def height(change: tuple[float, float]) -> float:
        return float(_averaged(smooth, _moved(arms, *change) / mpp).max())

    wide = 2 * step * np.arange(-int(most / step / 2), int(most / step / 2) + 1)
    turn, growth = max(product(wide, wide), key=height)
    near = step * np.array([-1.0, 0.0, 1.0]) if most else np.zeros(1)
    turn, growth = max(product(turn + near, growth + near), key=height)
    peak = find_peak(_averaged(smooth, _moved(arms, turn, growth) / mpp), 0)
    about_origin = Similarity(1 + float(growth), float(turn))
    x, y = centre + np.array([peak.x, peak.y]) * mpp - about_origin.apply(centre)
    return replace(about_origin, shift_x_um=float(x), shift_y_um=float(y))


MAX_CHANGE = 0.06
"""Rotation (radians) and scale change beyond the start that are tried at most."""


def _moved(arms: Points, turn: float, growth: float) -> Points:
    """How far a small turn and growth move the ends of the arms."""
    return growth * arms + turn * np.stack([-arms[:, 1], arms[:, 0]], axis=1)


def _averaged(maps: list[Image], offsets_px: Points) -> Image:
    """The mean of the maps, each read `offsets_px` further on; there is room all around them."""
    side = maps[0].shape[0] // 3
    total = np.zeros((side, side), np.float32)
    for heat, (dx, dy) in zip(maps, np.rint(offsets_px).clip(-side, side).astype(int) + side, strict=True):
        total += heat[dy : dy + side, dx : dx + side]
    return np.asarray(total / len(maps), np.float32)


MIN_TILES = 4
"""With fewer tiles their own peaks cannot correct each other."""
OWN_PX = 6
"""A tile's own peak lies within so many pixels of where the vote expects it."""


def own_peaks(maps: Floats32, expected_px: Points) -> tuple[Points, Floats]:
    """Each map's highest position near the expected one, in pixels from the centre, and its height."""
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
