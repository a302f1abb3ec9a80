"""Tiles and squares of a slide: planned, read ahead in threads or in other processes, cut around points."""

from __future__ import annotations

import math
import mmap
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context, reduction
from typing import Any
from uuid import uuid4

import numpy as np

from metaphase.base.arrays import RGB, Box, Integers, Mask, Points
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.parallel import available_cores, end_with_parent, in_order, most_processes, ordered_map
from metaphase.slides.contract import WORKING_MPP, Flaw, Slide
from metaphase.slides.damage import OVERLAP_PX, cell_of, odd_parts
from metaphase.slides.opening import SlideSource, source_of

# ---- which tiles to read ----


@dataclass(frozen=True, slots=True)
class Tile:
    """One piece of work, in pixels of the plan's plane: cores partition the plane, halos overlap."""

    core: Box
    outer: Box


@dataclass(frozen=True)
class TilePlan:
    """Tiles over a part of a slide at one resolution.

    The plan's plane has its origin at level-0 (x, y), and each of its pixels is `scale` level-0 pixels wide.
    """

    tiles: tuple[Tile, ...]
    x: int
    y: int
    width: int
    height: int
    mpp: float
    scale: float

    def to_level0(self, x: float, y: float) -> tuple[float, float]:
        """Level-0 position of a point of the plan's plane; (0, 0) is the corner of the first pixel."""
        return self.x + x * self.scale, self.y + y * self.scale


@dataclass(frozen=True)
class MaskGrid:
    """A coarse yes/no map over level 0, from (x, y) on; its pixels are `scale` level-0 pixels wide."""

    mask: Mask
    x: float
    y: float
    scale: float

    def contains(self, points: Points) -> Mask:
        """Whether each level-0 point (n, 2) lies where the map says yes."""
        column, row = np.floor((points - (self.x, self.y)) / self.scale).astype(np.int64).T
        rows, columns = self.mask.shape
        inside: Mask = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
        inside[inside] = self.mask[row[inside], column[inside]]
        return inside

    def touches(self, core: Box, bounds: Box, scale: float) -> bool:
        """Whether a box, in pixels of `scale` level-0 pixels from the corner of `bounds` on, is partly in."""
        corners = np.array([(core.x, core.y), (core.right, core.bottom)]) * scale + (bounds.x, bounds.y)
        return bool(self.mask[self.touched(corners)].any())

    def touched(self, corners: Points) -> tuple[slice, slice]:
        """Rows and columns of the map's pixels that a box touches, by its two level-0 corners (2, 2)."""
        (left, top), (right, bottom) = ((corners - (self.x, self.y)) / self.scale).tolist()
        rows = slice(max(0, math.floor(top + 1e-9)), max(0, math.ceil(bottom - 1e-9)))
        return rows, slice(max(0, math.floor(left + 1e-9)), max(0, math.ceil(right - 1e-9)))

    def under(self, plan: TilePlan, box: Box) -> Mask:
        """The map at the pixels (height, width) of a box of a plan, each judged by its centre."""
        across = plan.x + (np.arange(box.x, box.right) + 0.5) * plan.scale
        down = plan.y + (np.arange(box.y, box.bottom) + 0.5) * plan.scale
        column = np.floor((across - self.x) / self.scale).astype(np.int64)
        row = np.floor((down - self.y) / self.scale).astype(np.int64)
        rows, columns = self.mask.shape
        inside = np.outer((row >= 0) & (row < rows), (column >= 0) & (column < columns))
        return np.asarray(inside & self.mask[np.ix_(row.clip(0, rows - 1), column.clip(0, columns - 1))])


def plan_tiles(
    bounds: Box,
    slide_mpp: float,
    *,
    mpp: float = WORKING_MPP,
    tile_px: int = 1024,
    mask: MaskGrid | None = None,
) -> TilePlan:
    """Cover `bounds` (level-0 pixels) with tiles at `mpp`; with a mask, only where a core touches it.

    Tiles come row by row, so that neighbours share what a reader has just decoded.
    """
    if tile_px < 1 or bounds.area == 0:
        raise UsageError(
            f"no tiles of {tile_px} px fit {bounds.width} x {bounds.height} px",
            next_step="give a tile of at least 1 px and a region that is not empty",
        )
    scale = mpp / slide_mpp
    width, height = (max(1, math.ceil(side / scale - 1e-6)) for side in (bounds.width, bounds.height))
    cores = list(Box(0, 0, width, height).tiles(tile_px))
    if mask is not None:
        cores = [core for core in cores if mask.touches(core, bounds, scale)]
    tiles = tuple(Tile(core, core) for core in cores)
    return TilePlan(tiles, bounds.x, bounds.y, width, height, mpp, scale)


# ---- a reader that keeps its consumer fed ----


def read_tiles(
    slide: Slide, plan: TilePlan, *, threads: int | None = None, ahead: int | None = None
) -> Iterator[tuple[Tile, RGB]]:
    """Each tile of the plan with the pixels of its outer box, in the plan's order.

    At most `ahead` tiles (default: two a thread) wait decoded in memory while the consumer works.
    """
    workers = threads or available_cores()

    def read(tile: Tile) -> tuple[Tile, RGB]:
        return tile, read_tile(slide, plan, tile)

    yield from ordered_map(read, plan.tiles, threads=workers, ahead=2 * workers if ahead is None else ahead)


def read_tile(slide: Slide, plan: TilePlan, tile: Tile) -> RGB:
    """The pixels of a tile's outer box; odd ones are noted where flaws are."""
    outer, scale = tile.outer, plan.mpp / slide.mpp
    x, y = plan.to_level0(outer.x, outer.y)
    pixels = slide.read(x, y, outer.width, outer.height, plan.mpp)
    if slide.flaws is None:
        return pixels
    edges = ((slide.bounds.x - x, slide.bounds.right - x), (slide.bounds.y - y, slide.bounds.bottom - y))
    (left, right), (top, bottom) = ((math.ceil(a / scale), math.floor(b / scale)) for a, b in edges)
    near = tile.core.grown(OVERLAP_PX).intersection(outer).moved(-outer.x, -outer.y)
    seen = near.intersection(Box(left, top, right - left, bottom - top))
    odd: dict[tuple[Any, ...], Flaw] = {}
    for kind, box in odd_parts(pixels[seen.slices]):
        corner = (x + (seen.x + box.x) * scale, y + (seen.y + box.y) * scale)
        sides = (box.width * scale, box.height * scale)
        flaw = Flaw(kind, Box(*(round(edge) for edge in (*corner, *sides))))
        odd.setdefault((kind, *cell_of(flaw.box)), flaw)  # where all is odd, there are tens of thousands
    slide.flaws.extend(odd.values())
    return pixels


# ---- many small squares of one slide ----


def square_corners(slide: Slide, points: Points, side_px: int, mpp: float) -> Integers:
    """Top-left corners (n, 2) of the squares around level-0 points, in pixels of the slide's grid at `mpp`.

    The one rule for all patches and pictures: the grid begins where the scanned part of the slide does, and
    the pixel that holds a point comes to lie at `side_px // 2`. So squares at the slide's own resolution are
    plain copies.
    """
    origin = (slide.bounds.x, slide.bounds.y)
    pixels = np.floor((np.asarray(points, np.float64) - origin) / (mpp / slide.mpp) + 1e-6).astype(np.int64)
    return pixels - side_px // 2


def cut_square(slide: Slide, x: float, y: float, side_px: int, mpp: float = WORKING_MPP) -> RGB:
    """The square (side, side, 3) around one level-0 point; white beyond the slide."""
    corner = square_corners(slide, np.array([[x, y]]), side_px, mpp)[0]
    left, top = np.array((slide.bounds.x, slide.bounds.y)) + corner * (mpp / slide.mpp)
    return slide.read(float(left), float(top), side_px, side_px, mpp)


def cut_squares(
    slide: Slide,
    points: Points,
    side_px: int,
    mpp: float = WORKING_MPP,
    *,
    block_px: int = 1024,
    threads: int | None = None,
) -> Iterator[tuple[Integers, RGB]]:
    """Squares (n, side, side, 3) around level-0 points with their rows, a block of the slide at a time.

    Squares do not depend on their block (but for the last rounding, where the slide has another resolution).
    """
    workers = threads or available_cores()
    corners = square_corners(slide, points, side_px, mpp)
    scale, start = mpp / slide.mpp, np.array((slide.bounds.x, slide.bounds.y))

    def cut(rows: Integers) -> tuple[Integers, RGB]:
        first = corners[rows].min(axis=0)
        width, height = corners[rows].max(axis=0) - first + side_px
        x, y = start + first * scale
        pixels = slide.read(float(x), float(y), int(width), int(height), mpp)
        views = np.lib.stride_tricks.sliding_window_view(pixels, (side_px, side_px), axis=(0, 1))
        positions = corners[rows] - first
        return rows, np.ascontiguousarray(views[positions[:, 1], positions[:, 0]].transpose(0, 2, 3, 1))

    return ordered_map(cut, _grouped(corners, block_px), threads=workers, ahead=workers)


def _grouped(corners: Integers, block_px: int) -> list[Integers]:
    """Rows of the corners that fall into each block, blocks row by row."""
    _, block = np.unique(corners[:, ::-1] // block_px, axis=0, return_inverse=True)
    order = np.argsort(block.ravel(), kind="stable")
    return np.split(order, np.flatnonzero(np.diff(block.ravel()[order])) + 1) if len(order) else []


# ---- tiles decoded by other processes: whoever computes has its interpreter to itself ----

PAGE, CHANNELS = mmap.ALLOCATIONGRANULARITY, 3
NICENESS = 5
"""How far decoding gives way: a GPU waits for whoever computes, who has little to do, but at once."""
NO_FILE = -1
"""On Windows a name is enough."""
Prepare = Callable[[mmap.mmap], Callable[[], object]]
"""Makes shared memory ready for a device, and says how to undo that."""


class TileProcesses:
    """Processes that decode into memory which they share with this one; kept from slide to slide.

    They begin at once, so that they are ready when a network is. Python starts them by importing the main
    program again: that must not work when it is imported. `prepare` sees the shared memory before its use.
    """

    def __init__(self, count: int, prepare: Prepare | None = None) -> None:
        self.count = count = most_processes(count)
        self._shared = _shared_memory()
        self._room: mmap.mmap | None = None
        self._prepare: Prepare = prepare or (lambda _: lambda: None)
        self._undo: Callable[[], object] = lambda: None
        self._pool = ProcessPoolExecutor(count, get_context("spawn"), _begin, (self._shared,))
        for _ in range(count):
            self._pool.submit(os.getpid)

    def read(self, slide: Slide, plan: TilePlan, *, ahead: int, hold: int) -> Iterator[tuple[Tile, RGB]]:
        """Tiles with their pixels, in the plan's order; pixels hold until `hold` further ones were taken.

        At most `ahead` tiles wait decoded.
        """
        if not plan.tiles:
            return
        source, slots = source_of(slide), ahead + hold + 1
        size = max(tile.outer.area for tile in plan.tiles) * CHANNELS
        room = self._of(slots * size)
        decode = partial(
            _decode, source, replace(plan, tiles=()), size, slots, len(room), slide.flaws is not None
        )
        tasks = list(enumerate(plan.tiles))
        try:
            for number, (tile, flaws) in enumerate(in_order(self._pool, decode, tasks, ahead)):
                if slide.flaws is not None:
                    slide.flaws.extend(flaws)
                yield tile, _pixels(room, number % slots * size, tile)
        except BrokenProcessPool as error:
            raise MetaphaseError(
                "a process that decodes tiles was killed",
                path=source.path,
                next_step="run again: finished tiles are kept. The machine may be short of memory",
            ) from error

    def _of(self, size: int) -> mmap.mmap:
        """Shared memory of at least this size; it only grows."""
        if self._room is None or size > len(self._room):
            total = -(-size // PAGE) * PAGE
            if self._shared.file != NO_FILE:
                os.truncate(self._shared.file, total)
            self._undo()
            self._room = self._shared.mapped(total)
            self._undo = self._prepare(self._room)
        return self._room

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)
        self._undo()
        if self._shared.file != NO_FILE:
            os.close(self._shared.file)


@dataclass(frozen=True)
class _Shared:
    """Memory of several processes: by a file's descriptor, which each gets as it is started, or by a name."""

    file: int
    name: str

    def mapped(self, size: int) -> mmap.mmap:
        """The memory, once the file has this size."""
        if sys.platform == "win32":
            return mmap.mmap(self.file, size, f"{self.name}-{size}")
        return mmap.mmap(self.file, size)

    def __reduce__(self) -> tuple[Any, ...]:
        if sys.platform == "win32":
            return _Shared, (self.file, self.name)
        return _received, (reduction.DupFd(self.file), self.name)


def _shared_memory() -> _Shared:
    name = f"metaphase-{uuid4().hex}"
    if sys.platform == "win32":
        return _Shared(NO_FILE, name)
    if hasattr(os, "memfd_create"):
        return _Shared(os.memfd_create(name), name)
    with tempfile.TemporaryFile() as file:
        return _Shared(os.dup(file.fileno()), name)


def _received(handle: Any, name: str) -> _Shared:
    return _Shared(handle.detach(), name)


# ---- what runs in the processes ----

_worker: dict[str, Any] = {}
"""The shared file, its mapping, and the slide that was read last."""


def _begin(shared: _Shared) -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever reads the tiles is stopped, and ends them
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    _worker["shared"] = shared


def _decode(
    source: SlideSource,
    plan: TilePlan,
    size: int,
    slots: int,
    total: int,
    noted: bool,
    task: tuple[int, Tile],
) -> tuple[Tile, list[Flaw]]:
    """Read one tile into its slot; flaws are returned where they are to be `noted`, else an error."""
    number, tile = task
    if len(_worker.get("room", ())) != total:
        _worker["room"] = _worker["shared"].mapped(total)
    if _worker.get("source") != source:
        _worker.pop("source", None)
        before = _worker.pop("slide", None)
        if before is not None:
            before.close()
        _worker["slide"] = source.open()
        _worker["source"] = source
    slide: Slide = _worker["slide"]
    flaws: list[Flaw] = []
    slide.flaws = flaws if noted else None
    _pixels(_worker["room"], number % slots * size, tile)[:] = read_tile(slide, plan, tile)
    return tile, flaws


def _pixels(room: mmap.mmap, first: int, tile: Tile) -> RGB:
    """A tile's pixels (height, width, 3) in the shared memory."""
    flat = np.frombuffer(room, np.uint8, tile.outer.area * CHANNELS, first)
    return flat.reshape(tile.outer.height, tile.outer.width, CHANNELS)
