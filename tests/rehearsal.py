"""Rehearsals on simulated slides: observers who know the truth answer what a laboratory is asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.spatial import cKDTree

from metaphase.lab.folder import Lab
from metaphase.lab.parts import Asked
from metaphase.labels.building import REVIEW
from metaphase.labels.observers.project import MITOSIS, NOT, load_project, read_items
from metaphase.labels.observers.store import AnswerStore, Entry
from metaphase.labels.reference import ACCEPT, REJECT
from metaphase.labels.reviewing import load_review
from metaphase.simulation.observers import RADIUS_UM, Observer, Truths, right_answers, simulate_answers


def answer(
    lab: Lab, asked: Asked, truths: Truths, observers: Sequence[Observer], *, mpp: float = 0.25, seed: int = 0
) -> int:
    """Let observers answer all that a page asks; returns how many answers that were."""
    folder = lab.cases / REVIEW if asked.kind == "review" else asked.folder
    items = read_items(folder)
    if asked.kind == "review":
        known = _in_he(items, truths, mpp)
        decided = known.map({MITOSIS: ACCEPT, NOT: REJECT})
        least_sure = load_review(lab.cases).table["item"].head(asked.items)
        answers = _certain(decided[list(least_sure)], observers[:1])
    elif asked.folder.parent == lab.calibration:
        answers = simulate_answers(_in_he(items, truths, mpp), observers[:1], seed)
    else:
        answers = simulate_answers(right_answers(items, truths, mpp), observers, seed)
    with AnswerStore(load_project(folder)) as store:
        return store.record_many(Entry(*row) for row in answers.itertuples(index=False, name=None))


def _certain(right: pd.Series[str], observers: Sequence[Observer]) -> pd.DataFrame:
    """Right answers of one observer."""
    seconds = observers[0].seconds
    columns = {
        "observer": observers[0].name,
        "item": right.index,
        "answer": right.to_numpy(),
        "seconds": seconds,
    }
    return pd.DataFrame(columns)


def _in_he(items: pd.DataFrame, truths: Truths, mpp: float) -> pd.Series[str]:
    """Mitosis or not, by the distance to one in H&E."""
    right: dict[str, str] = {}
    for case, group in items.groupby("case"):
        distance = cKDTree(_mitoses(truths[str(case)])).query(group[["x", "y"]].to_numpy(float))[0]
        labels = np.where(distance * mpp <= RADIUS_UM, MITOSIS, NOT).tolist()
        right |= dict(zip(group["item"], labels, strict=True))
    return pd.Series(right)


def _mitoses(truth: pd.DataFrame) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    found = truth[truth["category"] == "mitosis"]
    positions: np.ndarray[tuple[int, int], np.dtype[np.float64]] = found[["x_he", "y_he"]].to_numpy(
        np.float64
    )
    return positions
