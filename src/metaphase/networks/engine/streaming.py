"""From a slide to detections: tiles are decoded ahead, computed, and leave only points behind."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch
from scipy.ndimage import binary_dilation
from torch import Tensor

from metaphase.base.arrays import RGB, AnyFloats, Floats, Floats32
from metaphase.base.errors import ModelError, UsageError
from metaphase.base.geometry import Box
from metaphase.base.parallel import available_cores, ordered_map
from metaphase.detections.suppression import components, suppress
from metaphase.networks.cards import OUTPUT_STRIDE_PX, PATCH_PX, RECEPTIVE_PX
from metaphase.networks.engine.engine import Engine, PeakConfig, check_finite
from metaphase.networks.engine.peaks import (
    BORDER,
    Peaks,
    collect,
    is_peak,
    reaches,
    smoothed,
    smoothing_reach,
    taken,
)
from metaphase.slides import (
    WORKING_MPP,
    MaskGrid,
    Slide,
    Tile,
    TilePlan,
    TileProcesses,
    plan_tiles,
    read_tiles,
)


@dataclass(frozen=True)
class Detections:
    """Places in level-0 pixels with the probability of a mitosis at each."""

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
    engine: Engine,
    config: PeakConfig | None = None,
    *,
    mpp: float = WORKING_MPP,
    tile_px: int | None = None,
    mask: MaskGrid | None = None,
) -> TilePlan:
    """Tiles of one size over the slide, their outputs on one lattice of 4 px from the slide's first pixel on.

    With a mask, tiles whose core does not touch it are left out. `config` is what they are searched with.
    By default tiles have the size that runs fastest, or that of a slide that is smaller.
    """
    border = BORDER + smoothing_reach(_sigma(config, mpp)) + engine.margin
    lead = PATCH_PX // 2 + border * OUTPUT_STRIDE_PX
    if tile_px is None:
        best = engine.tile_px - 2 * OUTPUT_STRIDE_PX * (border - BORDER)
        longest = max(slide.bounds.width, slide.bounds.height) * slide.mpp / mpp
        tile_px = min(best, engine.step_px * math.ceil(longest / engine.step_px))
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
    return dataclasses.replace(plan, tiles=tuple(tiles))


def detect_tiles(
    engine: Engine,
    slide: Slide,
    plan: TilePlan,
    config: PeakConfig | None = None,
    *,
    maps: bool = False,
    threads: int | None = None,
    decoders: TileProcesses | None = None,
) -> Iterator[TileResult]:
    """The points of each tile of a plan, in its order; `plan_detection` made it with the same `config`.

    Decoding, and on a GPU also the transfer of results, overlap with the computation of the next batch.
    `decoders` decode a slide that has a file, in the place of threads.
    """
    config = config or PeakConfig()
    sigma = _sigma(config, plan.mpp)
    pinned = engine.device.type == "cuda"
    ahead = (
        None if threads is None and engine.batch == 1 else 2 * max(engine.batch, threads or available_cores())
    )
    if decoders is not None and slide.info.path is not None:
        waiting_tiles = 2 * max(engine.batch, decoders.count)
        read = decoders.read(slide, plan, ahead=waiting_tiles, hold=HELD_BATCHES * engine.batch)
    else:
        read = read_tiles(slide, plan, threads=threads, ahead=ahead)
    batches = _batches(read, engine.batch)
    waiting: _Batch | None = None
    stack = partial(_stacked, pinned=pinned)
    # tensors that one thread makes and another frees pile up on the CPU; pinned ones do not
    stacked = ordered_map(stack, batches, threads=1, ahead=1) if pinned else map(stack, batches)
    for tiles, pixels in stacked:
        started = _Batch(engine, tiles, pixels, config, sigma)
        if waiting is not None:
            yield from waiting.results(plan, maps)
        waiting = started
    if waiting is not None:
        yield from waiting.results(plan, maps)


def find_detections(
    engine: Engine,
    slide: Slide,
    config: PeakConfig | None = None,
    *,
    mpp: float = WORKING_MPP,
    tile_px: int | None = None,
    mask: MaskGrid | None = None,
    threads: int | None = None,
    progress: Callable[[TileResult], None] | None = None,
) -> Detections:
    """All detections of a slide from the floor on, most probable first, double ones suppressed.

    With a mask, only points where it is true. `progress` sees every tile as it is finished.
    """
    config = config or PeakConfig()
    plan = plan_detection(slide, engine, config, mpp=mpp, tile_px=tile_px, mask=mask)
    found: list[Detections] = []
    count = 0
    for result in detect_tiles(engine, slide, plan, config, threads=threads):
        points = result.points if mask is None else inside(result.points, mask)
        found.append(points)
        count += len(points.x)
        check_count(count, config)
        if progress is not None:
            progress(result)
    return as_detections(_joined(found), config, plan, slide.mpp)


def as_detections(points: Detections, config: PeakConfig, plan: TilePlan, slide_mpp: float) -> Detections:
    """What the points of all tiles come to: touching ones as one where asked for, double ones suppressed."""
    if config.method == "components":
        step = OUTPUT_STRIDE_PX * plan.scale
        points = Detections(*components(points.x, points.y, points.probability, step))
    return suppress_points(points, config.suppress_um / slide_mpp)


def suppress_points(points: Detections, distance: float) -> Detections:
    """The points without double detections, most probable first; `distance` in level-0 pixels."""
    return _taken(points, suppress(points.x, points.y, points.probability.astype(np.float64), distance))


def inside(points: Detections, mask: MaskGrid) -> Detections:
    """The points at which the mask is true."""
    return _taken(points, np.flatnonzero(mask.contains(np.column_stack([points.x, points.y]))))


class _Batch:
    """Tiles on their way through the device."""

    def __init__(
        self, engine: Engine, tiles: list[Tile], pixels: Tensor, config: PeakConfig, sigma: float
    ) -> None:
        self._tiles, self._engine, self._maxima = tiles, engine, config.method == "maxima"
        self._sigma, self._floor = sigma, config.floor
        self._first_px = PATCH_PX / 2 + OUTPUT_STRIDE_PX * (smoothing_reach(sigma) + engine.margin)
        self._cuda = engine.device.type == "cuda"
        with torch.inference_mode(), engine.active():
            self._image = pixels.to(engine.device, non_blocking=True)
            self._raw = engine.logits(self._image)
            inner = slice(engine.margin, -engine.margin or None)
            self._logits = smoothed(self._raw[:, inner, inner], sigma)
            floor = config.floor if engine.second is None else engine.second.floor
            self._peak = (is_peak if self._maxima else reaches)(self._logits, floor)
            if self._cuda:
                self._done = torch.cuda.Event()
                self._done.record()

    def results(self, plan: TilePlan, maps: bool) -> list[TileResult]:
        """Wait for the batch, and fetch its points while the device works on the next one."""
        if not self._cuda:
            return self._fetch(plan, maps)
        with self._engine.active(), torch.cuda.stream(stream := torch.cuda.Stream()):
            stream.wait_event(self._done)
            results = self._fetch(plan, maps)
            stream.synchronize()
        return results

    @torch.inference_mode()
    def _fetch(self, plan: TilePlan, maps: bool) -> list[TileResult]:
        check_finite(self._logits)
        peaks = collect(self._logits, self._peak, between=self._maxima)
        peaks = taken(peaks, _in_core(peaks, self._tiles))
        if self._engine.second is not None:
            peaks = self._engine.second.peaks(self._image, self._raw, peaks, self._sigma, self._floor)
        images = torch.sigmoid(self._logits).cpu().numpy() if maps else None
        results = []
        for index, tile in enumerate(self._tiles):
            mine = peaks.map_index == index
            x, y = (
                origin + self._first_px + OUTPUT_STRIDE_PX * place[mine]
                for origin, place in ((tile.outer.x, peaks.column), (tile.outer.y, peaks.row))
            )
            points = Detections(plan.x + x * plan.scale, plan.y + y * plan.scale, peaks.probability[mine])
            results.append(
                TileResult(tile, points, None if images is None else _core_map(images[index], tile))
            )
        return results


def _sigma(config: PeakConfig | None, mpp: float) -> float:
    """Smoothing in outputs."""
    return 0.0 if config is None else config.smooth_um / (mpp * OUTPUT_STRIDE_PX)


def _batches(tiles: Iterable[tuple[Tile, RGB]], size: int) -> Iterator[tuple[list[Tile], list[RGB]]]:
    """Up to `size` neighbours of one shape at once."""
    source = iter(tiles)
    while group := list(islice(source, size)):
        yield [tile for tile, _ in group], [pixels for _, pixels in group]


def _stacked(batch: tuple[list[Tile], list[RGB]], *, pinned: bool) -> tuple[list[Tile], Tensor]:
    """Pixels (tiles, rows, columns, 3) of a batch; pinned memory travels to a GPU beside its work."""
    tiles, pixels = batch
    out = torch.empty((len(pixels), *pixels[0].shape), dtype=torch.uint8, pin_memory=pinned)
    for target, source in zip(out.numpy(), pixels, strict=True):
        target[...] = source
    return tiles, out


def _in_core(peaks: Peaks, tiles: list[Tile]) -> npt.NDArray[np.bool_]:
    """Which peaks lie inside their tile's core, which is smaller than the others' at the slide's edge."""
    place = (peaks.output - BORDER) * OUTPUT_STRIDE_PX
    size = np.array([(tile.core.height, tile.core.width) for tile in tiles])
    return np.asarray((place < size[peaks.map_index]).all(axis=1))


def _core_map(probabilities: Floats32, tile: Tile) -> Floats32:
    rows, columns = (-(-side // OUTPUT_STRIDE_PX) for side in (tile.core.height, tile.core.width))
    return probabilities[BORDER : BORDER + rows, BORDER : BORDER + columns]


def _grown(mask: MaskGrid, margin: float) -> MaskGrid:
    """The mask with `margin` level-0 pixels more: a peak may lie a little beside the output that found it."""
    reach = 2 * math.ceil(margin / mask.scale) + 1
    padded = np.pad(mask.mask, reach // 2)
    grown = binary_dilation(padded, np.ones((reach, reach), bool))
    offset = reach // 2 * mask.scale
    return MaskGrid(grown, mask.x - offset, mask.y - offset, mask.scale)


def _joined(found: list[Detections]) -> Detections:
    if not found:
        return Detections(np.empty(0), np.empty(0), np.empty(0, np.float32))
    return Detections(
        *(np.concatenate([getattr(p, name) for p in found]) for name in ("x", "y", "probability"))
    )


def _taken(points: Detections, index: npt.NDArray[np.int64]) -> Detections:
    return Detections(points.x[index], points.y[index], points.probability[index])


def check_count(count: int, config: PeakConfig) -> None:
    """Refuse more peaks than a sound network finds."""
    if count > config.max_peaks:
        raise ModelError(
            f"more than {config.max_peaks:,} places reach a probability of {config.floor:g}",
            next_step="check that model and slide fit together, or raise the floor",
        )
