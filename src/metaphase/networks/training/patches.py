"""Patches cut from slides around given points.

A store is a folder: `shard-00000.npy`, ... hold uint8 pixels (n, side, side, 3), memory-mapped when read;
`index.parquet` has a row a patch (label, slide, x, y, source, and what else the maker adds); `store.json`,
written last, says that the store is complete.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pandas as pd

from metaphase.base.arrays import RGB, Floats32, Integers
from metaphase.base.errors import OutputError, TrainingError
from metaphase.base.files import atomic_path, explained, write_text
from metaphase.base.provenance import Ingredients, file_fingerprint
from metaphase.slides.contract import Slide
from metaphase.slides.tiles import cut_squares

INDEX_COLUMNS = ("label", "slide", "x", "y", "source")
"""What every patch has: class, slide it was cut from, level-0 centre, and who made the label."""
SHARD_BYTES = 256_000_000
RECORD, INDEX, SUMMARY = "record.json", "index.parquet", "store.json"
PATCHES_AT_ONCE = 512
Judge = Callable[[RGB], Floats32]
"""Probabilities (n,) of patches (n, side, side, 3)."""


class PatchWriter:
    """Appends patches to a new store; use it in a `with` statement, whose end completes the store."""

    def __init__(self, folder: str | Path, *, side_px: int = 128, mpp: float = 0.25) -> None:
        self._folder = Path(folder)
        self.side_px, self.mpp = side_px, mpp
        self._per_shard = max(1, SHARD_BYTES // (side_px * side_px * 3))
        self._pending: list[RGB] = []
        self._shards: list[int] = []
        self._rows: list[Mapping[str, Any]] = []
        if (self._folder / SUMMARY).exists():
            raise OutputError(
                "already holds a finished patch store", path=folder, next_step="remove it or choose another"
            )
        with explained(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)

    def add(self, patch: RGB, **row: Any) -> None:
        """Append one patch (side, side, 3) with its index row (`INDEX_COLUMNS` and any others)."""
        if patch.shape != (self.side_px, self.side_px, 3) or patch.dtype != np.uint8:
            raise ValueError(
                f"patch {patch.shape} {patch.dtype}: expected uint8 {(self.side_px,) * 2 + (3,)}"
            )
        if missing := set(INDEX_COLUMNS) - row.keys():
            raise ValueError(f"a patch needs {', '.join(sorted(missing))}")
        self._pending.append(patch)
        self._rows.append(row)
        if len(self._pending) == self._per_shard:
            self._flush()

    def cut(self, slide: Slide, table: pd.DataFrame, *, threads: int | None = None) -> None:
        """Append the patches around the points of a table, whose rows are theirs, block by block."""
        points = table[["x", "y"]].to_numpy(np.float64)
        for numbers, patches in cut_squares(slide, points, self.side_px, self.mpp, threads=threads):
            rows = table.iloc[numbers].to_dict("records")
            for patch, row in zip(patches, rows, strict=True):
                self.add(patch, **{str(name): value for name, value in row.items()})

    def _flush(self) -> None:
        if self._pending:
            with atomic_path(_shard_path(self._folder, len(self._shards))) as temporary:
                np.save(temporary, np.stack(self._pending))
            self._shards.append(len(self._pending))
            self._pending = []

    def finish(self) -> None:
        """Write what is pending, the index and the summary."""
        self._flush()
        with atomic_path(self._folder / INDEX) as temporary:
            pd.DataFrame(self._rows, columns=None if self._rows else list(INDEX_COLUMNS)).to_parquet(
                temporary
            )
        summary = {"format": 1, "side_px": self.side_px, "mpp": self.mpp, "shards": self._shards}
        write_text(self._folder / SUMMARY, json.dumps(summary, indent=2))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()


@dataclass(frozen=True)
class PatchStore:
    """An opened store; pixels stay on disk until they are taken."""

    folder: Path
    index: pd.DataFrame
    shards: tuple[RGB, ...]
    side_px: int
    mpp: float

    def __len__(self) -> int:
        return len(self.index)

    def account(self) -> dict[str, Any]:
        """What decides what is learnt from it: the index, the notes beside it, and the size of its shards."""
        notes = sorted(path for path in self.folder.iterdir() if path.suffix in (".json", ".parquet"))
        return {
            "files": {path.name: file_fingerprint(path) for path in notes},
            "shards": [shard.nbytes for shard in self.shards],
        }

    def take(self, rows: Integers) -> RGB:
        """Pixels (n, side, side, 3) of the given rows, in their order."""
        takes = [shard.__getitem__ for shard in self.shards]
        return rows_of(takes, map(len, self.shards), rows, self.side_px)


def rows_of(
    parts: Sequence[Callable[[Integers], RGB]], lengths: Iterable[int], rows: Integers, side_px: int
) -> RGB:
    """Pixels (n, side, side, 3) of rows that are counted through parts of some lengths."""
    out = np.empty((len(rows), side_px, side_px, 3), np.uint8)
    starts = np.cumsum([0, *lengths])
    owner = np.searchsorted(starts, rows, side="right") - 1
    for number in np.unique(owner):
        here = owner == number
        out[here] = parts[number](rows[here] - starts[number])
    return out


def open_store(folder: str | Path) -> PatchStore:
    """Open a finished store; an unfinished or damaged one is a `TrainingError`."""
    folder = Path(folder)
    try:
        summary = json.loads((folder / SUMMARY).read_text())
        counts: Sequence[int] = summary["shards"]
        shards = tuple(np.load(_shard_path(folder, i), mmap_mode="r") for i in range(len(counts)))
        index = pd.read_parquet(folder / INDEX)
        side_px, mpp = int(summary["side_px"]), float(summary["mpp"])
    except FileNotFoundError as error:
        raise TrainingError(
            f"{Path(error.filename).name} is missing", path=folder, next_step="make the patch store again"
        ) from error
    except (ValueError, KeyError, OSError, TypeError) as error:
        raise TrainingError(
            f"damaged patch store ({error})", path=folder, next_step="make the patch store again"
        ) from error
    held = [len(shard) for shard in shards]
    if held != list(counts) or sum(held) != len(index):
        raise TrainingError(
            f"{len(index):,} patches are listed and {sum(held):,} are there",
            path=folder,
            next_step="make the patch store again",
        )
    return PatchStore(folder, index, shards, side_px, mpp)


def write_store(
    folder: Path,
    slide: Slide,
    table: pd.DataFrame,
    record: Ingredients,
    side_px: int,
    mpp: float,
    *,
    threads: int | None = None,
) -> None:
    """Cut the patches of `table` (`INDEX_COLUMNS` and any others) from `slide` into a new store.

    Rows are stored block by block of the slide, not in the table's order. What an interrupted call left in
    the folder is made again.
    """
    _clear(folder)
    record.write(folder / RECORD)
    with PatchWriter(folder, side_px=side_px, mpp=mpp) as writer:
        writer.cut(slide, table, threads=threads)


def remove_stores(folder: Path, *, keep: Set[str]) -> None:
    """Remove the stores in `folder` that an earlier run made of slides that are not to be learnt from now."""
    for record in folder.glob(f"*/{RECORD}"):
        if record.parent.name not in keep:
            shutil.rmtree(record.parent)


def add_answers(folder: str | Path, judge: Judge, column: str, record: Ingredients) -> None:
    """Add to a store's index a column with what `judge` says about each patch, unless it is there already."""
    folder = Path(folder)
    note = folder / f"{column}.record.json"
    store = open_store(folder)
    if column in store.index.columns and record.matches(note):
        return
    index = store.index.assign(**{column: _answers(store, judge)})
    with record.noted(folder / INDEX, note=note), atomic_path(folder / INDEX) as temporary:
        index.to_parquet(temporary)


def _answers(store: PatchStore, judge: Judge) -> Floats32:
    rows = np.arange(len(store))
    parts = [judge(store.take(part)) for part in np.split(rows, rows[PATCHES_AT_ONCE::PATCHES_AT_ONCE])]
    answers = np.concatenate(parts).astype(np.float32)
    if not ((answers >= 0) & (answers <= 1)).all():
        raise TrainingError(
            "the network's answers are not probabilities",
            path=store.folder,
            next_step="check the network: its weights may be damaged",
        )
    return answers


def _clear(folder: Path) -> None:
    """Remove an unfinished or outdated store of ours; anything else is left alone."""
    if not folder.exists():
        return
    if not (folder / RECORD).is_file() and any(folder.iterdir()):
        raise OutputError(
            "exists and is not a patch store of this stage", path=folder, next_step="move it elsewhere"
        )
    with explained(folder):
        shutil.rmtree(folder)


def _shard_path(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:05d}.npy"
