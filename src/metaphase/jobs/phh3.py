"""`metaphase phh3`: the PHH3 slides of a cohort, searched for candidates and classified."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from metaphase.base.errors import ResultWarnings, UsageError
from metaphase.base.sharing.batch import Batch, BatchWatch, Progress, Workers, run_batch, shard_of
from metaphase.base.tables import case_folder, phh3_mpp, read_manifest
from metaphase.labels.phh3.cases import search_case
from metaphase.labels.phh3.networks import Classifier, classify_case
from metaphase.labels.phh3.survey import BrownConfig
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
class Phh3Searched:
    """What the search of a case found."""

    case: str
    candidates: int
    picture: Path
    warnings: ResultWarnings
    reason: str
    """Why it was searched; empty where an earlier run had done it."""

    @property
    def resumed(self) -> bool:
        """Whether an earlier run had done it."""
        return not self.reason


@dataclass(frozen=True)
class Phh3Classified:
    """What the networks said about the candidates of a case."""

    case: str
    candidates: int
    counts: Mapping[str, int]
    """Objects and mitoses, where their networks have spoken."""
    reused: bool


def search_cohort(
    manifest: str | Path,
    workspace: str | Path,
    config: BrownConfig | None = None,
    *,
    force: bool = False,
    shard: str = "",
    watch: BatchWatch | None = None,
    pool: Workers | None = None,
) -> Batch[Phh3Searched]:
    """Find every brown object of the PHH3 slides; finished slides are skipped, bad ones recorded."""

    def search(case: Phh3Case, progress: Progress) -> Phh3Searched:
        found = search_case(
            case.slide.path,
            case.folder,
            config or BrownConfig(),
            mpp=case.slide.mpp,
            force=force,
            progress=progress,
        )
        return Phh3Searched(case.name, len(found.table), found.picture, found.warnings, found.reason)

    return _each_case(manifest, workspace, search, shard, watch, pool)


def classify_cohort(
    manifest: str | Path,
    workspace: str | Path,
    classifiers: Sequence[Classifier],
    *,
    shard: str = "",
    watch: BatchWatch | None = None,
    pool: Workers | None = None,
) -> Batch[Phh3Classified]:
    """Ask the networks about every candidate; with CNN2, write each slide's mitoses."""

    def classify(case: Phh3Case, progress: Progress) -> Phh3Classified:
        answers, fresh = classify_case(
            case.slide.path,
            case.folder,
            case.name,
            list(classifiers),
            mpp=case.slide.mpp,
            progress=progress,
        )
        counts = {
            CALLED[name]: int((answers.table[name] >= decision).sum())
            for name, decision in answers.decisions.items()
        }
        return Phh3Classified(case.name, len(answers.table), counts, not fresh)

    return _each_case(manifest, workspace, classify, shard, watch, pool)


def _each_case(
    manifest: str | Path,
    workspace: str | Path,
    work: Callable[[Phh3Case, Progress], Result],
    shard: str,
    watch: BatchWatch | None,
    pool: Workers | None,
) -> Batch[Result]:
    table = read_manifest(manifest)
    rows = table[table["phh3"] != ""].to_dict("records")
    if not rows:
        raise UsageError("no case has a PHH3 slide", path=manifest, next_step="fill the column phh3")
    cases = {str(row["case"]): _case(row, Path(workspace)) for row in rows}
    return run_batch(shard_of(cases, shard), work, Path(workspace), watch, pool)


def _case(row: Mapping[Any, Any], workspace: Path) -> Phh3Case:
    name = str(row["case"])
    slide = SlideSource(Path(str(row["phh3"])), phh3_mpp(row))
    return Phh3Case(name, slide, case_folder(workspace, name))
