"""All brown candidates of a slide, streaming: connected components without seams, split and joined, measured.

A component is known by sums and maxima over its pixels. Both can be added up over its parts, hence a
component that crosses tiles ends with exactly the numbers it would have in one piece. Parts that touch the
border of a tile wait until the end; all others are finished with their tile. A component that is large or
irregular is looked at again by itself: its darkest parts, if they are large enough, are components of their
own.

A look comes first: where the tissue is, which stain it has, and what is brown. The textbook vector of
haematoxylin fits no laboratory exactly, so that dark blue nuclei seem to hold some DAB, in proportion to
their blue. That proportion, the leak, is measured on each slide and taken off. Amounts are whole numbers of
`UNIT`, whose sums do not depend on the order of adding, and nothing is interpolated: a slide gives the same
candidates however it is cut into tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Self

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from metaphase.base.arrays import RGB, Box, Floats, Integers, Mask
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.parallel import available_cores, ordered_map
from metaphase.base.settings import settings
from metaphase.images.inspection import StainGuess, glass_colour, guess_stain, white_balanced
from metaphase.images.stain.deconvolution import H_DAB_RESIDUAL
from metaphase.images.tissue.finding import TissueConfig, TissueMask, find_tissue
from metaphase.slides.contract import Slide
from metaphase.slides.tiles import MaskGrid, Tile, TilePlan, plan_tiles

# ---- what can be wrong with a slide that should be PHH3 ----


class Phh3Error(MetaphaseError):
    """A PHH3 slide, or what was made from it, cannot be used."""


# ---- what its two networks tell apart ----

CLASSES = {"cnn1": ("artefact", "object"), "cnn2": ("other", "mitosis")}
"""Names of class 0 and class 1, by network."""


# ---- what counts as a brown candidate, in physical units ----


@settings
class BrownConfig:
    """Settings of the candidate search; densities are natural-log amounts of DAB."""

    mpp: PositiveFloat = 0.5
    """Resolution of the search in um/px, met to the nearest whole number of the slide's own pixels. Scanners
    store colour at half resolution, so 0.5 loses no brown."""
    spread_factor: NonNegativeFloat = 4.5
    """The threshold lies this many standard deviations above the slide's unspecific brown ..."""
    least_threshold: PositiveFloat = 0.2
    """... but never below this amount of DAB ..."""
    greatest_threshold: PositiveFloat = 0.8
    """... nor above this one, however brown the background."""
    peak_factor: NonNegativeFloat = 1.5
    """The darkest pixel of a candidate reaches this many times the threshold: haze does not."""
    min_area_um2: PositiveFloat = 5.0
    """Smaller components are dust; a metaphase plate seen edge-on has about 20 um2."""
    max_area_um2: PositiveFloat = 1000.0
    """Larger components are smears, pigment and folds; the largest mitoses have about 400 um2."""
    join_um: NonNegativeFloat = 10.0
    """Two like components that are each other's nearest, with centroids at most this far apart, are one
    figure (the plates of an anaphase); 0 joins nothing."""
    margin_um: NonNegativeFloat = 16.0
    """How far beyond the tissue mask candidates are still looked for."""
    fields: PositiveInt = 64
    """Fields from which the slide's threshold is estimated."""
    field_px: Annotated[int, Field(ge=16)] = 256
    """Side of such a field, in pixels of `mpp`."""
    tissue: TissueConfig = field(default_factory=TissueConfig)
    """How tissue is distinguished from glass."""

    def __post_init__(self) -> None:
        for low, high in (("least_threshold", "greatest_threshold"), ("min_area_um2", "max_area_um2")):
            if not getattr(self, low) < getattr(self, high):
                raise UsageError(
                    f"{low} = {getattr(self, low)} and {high} = {getattr(self, high)} leave no candidate",
                    next_step="give the smaller first",
                )

    def area_px(self, mpp: float) -> tuple[int, int]:
        """Fewest and most pixels of a component at `mpp`."""
        pixel_um2 = mpp**2
        return max(1, math.ceil(self.min_area_um2 / pixel_um2)), math.floor(self.max_area_um2 / pixel_um2)


# ---- how brown a pixel is ----

Levels = npt.NDArray[np.int16]

UNIT = 1e-3
"""Density (natural logarithm) of one level."""
_DENSITY = -np.log(np.maximum(np.arange(256), 1) / 255)


@dataclass(frozen=True, eq=False)
class BrownScale:
    """Tables from 8-bit intensities to levels, one row a channel; the channels' levels add up."""

    dab: Levels
    """(3, 256), DAB without the leak."""
    haematoxylin: Levels
    """(3, 256)."""

    @classmethod
    def of(cls, leak: float = 0.0) -> Self:
        """The scale of a slide on which blue holds `leak` times as much seeming DAB as haematoxylin."""
        haematoxylin, dab, _ = H_DAB_RESIDUAL.inverse.T
        tables = (
            np.rint(weights[:, None] * _DENSITY / UNIT)
            for weights in (dab - leak * haematoxylin, haematoxylin)
        )
        return cls(*(table.astype(np.int16) for table in tables))


def amounts(table: Levels, rgb: RGB) -> Levels:
    """Levels (...) of 8-bit pixels (..., 3) by a table of `BrownScale`."""
    red, green, blue = (np.take(table[channel], rgb[..., channel]) for channel in range(3))
    red += green
    red += blue
    return red


# ---- the plane that is searched ----

COARSER_TOLERANCE = 1.25
"""A level may be this many times coarser than asked."""


@dataclass(frozen=True)
class SearchPlane:
    """A slide at about the asked resolution."""

    slide: Slide
    level: int
    factor: int
    """Pixels of the level along each side of a pixel of the plane."""

    @property
    def scale(self) -> float:
        """Level-0 pixels per pixel of the plane."""
        return self.factor * self.slide.levels[self.level].downsample

    @property
    def mpp(self) -> float:
        """Micrometres per pixel of the plane."""
        return self.scale * self.slide.mpp

    def plan(self, tile_px: int, mask: MaskGrid) -> TilePlan:
        """Tiles of the plane that touch the mask, row by row."""
        whole = Box(0, 0, self.slide.width, self.slide.height)
        return plan_tiles(whole, self.slide.mpp, mpp=self.mpp, tile_px=tile_px, mask=mask)

    def read(self, box: Box) -> RGB:
        """Pixels of a box of the plane; each is the mean of `factor` x `factor` pixels of the level."""
        n = self.factor
        pixels = self.slide.read_level(self.level, Box(box.x * n, box.y * n, box.width * n, box.height * n))
        if n == 1:
            return pixels
        size = (box.width, box.height)
        return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8)


def search_plane(slide: Slide, mpp: float) -> SearchPlane:
    """The plane nearest to `mpp`, from the level that costs least."""
    wanted = mpp / slide.mpp
    steps = [level.downsample for level in slide.levels]
    level = max((i for i, step in enumerate(steps) if step <= COARSER_TOLERANCE * wanted), default=0)
    return SearchPlane(slide, level, max(1, round(wanted / steps[level])))


# ---- a look at a slide before the search ----

GREATEST_LEAK = 0.5
"""More DAB than this in proportion to haematoxylin is brown, not a leak."""
STAINED_DENSITY = 0.06
"""Mean density of a pixel that is not glass."""
BLUEST_SHARE = 0.1
"""The leak is measured on this share of the pixels, those with most haematoxylin."""
NORMAL_5TH_PERCENTILE = 1.645
"""Standard deviations between the median and the 5th percentile of a normal distribution."""
GLASS_THUMBNAIL_PX = 512
FEWEST_PIXELS = 1000
"""With fewer stained pixels nothing can be estimated."""


@dataclass(frozen=True)
class BrownThreshold:
    """From where on a pixel of a slide is brown, and what that was derived from."""

    value: float
    """Least DAB of a brown pixel."""
    leak: float
    """Seeming DAB of blue pixels, relative to their haematoxylin."""
    background: float
    """Median DAB of the tissue."""
    spread: float
    """Standard deviation of the unspecific DAB, from the half below the median: no positive cell is there."""
    brown_share: float
    """Share of the sampled tissue at or above the threshold."""

    @property
    def level(self) -> int:
        """The threshold in units of the scale."""
        return round(self.value / UNIT)


@dataclass(frozen=True)
class Survey:
    """What is known about a slide before its candidates."""

    tissue: TissueMask
    """Where candidates are looked for, the margin included."""
    pixels: RGB
    """(n, 3), sampled from stained tissue."""
    stain: StainGuess
    threshold: BrownThreshold | None
    """None where there is too little tissue to tell."""


def survey_slide(slide: Slide, config: BrownConfig, threads: int = 2) -> Survey:
    """Find the tissue and estimate the threshold from fields spread over it, the same on every call."""
    found = find_tissue(slide, config.tissue)
    side = 2 * round(config.margin_um / found.mpp) + 1
    grown = cv2.dilate(found.mask.astype(np.uint8), np.ones((side, side), np.uint8)) > 0
    tissue = TissueMask(grown, found.mpp, found.x, found.y, found.scale)
    fields = _read_fields(slide, tissue, config, threads)
    pixels = stained(fields.reshape(-1, 3))
    if len(pixels) < FEWEST_PIXELS:
        return Survey(tissue, pixels, StainGuess("unknown", 0.0), None)
    stain = guess_stain(white_balanced(fields, glass_colour(slide.thumbnail(GLASS_THUMBNAIL_PX))))
    return Survey(tissue, pixels, stain, estimate_threshold(pixels, config))


def estimate_threshold(pixels: RGB, config: BrownConfig) -> BrownThreshold:
    """The threshold of a slide from stained pixels (n, 3): background plus some spreads, within limits.

    Median and lower half do not feel the positive cells, which are few, nor any brown artefacts up to a
    third of the tissue.
    """
    leak = measure_leak(pixels)
    dab = amounts(BrownScale.of(leak).dab, pixels) * UNIT
    low, background = np.percentile(dab, (5, 50))
    spread = (background - low) / NORMAL_5TH_PERCENTILE
    limits = config.least_threshold, config.greatest_threshold
    value = float(np.clip(background + config.spread_factor * spread, *limits))
    share = float(np.mean(dab >= value))
    return BrownThreshold(value, leak, float(background), float(spread), share)


def measure_leak(pixels: RGB) -> float:
    """Median ratio of DAB to haematoxylin over the bluest pixels, from 0 to `GREATEST_LEAK`."""
    scale = BrownScale.of()
    dab, blue = amounts(scale.dab, pixels), amounts(scale.haematoxylin, pixels)
    bluest = blue >= max(1, np.percentile(blue, 100 * (1 - BLUEST_SHARE)))
    if not bluest.any():
        return 0.0
    return float(np.clip(np.median(dab[bluest] / blue[bluest]), 0, GREATEST_LEAK))


def stained(pixels: RGB) -> RGB:
    """The pixels of (n, 3) that are not glass."""
    kept: RGB = pixels[_DENSITY.astype(np.float32)[pixels].mean(axis=1) > STAINED_DENSITY]
    return kept


def _read_fields(slide: Slide, tissue: TissueMask, config: BrownConfig, threads: int) -> RGB:
    """Fields (n, side, side, 3) of the plane that will be searched, around random places of the tissue."""
    plane, side = search_plane(slide, config.mpp), config.field_px
    rows, columns = np.nonzero(tissue.mask)
    chosen = np.random.default_rng(0).permutation(len(rows))[: config.fields]
    centres = np.stack([columns[chosen], rows[chosen]], axis=1) + 0.5
    positions = (centres * tissue.scale + (tissue.x, tissue.y)) / plane.scale - side / 2
    boxes = [Box(x, y, side, side) for x, y in np.floor(positions).astype(int).tolist()]
    fields = list(ordered_map(plane.read, boxes, threads=threads, ahead=2 * threads))
    return np.stack(fields) if fields else np.zeros((0, side, side, 3), np.uint8)


# ---- connected components without seams ----

SUMS = ("area", "x", "y", "xx", "xy", "yy", "dab", "haematoxylin")
"""Over the pixels of a component: their number, coordinates, products of coordinates, and amounts."""
MAXIMA = ("peak", "right", "bottom", "minus_left", "minus_top", "last")
"""Greatest amount of DAB, the sides of the bounding box (right and bottom just beyond it), and the last pixel
in reading order, as row x `ROW_CODE` + column."""
ROW_CODE = 2**32


@dataclass(frozen=True, eq=False)
class Components:
    """One row a component; whole numbers, in pixels of the plane. Products may wrap around 64 bits, which the
    differences that are taken of them undo."""

    values: Integers
    """(n, len(SUMS) + len(MAXIMA))."""

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, which: Mask | Integers | slice) -> Components:
        return Components(self.values[which])

    def of(self, name: str) -> Integers:
        """One of `SUMS` or `MAXIMA`."""
        return self.values[:, (*SUMS, *MAXIMA).index(name)]

    def merged(self, group: Integers) -> Components:
        """One component a group, in order of the group's number; `group` has a number for each row."""
        order = np.argsort(group, kind="stable")
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        if not len(starts):
            return self
        sums, maxima = np.split(self.values[order], [len(SUMS)], axis=1)
        return Components(np.hstack([np.add.reduceat(sums, starts), np.maximum.reduceat(maxima, starts)]))

    @classmethod
    def joined(cls, parts: Sequence[Components]) -> Components:
        """All components of `parts`, one list after the other."""
        nothing = np.zeros((0, len(SUMS) + len(MAXIMA)), np.int64)
        return cls(np.concatenate([nothing, *(part.values for part in parts)]))


@dataclass(frozen=True, eq=False)
class TileComponents:
    """The components of one tile, and which of them reach its sides."""

    components: Components
    border: Integers
    """(2, pixels), for the brown pixels along its sides: `ROW_CODE` position, and row of the component."""


def label_tile(box: Box, brown: Mask, dab: Levels, haematoxylin: Levels) -> TileComponents:
    """Label the brown pixels of the tile `box` (8-connected).

    `brown` and `dab` are (height, width); `haematoxylin` holds the brown pixels alone, in reading order.
    """
    count, found, boxes, _ = cv2.connectedComponentsWithStats(
        brown.view(np.uint8), connectivity=8, ltype=cv2.CV_32S
    )
    labels = np.asarray(found, np.int32)
    y, x = np.nonzero(brown)
    owner, darkness, code = labels[y, x] - 1, dab[y, x], (y + box.y) * ROW_CODE + x + box.x
    # coordinates from the tile's corner are small enough for exact sums of floats
    summed = (None, x, y, x * x, x * y, y * y, darkness, haematoxylin)
    sums = np.stack([np.bincount(owner, one, minlength=count - 1) for one in summed]).astype(np.int64)
    left, top, width, height = np.asarray(boxes, np.int64)[1:, :4].T
    left, top = left + box.x, top + box.y
    peak, last = np.full((2, count - 1), np.iinfo(np.int64).min)
    np.maximum.at(peak, owner, darkness.astype(np.int64))
    last[owner] = code  # pixels come in reading order: the last one stays
    maxima = (peak, left + width, top + height, -left, -top, last)
    components = Components(np.stack([*_moved(sums, box.x, box.y), *maxima], axis=1))
    edge = (x == 0) | (y == 0) | (x == box.width - 1) | (y == box.height - 1)
    return TileComponents(components, np.stack([code[edge], owner[edge]]))


def _moved(sums: Integers, right: int | Integers, down: int | Integers) -> tuple[Integers, ...]:
    """`SUMS`, one a row, of components moved so far."""
    area, x, y, xx, xy, yy, *amounts = sums
    return (
        area,
        x + right * area,
        y + down * area,
        xx + 2 * right * x + right * right * area,
        xy + right * y + down * x + right * down * area,
        yy + 2 * down * y + down * down * area,
        *amounts,
    )


@dataclass(eq=False)
class Stitcher:
    """Takes tiles, in any order, and joins what touches across their borders."""

    smallest: int
    """Components of fewer pixels are counted and forgotten."""
    specks: int = 0
    _whole: list[Components] = field(default_factory=list)
    _open: list[Components] = field(default_factory=list)
    _borders: list[Integers] = field(default_factory=list)
    _opened: int = 0

    def add(self, tile: TileComponents) -> None:
        """Take a tile; tiles may be left out where nothing is brown."""
        code, owner = tile.border
        touching = np.zeros(len(tile.components), np.bool_)
        touching[owner] = True
        self._keep(tile.components[~touching])
        self._open.append(tile.components[touching])
        self._borders.append(np.stack([code, self._opened + np.cumsum(touching)[owner] - 1]))
        self._opened += int(touching.sum())

    def finish(self) -> Components:
        """All components of the plane."""
        if self._opened:
            pieces, links = Components.joined(self._open), self._links()
            graph = coo_array((np.ones(len(links), np.bool_), tuple(links.T)), (len(pieces),) * 2)
            self._keep(pieces.merged(connected_components(graph, directed=False)[1].astype(np.int64)))
        return Components.joined(self._whole)

    def _keep(self, components: Components) -> None:
        large = components.of("area") >= self.smallest
        self.specks += int((~large).sum())
        self._whole.append(components[large])

    def _links(self) -> Integers:
        """Which open components (n, 2) have pixels side by side, or corner to corner."""
        code, owner = np.concatenate(self._borders, axis=1)
        order = np.argsort(code)
        code, owner = code[order], owner[order]
        found = []
        for step in (1, ROW_CODE - 1, ROW_CODE, ROW_CODE + 1):  # to the right, and the three below
            there = np.searchsorted(code, code + step).clip(max=len(code) - 1)
            both = code[there] == code + step
            found.append(np.stack([owner[both], owner[there[both]]], axis=1))
        return np.concatenate(found)


# ---- from the components of a slide to its table of candidates ----


PIXEL_VARIANCE = 1 / 12
"""Of a coordinate within a pixel: with it, a single pixel has the extent of a pixel."""
LEAST_LIKENESS = 0.5
"""Components that are joined differ in area by no more than this ratio."""


def join_figures(components: Components, config: BrownConfig, mpp: float) -> tuple[Components, Integers]:
    """Join pairs of like components that are one figure; also returns how many parts each then has.

    An anaphase is two plates of about the same size a few micrometres apart. Only pairs are joined, and only
    those that are each other's nearest neighbour.
    """
    group = np.arange(len(components))
    if len(components) > 1 and config.join_um > 0:
        area = components.of("area")
        centres = np.stack([components.of("x") / area, components.of("y") / area], axis=1)
        distance, nearest = (found[:, 1] for found in cKDTree(centres).query(centres, k=2))
        mutual = nearest[nearest] == group
        alike = np.minimum(area, area[nearest]) >= LEAST_LIKENESS * np.maximum(area, area[nearest])
        small = area + area[nearest] <= config.area_px(mpp)[1]
        join = mutual & alike & small & (distance * mpp <= config.join_um)
        group[join] = np.minimum(group, nearest)[join]
    joined = components.merged(group)
    return joined, np.unique(group, return_counts=True)[1]


def candidate_table(components: Components, parts: Integers, plan: TilePlan) -> pd.DataFrame:
    """The candidates, ordered and numbered by position, top to bottom.

    `x, y` (centroid) and the bounding box are level-0 pixels. `extent` is the filled share of the bounding
    box, `filling` that of the ellipse with the same moments: 1 for a filled ellipse, less for rings.
    """
    area = components.of("area")
    x, y = (components.of(name) / area + 0.5 for name in ("x", "y"))
    left, top = -components.of("minus_left"), -components.of("minus_top")
    right, bottom = components.of("right"), components.of("bottom")
    major, minor = ellipse_axes(components)
    table = pd.DataFrame(
        {
            "candidate": 0,
            "x": plan.x + x * plan.scale,
            "y": plan.y + y * plan.scale,
            "area_um2": area * plan.mpp**2,
            "left": plan.x + left * plan.scale,
            "top": plan.y + top * plan.scale,
            "right": plan.x + right * plan.scale,
            "bottom": plan.y + bottom * plan.scale,
            "dab_mean": components.of("dab") / area * UNIT,
            "dab_peak": components.of("peak") * UNIT,
            "haematoxylin_mean": components.of("haematoxylin") / area * UNIT,
            "major_um": major * plan.mpp,
            "minor_um": minor * plan.mpp,
            "eccentricity": np.sqrt(1 - (minor / major) ** 2),
            "extent": area / ((right - left) * (bottom - top)),
            "filling": ellipse_filling(components),
            "parts": parts,
        }
    )
    table = table.sort_values(["y", "x"], kind="stable", ignore_index=True)
    return table.assign(candidate=np.arange(len(table)))


def ellipse_filling(components: Components) -> Floats:
    """Area relative to the ellipse of the same moments."""
    major, minor = ellipse_axes(components)
    return components.of("area") / (np.pi / 4 * major * minor)


def ellipse_axes(components: Components) -> tuple[Floats, Floats]:
    """Full lengths in pixels of the axes of the ellipse that has the component's area moments.

    Counted from the corner of the bounding box, the sums are exact, and small enough for floats.
    """
    sums = components.values.T[: len(SUMS)]
    area, x, y, xx, xy, yy, *_ = _moved(sums, components.of("minus_left"), components.of("minus_top"))
    var_x = (xx - x * (x / area)) / area + PIXEL_VARIANCE
    var_y = (yy - y * (y / area)) / area + PIXEL_VARIANCE
    covariance = (xy - x * (y / area)) / area
    middle, half = (var_x + var_y) / 2, np.sqrt(((var_x - var_y) / 2) ** 2 + covariance**2)
    return 4 * np.sqrt(middle + half), 4 * np.sqrt(np.maximum(middle - half, PIXEL_VARIANCE))


# ---- separate what grew together ----

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
    config: BrownConfig,
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
    """Components of the darkest pixels of the one component `whole`.

    Its last pixel tells which of the components in its bounding box it is.
    """
    peak, right, bottom, minus_left, minus_top, last = whole.values[0, len(SUMS) :].tolist()
    box = Box(-minus_left, -minus_top, right + minus_left, bottom + minus_top)
    rgb = plane.read(box)
    dab = amounts(scale.dab, rgb)
    row, column = divmod(last, ROW_CODE)
    brown = (dab >= level).view(np.uint8)
    labels = np.asarray(cv2.connectedComponents(brown, connectivity=8)[1], np.int32)
    own = labels == labels[row - box.y, column - box.x]
    core = own & (dab >= max(level, CORE_SHARE * min(peak, round(SATURATED_DAB / UNIT))))
    return label_tile(box, core, dab, amounts(scale.haematoxylin, rgb[core])).components


def _doubtful(components: Components, mpp: float) -> Mask:
    width = components.of("right") + components.of("minus_left")
    height = components.of("bottom") + components.of("minus_top")
    large = components.of("area") * mpp**2 > LARGE_UM2
    irregular = ellipse_filling(components) < REGULAR_FILLING
    return (large | irregular) & (width <= WIDEST_PX) & (height <= WIDEST_PX)


# ---- all brown candidates of a slide, streaming ----

TILE_PX = 1024
Progress = Callable[[int, int], None]
"""Called with tiles finished and tiles in all."""


@dataclass(frozen=True)
class BrownCandidates:
    """The candidates of a slide, and what was brown but is none."""

    table: pd.DataFrame
    """See `candidate_table`."""
    too_small: int
    too_large: int
    too_faint: int


def find_brown_candidates(
    slide: Slide,
    tissue: TissueMask,
    threshold: BrownThreshold,
    config: BrownConfig,
    *,
    tile_px: int = TILE_PX,
    threads: int | None = None,
    progress: Progress | None = None,
) -> BrownCandidates:
    """Every component of brown pixels within the tissue, the same whatever the tile size.

    Tiles are decoded and labelled in threads; memory holds a few tiles, some 100 bytes for each candidate and
    for each component that touches the border of a tile, and 16 for each brown pixel along a border.
    """
    plane = search_plane(slide, config.mpp)
    grid = tissue.grid
    plan = plane.plan(tile_px, grid)
    workers = threads or available_cores()
    scale = BrownScale.of(threshold.leak)

    def label(tile: Tile) -> TileComponents:
        rgb = plane.read(tile.core)
        dab = amounts(scale.dab, rgb)
        brown = (dab >= threshold.level) & grid.under(plan, tile.core)
        return label_tile(tile.core, brown, dab, amounts(scale.haematoxylin, rgb[brown]))

    stitcher = Stitcher(config.area_px(plan.mpp)[0])
    for done, tile in enumerate(ordered_map(label, plan.tiles, threads=workers, ahead=2 * workers), start=1):
        stitcher.add(tile)
        if progress is not None:
            progress(done, len(plan.tiles))
    components = split_fused(stitcher.finish(), plane, scale, threshold.level, config, workers)
    small = components.of("area") <= config.area_px(plan.mpp)[1]
    dark = components.of("peak") >= config.peak_factor * threshold.level
    figures, parts = join_figures(components[small & dark], config, plan.mpp)
    return BrownCandidates(
        table=candidate_table(figures, parts, plan),
        too_small=stitcher.specks,
        too_large=int(np.sum(~small)),
        too_faint=int(np.sum(small & ~dark)),
    )
