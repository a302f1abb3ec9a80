"""How well observers agree beyond chance: Cohen's kappa of two, Fleiss' kappa of all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pandas as pd

Counts = npt.NDArray[np.int64]


def winners(votes: Counts, agree: int) -> Counts:
    """Index of the answer that at least `agree` observers gave, or -1: too few agree, or two answers tie.

    `votes` counts the observers by item (row) and answer (column).
    """
    most = votes.max(axis=1)
    alone = (votes == most[:, None]).sum(axis=1) == 1
    return np.where((most >= agree) & alone, votes.argmax(axis=1), -1)


def count_votes(sheet: pd.DataFrame, answers: Sequence[str]) -> Counts:
    """Votes by item and answer, from a sheet with a row an item and a column an observer."""
    cells = sheet.to_numpy(dtype=object)
    return np.stack([(cells == answer).sum(axis=1) for answer in answers], axis=1).astype(np.int64)


def cohen_kappa(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Unweighted kappa of two observers' answers to the same items; NaN where chance leaves nothing open."""
    one, two = np.asarray(first), np.asarray(second)
    if not one.size:
        return float("nan")
    answers = np.union1d(one, two)
    shares = [(side[:, None] == answers).mean(axis=0) for side in (one, two)]
    return _beyond_chance(float((one == two).mean()), float(shares[0] @ shares[1]))


def fleiss_kappa(votes: Counts) -> float:
    """Fleiss' kappa; each row holds the votes of one item, all rows of the same number of observers."""
    if not len(votes) or votes[0].sum() < 2:
        return float("nan")
    observers = votes[0].sum()
    pairs = (votes * (votes - 1)).sum(axis=1) / (observers * (observers - 1))
    shares = votes.sum(axis=0) / votes.sum()
    return _beyond_chance(float(pairs.mean()), float(shares @ shares))


def pairwise_kappas(sheet: pd.DataFrame) -> pd.DataFrame:
    """Each pair of observers: how many items both answered, the share answered alike, and Cohen's kappa."""
    rows = []
    for one, two in combinations(sheet.columns, 2):
        both = sheet[(sheet[one] != "") & (sheet[two] != "")]
        first, second = (both[name].to_numpy(dtype=str) for name in (one, two))
        alike = float((first == second).mean()) if len(both) else float("nan")
        rows.append((one, two, len(both), alike, cohen_kappa(first, second)))
    return pd.DataFrame(rows, columns=["observer", "other", "items", "alike", "kappa"])


def _beyond_chance(seen: float, expected: float) -> float:
    return (seen - expected) / (1 - expected) if expected < 1 - 1e-12 else float("nan")
