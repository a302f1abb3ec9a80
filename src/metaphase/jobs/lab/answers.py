"""What people are asked in a laboratory's folder, how much of it is answered, and whether that is enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from metaphase.base.errors import MetaphaseError
from metaphase.base.tables import case_folder
from metaphase.jobs.calibration import DETECTIONS, SQUARES
from metaphase.jobs.lab.folder import Lab
from metaphase.jobs.reference import REVIEW
from metaphase.jobs.review import load_review
from metaphase.labels.observers.consensus import answer_sheet, divided_items
from metaphase.labels.observers.learning import LearningCurve, learning_curve
from metaphase.labels.observers.project import (
    ARTEFACT,
    ITEMS,
    MITOSIS,
    UNSURE,
    item_name,
    load_project,
    read_items,
)
from metaphase.labels.observers.store import AnswerStore, Given
from metaphase.labels.phh3.cases import read_candidates, read_classified

PageKind = Literal["label", "review"]
SECONDS_AN_ANSWER = 2.5
"""Supposed before anybody has answered."""
FEATURES = (
    "area_um2", "dab_mean", "dab_peak", "haematoxylin_mean", "major_um", "minor_um", "eccentricity", "extent",
    "filling", "parts",
)  # fmt: skip
"""Measurements of a candidate from which the quick classifier learns; in round 2, CNN1's answer, too."""
FEWEST_FOR_ENOUGH = 150
"""Answered items before which a flat curve is not believed."""


@dataclass(frozen=True)
class Asked:
    """A page with questions, and how far people are."""

    what: str
    """In a few words."""
    kind: PageKind
    folder: Path
    """The labelling project, or the workspace of the reference standard."""
    items: int
    """To be answered."""
    answered: int
    """Of them, by enough observers."""
    answers: pd.DataFrame
    """All that stand: observer, item, answer."""
    divided: int = 0
    """Items that were answered differently."""
    seconds: float = SECONDS_AN_ANSWER
    """Median time of an answer."""
    learnt: Callable[[], LearningCurve | None] = lambda: None
    """How its curve is found."""

    @cached_property
    def curve(self) -> LearningCurve | None:
        """Of the answers, where it is asked for: it is the work of seconds."""
        return self.learnt()

    @property
    def complete(self) -> bool:
        """Whether nothing is left to answer."""
        return self.answered >= self.items

    @property
    def enough(self) -> bool:
        """Whether to go on: all is answered, or more would not help."""
        if self.complete or self.answered < FEWEST_FOR_ENOUGH:
            return self.complete
        return self.curve is not None and self.curve.enough

    @property
    def seconds_left(self) -> float:
        """What one observer still needs."""
        return max(0, self.items - self.answered) * self.seconds

    @property
    def command(self) -> str:
        """The single command that shows the page."""
        serve = "metaphase label serve" if self.kind == "label" else "metaphase reference review"
        return f"{serve} {self.folder}"

    def __str__(self) -> str:
        """In a line."""
        told = f"{self.answered} of {self.items} answered"
        told += f", {self.divided} answered differently" if self.divided else ""
        return f"{told}; {self.curve}" if self.curve else told


def standing(folder: Path) -> list[Given]:
    """The answers of a project; none where there is no project or nobody has begun."""
    project = load_project(folder)
    if not project.answers_path.exists():
        return []
    with AnswerStore(project) as store:
        return store.current()


def answers_table(given: Sequence[Given]) -> pd.DataFrame:
    """Answers as a table that says the same however they came in."""
    rows = sorted((one.observer, one.item, one.answer) for one in given)
    return pd.DataFrame(rows, columns=["observer", "item", "answer"], dtype=str)


def asked_round(lab: Lab, number: int) -> Asked | None:
    """How far a round is; nothing before it is drawn."""
    folder = lab.round(number)
    if not (folder / ITEMS).is_file():
        return None
    project, given = load_project(folder), standing(folder)
    sheet = answer_sheet(project, given)
    votes = (sheet != "").sum(axis=1) if sheet.shape[1] else pd.Series(0, sheet.index)
    wanted = max(1, min(lab.settings.rounds.agree, max(1, sheet.shape[1])))
    what = ("object or artefact", "mitosis or not")[number - 1]
    return _asked(
        f"round {number}: {what}", "label", folder, len(project.items), int((votes >= wanted).sum()), given,
        partial(round_curve, lab, number, given),
    )  # fmt: skip


def round_curve(lab: Lab, number: int, given: Sequence[Given]) -> LearningCurve | None:
    """The learning curve of a round's answers; of several observers, each item's first counts."""
    said = {one.item: one.answer for one in reversed(given) if one.answer != UNSURE}
    items = read_items(lab.round(number))
    items = items[items["item"].isin(said)]
    if not len(items):
        return None
    rows = []
    for case in items["case"].unique():
        folder = case_folder(lab.cases, case)
        try:
            table = read_candidates(folder) if number == 1 else read_classified(folder).table
        except MetaphaseError:
            continue
        rows.append(table.assign(item=[item_name(case, one) for one in table["candidate"]]))
    if not rows:
        return None
    measures = [*FEATURES, *(["cnn1"] if number == 2 else [])]
    joined = items.merge(pd.concat(rows)[["item", *measures]], on="item")
    answers = joined["item"].map(said)
    wanted = (answers == MITOSIS) if number == 2 else (answers != ARTEFACT)
    patients = joined["patient"] if "patient" in joined else joined["case"]
    return learning_curve(
        joined[measures].to_numpy(np.float64), wanted.to_numpy(bool), patients.astype(str).tolist()
    )


def asked_review(lab: Lab) -> Asked | None:
    """How far the review of the reference standard is: its least sure points; nothing where it has none."""
    if not (lab.cases / "reference.parquet").is_file():
        return None
    try:
        review = load_review(lab.cases)
    except MetaphaseError:
        return None
    given = standing(lab.cases / REVIEW)
    wanted = list(review.table["item"].head(lab.settings.rounds.review))
    decided = {one.item for one in given}
    count = sum(item in decided for item in wanted)
    return _asked("review of the reference standard", "review", lab.cases, len(wanted), count, given)


def asked_calibration(lab: Lab, part: str) -> Asked | None:
    """How far one of the two projects of the calibration is."""
    folder = lab.calibration / part
    if not (folder / ITEMS).is_file():
        return None
    given = standing(folder)
    count = len({one.item for one in given})
    return _asked(f"calibration: {part}", "label", folder, len(load_project(folder).items), count, given)


def _asked(
    what: str,
    kind: PageKind,
    folder: Path,
    items: int,
    answered: int,
    given: Sequence[Given],
    learnt: Callable[[], LearningCurve | None] = lambda: None,
) -> Asked:
    times = [one.seconds for one in given if one.seconds > 0]
    seconds = float(np.median(times)) if times else SECONDS_AN_ANSWER
    table = answers_table(given)
    return Asked(what, kind, folder, items, answered, table, len(divided_items(given)), seconds, learnt)


CALIBRATION = (DETECTIONS, SQUARES)
