"""A difficult set as a patch store of its own, in which a patch lies as often as it was drawn."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from metaphase.artifacts import explained
from metaphase.hne import hard_column
from metaphase.learning.data import PatchSet, open_set
from metaphase.learning.patches import PatchWriter, open_store
from metaphase.learning.sampling import Rows

AT_ONCE = 2048


@contextmanager
def drawn_set(folder: Path, stores: Sequence[str], number: int) -> Iterator[str]:
    """Difficult set `number` of the stores that mining made, removed when the work with it is finished.

    An interrupted training finds it again. A set of the paper's size (422,000 patches) has 21 GB.
    """
    if not (folder / "store.json").is_file():
        if folder.exists():
            _remove(folder)
        write_set(folder, open_set(stores), number)
    open_store(folder)
    yield str(folder)
    _remove(folder)


def write_set(folder: Path, patches: PatchSet, number: int) -> None:
    """Copy the patches of a set: positives once, negatives as often as their column says."""
    rows = set_rows(patches, number)
    side_px, mpp = patches.stores[0].side_px, patches.stores[0].mpp
    columns = [name for name in patches.index.columns if not name.startswith("hard_")]
    with PatchWriter(folder, side_px=side_px, mpp=mpp) as writer:
        for part in np.split(rows, range(AT_ONCE, len(rows), AT_ONCE)):
            facts = patches.index.iloc[part][columns].to_dict("records")
            for patch, row in zip(patches.take(part), facts, strict=True):
                writer.add(patch, **{str(key): value for key, value in row.items()})


def set_rows(patches: PatchSet, number: int) -> Rows:
    """Rows of a difficult set, in order, repeated as they were drawn."""
    times = patches.index[hard_column(number)].to_numpy(np.float64, copy=True)
    times[patches.labels == 1] = 1
    return np.repeat(np.arange(len(times)), np.nan_to_num(times).astype(np.int64))


def _remove(folder: Path) -> None:
    with explained(folder):
        shutil.rmtree(folder)
