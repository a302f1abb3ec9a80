"""Tiles decoded by other processes: whoever computes has its interpreter to itself."""

from __future__ import annotations

import mmap
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context, reduction
from typing import Any

import numpy as np

from metaphase.base.arrays import RGB
from metaphase.base.errors import MetaphaseError
from metaphase.base.parallel import end_with_parent, in_order
from metaphase.slides.contract import Flaw, Slide
from metaphase.slides.opening import SlideSource, source_of
from metaphase.slides.tiles import Tile, TilePlan, read_tile

PAGE, CHANNELS = mmap.ALLOCATIONGRANULARITY, 3
NICENESS = 5
"""How far decoding gives way: a GPU waits for whoever computes, who has little to do, but at once."""
Prepare = Callable[[mmap.mmap], Callable[[], object]]
"""Makes shared memory ready for a device, and says how to undo that."""


class TileProcesses:
    """Processes that decode into memory which they share with this one; kept from slide to slide.

    They begin at once, so that they are ready when a network is. Python starts them by importing the main
    program again: that must not work when it is imported. `prepare` sees the shared memory before its use.
    """

    def __init__(self, count: int, prepare: Prepare | None = None) -> None:
        self.count = count
        self._file = _shared_file()
        self._room: mmap.mmap | None = None
        self._prepare: Prepare = prepare or (lambda _: lambda: None)
        self._undo: Callable[[], object] = lambda: None
        shared = _Shared(self._file)
        self._pool = ProcessPoolExecutor(count, get_context("spawn"), _begin, (shared,))
        for _ in range(count):
            self._pool.submit(_ready)

    def read(self, slide: Slide, plan: TilePlan, *, ahead: int, hold: int) -> Iterator[tuple[Tile, RGB]]:
        """Tiles with their pixels, in the plan's order; pixels hold until `hold` further ones were taken.

        At most `ahead` tiles wait decoded.
        """
        if not plan.tiles:
            return
        source, slots = source_of(slide), ahead + hold + 1
        size = max(tile.outer.area for tile in plan.tiles) * CHANNELS
        room = self._of(slots * size)
        decode = partial(_decode, source, plan.mpp, size, slots, len(room), slide.flaws is not None)
        tasks = [
            (number, tile, *plan.to_level0(tile.outer.x, tile.outer.y))
            for number, tile in enumerate(plan.tiles)
        ]
        try:
            for number, (tile, flaws) in enumerate(in_order(self._pool, decode, tasks, ahead)):
                if slide.flaws is not None:
                    slide.flaws.extend(flaws)
                yield tile, _pixels(room, number % slots * size, tile)
        except BrokenProcessPool as error:
            raise MetaphaseError(
                "a process that decodes tiles was ended from outside",
                path=source.path,
                next_step="run again, finished tiles are kept; the machine may be short of memory",
            ) from error

    def _of(self, size: int) -> mmap.mmap:
        """Shared memory of at least this size; it only grows."""
        if self._room is None or size > len(self._room):
            total = -(-size // PAGE) * PAGE
            os.truncate(self._file, total)
            self._undo()
            self._room = mmap.mmap(self._file, total)
            self._undo = self._prepare(self._room)
        return self._room

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)
        self._undo()
        os.close(self._file)


class _Shared:
    """A file's descriptor, which each process gets as it is started."""

    def __init__(self, file: int) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self.file),)


def _received(handle: Any) -> _Shared:
    return _Shared(handle.detach())


def _shared_file() -> int:
    """A file without a name: in memory where the system has that."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tiles")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


# ---- what runs in the processes ----

_worker: dict[str, Any] = {}
"""The shared file, its mapping, and the slide that was read last."""


def _begin(shared: _Shared) -> None:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever reads the tiles is stopped, and ends them
    os.nice(NICENESS)
    _worker["file"] = shared.file


def _ready() -> None:
    """Nothing: what comes before it was the beginning."""


def _decode(
    source: SlideSource,
    mpp: float,
    size: int,
    slots: int,
    total: int,
    noted: bool,
    task: tuple[int, Tile, float, float],
) -> tuple[Tile, list[Flaw]]:
    """Read one tile into its slot; flaws are returned where they are to be `noted`, else an error."""
    number, tile, x, y = task
    if len(_worker.get("room", ())) != total:
        _worker["room"] = mmap.mmap(_worker["file"], total)
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
    _pixels(_worker["room"], number % slots * size, tile)[:] = read_tile(slide, tile, x, y, mpp)
    return tile, flaws


def _pixels(room: mmap.mmap, first: int, tile: Tile) -> RGB:
    """A tile's pixels (height, width, 3) in the shared memory."""
    flat = np.frombuffer(room, np.uint8, tile.outer.area * CHANNELS, first)
    return flat.reshape(tile.outer.height, tile.outer.width, CHANNELS)
