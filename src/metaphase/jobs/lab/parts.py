"""What the steps of a laboratory's thread are made of."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metaphase.base.errors import UsageError
from metaphase.base.files import write_text
from metaphase.base.foreign import read_json
from metaphase.base.sharing.batch import Batch, BatchWatch, Failure, Progress, brief_time
from metaphase.base.tables import phh3_mpp, read_manifest, stated_number
from metaphase.jobs.lab.answers import Asked
from metaphase.jobs.lab.folder import Lab
from metaphase.jobs.rates import training_rate
from metaphase.jobs.stages import Facts, Report, Stage
from metaphase.labels.phh3.survey import Phh3Error
from metaphase.networks.cards import PATCH_PX, NetworkSpec
from metaphase.networks.training.windows import WINDOW_PX
from metaphase.slides import SlideSource

PER_S = {"cpu": (60.0, 2.0), "cuda": (10_000.0, 500.0)}
"""Trained patches and windows a second, roughly, before any was measured."""
SEARCH_WINDOWS_PER_MM2, DETECT_WINDOWS_PER_MM2 = 90, 25
"""Asking both networks about all of a square millimetre, and searching it as `metaphase detect` does, takes
as long as training with so many windows, roughly."""
MEASURED = ((32, PATCH_PX), (4, WINDOW_PX))
"""Batch and side of the images with which a rate is measured: patches of one network, windows of a pair."""
ENOUGH_SHARE = 0.03
"""Of a step, before its own speed tells how long it takes."""
Specs = Sequence[NetworkSpec]
CUT_SHARE = "failed"
"""Fact of a step: cases that could not be done, the others went on."""


@dataclass(frozen=True)
class Step:
    """One step of the thread."""

    stage: Stage
    pages: Sequence[Asked] = ()
    """What people have to answer before its work; nothing for a step of the machine alone."""
    prepare: Callable[[Report], None] | None = None
    """Makes these pages, unless they are there."""
    seconds: float | None = None
    """Rough time of the work, where it is more than moments."""
    shows: tuple[str, ...] = ()
    """Files that people may want to open, beside those that it writes."""

    @property
    def by_people(self) -> bool:
        """Whether somebody has to answer."""
        return self.prepare is not None

    @property
    def name(self) -> str:
        """Of the step."""
        return self.stage.name

    def made(self, root: Path) -> list[str]:
        """The files that it has made, as they are called within the folder."""
        return [name for name in (*self.shows, *self.stage.writes) if (root / name).is_file()]


@dataclass(frozen=True)
class StepProgress:
    """How far a step is."""

    step: str
    what: str
    share: float
    seconds_left: float | None
    """None before anything tells."""

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", about {brief_time(self.seconds_left)} left"
        return f"{self.what}: {self.share:.0%}{left}"


class Pacer:
    """How long a step will still take: as expected and, once enough of it is done, at its own speed."""

    def __init__(self, expected_s: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._expected_s, self._clock = expected_s, clock
        self._first: tuple[float, float] | None = None

    def seconds_left(self, share: float) -> float | None:
        """From the share that is done now; None where nothing tells, or it takes longer than expected."""
        now = self._clock()
        if self._first is None or share < self._first[1]:
            self._first = now, share
        begun, before = self._first
        if share - before >= ENOUGH_SHARE:
            return (now - begun) / (share - before) * (1 - share)
        left = (self._expected_s or 0.0) * (1 - before) - (now - begun)
        return left if left > 0 else None


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


def seconds_of(lab: Lab, specs: Specs, images: float) -> float:
    """What training with so many patches or windows takes: as this machine was measured, else roughly."""
    name, device = _measured_as(lab, specs)
    return images / measured_rates(lab).get(name, PER_S[device][len(specs) > 1])


def measured_rates(lab: Lab) -> dict[str, float]:
    """Images a second by machine, device and network, as far as they were measured."""
    if not lab.rates.is_file():
        return {}
    found = read_json(lab.rates, "holds no rates", next_step="remove it")
    return {name: float(rate) for name, rate in found.items()}


def measure_rate(lab: Lab, specs: Specs, told: Callable[[str], None]) -> None:
    """Measure how fast this machine trains networks, unless that is known: the work of seconds."""
    (name, device), known = _measured_as(lab, specs), measured_rates(lab)
    if name not in known:
        families = " and ".join(spec.family for spec in specs)
        told(f"measuring how fast this machine trains networks ({families}, {device})")
        rates = known | {name: round(training_rate(specs, *MEASURED[len(specs) > 1], device), 2)}
        write_text(lab.rates, json.dumps(rates, indent=1) + "\n")


def _measured_as(lab: Lab, specs: Specs) -> tuple[str, str]:
    """What a measurement is called, and the device that it is of."""
    import torch

    on_gpu = torch.cuda.is_available() if lab.device is None else lab.device.startswith("cuda")
    device = "cuda" if on_gpu else "cpu"
    networks = " and ".join(f"{spec.family} {spec.gamma:g}" for spec in specs)
    return f"{platform.node()} {device} {networks}", device


def in_parts(report: Report, *seconds: float) -> list[Report]:
    """A report for each part of a step; together they count the seconds that are expected of all parts."""

    def part(number: int) -> Report:
        def tell(what: str, done: float, total: float) -> None:
            share = min(1.0, done / total) if total > 0 else 0.0
            report(what, sum(seconds[:number]) + share * seconds[number], sum(seconds))

        return tell

    return [part(number) for number in range(len(seconds))]


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
    failures: list[Failure] = batch.failures
    if failures and not batch.results:
        raise Phh3Error(failures[0].message.rstrip("."), next_step="mend that first, then run it again")
    told = {one.name: one.message for one in failures}
    return facts | ({CUT_SHARE: told} if told else {})
