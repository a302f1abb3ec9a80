"""Candidates of a whole slide: dark points of the tissue, each alone in its circle, in any order of work.

*Greedy rule.* Pixels are ranked by (value, y, x). A pixel is taken if no pixel ranked before it, and at most
`radius_px` away, was taken. One set of pixels obeys that rule, the one that repeated "take the lowest pixel
that is left and suppress the circle around it" finds.

*Local rule.* A pixel that ranks first among the undecided pixels of its own circle can be taken at once,
whatever happens elsewhere: all that could suppress it are decided. So the image is cut into blocks as wide as
the radius, and the lowest pixel of a block is taken when it ranks before the lowest of the 8 blocks around,
for these hold its whole circle. The lowest pixel of all always qualifies, hence nothing waits for ever.

*Streaming.* Rows come from the top. A block row whose lower neighbours have not come takes nothing, a block
row without undecided pixels is dropped. Each step obeys the greedy rule, so the result does not depend on how
many rows come at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import field
from itertools import chain, groupby
from typing import Annotated

import numpy as np
import numpy.typing as npt
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view
from pydantic import Field, PositiveFloat, PositiveInt

from metaphase.base.arrays import RGB, Floats, Integers
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.parallel import available_cores, ordered_map
from metaphase.base.provenance import decides
from metaphase.base.settings import PositiveShare, settings
from metaphase.images.tissue.finding import TissueMask
from metaphase.slides.contract import WORKING_MPP, Slide
from metaphase.slides.tiles import MaskGrid, Tile, TilePlan, plan_tiles

Values = npt.NDArray[np.uint16]

EXCLUDED = np.uint16(65535)
"""Value of a pixel that is never taken."""
_PLACE_BITS = 23
_PLACE = (1 << _PLACE_BITS) - 1
_NONE = np.iinfo(np.int64).max
"""Rank of a block without undecided pixels."""


def ordered(points: Integers) -> Integers:
    """Points (x, y, value) by y, then x."""
    return points[np.lexsort((points[:, 0], points[:, 1]))]


class DarkestFirst:
    """Greedy minima of an image that comes in bands of rows, from the top.

    Only pixels below `limit` are taken. Memory: the rows that are still undecided, usually a few blocks.
    """

    def __init__(self, width: int, radius_px: float, limit: int) -> None:
        self._width, self._limit, self._radius2 = width, limit, radius_px**2
        self._side = max(1, math.ceil(radius_px))
        self._circle = _circle(radius_px)
        columns = -(-width // self._side) + 2  # a block of nothing stands at either side, and above
        self._pixels = np.full((self._side, columns * self._side), EXCLUDED)
        self._top = -self._side

    def push(self, rows: Values) -> Integers:
        """Add rows (height, width); returns the points that are now certain, as (x, y, value)."""
        wide = np.full((len(rows), self._pixels.shape[1]), EXCLUDED)
        wide[:, self._side : self._side + self._width] = rows
        self._pixels = np.concatenate([self._pixels, wide])
        ranks = np.empty((len(self._pixels) // self._side, wide.shape[1] // self._side), np.int64)
        for row in range(len(ranks)):
            self._rank(ranks, np.full(ranks.shape[1], row), np.arange(ranks.shape[1]))
        points = [np.empty((0, 3), np.int64)]
        while len(blocks := _ready(ranks)):
            points.append(self._take(ranks, blocks))
        open_rows = np.flatnonzero((ranks != _NONE).any(axis=1))
        done = max(0, (open_rows[0] if len(open_rows) else len(ranks)) - 1)  # one stands for all above
        self._pixels = self._pixels[done * self._side :]
        self._top += done * self._side
        return np.concatenate(points)

    def finish(self) -> Integers:
        """No more rows come: the points that are left."""
        missing = 2 * self._side - len(self._pixels) % self._side
        return self.push(np.full((missing, self._width), EXCLUDED))

    def _rank(self, ranks: Integers, rows: Integers, columns: Integers) -> None:
        """Find the lowest undecided pixel of some blocks."""
        grid = self._pixels[: len(ranks) * self._side].reshape(len(ranks), self._side, -1, self._side)
        inside = grid[rows, :, columns].reshape(len(rows), -1)
        position = inside.argmin(axis=1)
        value = inside[np.arange(len(rows)), position].astype(np.int64)
        y = rows * self._side + position // self._side + self._top + self._side
        x = columns * self._side + position % self._side
        rank = (value << 2 * _PLACE_BITS) | (y << _PLACE_BITS) | x
        ranks[rows, columns] = np.where(value < self._limit, rank, _NONE)

    def _take(self, ranks: Integers, blocks: Integers) -> Integers:
        """Take the lowest pixels of `blocks` (row, column), and suppress the circles around them."""
        x, y, value = _unpack(ranks[tuple(blocks.T)])
        reach = len(self._circle) // 2
        for column, row in zip(x.tolist(), (y - self._top - self._side).tolist(), strict=True):
            window = self._pixels[row - reach : row + reach + 1, column - reach : column + reach + 1]
            np.maximum(window, self._circle, out=window)
        around = (blocks[:, None] + np.mgrid[-1:2, -1:2].reshape(2, 9).T).reshape(-1, 2)
        near_x, near_y, _ = _unpack(ranks[tuple(around.T)])
        hit = (near_x - x.repeat(9)) ** 2 + (near_y - y.repeat(9)) ** 2 <= self._radius2
        self._rank(ranks, *np.unique(around[hit], axis=0).T)
        return np.stack([x - self._side, y - self._side, value], axis=1)


def _unpack(ranks: Integers) -> tuple[Integers, Integers, Integers]:
    return ranks & _PLACE, (ranks >> _PLACE_BITS) & _PLACE, ranks >> 2 * _PLACE_BITS


def _ready(ranks: Integers) -> Integers:
    """Blocks whose lowest pixel ranks first among the 8 around; those below the last row are unknown."""
    around = sliding_window_view(np.pad(ranks, 1, constant_values=_NONE), (3, 3))
    first = (ranks == around.min(axis=(2, 3))) & (ranks != _NONE)
    first[-1] = False
    return np.argwhere(first)


def _circle(radius_px: float) -> Values:
    """Pixels at most `radius_px` from the middle one are excluded, the others 0."""
    reach = math.floor(radius_px)
    away = np.arange(-reach, reach + 1)
    inside = away[:, None] ** 2 + away**2 <= radius_px**2
    return np.where(inside, EXCLUDED, np.uint16(0))


@settings
class CandidateConfig:
    """Which positions of a slide may be mitoses: dark points, darkest first, each with its own circle."""

    diameter_um: PositiveFloat = 25.0
    """d, the diameter of the circle that a candidate claims: 100 px at 0.25 um/px."""
    threshold: PositiveShare = 0.6
    """t: only pixels whose mean of red, green and blue, from 0 to 1, is below this become candidates."""
    mpp: PositiveFloat = WORKING_MPP
    """Resolution at which minima are sought, in um/px; 0.5 is about three times as fast."""
    recall: Annotated[float, Field(ge=0, lt=1)] = field(default=0.0, metadata=decides())
    """Takes the lowest t, up to `threshold`, at which so large a share of the validation slides' mitoses has
    a candidate within d; 0 takes `threshold`."""
    max_candidates: PositiveInt = field(default=5_000_000, metadata=decides())
    """A slide with more is refused: its memory and scoring time would be out of hand."""
    max_dark_share: PositiveShare = field(default=0.98, metadata=decides())
    """A slide with a larger share of its tissue below the threshold is refused as too dark to tell."""

    def __post_init__(self) -> None:
        if self.diameter_um < 2 * self.mpp:
            raise UsageError(
                f"circles of {self.diameter_um} um are smaller than two pixels of {self.mpp} um",
                next_step="give a larger diameter_um or a finer mpp",
            )


FULL_SUM = 3 * 255
"""Red + green + blue of white: intensities are compared as whole sums, so ties are ties on any machine."""

TILE_PX = 512
"""Side of the squares that are read."""


class CandidateError(MetaphaseError):
    """Candidates cannot be found, read or used."""


def find_candidates(
    slide: Slide,
    tissue: TissueMask,
    config: CandidateConfig | None = None,
    *,
    threads: int | None = None,
    tile_px: int = TILE_PX,
) -> pd.DataFrame:
    """The candidates of a slide, within its tissue, ordered by y, then x.

    Columns are x, y (level-0 position of the pixel's centre) and intensity (of its colours, from 0 to 1).
    The slide is read once, a row of tiles after the other; memory holds one such row and what is undecided.
    Tiles have no influence on the result. (Where a slide must be resampled, the reader's last rounding may
    depend on the square read, which is why squares are always whole and on one grid.)
    """
    config = config or CandidateConfig()
    plan = plan_tiles(slide.bounds, slide.mpp, mpp=config.mpp, tile_px=tile_px, mask=tissue.grid)
    limit = intensity_limit(config.threshold)
    stream = DarkestFirst(plan.width, config.diameter_um / 2 / config.mpp, limit)
    parts, count, tissue_px, dark_px = [np.empty((0, 3), np.int64)], 0, 0, 0
    bands = _bands(slide, plan, tissue.grid, tile_px, threads or available_cores())
    for band in chain(bands, [None]):
        parts.append(stream.finish() if band is None else stream.push(band))
        count += len(parts[-1])
        if count > config.max_candidates:
            raise CandidateError(
                f"more than {config.max_candidates:,} candidates",
                path=slide.info.path or slide.name,
                next_step="check stain, mpp and tissue mask; lower the threshold, or raise max_candidates",
            )
        if band is not None:
            tissue_px += int(np.count_nonzero(band != EXCLUDED))
            dark_px += int(np.count_nonzero(band < limit))
    if dark_px > config.max_dark_share * tissue_px:
        raise CandidateError(
            f"{dark_px / tissue_px:.1%} of the tissue is darker than the threshold {config.threshold:g}",
            path=slide.info.path or slide.name,
            next_step="check that it is H&E; standardise its stain, or lower the threshold",
        )
    x, y, value = ordered(np.concatenate(parts)).T
    table = {"x": plan.x + (x + 0.5) * plan.scale, "y": plan.y + (y + 0.5) * plan.scale}
    return pd.DataFrame(table | {"intensity": (value / FULL_SUM).astype(np.float32)})


def intensity_limit(threshold: float) -> int:
    """The least sum of red, green and blue that is not below `threshold` of white."""
    return int(np.ceil(round(threshold * FULL_SUM, 9)))


def threshold_for_recall(darkness: Floats, recall: float) -> float | None:
    """The lowest threshold with a candidate below it for so large a share of points, of each of which the
    intensity of the darkest candidate is known; None where too many have none (1)."""
    if not len(darkness):
        return None
    last = np.sort(darkness)[math.ceil(round(recall * len(darkness), 9)) - 1]
    return None if last >= 1 else float((round(last * FULL_SUM) + 1) / FULL_SUM)


def intensity_sums(pixels: RGB) -> Values:
    """Red + green + blue of each pixel."""
    sums = np.add(pixels[..., 0], pixels[..., 1], dtype=np.uint16)
    sums += pixels[..., 2]
    return sums


def _bands(slide: Slide, plan: TilePlan, mask: MaskGrid, tile_px: int, threads: int) -> Iterator[Values]:
    """Rows of tiles from the top, as intensities; all but tissue is excluded."""

    def load(tile: Tile) -> tuple[Tile, Values]:
        x, y = plan.to_level0(tile.core.x, tile.core.y)
        square = intensity_sums(slide.read(x, y, tile_px, tile_px, plan.mpp))
        sums = square[: tile.core.height, : tile.core.width]
        sums[~mask.under(plan, tile.core)] = EXCLUDED
        return tile, sums

    top = 0
    loaded = ordered_map(load, plan.tiles, threads=threads, ahead=2 * threads)
    for y, tiles in groupby(loaded, key=lambda item: item[0].core.y):
        for _ in range(top, y, tile_px):
            yield np.full((tile_px, plan.width), EXCLUDED)
        band = np.full((min(tile_px, plan.height - y), plan.width), EXCLUDED)
        for tile, sums in tiles:
            band[:, tile.core.x : tile.core.right] = sums
        top = y + tile_px
        yield band
