"""Observers who know the truth of simulated PHH3 slides, and answer with known errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import Field, PositiveFloat
from scipy.spatial import cKDTree

from metaphase.base.settings import Share, settings

MITOSIS, NOT, ARTEFACT, UNSURE = "mitosis", "not", "artefact", "unsure"
"""Answers of the labelling page."""
RADIUS_UM = 7.5
"""A candidate is the object whose centre lies within this distance."""
ANSWER_OF_CATEGORY = {"brown_nucleus": NOT, "mitosis": MITOSIS}
"""Right answers, by category of the simulator's truth; everything else that is brown is an artefact."""


@settings
class Observer:
    """A simulated observer with known error rates."""

    name: Annotated[str, Field(min_length=1)]
    missed: Share = 0.08
    """Share of mitoses that get another answer."""
    false_alarms: Share = 0.06
    """Share of other cells that are called mitoses."""
    careless: Share = 0.02
    """Share of artefacts that are taken for a cell, and of cells that are taken for an artefact."""
    unsure: Share = 0.03
    """Share of all items answered with unsure."""
    seconds: PositiveFloat = 2.0
    """Median time for an answer."""


FOUR_OBSERVERS = (
    Observer("resident", missed=0.04, false_alarms=0.03, careless=0.01, unsure=0.02, seconds=1.6),
    Observer("student", missed=0.07, false_alarms=0.05, careless=0.02, unsure=0.03, seconds=2.1),
    Observer("technician-1", missed=0.10, false_alarms=0.08, careless=0.03, unsure=0.04, seconds=1.8),
    Observer("technician-2", missed=0.12, false_alarms=0.06, careless=0.03, unsure=0.03, seconds=2.4),
)
"""As many as in the paper: a resident, a doctoral student and two technicians."""


def true_labels(candidates: pd.DataFrame, truth: pd.DataFrame, mpp: float) -> npt.NDArray[np.object_]:
    """The right answer to each candidate of a simulated PHH3 slide, from the simulator's table of truth."""
    labels = np.full(len(candidates), ARTEFACT, dtype=object)
    stained = truth[truth["phh3_positive"] & truth["in_phh3"]]
    points = candidates[["x", "y"]].to_numpy(float)
    for category, answer in ANSWER_OF_CATEGORY.items():
        objects = stained.loc[stained["category"] == category, ["x_phh3", "y_phh3"]].to_numpy(float)
        if len(objects) and len(points):
            labels[cKDTree(objects).query(points)[0] * mpp <= RADIUS_UM] = answer
    return labels


def simulate_answers(
    truth: pd.Series[str], observers: Sequence[Observer] = FOUR_OBSERVERS, seed: int = 0
) -> pd.DataFrame:
    """What observers answer to items whose right answers are `truth`, which is indexed by item.

    One row an answer: `observer, item, answer, seconds`. Errors are independent from observer to observer.
    """
    tables = []
    for number, observer in enumerate(observers):
        rng = np.random.default_rng((seed, number))
        answers = _answers(truth.to_numpy(object), observer, rng)
        seconds = rng.lognormal(np.log(observer.seconds), 0.5, len(truth)).round(2)
        columns = {"observer": observer.name, "item": truth.index, "answer": answers, "seconds": seconds}
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def _answers(
    truth: npt.NDArray[np.object_], observer: Observer, rng: np.random.Generator
) -> npt.NDArray[np.object_]:
    draw = rng.random((3, len(truth)))
    answers = truth.copy()
    answers[(truth == MITOSIS) & (draw[0] < observer.missed)] = NOT
    answers[(truth == NOT) & (draw[0] < observer.false_alarms)] = MITOSIS
    confused = draw[1] < observer.careless
    answers[confused] = np.where(truth[confused] == ARTEFACT, NOT, ARTEFACT)
    answers[draw[2] < observer.unsure] = UNSURE
    return answers


Truths = Mapping[str, pd.DataFrame]
"""The simulator's table of truth of each case."""


def right_answers(items: pd.DataFrame, truths: Truths, mpp: float) -> pd.Series[str]:
    """The right answer to each item of a labelling project about simulated PHH3 slides."""
    right: dict[str, str] = {}
    for case, group in items.groupby("case"):
        right |= dict(zip(group["item"], true_labels(group, truths[str(case)], mpp), strict=True))
    return pd.Series(right)
