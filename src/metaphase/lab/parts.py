"""What the steps of a laboratory's workflow are made of: pages with questions, pairs, progress."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.files import write_text
from metaphase.base.foreign import read_json
from metaphase.base.sharing.batch import Batch, BatchWatch, Progress
from metaphase.base.stages import Facts, Report, Stage, States, stage_states
from metaphase.base.tables import case_folder, phh3_mpp, read_manifest, stated_number
from metaphase.lab.folder import Lab
from metaphase.labels.building import REVIEW
from metaphase.labels.observers.consensus import LearningCurve, divided_items, learning_curve
from metaphase.labels.observers.project import (
    ARTEFACT,
    ITEMS,
    MITOSIS,
    UNSURE,
    item_name,
    load_project,
    read_items,
)
from metaphase.labels.phh3.candidates import Phh3Error
from metaphase.labels.phh3.cases import read_candidates, read_classified
from metaphase.labels.reviewing import load_review
from metaphase.learn.calibration import DETECTIONS, answers_table, current_answers
from metaphase.slides.opening import SlideSource

PageKind = Literal["label", "review"]
FEATURES = (
    "area_um2",
    "dab_mean",
    "dab_peak",
    "haematoxylin_mean",
    "major_um",
    "minor_um",
    "eccentricity",
    "extent",
    "filling",
    "parts",
)
"""Measurements of a candidate from which the quick classifier learns; in round 2, CNN1's answer, too."""
FEWEST_FOR_ENOUGH = 150
"""Answered items before which a flat curve is not believed."""
ENOUGH = "enough.json"
"""File in a project whose answers were declared enough: the number of its items at that time."""


@dataclass(frozen=True)
class Asked:
    """A page with questions, and how far people are."""

    what: str
    """In a few words."""
    kind: PageKind
    folder: Path
    """The labelling project, or the workspace of the reference standard."""
    items: int
    """Number of items to answer: all that can be shown."""
    answered: int
    """How many of them have enough observers."""
    answers: pd.DataFrame
    """The current answers: observer, item, answer."""
    divided: int = 0
    """Items that were answered differently."""
    learnt: Callable[[], LearningCurve | None] = lambda: None
    """Computes the learning curve."""
    observers: int = 1
    """How many have to answer each item."""
    left_out: int = 0
    """Further items, which cannot be shown."""
    said_enough: bool = False
    """Whether these answers were declared enough."""

    @cached_property
    def curve(self) -> LearningCurve | None:
        """The learning curve of the answers; takes seconds, so it is computed when asked for."""
        return self.learnt()

    @property
    def complete(self) -> bool:
        """Whether nothing is left to answer."""
        return self.answered >= self.items

    @property
    def enough(self) -> bool:
        """Whether the step can continue: all is answered, or the answers were declared enough."""
        return self.complete or self.said_enough

    @property
    def advice(self) -> str:
        """What to do where more answers would hardly help."""
        flat = self.answered >= FEWEST_FOR_ENOUGH and self.curve is not None and self.curve.enough
        return "to continue with these: metaphase lab next --enough" if flat and not self.complete else ""

    @property
    def project(self) -> Path:
        """The folder of its items and answers."""
        return project_of(self.folder, self.kind)

    @property
    def command(self) -> str:
        """The single command that shows the page."""
        if self.kind == "label":
            return f"metaphase label serve {self.folder}"
        return f"metaphase reference review {self.folder} --most {self.items + self.left_out}"

    def __str__(self) -> str:
        """In a line."""
        line = f"{self.answered} of {self.items} answered"
        line += f" by {self.observers} observers each" if self.observers > 1 else ""
        line += f", {self.divided} answered differently" if self.divided else ""
        line += f", {self.left_out} more cannot be shown" if self.left_out else ""
        return "; ".join(filter(None, (line, str(self.curve or ""), self.advice)))


def say_enough(asked: Asked) -> None:
    """Declare the answers to a page enough, so that its step continues with them."""
    if asked.answers.empty and not asked.complete:
        raise UsageError(
            f"nobody has answered anything in {asked.what}",
            path=asked.project,
            next_step="answer some items, or skip the step in lab.toml (round1, round2, review, answers = 0)",
        )
    write_text(asked.project / ENOUGH, json.dumps({"items": asked.items + asked.left_out}) + "\n")


def all_answers(pages: Sequence[Asked]) -> pd.DataFrame:
    """Those to several pages, or to none."""
    return pd.concat([answers_table(()), *(page.answers for page in pages)], ignore_index=True)


def asked_round(lab: Lab, number: int) -> list[Asked]:
    """How far a round is; nothing before it is drawn."""
    folder = lab.round(number)
    if not (folder / ITEMS).is_file():
        return []
    what = ("object or artefact", "mitosis or not")[number - 1]
    curve = partial(round_curve, lab, number)
    return [_page_of(f"round {number}: {what}", folder, observers=lab.settings.rounds.agree, learnt=curve)]


def round_curve(lab: Lab, number: int) -> LearningCurve | None:
    """The learning curve of a round's answers; of several observers, each item's first counts."""
    given = reversed(current_answers(lab.round(number)))
    said = {each.item: each.answer for each in given if each.answer != UNSURE}
    items = read_items(lab.round(number))
    items = items[items["item"].isin(said)]
    tables = []
    for case in items["case"].unique():
        folder = case_folder(lab.cases, case)
        with suppress(MetaphaseError):
            table = read_candidates(folder) if number == 1 else read_classified(folder).table
            tables.append(table.assign(item=[item_name(case, candidate) for candidate in table["candidate"]]))
    if not tables:
        return None
    measures = [*FEATURES, *(["cnn1"] if number == 2 else [])]
    joined = items.merge(pd.concat(tables)[["item", *measures]], on="item")
    answers = joined["item"].map(said)
    wanted = (answers == MITOSIS) if number == 2 else (answers != ARTEFACT)
    patients = joined["patient"] if "patient" in joined else joined["case"]
    return learning_curve(
        joined[measures].to_numpy(np.float64), wanted.to_numpy(bool), patients.astype(str).tolist()
    )


def asked_review(lab: Lab) -> list[Asked]:
    """How far the review of the reference standard is: its least sure points; nothing where it has none."""
    if not (lab.cases / "reference.parquet").is_file():
        return []
    try:
        review = load_review(lab.cases, most=lab.settings.rounds.review)
    except MetaphaseError:
        return []
    items = list(review.table["item"])
    return [_page_of("review of the reference standard", lab.cases, "review", items=items)]


def asked_calibration(lab: Lab) -> list[Asked]:
    """How far the calibration is."""
    folder = lab.calibration / DETECTIONS
    return [_page_of("calibration", folder)] if (folder / ITEMS).is_file() else []


def _page_of(
    what: str,
    folder: Path,
    kind: PageKind = "label",
    *,
    items: Sequence[str] | None = None,
    observers: int = 1,
    learnt: Callable[[], LearningCurve | None] = lambda: None,
) -> Asked:
    """How far people are with the items of a project, or with some of them."""
    project = load_project(project_of(folder, kind))
    given, note = current_answers(project.folder), project.folder / ENOUGH
    names = list(project.by_name) if items is None else items
    votes = Counter(each.item for each in given)
    unanswered = [name for name in names if votes[name] < observers]
    left_out = sum(name in project.unavailable for name in unanswered)
    stated = read_json(note, "says nothing", next_step="remove it").get("items") if note.is_file() else None
    return Asked(
        what,
        kind,
        folder,
        items=len(names) - left_out,
        answered=len(names) - len(unanswered),
        answers=answers_table(given),
        divided=len(divided_items(given)),
        learnt=learnt,
        observers=observers,
        left_out=left_out,
        said_enough=isinstance(stated, int) and stated >= len(names),
    )


def project_of(folder: Path, kind: PageKind) -> Path:
    """The labelling project behind a page."""
    return folder / REVIEW if kind == "review" else folder


NOTHING = "nothing-to-ask.txt"
"""In the folder of a project that has no items: why."""
FAILED = "failed"
"""Fact of a step: cases that could not be done, the others went on."""


@dataclass(frozen=True)
class Step:
    """One step of the workflow."""

    stage: Stage
    pages: Sequence[Asked] = ()
    """What people have to answer before its work; nothing for a step of the machine alone."""
    prepare: Callable[[Report], bool] | None = None
    """Makes these pages, unless they are there; says whether it made any."""
    shows: tuple[str, ...] = ()
    """Files that people may want to open, beside those that it writes."""

    @property
    def name(self) -> str:
        """Name of the step."""
        return self.stage.name

    def made(self, root: Path) -> list[str]:
        """The files that it has made, as they are called within the folder."""
        return [name for name in (*self.shows, *self.stage.writes) if (root / name).is_file()]


def first_open(lab: Lab, steps: Sequence[Step]) -> tuple[int | None, States]:
    """The number of the first step that is not done, or None; and where all of them stand."""
    states = stage_states([step.stage for step in steps], lab.root)
    return next((number for number, state in enumerate(states) if state.status != "kept"), None), states


@dataclass(frozen=True)
class StepProgress:
    """How far a step is."""

    step: str
    done: int
    """Steps before it."""
    steps: int
    """All of them."""
    what: str
    """What is being made."""
    share: float
    """Of that, done."""

    def __str__(self) -> str:
        return f"{self.what}: {self.share:.0%}"


@dataclass(frozen=True)
class PairSlides:
    """The slides of a case, and what it is for."""

    case: str
    he: SlideSource
    phh3: SlideSource
    split: str
    patient: str
    centre: str


def pairs_of(lab: Lab) -> tuple[PairSlides, ...]:
    """The pairs of the manifest."""
    if not lab.manifest.is_file():
        raise UsageError(
            "the slides were not paired yet", path=lab.root, next_step="run metaphase lab init FOLDER again"
        )
    return tuple(
        PairSlides(
            str(row["case"]),
            SlideSource(Path(str(row["he"])), stated_number(row, "mpp")),
            SlideSource(Path(str(row["phh3"])), phh3_mpp(row)),
            *(str(row[name]) for name in ("split", "patient", "laboratory")),
        )
        for row in read_manifest(lab.manifest).to_dict("records")
    )


def inside(lab: Lab, path: Path) -> str:
    """A path as it is called within the folder."""
    return str(path.relative_to(lab.root))


class Reporting(BatchWatch):
    """A batch that tells the step's report how far it is."""

    def __init__(self, what: str, report: Report) -> None:
        self._what, self._report = what, report

    def started(self, name: str, number: int, total: int) -> Progress:
        """An item begins; its own progress counts as a part of it."""
        what = f"{self._what} {name}"
        self._report(what, number, total)
        return lambda done, whole: self._report(what, number + (done / whole if whole else 0.0), total)


def outcome(batch: Batch[Any], facts: Facts) -> Facts:
    """Facts of a batch, with the cases that failed; where all did, the first error."""
    failed = {failure.name: failure.message for failure in batch.failures}
    if failed and not batch.results:
        first = next(iter(failed.values()))
        raise Phh3Error(first.rstrip("."), next_step="correct that first, then run it again")
    return facts | ({FAILED: failed} if failed else {})
