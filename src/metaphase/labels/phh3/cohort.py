"""`metaphase phh3`: the PHH3 slides of a cohort, searched for candidates and classified."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from metaphase.base.errors import UsageError
from metaphase.base.sharing.batch import Batch, BatchWatch, Progress, Workers, run_batch
from metaphase.base.tables import case_folder, phh3_mpp, read_manifest
from metaphase.labels.phh3.candidates import BrownConfig
from metaphase.labels.phh3.cases import SearchedCase, search_case
from metaphase.labels.phh3.networks import Classifier, classify_case
from metaphase.slides.opening import SlideSource

Result = TypeVar("Result")
CALLED = {"cnn1": "objects", "cnn2": "mitoses"}
"""What the candidates are that a network says yes to."""


@dataclass(frozen=True)
class Phh3Case:
    """A case's PHH3 slide and its folder in the workspace."""

    name: str
    slide: SlideSource
    folder: Path


@dataclass(frozen=True)
class Phh3Classified:
    """What the networks said about the candidates of a case."""

    candidates: int
    counts: Mapping[str, int]
    """Objects and mitoses, where their networks have spoken."""
    reused: bool


def search_cohort(
    manifest: Path,
    workspace: Path,
    config: BrownConfig | None = None,
    *,
    force: bool = False,
    watch: BatchWatch | None = None,
    pool: Workers | None = None,
) -> Batch[SearchedCase]:
    """Find every brown object of the PHH3 slides; finished slides are skipped, bad ones recorded."""
    settings = config or BrownConfig()

    def search(case: Phh3Case, progress: Progress) -> SearchedCase:
        return search_case(case.slide, case.folder, settings, force=force, progress=progress)

    return _each_case(manifest, workspace, search, watch, pool)


def classify_cohort(
    manifest: Path,
    workspace: Path,
    classifiers: Sequence[Classifier],
    *,
    watch: BatchWatch | None = None,
    pool: Workers | None = None,
) -> Batch[Phh3Classified]:
    """Ask the networks about every candidate; with CNN2, write each slide's mitoses."""

    def classify(case: Phh3Case, progress: Progress) -> Phh3Classified:
        answers, fresh = classify_case(case.slide, case.folder, case.name, classifiers, progress)
        counts = {
            CALLED[name]: int((answers.table[name] >= decision).sum())
            for name, decision in answers.decisions.items()
        }
        return Phh3Classified(len(answers.table), counts, not fresh)

    return _each_case(manifest, workspace, classify, watch, pool)


def _each_case(
    manifest: Path,
    workspace: Path,
    work: Callable[[Phh3Case, Progress], Result],
    watch: BatchWatch | None,
    pool: Workers | None,
) -> Batch[Result]:
    table = read_manifest(manifest)
    rows = table[table["phh3"] != ""].to_dict("records")
    if not rows:
        raise UsageError("no case has a PHH3 slide", path=manifest, next_step="fill the column phh3")
    cases = {}
    for row in rows:
        name, slide = str(row["case"]), SlideSource(Path(str(row["phh3"])), phh3_mpp(row))
        cases[name] = Phh3Case(name, slide, case_folder(workspace, name))
    return run_batch(cases, work, workspace, watch, pool)
