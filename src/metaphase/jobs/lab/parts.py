"""What the steps of a laboratory's thread are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from metaphase.base.batch import Batch, BatchWatch, Failure, Progress
from metaphase.base.errors import UsageError
from metaphase.base.tables import phh3_mpp, read_manifest, stated_number
from metaphase.jobs.lab.answers import Asked
from metaphase.jobs.lab.folder import Lab
from metaphase.jobs.stages import Facts, Report, Stage
from metaphase.labels.phh3.config import Phh3Error
from metaphase.slides import SlideSource

PATCHES_PER_S = {"cpu": 60.0, "cuda": 10_000.0}
"""Trained patches a second, roughly, before any was measured."""
CUT_SHARE = "failed"
"""Fact of a step: cases that could not be done, the others went on."""


@dataclass(frozen=True)
class Step:
    """One step of the thread."""

    stage: Stage
    pages: Callable[[], list[Asked]] = field(default=list)
    """What people have to answer before its work; nothing for a step of the machine alone."""
    prepare: Callable[[Report], None] | None = None
    """Makes these pages, unless they are there."""
    seconds: float | None = None
    """Rough time of the work, where it is more than moments."""

    @property
    def by_people(self) -> bool:
        """Whether somebody has to answer."""
        return self.prepare is not None

    @property
    def name(self) -> str:
        """Of the step."""
        return self.stage.name


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
            *(str(row[name]) for name in ("split", "patient", "centre")),
        )
        for row in read_manifest(lab.manifest).to_dict("records")
    )


def inside(lab: Lab, path: Path) -> str:
    """A path as it is called within the folder."""
    return str(path.relative_to(lab.root))


def seconds_of(lab: Lab, patches: float) -> float:
    """What training with so many patches takes, roughly."""
    return patches / PATCHES_PER_S["cuda" if _on_gpu(lab.device) else "cpu"]


def _on_gpu(device: str | None) -> bool:
    import torch

    return torch.cuda.is_available() if device is None else device.startswith("cuda")


def no_answers() -> pd.DataFrame:
    """Before anybody has answered."""
    return pd.DataFrame(columns=["observer", "item", "answer"], dtype=str)


class Reporting(BatchWatch):
    """A batch that tells the step's report how far it is."""

    def __init__(self, what: str, report: Report) -> None:
        self._what, self._report = what, report

    def started(self, name: str, number: int, total: int) -> Progress:
        """An item begins."""
        self._report(f"{self._what} {name}", number, total)
        return lambda *_: None


def outcome(batch: Batch[Any], facts: Facts) -> Facts:
    """Facts of a batch, with the cases that failed; where all did, the first error."""
    failures: list[Failure] = batch.failures
    if failures and not batch.results:
        raise Phh3Error(failures[0].message.rstrip("."), next_step="mend that first, then run it again")
    told = {one.name: one.message for one in failures}
    return facts | ({CUT_SHARE: told} if told else {})
