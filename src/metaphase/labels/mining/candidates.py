"""Candidates of a whole slide: dark points of the tissue, each alone in its circle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metaphase.base.arrays import RGB, Integers
from metaphase.base.errors import MetaphaseError
from metaphase.base.parallel import available_cores, ordered_map
from metaphase.base.provenance import Ingredients, facts_of, note_path
from metaphase.base.tables import read_table, require_columns, write_table
from metaphase.images.tissue.mask import TissueMask
from metaphase.labels.mining.config import CandidateConfig
from metaphase.labels.mining.darkest import EXCLUDED, DarkestFirst, Values, ordered
from metaphase.slides import MaskGrid, Slide, Tile, TilePlan, plan_tiles

COLUMNS = ("x", "y", "intensity")
"""Level-0 place of the pixel's centre, and mean of red, green and blue from 0 to 1."""
FULL_SUM = 3 * 255
"""Red + green + blue of white: intensities are compared as whole sums, so ties are ties on any machine."""

TILE_PX = 512
"""Side of the squares that are read."""


class CandidateError(MetaphaseError):
    """Candidates cannot be found, read or used."""


@dataclass(frozen=True)
class Candidates:
    """The candidates of one slide, ordered by y, then x, and how dark the slide was."""

    table: pd.DataFrame
    """Columns x, y (level-0 pixels), intensity."""
    tissue_mm2: float
    """Area that was searched."""
    dark_share: float
    """Share of it below the threshold."""

    @property
    def per_mm2(self) -> float:
        """Candidates per mm2 of tissue; 0 without tissue."""
        return len(self.table) / self.tissue_mm2 if self.tissue_mm2 else 0.0


@dataclass(frozen=True)
class _Band:
    """A row of tiles as intensities, and how much of it is tissue, and dark tissue, in pixels."""

    sums: Values
    tissue_px: int
    dark_px: int


def find_candidates(
    slide: Slide,
    tissue: TissueMask,
    config: CandidateConfig | None = None,
    *,
    threads: int | None = None,
    tile_px: int = TILE_PX,
) -> Candidates:
    """Find the candidates of a slide, within its tissue.

    The slide is read once, a row of tiles after the other; memory holds one such row and what is undecided.
    Tiles have no influence on the result. (Where a slide must be resampled, the reader's last rounding may
    depend on the square read, which is why squares are always whole and on one grid.)
    """
    config = config or CandidateConfig()
    plan = plan_tiles(slide.bounds, slide.mpp, mpp=config.mpp, tile_px=tile_px, mask=tissue.grid)
    limit = intensity_limit(config.threshold)
    stream = DarkestFirst(plan.width, config.diameter_um / 2 / config.mpp, limit)
    found, tissue_px, dark_px = [np.empty((0, 3), np.int64)], 0, 0
    for band in _bands(slide, plan, tissue.grid, limit, tile_px, threads or available_cores()):
        found.append(stream.push(band.sums))
        tissue_px, dark_px = tissue_px + band.tissue_px, dark_px + band.dark_px
        _check_count(slide, sum(map(len, found)), config)
    points = ordered(np.concatenate([*found, stream.finish()]))
    _check_count(slide, len(points), config)
    share = dark_px / max(1, tissue_px)
    _check_darkness(slide, share, config)
    return Candidates(_placed(points, plan), tissue_px * (config.mpp / 1000) ** 2, share)


def save_candidates(path: str | Path, found: Candidates, record: Ingredients, **facts: Any) -> None:
    """Write the table as Parquet, and beside it the note of what it was made from."""
    areas = {"tissue_mm2": found.tissue_mm2, "dark_share": found.dark_share}
    with record.noted(Path(path), areas | facts):
        write_table(path, found.table)


def load_candidates(path: str | Path) -> Candidates:
    """Read what `save_candidates` wrote."""
    table = read_table(path)
    require_columns(table, COLUMNS, path)
    try:
        facts = facts_of(note_path(Path(path)))
        return Candidates(table, float(facts["tissue_mm2"]), float(facts["dark_share"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CandidateError(
            f"the note beside the candidates cannot be read ({error})",
            path=note_path(Path(path)),
            next_step="find the candidates again",
        ) from error


def intensity_limit(threshold: float) -> int:
    """The least sum of red, green and blue that is not below `threshold` of white."""
    return int(np.ceil(round(threshold * FULL_SUM, 9)))


def intensity_sums(pixels: RGB) -> Values:
    """Red + green + blue of each pixel."""
    sums = np.add(pixels[..., 0], pixels[..., 1], dtype=np.uint16)
    sums += pixels[..., 2]
    return sums


def _bands(
    slide: Slide, plan: TilePlan, mask: MaskGrid, limit: int, tile_px: int, threads: int
) -> Iterator[_Band]:
    """Rows of tiles from the top; where no tile was planned, all is excluded."""

    def load(tile: Tile) -> tuple[Tile, Values, int]:
        x, y = plan.to_level0(tile.core.x, tile.core.y)
        square = intensity_sums(slide.read(x, y, tile_px, tile_px, plan.mpp))
        sums = square[: tile.core.height, : tile.core.width]
        outside = ~mask.under(plan, tile.core)
        sums[outside] = EXCLUDED
        return tile, sums, int(outside.size - np.count_nonzero(outside))

    top = 0
    loaded = ordered_map(load, plan.tiles, threads=threads, ahead=2 * threads)
    for y, tiles in groupby(loaded, key=lambda item: item[0].core.y):
        if y > top:
            yield from _empty_bands(y - top, plan.width, tile_px)
        band, tissue_px = np.empty((0, 0), np.uint16), 0
        for tile, sums, inside in tiles:
            if not len(band):
                band = np.full((tile.core.height, plan.width), EXCLUDED)
            band[:, tile.core.x : tile.core.right] = sums
            tissue_px += inside
        top = y + len(band)
        yield _Band(band, tissue_px, int(np.count_nonzero(band < limit)))


def _empty_bands(rows: int, width: int, step: int) -> Iterator[_Band]:
    """Rows without tissue, a few at a time."""
    for start in range(0, rows, step):
        yield _Band(np.full((min(step, rows - start), width), EXCLUDED), 0, 0)


def _placed(points: Integers, plan: TilePlan) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "x": plan.x + (points[:, 0] + 0.5) * plan.scale,
            "y": plan.y + (points[:, 1] + 0.5) * plan.scale,
            "intensity": (points[:, 2] / FULL_SUM).astype(np.float32),
        }
    )


def _check_count(slide: Slide, count: int, config: CandidateConfig) -> None:
    if count > config.max_candidates:
        raise CandidateError(
            f"more than {config.max_candidates:,} candidates",
            path=slide.info.path or slide.name,
            next_step="check stain, mpp and tissue mask; lower the threshold, or raise max_candidates",
        )


def _check_darkness(slide: Slide, share: float, config: CandidateConfig) -> None:
    if share > config.max_dark_share:
        raise CandidateError(
            f"{share:.1%} of the tissue is darker than the threshold {config.threshold:g}",
            path=slide.info.path or slide.name,
            next_step="check that it is H&E; standardise its stain, or lower the threshold",
        )
