"""From tables of chosen candidates to patch stores, and answers of networks added to these."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.base.arrays import RGB
from metaphase.base.errors import OutputError, TrainingError
from metaphase.base.files import atomic_path, explained
from metaphase.base.provenance import Ingredients
from metaphase.labels.mining.config import SetConfig
from metaphase.networks.training.patches import PatchStore, PatchWriter, open_store
from metaphase.slides import Slide, cut_squares

RECORD, INDEX = "record.json", "index.parquet"
PATCHES_AT_ONCE = 512

Judge = Callable[[RGB], npt.NDArray[np.float32]]
"""Probabilities (n,) of patches (n, side, side, 3)."""


def is_stored(folder: Path, record: Ingredients) -> bool:
    """Whether the store is complete and was made from just this."""
    return record.matches(folder / RECORD) and (folder / "store.json").is_file()


def remove_stores(folder: Path, *, keep: Set[str]) -> None:
    """Remove the stores in `folder` that an earlier run made of slides that are not to be learnt from now."""
    for record in folder.glob(f"*/{RECORD}"):
        if record.parent.name not in keep:
            shutil.rmtree(record.parent)


def write_store(
    folder: Path,
    slide: Slide,
    table: pd.DataFrame,
    record: Ingredients,
    config: SetConfig,
    *,
    threads: int | None = None,
) -> None:
    """Cut the patches of `table` (`INDEX_COLUMNS` and any others) from `slide` into a new store.

    Rows are stored block by block of the slide, not in the table's order. What an interrupted call left in
    the folder is made again.
    """
    _clear(folder)
    record.write(folder / RECORD)
    points = table[["x", "y"]].to_numpy(np.float64)
    cut = cut_squares(slide, points, config.side_px, config.mpp, threads=threads)
    with PatchWriter(folder, side_px=config.side_px, mpp=config.mpp) as writer:
        for rows, patches in cut:
            for patch, row in zip(patches, _dictionaries(table.iloc[rows]), strict=True):
                writer.add(patch, **row)


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


def _answers(store: PatchStore, judge: Judge) -> npt.NDArray[np.float32]:
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


def _dictionaries(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in rows.to_dict("records")]


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
