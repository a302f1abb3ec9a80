"""Patches of several stores as one dataset, delivered to the device batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from metaphase.errors import TrainingError
from metaphase.learning.patches import Patches, PatchStore, open_store
from metaphase.learning.sampling import Rows
from metaphase.parallel import available_cores, ordered_map

RESIDENT_SHARE = 0.6
"""Patches that fit this share of the free GPU memory are kept there for the whole run."""
REPEAT = "repeat"
"""Index column that says how often a patch always counts; without it, once."""
LOADED_AT_ONCE = 1024
"""Patches read together while they are brought there."""


@dataclass(frozen=True)
class PatchSet:
    """Stores in a row; patch i of the set is found by counting through them."""

    stores: tuple[PatchStore, ...]

    @cached_property
    def index(self) -> pd.DataFrame:
        """The stores' indices, one below the other."""
        return pd.concat([store.index for store in self.stores], ignore_index=True)

    @cached_property
    def labels(self) -> Rows:
        """Class of each patch."""
        return self.index["label"].to_numpy(np.int64)

    @property
    def nbytes(self) -> int:
        """Size of all pixels."""
        return sum(shard.nbytes for store in self.stores for shard in store.shards)

    def targets(self, column: str) -> npt.NDArray[np.float32]:
        """What the network should answer: a column of classes or probabilities."""
        if column not in self.index or self.index[column].isna().any():
            raise TrainingError(
                f"the patch stores have no complete column {column!r}",
                next_step=f"choose from {', '.join(self.index.columns)}",
            )
        values = self.index[column].to_numpy(np.float32)
        if not ((values >= 0) & (values <= 1)).all():
            raise TrainingError(
                f"column {column!r} holds values outside 0 to 1", next_step="give probabilities"
            )
        return values

    def drawn(self, column: str) -> Rows:
        """Rows of the set, each as often as `column` and `repeat` say; once where a store has neither."""
        if column and column not in self.index:
            raise TrainingError(
                f"the patch stores have no column {column!r}",
                next_step=f"choose from {', '.join(self.index.columns)}",
            )
        times = self._counts(column) * self._counts(REPEAT)
        return np.repeat(np.arange(len(self.index)), times)

    def _counts(self, column: str) -> Rows:
        """Whole numbers of a column, 1 where there is none."""
        if column not in self.index:
            return np.ones(len(self.index), np.int64)
        times = self.index[column].fillna(1).to_numpy()
        if not ((times >= 0) & (times == np.round(times))).all():
            raise TrainingError(f"column {column!r} holds no counts", next_step="give whole numbers")
        counts: Rows = times.astype(np.int64)
        return counts

    def take(self, rows: Rows) -> Patches:
        """Pixels (n, side, side, 3) of the given rows, in their order."""
        starts = np.cumsum([0, *map(len, self.stores)])
        owner = np.searchsorted(starts, rows, side="right") - 1
        out = np.empty((len(rows), self.stores[0].side_px, self.stores[0].side_px, 3), np.uint8)
        for number in np.unique(owner):
            here = owner == number
            out[here] = self.stores[number].take(rows[here] - starts[number])
        return out


def rows_on(device: torch.device, rows: Rows) -> Tensor:
    """Row numbers on a device; a GPU is not waited for, so that orders can run ahead of it."""
    tensor = torch.from_numpy(rows)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def open_set(folders: Sequence[str]) -> PatchSet:
    """Open stores that belong together; they must agree in size and resolution."""
    stores = tuple(open_store(folder) for folder in folders)
    kinds = {(store.side_px, store.mpp) for store in stores}
    if len(kinds) > 1:
        raise TrainingError(
            f"patches of different kinds, (side px, um/px) = {sorted(kinds)}",
            path=stores[0].folder,
            next_step="use stores of one kind together",
        )
    return PatchSet(stores)


class Feeder:
    """Gives batches of pixels on the device: from its memory where they fit, else from disk, ahead of use."""

    def __init__(self, patches: PatchSet, device: torch.device, rows: Rows | None = None) -> None:
        """`rows` are those that will be asked for, each once and in order; all by default."""
        self._patches, self._device = patches, device
        self._rows = np.arange(len(patches.index)) if rows is None else rows
        wanted_bytes = patches.nbytes * len(self._rows) // max(1, len(patches.index))
        self._resident = _load(patches, self._rows, device) if _fits(wanted_bytes, device) else None

    def __call__(self, batches: Rows) -> Iterator[Tensor]:
        """uint8 pixels (batch, side, side, 3) for each row of `batches`."""
        if self._resident is not None:
            places = np.searchsorted(self._rows, batches)
            for rows in torch.from_numpy(places).to(self._device):
                yield self._resident[rows]
            return
        cores = available_cores()
        for pixels in ordered_map(self._patches.take, batches, threads=cores, ahead=2 * cores):
            yield torch.from_numpy(pixels).to(self._device, non_blocking=True)


def _fits(nbytes: int, device: torch.device) -> bool:
    return device.type == "cuda" and nbytes < RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0]


def _load(patches: PatchSet, rows: Rows, device: torch.device) -> Tensor:
    """The pixels of `rows` on the device; parts are read from disk while others are copied."""
    side = patches.stores[0].side_px
    loaded = torch.empty((len(rows), side, side, 3), dtype=torch.uint8, device=device)
    parts = np.split(rows, range(LOADED_AT_ONCE, len(rows), LOADED_AT_ONCE))
    cores, start = available_cores(), 0
    for pixels in ordered_map(patches.take, parts, threads=cores, ahead=2 * cores):
        loaded[start : start + len(pixels)].copy_(torch.from_numpy(pixels))
        start += len(pixels)
    return loaded
