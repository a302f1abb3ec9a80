"""All brown candidates of a slide, streaming: components, split and joined, measured.

A component that is large or irregular is looked at again by itself: its darkest parts, if they are large
enough, are components of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.spatial import cKDTree

from metaphase.base.arrays import RGB, Floats, Integers, Mask
from metaphase.base.geometry import Box
from metaphase.base.parallel import available_cores, ordered_map
from metaphase.images.tissue import TissueMask
from metaphase.labels.phh3.components import ROW_CODE, Components, Stitcher, TileComponents, label_tile
from metaphase.labels.phh3.config import BrownConfig
from metaphase.labels.phh3.survey import UNIT, BrownScale, BrownThreshold, SearchPlane, amounts, search_plane
from metaphase.slides import Slide, Tile, TilePlan

# ---- from the components of a slide to its table of candidates ----


PIXEL_VARIANCE = 1 / 12
"""Of a coordinate within a pixel: with it, a single pixel has the extent of a pixel."""
LEAST_LIKENESS = 0.5
"""Components that are joined differ in area by no more than this ratio."""
COLUMNS = (
    "candidate", "x", "y", "area_um2", "left", "top", "right", "bottom", "dab_mean", "dab_peak",
    "haematoxylin_mean", "major_um", "minor_um", "eccentricity", "extent", "filling", "parts",
)  # fmt: skip
"""`x, y` (centroid) and the bounding box are level-0 pixels. `extent` is the filled share of the bounding
box, `filling` that of the ellipse with the same moments: 1 for a filled ellipse, less for rings."""


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
    """The table of `COLUMNS`, ordered and numbered by place, top to bottom."""
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
            **{name: plan.x + value * plan.scale for name, value in (("left", left), ("right", right))},
            **{name: plan.y + value * plan.scale for name, value in (("top", top), ("bottom", bottom))},
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
    return table.assign(candidate=np.arange(len(table)))[list(COLUMNS)]


def ellipse_filling(components: Components) -> Floats:
    """Area relative to the ellipse of the same moments: 1 for a filled ellipse, less for rings."""
    major, minor = ellipse_axes(components)
    return components.of("area") / (np.pi / 4 * major * minor)


def ellipse_axes(components: Components) -> tuple[Floats, Floats]:
    """Full lengths in pixels of the axes of the ellipse that has the component's area moments."""
    area = components.of("area")
    x, y, xx, xy, yy = _from_own_corner(components)
    var_x = (xx - x * (x / area)) / area + PIXEL_VARIANCE
    var_y = (yy - y * (y / area)) / area + PIXEL_VARIANCE
    covariance = (xy - x * (y / area)) / area
    middle, half = (var_x + var_y) / 2, np.sqrt(((var_x - var_y) / 2) ** 2 + covariance**2)
    return 4 * np.sqrt(middle + half), 4 * np.sqrt(np.maximum(middle - half, PIXEL_VARIANCE))


def _from_own_corner(components: Components) -> tuple[Integers, ...]:
    """Sums of x, y, xx, xy, yy counted from the bounding box: exact, and small enough for floats."""
    area, x, y, xx, xy, yy = (components.of(name) for name in ("area", "x", "y", "xx", "xy", "yy"))
    u, v = -components.of("minus_left"), -components.of("minus_top")
    return (
        x - u * area,
        y - v * area,
        xx - 2 * u * x + u * u * area,
        xy - u * y - v * x + u * v * area,
        yy - 2 * v * y + v * v * area,
    )


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


# ---- all brown candidates of a slide, streaming ----

TILE_PX = 1024
Progress = Callable[[int, int], None]
"""Called with tiles finished and tiles in all."""


@dataclass(frozen=True)
class BrownCandidates:
    """The candidates of a slide, and what was brown but is none."""

    table: pd.DataFrame
    """One row a candidate, with the columns of `features.COLUMNS`."""
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

    Tiles are decoded and labelled in threads; memory holds a few tiles, and some 100 bytes for each candidate
    and for each component that touches the border of a tile.
    """
    plane = search_plane(slide, config.mpp)
    grid = tissue.grid
    plan = plane.plan(tile_px, grid)
    workers = threads or available_cores()
    scale = threshold.scale

    def label(tile: Tile) -> TileComponents:
        inside = grid.under(plan, tile.core)
        return brown_components(tile.core, plane.read(tile.core), inside, scale, threshold.level)

    stitcher = Stitcher(plan.width, config.area_px(plan.mpp)[0])
    for done, tile in enumerate(ordered_map(label, plan.tiles, threads=workers, ahead=2 * workers), start=1):
        stitcher.add(tile)
        if progress is not None:
            progress(done, len(plan.tiles))
    components = split_fused(stitcher.finish(), plane, scale, threshold.level, config, workers)
    return select_candidates(components, stitcher.specks, plan, threshold, config)


def brown_components(
    box: Box, rgb: RGB, inside: npt.NDArray[np.bool_], scale: BrownScale, level: int
) -> TileComponents:
    """Components of the pixels of a tile that are inside the tissue and at least `level` brown."""
    dab = amounts(scale.dab, rgb)
    brown = (dab >= level) & inside
    return label_tile(box, brown, dab, amounts(scale.haematoxylin, rgb[brown]))


def select_candidates(
    components: Components, specks: int, plan: TilePlan, threshold: BrownThreshold, config: BrownConfig
) -> BrownCandidates:
    """Drop what is too large or too faint, join figures in two parts, and measure the rest."""
    small = components.of("area") <= config.area_px(plan.mpp)[1]
    dark = components.of("peak") >= config.peak_factor * threshold.level
    figures, parts = join_figures(components[small & dark], config, plan.mpp)
    return BrownCandidates(
        table=candidate_table(figures, parts, plan),
        too_small=specks,
        too_large=int(np.sum(~small)),
        too_faint=int(np.sum(small & ~dark)),
    )
