"""Patches of several stores as one dataset: drawn in balance, delivered to the device batch by batch.

Nothing is remembered between batches, so that a run can resume at any of them, and several processes agree
without talking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor

from metaphase.base.arrays import RGB, Floats32, Integers
from metaphase.base.errors import TrainingError
from metaphase.base.parallel import available_cores, ordered_map
from metaphase.images.stain.augmentation import StainMixer, appearance_of
from metaphase.networks.training.patches import PatchStore, open_store, rows_of

# ---- which patches make up each batch ----


def balanced_batches(
    labels: Integers, batch: int, *, seed: int, epoch: int, samples: int | None = None
) -> Integers:
    """Rows (batches, batch) of one epoch, half of each batch from class 0 and half from class 1.

    An epoch shows `samples` patches, by default as many as there are. Each class is dealt from shuffled
    decks: none of its patches comes again before all have come.
    """
    if batch < 2 or batch % 2:
        raise TrainingError(
            f"a batch of {batch} cannot be half positive and half negative",
            next_step="give an even batch size",
        )
    for label, name in ((0, "negative"), (1, "positive")):
        if not (labels == label).any():
            raise TrainingError(f"no {name} patches to train on", next_step="check the stores and the splits")
    count = max(1, (samples or len(labels)) // batch)
    halves, half = [], count * batch // 2
    for label in (0, 1):
        rows, rng = np.flatnonzero(labels == label), np.random.default_rng((seed, epoch, label))
        decks = [rng.permutation(rows) for _ in range(-(-half // len(rows)))]
        halves.append(np.concatenate(decks)[:half].reshape(count, batch // 2))
    return np.concatenate(halves, axis=1)


def check_disjoint(what: str, **splits: pd.Series[str]) -> None:
    """Refuse splits that share a slide or a patient: no network is tested on what it was trained on."""
    owner: dict[str, str] = {}
    for split, names in splits.items():
        for name in names.unique():
            if owner.setdefault(name, split) != split:
                raise TrainingError(
                    f"{what} {name} is in {owner[name]} and in {split}",
                    next_step=f"put everything of a {what} into one split",
                )


def split_cases(cases: list[str], *, counts: dict[str, int], seed: int) -> dict[str, list[str]]:
    """Deal whole cases into named splits of given sizes, for example {"train": 10, "validation": 8}."""
    unique = sorted(set(cases))
    if sum(counts.values()) > len(unique):
        raise TrainingError(
            f"{len(unique)} cases cannot be split into {counts}",
            next_step="ask for fewer cases in the splits",
        )
    order = np.random.default_rng(seed).permutation(len(unique))
    edges = np.cumsum([0, *counts.values()])
    return {
        name: sorted(unique[i] for i in order[start:stop])
        for name, start, stop in zip(counts, edges[:-1], edges[1:], strict=True)
    }


# ---- patches of several stores as one dataset ----

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
    def labels(self) -> Integers:
        """Class of each patch."""
        return self.index["label"].to_numpy(np.int64)

    @property
    def kind(self) -> tuple[int, float]:
        """Side in pixels and um/px of the patches."""
        return self.stores[0].side_px, self.stores[0].mpp

    def targets(self, column: str) -> Floats32:
        """What the network should answer: a column of classes or probabilities."""
        self._require(column, complete=True)
        values = self.index[column].to_numpy(np.float32)
        if not ((values >= 0) & (values <= 1)).all():
            raise TrainingError(
                f"column {column!r} holds values outside 0 to 1", next_step="give probabilities"
            )
        return values

    def drawn_rows(self, column: str) -> Integers:
        """Rows of the set, each as often as `column` and `repeat` say; once where a store has neither."""
        if column:
            self._require(column)
        rows = np.arange(len(self.index))
        for name in {column, REPEAT} & {*self.index.columns}:
            times = self.index[name].fillna(1).to_numpy()[rows]
            if not ((times >= 0) & (times == np.round(times))).all():
                raise TrainingError(f"column {name!r} does not hold counts", next_step="give whole numbers")
            rows = np.repeat(rows, times.astype(np.int64))
        return rows

    def _require(self, column: str, *, complete: bool = False) -> None:
        if column not in self.index or (complete and self.index[column].isna().any()):
            missing = "complete column" if complete else "column"
            raise TrainingError(
                f"the patch stores have no {missing} {column!r}",
                next_step=f"choose from {', '.join(self.index.columns)}",
            )

    def take(self, rows: Integers) -> RGB:
        """Pixels (n, side, side, 3) of the given rows, in their order."""
        takes = [store.take for store in self.stores]
        return rows_of(takes, map(len, self.stores), rows, self.kind[0])


def rows_on(device: torch.device, rows: Integers) -> Tensor:
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

    def __init__(self, patches: PatchSet, device: torch.device, rows: Integers | None = None) -> None:
        """`rows` are those that will be asked for, each once and in order; all by default."""
        self._patches, self._device = patches, device
        self._rows = np.arange(len(patches.index)) if rows is None else rows
        wanted_bytes = len(self._rows) * 3 * patches.kind[0] ** 2
        self._resident = self._loaded() if _fits(wanted_bytes, device) else None

    def __call__(self, rows: Integers, batch: int) -> Iterator[Tensor]:
        """uint8 pixels (batch, side, side, 3) of rows in their order; the last ones may be fewer."""
        if self._resident is not None and len(rows):
            positions = torch.from_numpy(np.searchsorted(self._rows, rows)).to(self._device)
            yield from (self._resident[some] for some in positions.split(batch))
            return
        for pixels in self._read(rows, batch):
            yield torch.from_numpy(pixels).to(self._device, non_blocking=True)

    def _read(self, rows: Integers, batch: int) -> Iterator[RGB]:
        """From disk, ahead of use."""
        parts, cores = np.split(rows, range(batch, len(rows), batch)), available_cores()
        return ordered_map(self._patches.take, parts if len(rows) else [], threads=cores, ahead=2 * cores)

    def _loaded(self) -> Tensor:
        """The pixels of all rows on the device; parts are read from disk while others are copied."""
        side, start = self._patches.kind[0], 0
        loaded = torch.empty((len(self._rows), side, side, 3), dtype=torch.uint8, device=self._device)
        for pixels in self._read(self._rows, LOADED_AT_ONCE):
            loaded[start : start + len(pixels)].copy_(torch.from_numpy(pixels))
            start += len(pixels)
        return loaded


def _fits(nbytes: int, device: torch.device) -> bool:
    return device.type == "cuda" and nbytes < RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0]


# ---- stain mixing between the slides of a patch set ----

PATCHES_A_SLIDE, PIXEL_STEP = 24, 4
"""Patches, and every how many pixels of them, from which a slide's appearance is taken."""

Mix = Callable[[Tensor, Integers, Generator], Tensor]
"""Mixed images of pixels that are the given rows of the set."""


def stain_mixer(patches: PatchSet, share: float, device: torch.device) -> Mix:
    """Mixes patches in the colours of the set's slides, whose appearances are taken from their patches."""
    numbers, names = patches.index["slide"].factorize()
    rng = np.random.default_rng(0)
    appearances = []
    for number in range(len(names)):
        rows = np.flatnonzero(numbers == number)
        chosen = np.sort(rng.choice(rows, min(PATCHES_A_SLIDE, len(rows)), replace=False))
        appearances.append(appearance_of(patches.take(chosen)[:, ::PIXEL_STEP, ::PIXEL_STEP]))
    mixer = StainMixer(appearances, share).to(device)
    slides = torch.from_numpy(numbers.astype(np.int64)).to(device)

    def mix(pixels: Tensor, rows: Integers, generator: Generator) -> Tensor:
        mixed: Tensor = mixer(pixels, slides[rows_on(device, rows)], generator)
        return mixed

    return mix
