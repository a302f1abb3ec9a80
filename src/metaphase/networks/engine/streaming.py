"""From a slide to detections: tiles are decoded ahead, computed, and leave only points behind."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import scipy

from metaphase.base.arrays import RGB, AnyFloats, Box, Floats, Floats32
from metaphase.base.errors import ModelError, UsageError
from metaphase.base.parallel import available_cores
from metaphase.detections.matching import components, suppress
from metaphase.networks.cards import OUTPUT_STRIDE_PX, PATCH_PX, RECEPTIVE_PX
from metaphase.networks.engine.positions import BORDER, Rows, smoothing_reach
from metaphase.networks.engine.searching import StartedTiles, TileEngine
from metaphase.networks.engine.second import ANSWER_PX, ANSWER_REACH, answered_at_once
from metaphase.networks.engine.settings import PeakConfig
from metaphase.slides.contract import WORKING_MPP, Slide
from metaphase.slides.tiles import (
    MaskGrid,
    Tile,
    TilePlan,
    TileProcesses,
    cut_squares,
    plan_tiles,
    read_tiles,
)


@dataclass(frozen=True)
class Detections(Rows):
    """Positions in level-0 pixels with the probability of a mitosis at each."""

    x: Floats
    y: Floats
    probability: AnyFloats


HELD_BATCHES = 3
"""Batches whose pixels may still be wanted while the next is read: being stacked, waiting, being gathered."""


@dataclass(frozen=True)
class TileResult:
    """What one tile gave: the points inside its core, and its probability map where asked for.

    The map has one value for every 4 x 4 px of the core.
    """

    tile: Tile
    points: Detections
    probabilities: Floats32 | None = None


def plan_detection(
    slide: Slide,
    engine: TileEngine,
    config: PeakConfig | None = None,
    *,
    mpp: float = WORKING_MPP,
    tile_px: int | None = None,
    mask: MaskGrid | None = None,
) -> TilePlan:
    """Tiles of one size over the slide, their outputs on one lattice of 4 px from the slide's first pixel on.

    With a mask, tiles whose core does not touch it are left out. `config` is what they are searched with.
    By default tiles have about the size that runs fastest, or that of a slide that is smaller; on a CPU,
    where any size is as fast, they fill the slide.
    """
    border = BORDER + smoothing_reach(_sigma(config, mpp)) + engine.margin
    lead = PATCH_PX // 2 + border * OUTPUT_STRIDE_PX
    if tile_px is None:
        best = engine.tile_px - 2 * OUTPUT_STRIDE_PX * (border - BORDER)
        longest = max(slide.bounds.width, slide.bounds.height) * slide.mpp / mpp
        even = even_tile_px(longest, best, engine.step_px)
        tile_px = even if str(engine.device) == "cpu" or longest < best else best
    if tile_px % engine.step_px or tile_px < engine.step_px:
        raise UsageError(
            f"tiles of {tile_px} px do not join without a seam",
            next_step=f"give a multiple of {engine.step_px} px",
        )
    touched = None if mask is None else _grown(mask, OUTPUT_STRIDE_PX * mpp / slide.mpp)
    plan = plan_tiles(slide.bounds, slide.mpp, mpp=mpp, tile_px=tile_px, mask=touched)
    outputs = tile_px // OUTPUT_STRIDE_PX + 2 * border
    side = RECEPTIVE_PX + OUTPUT_STRIDE_PX * (outputs - 1)
    tiles = (Tile(tile.core, Box(tile.core.x - lead, tile.core.y - lead, side, side)) for tile in plan.tiles)
    return replace(plan, tiles=tuple(tiles))


def even_tile_px(side_px: float, best_px: int, step_px: int) -> int:
    """About `best_px`, but such that tiles, which all have one size, cover a small slide without much waste.

    >>> even_tile_px(2048, 1992, 4), even_tile_px(2048, 1016, 4), even_tile_px(642, 1992, 8)
    (2048, 1024, 648)
    """
    tiles = max(1, math.ceil(side_px / best_px - 0.1))
    return step_px * math.ceil(side_px / tiles / step_px)


def detect_tiles(
    engine: TileEngine,
    slide: Slide,
    plan: TilePlan,
    config: PeakConfig | None = None,
    *,
    maps: bool = False,
    decoders: TileProcesses | None = None,
) -> Iterator[TileResult]:
    """The points of each tile of a plan, in its order; `plan_detection` made it with the same `config`.

    Decoding, and on a GPU also the transfer of results, overlap with the computation of the next batch.
    `decoders` decode a slide that has a file, in the place of threads.
    """
    config = config or PeakConfig()
    sigma = _sigma(config, plan.mpp)
    ahead = None if engine.batch == 1 else 2 * max(engine.batch, available_cores())
    if decoders is not None and slide.info.path is not None:
        waiting_tiles = 2 * max(engine.batch, decoders.count)
        read = decoders.read(slide, plan, ahead=waiting_tiles, hold=HELD_BATCHES * engine.batch)
    else:
        read = read_tiles(slide, plan, ahead=ahead)
    first_px = PATCH_PX / 2 + OUTPUT_STRIDE_PX * (smoothing_reach(sigma) + engine.margin)
    waiting: tuple[StartedTiles, list[Tile]] | None = None
    for tiles, pixels in engine.staged(_batches(read, engine.batch)):
        started = engine.start(pixels, config, sigma)
        if waiting is not None:
            yield from _results(*waiting, plan, first_px, maps)
        waiting = started, tiles
    if waiting is not None:
        yield from _results(*waiting, plan, first_px, maps)


def find_detections(
    engine: TileEngine,
    slide: Slide,
    config: PeakConfig | None = None,
    *,
    mpp: float = WORKING_MPP,
    tile_px: int | None = None,
    mask: MaskGrid | None = None,
) -> Detections:
    """All detections of a slide from the floor on, most probable first, double ones suppressed.

    With a mask, only points where it is true.
    """
    config = config or PeakConfig()
    plan = plan_detection(slide, engine, config, mpp=mpp, tile_px=tile_px, mask=mask)
    parts, count = [Detections(np.empty(0), np.empty(0), np.empty(0, np.float32))], 0
    for result in detect_tiles(engine, slide, plan, config):
        points = result.points if mask is None else inside(result.points, mask)
        parts.append(points)
        count += len(points.x)
        check_count(count, config)
    return as_detections(engine, slide, Detections.concatenate(parts), config, plan)


def whole_map(engine: TileEngine, slide: Slide, config: PeakConfig, *, mpp: float = WORKING_MPP) -> Floats32:
    """Probabilities (rows, columns) of a small slide: value (i, j) means pixel x = 4 j, y = 4 i at `mpp`."""
    plan = plan_detection(slide, engine, config, mpp=mpp)
    rows, columns = (-(-side // OUTPUT_STRIDE_PX) for side in (plan.height, plan.width))
    whole = np.zeros((rows, columns), np.float32)
    for result in detect_tiles(engine, slide, plan, config, maps=True):
        row, column = result.tile.core.y // OUTPUT_STRIDE_PX, result.tile.core.x // OUTPUT_STRIDE_PX
        assert result.probabilities is not None
        height, width = result.probabilities.shape
        whole[row : row + height, column : column + width] = result.probabilities
    return whole


def answer_map(points: Detections, slide: Slide) -> Floats32:
    """A map as `whole_map` gives it of final answers: each at the outputs that it covers, elsewhere 0."""
    answers = np.zeros([-(-side // OUTPUT_STRIDE_PX) for side in (slide.height, slide.width)], np.float32)
    for x, y, probability in zip(points.x[::-1], points.y[::-1], points.probability[::-1], strict=True):
        row, column = round(y / OUTPUT_STRIDE_PX), round(x / OUTPUT_STRIDE_PX)
        rows, columns = (slice(max(0, at - ANSWER_REACH), at + ANSWER_REACH + 1) for at in (row, column))
        answers[rows, columns] = probability
    return answers


def as_detections(
    engine: TileEngine, slide: Slide, points: Detections, config: PeakConfig, plan: TilePlan
) -> Detections:
    """What the points of all tiles come to: touching ones as one where asked for, double ones suppressed.

    Those that are left get their final answer, where the engine gives one.
    """
    if config.method == "components":
        step = OUTPUT_STRIDE_PX * plan.scale
        points = Detections(*components(points.x, points.y, points.probability, step))
    probability = points.probability.astype(np.float64)
    points = points.select(suppress(points.x, points.y, probability, config.suppress_um / slide.mpp))
    if engine.answered_from is None or config.method == "components":
        return points
    return _answered(engine, slide, points, config.floor, plan)


def _answered(
    engine: TileEngine, slide: Slide, points: Detections, floor: float, plan: TilePlan
) -> Detections:
    """Points with the probability that views of their squares give, most probable first, from `floor` on."""
    middles = np.column_stack([points.x, points.y]) + plan.scale / 2  # squares lie around corners of pixels
    probability, at_once = np.empty(len(middles), np.float32), answered_at_once(engine.windows_px)
    for rows, squares in cut_squares(slide, middles, ANSWER_PX, plan.mpp):
        for first in range(0, len(rows), at_once):
            some = slice(first, first + at_once)
            probability[rows[some]] = engine.answers_about(squares[some])
    order = np.argsort(-probability, kind="stable")
    return replace(points, probability=probability).select(order[probability[order] >= floor])


def inside(points: Detections, mask: MaskGrid) -> Detections:
    """The points at which the mask is true."""
    return points.select(np.flatnonzero(mask.contains(np.column_stack([points.x, points.y]))))


def _results(
    started: StartedTiles, tiles: list[Tile], plan: TilePlan, first_px: float, maps: bool
) -> Iterator[TileResult]:
    """What the tiles of a batch gave, in level-0 pixels; their first outputs mean the pixel `first_px`."""
    peaks, images = started.results(maps=maps)
    for index, tile in enumerate(tiles):
        offset_px = (peaks.output - BORDER) * OUTPUT_STRIDE_PX  # cores at the slide's edge are smaller
        inside_core = (offset_px < (tile.core.height, tile.core.width)).all(axis=1)
        mine = inside_core & (peaks.map_index == index)
        x, y = (
            origin + first_px + OUTPUT_STRIDE_PX * position[mine]
            for origin, position in ((tile.outer.x, peaks.column), (tile.outer.y, peaks.row))
        )
        points = Detections(plan.x + x * plan.scale, plan.y + y * plan.scale, peaks.probability[mine])
        rows, columns = (-(-side // OUTPUT_STRIDE_PX) for side in (tile.core.height, tile.core.width))
        core = np.s_[index, BORDER : BORDER + rows, BORDER : BORDER + columns]
        yield TileResult(tile, points, None if images is None else images[core])


def _sigma(config: PeakConfig | None, mpp: float) -> float:
    return 0.0 if config is None else config.smooth_um / (mpp * OUTPUT_STRIDE_PX)


def _batches(tiles: Iterable[tuple[Tile, RGB]], size: int) -> Iterator[tuple[list[Tile], list[RGB]]]:
    """Up to `size` neighbours of one shape at once."""
    source = iter(tiles)
    while group := list(islice(source, size)):
        yield [tile for tile, _ in group], [pixels for _, pixels in group]


def _grown(mask: MaskGrid, margin: float) -> MaskGrid:
    """The mask with `margin` level-0 pixels more: a peak may lie a little beside the output that found it."""
    reach = 2 * math.ceil(margin / mask.scale) + 1
    padded = np.pad(mask.mask, reach // 2)
    grown = scipy.ndimage.binary_dilation(padded, np.ones((reach, reach), bool))
    offset = reach // 2 * mask.scale
    return MaskGrid(grown, mask.x - offset, mask.y - offset, mask.scale)


def check_count(count: int, config: PeakConfig) -> None:
    """Refuse more peaks than a sound network finds."""
    if count > config.max_peaks:
        raise ModelError(
            f"more than {config.max_peaks:,} positions reach a probability of {config.floor:g}",
            next_step="check that model and slide fit together, or raise the floor",
        )
