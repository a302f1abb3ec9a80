"""All brown candidates of a slide, streaming: connected components without seams, split and joined, measured.

`components` finds what is connected. A component that is large or irregular is looked at again by itself: its
darkest parts, if they are large enough, are components of their own.

A look comes first: where the tissue is, which stain it has, and what is brown. The textbook vector of
haematoxylin fits no laboratory exactly, so that dark blue nuclei seem to hold some DAB, in proportion to
their blue. That proportion, the leak, is measured on each slide and taken off. Amounts are whole numbers of
`UNIT`, whose sums do not depend on the order of adding, and nothing is interpolated: a slide gives the same
candidates however it is cut into tiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Self

import cv2
import numpy as np
import pandas as pd
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from metaphase.base.arrays import RGB, Box, Integers
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.parallel import available_cores, ordered_map
from metaphase.base.settings import settings
from metaphase.base.sharing.batch import Progress
from metaphase.images.inspection import StainGuess, glass_colour, guess_stain, white_balanced
from metaphase.images.stain.deconvolution import H_DAB_RESIDUAL
from metaphase.images.tissue.finding import TissueConfig, TissueMask, find_tissue
from metaphase.labels.phh3.components import (
    ROW_CODE,
    SUMS,
    Components,
    Levels,
    Stitcher,
    TileComponents,
    ellipse_axes,
    ellipse_filling,
    join_figures,
    label_tile,
)
from metaphase.slides.contract import Slide
from metaphase.slides.tiles import Tile, TilePlan, plan_tiles

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
    return np.asarray(sum(np.take(table[channel], rgb[..., channel]) for channel in range(3)), np.int16)


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


# ---- from the components of a slide to its table of candidates ----


def candidate_table(components: Components, parts: Integers, plan: TilePlan) -> pd.DataFrame:
    """The candidates, ordered and numbered by position, top to bottom.

    `x, y` (centroid) and the bounding box are level-0 pixels. `extent` is the filled share of the bounding
    box, `filling` that of the ellipse with the same moments: 1 for a filled ellipse, less for rings.
    """
    area, right, bottom = components["area"], components["right"], components["bottom"]
    left, top = -components["minus_left"], -components["minus_top"]
    major, minor = ellipse_axes(components)
    table = pd.DataFrame(
        {
            "candidate": 0,
            "x": plan.x + (components["x"] / area + 0.5) * plan.scale,
            "y": plan.y + (components["y"] / area + 0.5) * plan.scale,
            "area_um2": area * plan.mpp**2,
            "left": plan.x + left * plan.scale,
            "top": plan.y + top * plan.scale,
            "right": plan.x + right * plan.scale,
            "bottom": plan.y + bottom * plan.scale,
            "dab_mean": components["dab"] / area * UNIT,
            "dab_peak": components["peak"] * UNIT,
            "haematoxylin_mean": components["haematoxylin"] / area * UNIT,
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
    area = components["area"]
    width = components["right"] + components["minus_left"]
    height = components["bottom"] + components["minus_top"]
    odd = (area * plane.mpp**2 > LARGE_UM2) | (ellipse_filling(components) < REGULAR_FILLING)
    doubtful = odd & (width <= WIDEST_PX) & (height <= WIDEST_PX) & (area <= largest)

    def split(whole: np.void) -> Components:
        cores = find_cores(whole, plane, scale, level)
        cores = cores[cores["area"] >= smallest]
        return cores if len(cores) else np.array([whole])

    parts = ordered_map(split, components[doubtful], threads=threads, ahead=4 * threads)
    return np.concatenate([components[~doubtful], *parts])


def find_cores(whole: np.void, plane: SearchPlane, scale: BrownScale, level: int) -> Components:
    """Components of the darkest pixels of the one component `whole`.

    Its last pixel tells which of the components in its bounding box it is.
    """
    peak, right, bottom, minus_left, minus_top, last = whole.tolist()[len(SUMS) :]
    box = Box(-minus_left, -minus_top, right + minus_left, bottom + minus_top)
    rgb = plane.read(box)
    dab = amounts(scale.dab, rgb)
    row, column = divmod(last, ROW_CODE)
    brown = (dab >= level).view(np.uint8)
    labels = np.asarray(cv2.connectedComponents(brown, connectivity=8)[1], np.int32)
    own = labels == labels[row - box.y, column - box.x]
    core = own & (dab >= max(level, CORE_SHARE * min(peak, round(SATURATED_DAB / UNIT))))
    return label_tile(box, core, dab, amounts(scale.haematoxylin, rgb[core])).components


# ---- all brown candidates of a slide, streaming ----

TILE_PX = 1024


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
    plane, grid = search_plane(slide, config.mpp), tissue.grid
    whole = Box(0, 0, slide.width, slide.height)
    plan = plan_tiles(whole, slide.mpp, mpp=plane.mpp, tile_px=tile_px, mask=grid)
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
    small = components["area"] <= config.area_px(plan.mpp)[1]
    dark = components["peak"] >= config.peak_factor * threshold.level
    kept = components[small & dark]
    in_order = kept[np.argsort(kept["last"])]  # whatever the tiles: it decides between equal distances
    figures, parts = join_figures(in_order, plan.mpp, config.join_um, config.area_px(plan.mpp)[1])
    return BrownCandidates(
        table=candidate_table(figures, parts, plan),
        too_small=stitcher.specks,
        too_large=int((~small).sum()),
        too_faint=int((small & ~dark).sum()),
    )
