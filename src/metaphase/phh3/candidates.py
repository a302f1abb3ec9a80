"""All brown candidates of a slide, streaming."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.geometry import Box
from metaphase.parallel import available_cores, ordered_map
from metaphase.phh3.brown import BrownScale, amounts
from metaphase.phh3.components import Components, Stitcher, TileComponents, label_tile
from metaphase.phh3.config import CandidateConfig
from metaphase.phh3.features import candidate_table, join_figures
from metaphase.phh3.plane import search_plane
from metaphase.phh3.splitting import split_fused
from metaphase.phh3.survey import BrownThreshold
from metaphase.slides import RGB, Slide, Tile, TilePlan
from metaphase.tissue import TissueMask

TILE_PX = 1024
Progress = Callable[[int, int], None]
"""Called with tiles finished and tiles in all."""


@dataclass(frozen=True)
class Candidates:
    """The candidates of a slide, and what was brown but is none."""

    table: pd.DataFrame
    """One row a candidate, with the columns of `features.COLUMNS`."""
    too_small: int
    too_large: int
    too_faint: int


def find_candidates(
    slide: Slide,
    tissue: TissueMask,
    threshold: BrownThreshold,
    config: CandidateConfig,
    *,
    tile_px: int = TILE_PX,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Candidates:
    """Every component of brown pixels within the tissue, the same whatever the tile size.

    Tiles are decoded and labelled in threads; memory holds a few tiles, and some 100 bytes for each candidate
    and for each component that touches the border of a tile.
    """
    plane = search_plane(slide, config.mpp)
    plan = plane.plan(tile_px, tissue.grid)
    workers = threads or available_cores()
    scale = threshold.scale

    def label(tile: Tile) -> TileComponents:
        inside = _inside(tissue, plan, tile.core)
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
    components: Components, specks: int, plan: TilePlan, threshold: BrownThreshold, config: CandidateConfig
) -> Candidates:
    """Drop what is too large or too faint, join figures in two parts, and measure the rest."""
    small = components.of("area") <= config.area_px(plan.mpp)[1]
    dark = components.of("peak") >= config.peak_factor * threshold.level
    figures, parts = join_figures(components[small & dark], config, plan.mpp)
    return Candidates(
        table=candidate_table(figures, parts, plan),
        too_small=specks,
        too_large=int(np.sum(~small)),
        too_faint=int(np.sum(small & ~dark)),
    )


def _inside(tissue: TissueMask, plan: TilePlan, box: Box) -> npt.NDArray[np.bool_]:
    """The tissue mask at the pixels of a tile; each pixel is judged by its centre."""
    height, width = tissue.mask.shape
    x = plan.x + (box.x + np.arange(box.width) + 0.5) * plan.scale
    y = plan.y + (box.y + np.arange(box.height) + 0.5) * plan.scale
    column = np.floor((x - tissue.x) / tissue.scale).astype(np.int64)
    row = np.floor((y - tissue.y) / tissue.scale).astype(np.int64)
    inside: npt.NDArray[np.bool_] = tissue.mask[np.ix_(row.clip(0, height - 1), column.clip(0, width - 1))]
    inside &= ((row >= 0) & (row < height))[:, None] & ((column >= 0) & (column < width))
    return inside
