"""Which patches make up each batch, as a pure function of labels, seed and epoch.

Nothing is remembered between batches, so that a run can resume at any of them, and several processes agree
without talking.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.errors import TrainingError

Rows = npt.NDArray[np.int64]


def balanced_batches(labels: Rows, batch: int, *, seed: int, epoch: int, samples: int | None = None) -> Rows:
    """Rows (batches, batch) of one epoch, half of each batch from class 0 and half from class 1.

    An epoch shows `samples` patches, by default as many as there are. Each class is dealt from shuffled
    decks: none of its patches comes again before all have come.
    """
    if batch < 2 or batch % 2:
        raise TrainingError(
            f"a batch of {batch} cannot be half and half", next_step="give an even batch size"
        )
    for label, name in ((0, "negative"), (1, "positive")):
        if not (labels == label).any():
            raise TrainingError(f"no {name} patches to train on", next_step="check the stores and the splits")
    count = max(1, (samples or len(labels)) // batch)
    halves = [
        _deal(
            np.flatnonzero(labels == label), count * batch // 2, np.random.default_rng((seed, epoch, label))
        )
        for label in (0, 1)
    ]
    return np.concatenate([half.reshape(count, batch // 2) for half in halves], axis=1)


def _deal(rows: Rows, count: int, rng: np.random.Generator) -> Rows:
    decks = -(-count // len(rows))
    return np.concatenate([rng.permutation(rows) for _ in range(decks)])[:count]


def check_disjoint(**splits: pd.Series[str]) -> None:
    """Refuse splits that share a slide: a network must not be tested on what it was trained on."""
    owner: dict[str, str] = {}
    for split, slides in splits.items():
        for slide in slides.unique():
            if owner.setdefault(slide, split) != split:
                raise TrainingError(
                    f"slide {slide} is in {owner[slide]} and in {split}",
                    next_step="split by case, so that all patches of a slide are on one side",
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
