"""Patches worth a look: what the ensemble finds easy, hard, and likely to be labelled wrongly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.hne import SOFT_TARGET
from metaphase.learning.data import open_set
from metaphase.learning.patches import Patches
from metaphase.learning.sampling import Rows


@dataclass(frozen=True, eq=False)
class ExampleGroup:
    """Patches of one kind with their index rows."""

    title: str
    note: str
    patches: Patches
    rows: pd.DataFrame
    """Columns slide, x, y and `ensemble`, the mean probability."""


def example_groups(stores: Sequence[str], count: int = 12) -> list[ExampleGroup]:
    """The groups of a run whose stores have soft targets; none where they have not."""
    patches, column = open_set(stores), SOFT_TARGET
    if column not in patches.index.columns or patches.index[column].isna().any():
        return []
    answers = patches.targets(column)
    groups = []
    for title, note, rows in _choices(answers, patches.labels, count):
        table = patches.index.iloc[rows][["slide", "x", "y", column]].rename(columns={column: "ensemble"})
        groups.append(ExampleGroup(title, note, patches.take(rows), table.reset_index(drop=True)))
    return groups


def _choices(answers: npt.NDArray[np.float32], labels: Rows, count: int) -> list[tuple[str, str, Rows]]:
    mitoses, others = np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)
    rising = {1: mitoses[np.argsort(answers[mitoses], kind="stable")],
              0: others[np.argsort(answers[others], kind="stable")]}  # fmt: skip
    unsure = np.argsort(np.abs(answers - 0.5), kind="stable")
    return [
        ("Easiest mitoses", "labelled mitosis, highest probability", rising[1][::-1][:count]),
        ("Easiest negatives", "labelled negative, lowest probability", rising[0][:count]),
        ("Hardest", "probability nearest to one half, whatever the label", unsure[:count]),
        ("Suspects: missed mitoses?", "labelled negative, highest probability", rising[0][::-1][:count]),
        ("Suspects: no mitoses?", "labelled mitosis, lowest probability", rising[1][:count]),
    ]
