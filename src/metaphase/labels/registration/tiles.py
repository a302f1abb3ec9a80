"""Tiles of both slides, chosen, brought to one look, and measured against each other.

Haematoxylin marks nuclei in both stains; in immunohistochemistry the brown of a positive nucleus stands for
the haematoxylin that it hides. Sums of densities are linear in the logarithm of the pixels, so one table
look-up per channel does the deconvolution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, Protocol, TypeVar

import cv2
import numpy as np
from scipy.spatial import cKDTree

from metaphase.base.arrays import RGB, Box, Floats, Floats32, Mask, Points
from metaphase.base.parallel import available_cores, ordered_map
from metaphase.images.inspection import StainGuess, guess_stain
from metaphase.images.stain.deconvolution import H_DAB_RESIDUAL, HE_RESIDUAL
from metaphase.images.tissue.finding import TissueMask, find_tissue
from metaphase.labels.registration.correlation import Image, correlate, find_peak
from metaphase.slides.contract import Slide
from metaphase.slides.tiles import plan_tiles, read_tiles

Pixels = TypeVar("Pixels", RGB, Image)

# ---- comparable pictures of two stains ----

Stain = Literal["H&E", "DAB", "unknown"]

FINE_PX, COARSE_PX = 1.0, 12.0
"""The band of detail that is compared, as the widths of two Gaussians in pixels: nuclei at 0.5 um/px."""
DARKEST_PERCENT = 99.0
"""Density is cut at this percentile: pigment and clumps of brown must not outweigh the nuclei."""


@dataclass(frozen=True)
class View:
    """A slide with what registering it needs: its stain and where its tissue is."""

    slide: Slide
    stain: StainGuess
    tissue: TissueMask

    @property
    def size_um(self) -> tuple[float, float]:
        """Width and height of level 0."""
        return self.slide.width * self.slide.mpp, self.slide.height * self.slide.mpp

    def read(self, corner_um: Points, width: int, height: int, mpp: float) -> RGB:
        """Pixels (height, width, 3) at `mpp`, the top-left one at `corner_um` (2,) of the slide."""
        x, y = corner_um / self.slide.mpp
        return self.slide.read(float(x), float(y), width, height, mpp)

    def density(self, corner_um: Points, width: int, height: int, mpp: float) -> Image:
        """Nuclear density (height, width) of the same pixels."""
        return nuclear_density(self.read(corner_um, width, height, mpp), self.stain.name)

    def has_tissue(self, points_um: Points, tile_um: float, least: float) -> Mask:
        """Around which points (n, 2) at least this share of a tile is tissue; none is beyond the mask."""
        side = max(1, round(tile_um / self.tissue.mpp))
        mask = self.tissue.mask.astype(np.float32)
        share = cv2.blur(mask, (side, side), borderType=cv2.BORDER_CONSTANT)
        return replace(self.tissue.grid, mask=share >= least).contains(points_um / self.slide.mpp)


def view(slide: Slide) -> View:
    """Find the tissue of a slide and guess its stain."""
    return View(slide, guess_stain(slide.thumbnail()), find_tissue(slide))


def nuclear_density(rgb: RGB, stain: Stain) -> Image:
    """Natural-log optical density of nuclear stain (height, width), at least 0."""
    table = _table(stain)
    density = sum(table[channel][rgb[..., channel]] for channel in range(3))
    return np.maximum(np.asarray(density, np.float32), 0)


@lru_cache(maxsize=3)
def _table(stain: Stain) -> Floats32:
    """What each value of each channel (3, 256) adds to the density."""
    levels = -np.log((np.arange(256) + 1) / 256)
    if stain == "H&E":
        weights = HE_RESIDUAL.inverse[:, 0]
    elif stain == "DAB":
        weights = H_DAB_RESIDUAL.inverse[:, :2].sum(axis=1)
    else:
        weights = np.full(3, 1 / 3)
    return (weights[:, None] * levels).astype(np.float32)


def detail(density: Image) -> Image:
    """Density without what is too fine or too coarse to compare."""
    cut = np.minimum(density, np.percentile(density, DARKEST_PERCENT).astype(np.float32))
    fine = cv2.GaussianBlur(cut, (0, 0), FINE_PX)
    return np.asarray(fine - cv2.GaussianBlur(cut, (0, 0), COARSE_PX), np.float32)


def overview(view: View, mpp: float) -> Image:
    """Nuclear density of the whole slide, level-0 origin at pixel (0, 0), and 0 off the tissue."""
    slide = view.slide
    whole = Box(0, 0, slide.width, slide.height)
    plan = plan_tiles(whole, slide.mpp, mpp=mpp, tile_px=256, mask=view.tissue.grid)
    density = np.zeros((plan.height, plan.width), np.float32)
    for tile, pixels in read_tiles(slide, plan):
        core = tile.core
        density[core.slices] = nuclear_density(pixels, view.stain.name)
    return density * tissue_share(view.tissue, slide.mpp, density.shape, mpp)


def tissue_share(tissue: TissueMask, slide_mpp: float, shape: tuple[int, int], mpp: float) -> Image:
    """The mask (0 to 1) at another resolution, level-0 origin at pixel (0, 0)."""
    step = mpp / slide_mpp / tissue.scale
    matrix = np.array(
        [
            [step, 0, (0.5 * step - 0.5) - tissue.x / tissue.scale],
            [0, step, (0.5 * step - 0.5) - tissue.y / tissue.scale],
        ]
    )
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    mask = tissue.mask.astype(np.float32)
    return np.asarray(cv2.warpAffine(mask, matrix, shape[::-1], flags=flags), np.float32)


# ---- pairs of tiles that should show the same tissue ----

MIN_TISSUE = 0.5
"""Random tiles lie where at least this share of the tile is tissue, on both slides."""
MARGIN_PX = 3
"""Read beyond the window, for the resampling kernel."""
NODES = 9
"""The map is exact at so many positions along each side of a window, and straight between them."""


class Mapping(Protocol):
    """What takes a place of the PHH3 slide to the H&E slide, both in micrometres."""

    def apply(self, points: Points) -> Points:
        """H&E micrometres (n, 2) of PHH3 micrometres (n, 2)."""


@dataclass(frozen=True)
class SlidePair:
    """The two slides of one section."""

    he: View
    phh3: View


@dataclass(frozen=True)
class TileShape:
    """How large a tile is, how far it is looked for, and at which resolution."""

    tile_px: int
    search_px: int
    mpp: float

    @property
    def window_px(self) -> int:
        """Side of the searched window."""
        return self.tile_px + 2 * self.search_px

    @property
    def tile_um(self) -> float:
        """Side of the tile."""
        return self.tile_px * self.mpp

    @property
    def rough(self) -> TileShape:
        """Tiles of the same size at half the resolution: cheaper, and found twice as far away."""
        return TileShape(self.tile_px // 2, self.search_px, 2 * self.mpp)


def read_template(pair: SlidePair, position_um: Points, shape: TileShape) -> Image:
    """The PHH3 tile around `position_um` (2,)."""
    corner = position_um - shape.tile_um / 2
    return detail(pair.phh3.density(corner, shape.tile_px, shape.tile_px, shape.mpp))


def read_window(pair: SlidePair, mapping: Mapping, position_um: Points, shape: TileShape) -> Image:
    """The H&E tissue where `mapping` takes the tile, bent into the PHH3 frame, with room to search."""
    side = shape.window_px
    corner = position_um - side * shape.mpp / 2
    return detail(read_bent(pair.he.density, mapping.apply, corner, (side, side), shape.mpp, NODES))


def read_bent(
    read: Callable[[Points, int, int, float], Pixels],
    mapping: Callable[[Points], Points],
    corner_um: Points,
    size: tuple[int, int],
    mpp: float,
    nodes: int,
) -> Pixels:
    """What `read` gives where `mapping` takes the pixels of a picture of this size (width, height).

    The picture's top-left corner is `corner_um` (2,). The mapping is exact at so many nodes along each side,
    and straight between them.
    """
    steps = [np.linspace(0, side - 1, nodes) for side in size]
    places = np.stack(np.meshgrid(*steps), axis=-1).reshape(-1, 2) + 0.5
    there = mapping(corner_um + places * mpp) / mpp
    low, high = there.min(axis=0) - MARGIN_PX, there.max(axis=0) + MARGIN_PX
    width, height = np.ceil(high - low).astype(int).tolist()
    pixels = read(low * mpp, width, height, mpp)
    across, down = (
        np.maximum(1 - np.abs(np.arange(side)[:, None] - step) / step[1], 0)
        for side, step in zip(size, steps, strict=True)
    )
    grid = (there - low - 0.5).reshape(nodes, nodes, 2)
    columns, rows = (np.asarray(down @ grid[..., k] @ across.T, np.float32) for k in (0, 1))
    return np.asarray(cv2.remap(pixels, columns, rows, cv2.INTER_CUBIC), pixels.dtype)


def heat_maps(pair: SlidePair, mapping: Mapping, positions_um: Points, shape: TileShape) -> Iterator[Image]:
    """The correlation of each position's tile with its window, as (2 search + 1, 2 search + 1), in order.

    Tiles are read and compared in threads; only a few wait in memory.
    """

    def compare(position: Points) -> Image:
        return correlate(read_template(pair, position, shape), read_window(pair, mapping, position, shape))

    threads = available_cores()
    yield from ordered_map(compare, positions_um, threads=threads, ahead=2 * threads)


def tissue_positions(
    pair: SlidePair,
    mapping: Mapping,
    tile_um: float,
    count: int,
    rng: np.random.Generator,
    min_spacing_um: float = 0.0,
) -> Points:
    """At most `count` PHH3 positions (n, 2), um, well apart, with tissue around them on both slides."""
    found = _candidates(pair, mapping, tile_um)
    if not len(found) or not count:
        return np.zeros((0, 2))
    found = found[rng.permutation(len(found))[:MAX_CANDIDATES]]
    found = found + rng.uniform(-0.5, 0.5, found.shape) * pair.phh3.tissue.mpp
    found = np.clip(found, 0, pair.phh3.size_um)
    spacing = max(min_spacing_um, float(np.ptp(found, axis=0).max()) / np.sqrt(count))
    chosen = _apart(found, spacing, count)
    while len(chosen) < min(count, len(found)) and spacing > max(min_spacing_um, SMALLEST_SPACING * tile_um):
        spacing = max(spacing * 0.8, min_spacing_um)
        chosen = _apart(found, spacing, count)
    return found[chosen]


MAX_CANDIDATES = 20_000
SMALLEST_SPACING = 0.25
"""Tiles whose centres are closer than this share of their side show the same."""


def _candidates(pair: SlidePair, mapping: Mapping, tile_um: float) -> Points:
    """Centres of PHH3 mask pixels around which both slides have tissue."""
    tissue = pair.phh3.tissue
    rows, columns = np.indices(tissue.mask.shape).reshape(2, -1) + 0.5
    corner = np.array([tissue.x, tissue.y])
    centres: Points = (np.stack([columns, rows], axis=1) * tissue.scale + corner) * pair.phh3.slide.mpp
    centres = centres[pair.phh3.has_tissue(centres, tile_um, MIN_TISSUE)]
    return np.asarray(centres[pair.he.has_tissue(mapping.apply(centres), tile_um, MIN_TISSUE)], np.float64)


def _apart(points: Points, spacing: float, count: int) -> list[int]:
    """Indices of the first points, in order, that keep `spacing` from those taken before."""
    near = cKDTree(points)
    free = np.ones(len(points), bool)
    chosen: list[int] = []
    for index in range(len(points)):
        if free[index]:
            chosen.append(index)
            if len(chosen) == count:
                break
            free[near.query_ball_point(points[index], spacing)] = False
    return chosen


# ---- what single pairs of tiles say ----


EXCLUSION_PX = 10.0
"""The second peak lies at least this far from the first: a nucleus's width."""
NULL_TILES, NULL_ROUNDS = 12, 6
"""The null distribution comes from so many tiles, each compared with so many wrong positions."""


@dataclass(frozen=True)
class Shifts:
    """Measured shifts, one row a position; `positions` in PHH3 um."""

    positions: Points
    shifts: Points
    """Where the tile matched best, relative to where it was expected, in PHH3 um."""
    heights: Floats
    """Correlation coefficient at the peak."""
    ratios: Floats
    """Peak over second peak."""

    @classmethod
    def unmeasured(cls, positions: Points) -> Shifts:
        """Shifts of 0 at all positions."""
        return cls(positions, np.zeros_like(positions), np.zeros(len(positions)), np.ones(len(positions)))

    def chosen(self, which: Mask) -> Shifts:
        """The rows at `which`."""
        return Shifts(self.positions[which], self.shifts[which], self.heights[which], self.ratios[which])


def measure(pair: SlidePair, mapping: Mapping, positions_um: Points, shape: TileShape) -> Shifts:
    """Compare one pair of tiles for each PHH3 position (n, 2)."""
    peaks = [find_peak(heat, EXCLUSION_PX) for heat in heat_maps(pair, mapping, positions_um, shape)]
    rows = np.array([(p.x, p.y, p.height, p.ratio) for p in peaks], float).reshape(-1, 4)
    return Shifts(positions_um, rows[:, :2] * shape.mpp, rows[:, 2], rows[:, 3])


@dataclass(frozen=True)
class Null:
    """Peak heights of tiles compared with wrong places of the same slides; 0 where there are no tiles."""

    heights: Floats

    @property
    def centre(self) -> float:
        """Median height of the correlations."""
        return float(np.median(self.heights))

    @property
    def spread(self) -> float:
        """Standard deviation, taken from the median absolute deviation."""
        return max(1.4826 * float(np.median(np.abs(self.heights - self.centre))), SMALLEST_SPREAD)

    def strength(self, heights: Floats) -> Floats:
        """How many standard deviations heights stand above those of wrong positions."""
        return (heights - self.centre) / self.spread

    def separation(self, heights: Floats) -> float:
        """Chance that a right position is higher than a wrong one (0.5: they cannot be distinguished)."""
        above = heights[:, None] - self.heights
        return float((np.sign(above).mean() + 1) / 2)


SMALLEST_SPREAD = 0.01


def measure_null(pair: SlidePair, mapping: Mapping, positions_um: Points, shape: TileShape) -> Null:
    """Heights of peaks between tiles and windows of different positions, where nothing corresponds."""

    def read(position: Points) -> tuple[Image, Image]:
        return read_template(pair, position, shape), read_window(pair, mapping, position, shape)

    threads = available_cores()
    pairs = list(ordered_map(read, positions_um[:NULL_TILES], threads=threads, ahead=2 * threads))
    heights = [
        correlate(template, pairs[(index + step) % len(pairs)][1]).max()
        for step in range(1, min(NULL_ROUNDS, len(pairs) - 1) + 1)
        for index, (template, _) in enumerate(pairs)
    ]
    return Null(np.array(heights or [0.0], float))
