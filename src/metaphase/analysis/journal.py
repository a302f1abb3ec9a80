"""The results of finished tiles on disk, from which a killed search resumes."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import astuple
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import numpy.typing as npt

from metaphase.base.arrays import Box, Floats, Floats32
from metaphase.base.errors import OutputError
from metaphase.base.files import explained, refuse_link
from metaphase.base.foreign import check_plain, read_bytes
from metaphase.networks.cards import OUTPUT_STRIDE_PX
from metaphase.slides.contract import Flaw
from metaphase.slides.opening import open_slide
from metaphase.slides.tiles import TilePlan
from metaphase.slides.writer import PyramidFormat, write_pyramid

JOURNAL = "tiles.journal"
_COLUMNS = 3
_CERTAIN = 255
MAP_ROWS = 512
"""Rows of a map that are read at once."""
Peaks = Floats
"""(n, 3): x, y in level-0 pixels, and probability."""


class TileJournal:
    """An append-only file of tile results for one job; opening it drops what belongs to another job.

    Each line is JSON behind its checksum: first which job this is, then the peaks of a tile, or flaws of the
    slide. A line cut short by a kill or a full disk is dropped with all that follows it.
    """

    def __init__(self, path: str | Path, job: str, *, fresh: bool = False) -> None:
        """`fresh` drops what an earlier run of the same job left."""
        self.path = Path(path)
        self.finished: dict[int, Peaks] = {}
        """Peaks of every finished tile, by the tile's number."""
        self.flaws: list[Flaw] = []
        """Damage seen so far."""
        with explained(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            refuse_link(self.path)
            there = self.path.exists() and check_plain(self.path, OutputError) and not fresh
            end = self._replay(read_bytes(self.path, OutputError), {"job": job}) if there else 0
            self._file: BinaryIO = self.path.open("r+b" if end else "wb")
            self._file.seek(end)
            self._file.truncate()
        if not end:
            self._write({"job": job})

    def _replay(self, content: bytes, first: dict[str, Any]) -> int:
        """Take the sound lines of a journal that begins with `first`, and return where they end."""
        end = 0
        for line in content.splitlines(keepends=True):
            checksum, _, text = line.partition(b" ")
            if not line.endswith(b"\n") or checksum != _checksum(text):
                break
            try:
                entry = json.loads(text)
                if not end and entry != first:
                    break
                self._take(entry)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                break  # a checksum does not prove who wrote the line
            end += len(line)
        return end

    def _take(self, entry: dict[str, Any]) -> None:
        if "tile" in entry:
            self.finished[entry["tile"]] = np.array(entry["peaks"], np.float64).reshape(-1, _COLUMNS)
        self.flaws += [Flaw(kind, Box(*box)) for kind, *box in entry.get("flaws", ())]

    def _write(self, entry: dict[str, Any]) -> None:
        """Keep an entry; it outlives the process once this returns."""
        text = json.dumps(entry).encode() + b"\n"
        with explained(self.path):
            self._file.write(_checksum(text) + b" " + text)
            self._file.flush()
        self._take(entry)

    def add(self, tile: int, points: Peaks) -> None:
        """Keep the result of a tile."""
        self._write({"tile": tile, "peaks": points.tolist()})

    def note(self, flaws: Sequence[Flaw]) -> None:
        """Keep flaws of the slide."""
        if flaws:
            self._write({"flaws": [[flaw.kind, *map(int, astuple(flaw.box))] for flaw in flaws]})

    def peaks(self) -> Peaks:
        """All peaks so far, in the order of their tiles' numbers."""
        found = [self.finished[tile] for tile in sorted(self.finished)]
        return np.concatenate([np.zeros((0, _COLUMNS)), *found])

    def close(self, *, remove: bool = False) -> None:
        """Close the file; `remove` it when the job's outputs are safe."""
        self._file.close()
        if remove:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._file.closed:
            with explained(self.path), self._file as file:
                os.fsync(file.fileno())


def _checksum(text: bytes) -> bytes:
    return b"%08x" % zlib.crc32(text)


def _reserve(path: Path, size: int) -> None:
    """Create a file with its space allocated: writing to a mapped hole on a full disk kills the process."""
    try:
        with path.open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            file.truncate(size)
    except OSError:
        path.unlink(missing_ok=True)
        raise


class ProbabilityMap:
    """Probabilities of finished tiles on disk, a byte for every 4 x 4 px, until they become a pyramid."""

    def __init__(self, path: Path, plan: TilePlan) -> None:
        self._path = path
        self._mpp = plan.mpp * OUTPUT_STRIDE_PX
        refuse_link(path)
        self._shape = tuple(-(-side // OUTPUT_STRIDE_PX) for side in (plan.height, plan.width))
        size = check_plain(path, OutputError) if path.exists() else 0
        self.is_new = size != self._shape[0] * self._shape[1]
        """Whether no earlier run left probabilities of finished tiles."""
        if self.is_new:
            with explained(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                _reserve(path, self._shape[0] * self._shape[1])

    def put(self, core: Box, probabilities: Floats32) -> None:
        """Keep the map of a tile whose core is `core`, in pixels of the plan."""
        x, y = core.x // OUTPUT_STRIDE_PX, core.y // OUTPUT_STRIDE_PX
        rows, columns = probabilities.shape
        levels = np.round(probabilities * _CERTAIN).astype(np.uint8)
        with explained(self._path):
            self._open("r+")[y : y + rows, x : x + columns] = levels

    def write(self, target: Path) -> None:
        """Write the pyramid. Positions never searched are 0."""
        height, width = self._shape
        form, pixels = PyramidFormat.probabilities(self._mpp), self._open("r")
        corners = product(range(0, height, form.tile_px), range(0, width, form.tile_px))
        tiles = (np.array(pixels[y : y + form.tile_px, x : x + form.tile_px]) for y, x in corners)
        write_pyramid(target, tiles, width, height, form)

    def _open(self, mode: Any) -> npt.NDArray[np.uint8]:
        return np.memmap(self._path, np.uint8, mode, shape=self._shape)


def read_probabilities(path: Path) -> tuple[npt.NDArray[np.uint8], float]:
    """A written map, 0 to 255, and the side of its values in um."""
    with open_slide(path) as slide:
        levels = [
            slide.read_level(0, Box(0, y, slide.width, min(MAP_ROWS, slide.height - y)))[..., 0]
            for y in range(0, slide.height, MAP_ROWS)
        ]
        return np.concatenate(levels), slide.mpp
