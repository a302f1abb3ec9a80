"""What finished tiles found, kept on disk as they finish, so that a killed run goes on where it stopped.

One line of JSON that says which job this is, then a record for each tile: number, count, checksum, points;
flaws of the slide are records too, under a number that no tile has. A
record cut short by a kill or a full disk fails its checksum and is dropped with all that follows it.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np

from metaphase.base.arrays import Floats
from metaphase.base.errors import OutputError
from metaphase.base.files import explained
from metaphase.base.foreign import check_plain, read_bytes
from metaphase.base.geometry import Box
from metaphase.slides.contract import KINDS, Flaw

_RECORD = struct.Struct("<III")
_COLUMNS = 3
_FLAWS = 2**32 - 1
"""In the place of a tile's number: two rows for each flaw."""
Peaks = Floats
"""(n, 3): x, y in level-0 pixels, and probability."""


class TileJournal:
    """An append-only file of tile results for one job; opening it drops what belongs to another job."""

    def __init__(self, path: str | Path, job: str, *, fresh: bool = False) -> None:
        """`fresh` drops what an earlier run of the same job left."""
        self.path = Path(path)
        self.finished: dict[int, Peaks] = {}
        """Peaks of every finished tile, by the tile's number."""
        self.flaws: list[Flaw] = []
        """Damage seen so far."""
        header = (json.dumps({"job": job}) + "\n").encode()
        with explained(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            there = self.path.exists() and check_plain(self.path, OutputError) and not fresh
            content = read_bytes(self.path, OutputError) if there else b""
            end = self._recover(content, header)
            self._file: BinaryIO = self.path.open("r+b" if end else "wb")
            self._file.seek(end)
            self._file.truncate()
            if not end:
                self._file.write(header)
                self._file.flush()

    def add(self, tile: int, points: Peaks) -> None:
        """Keep the result of a tile; it outlives the process once this returns."""
        data = np.ascontiguousarray(points, "<f8").reshape(-1, _COLUMNS)
        raw = data.tobytes()
        with explained(self.path):
            self._file.write(_RECORD.pack(tile, len(data), _checksum(tile, len(data), raw)) + raw)
            self._file.flush()
        self.finished[tile] = data

    def note(self, flaws: Sequence[Flaw]) -> None:
        """Keep flaws of the slide."""
        rows = [(KINDS.index(one.kind), *astuple(one.box), 0) for one in flaws]
        if rows:
            self.add(_FLAWS, np.array(rows, np.float64))
            self._take_flaws()

    def _take_flaws(self) -> None:
        for kind, *edges in self.finished.pop(_FLAWS).reshape(-1, 2 * _COLUMNS).astype(int).tolist():
            self.flaws.append(Flaw(KINDS[kind], Box(*edges[:4])))

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()

    def _recover(self, content: bytes, header: bytes) -> int:
        """Fill `finished` from the sound records of this job; returns where the next record goes."""
        if not content.startswith(header):
            return 0
        end = len(header)
        for tile, points, after in _records(content, end):
            self.finished[tile] = points
            if tile == _FLAWS:
                self._take_flaws()
            end = after
        return end


def _records(content: bytes, start: int) -> Iterator[tuple[int, Peaks, int]]:
    """(tile, points, end of record) until the first that is incomplete or damaged."""
    while start + _RECORD.size <= len(content):
        tile, count, checksum = _RECORD.unpack_from(content, start)
        body = start + _RECORD.size
        end = body + count * _COLUMNS * 8
        raw = content[body:end]
        if end > len(content) or _checksum(tile, count, raw) != checksum:
            return
        yield tile, np.frombuffer(raw, "<f8").reshape(-1, _COLUMNS), end
        start = end


def _checksum(tile: int, count: int, raw: bytes) -> int:
    """Of the whole record: bytes that are all zero, as a power cut may leave them, are none."""
    return zlib.crc32(struct.pack("<II", tile, count) + raw)
