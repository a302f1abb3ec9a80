"""`metaphase phh3` and `register`: PHH3 slides searched and classified, and one pair of slides registered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from metaphase.base.errors import Cautions, UsageError
from metaphase.base.files import explained
from metaphase.base.foreign import read_json
from metaphase.base.provenance import FileContent, Ingredients
from metaphase.base.sharing.batch import Batch, BatchWatch, Hands, Progress, run_batch, shard_of
from metaphase.base.tables import case_folder, phh3_mpp, read_manifest, read_table
from metaphase.jobs.stages import Facts, Report, Stage, States, run_stages, settled
from metaphase.labels.phh3.cases import search_case
from metaphase.labels.phh3.networks import Classifier, classify_case
from metaphase.labels.phh3.survey import BrownConfig
from metaphase.labels.registration.files import Annotations, register_to_folder
from metaphase.labels.registration.similarity import RegistrationConfig
from metaphase.labels.registration.transform import Transform, load_transform
from metaphase.slides import SlideSource

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
    warnings: Cautions
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
    crew: Hands | None = None,
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

    return _each_case(manifest, workspace, search, shard, watch, crew)


def classify_cohort(
    manifest: str | Path,
    workspace: str | Path,
    classifiers: Sequence[Classifier],
    *,
    shard: str = "",
    watch: BatchWatch | None = None,
    crew: Hands | None = None,
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

    return _each_case(manifest, workspace, classify, shard, watch, crew)


def _each_case(
    manifest: str | Path,
    workspace: str | Path,
    work: Callable[[Phh3Case, Progress], Result],
    shard: str,
    watch: BatchWatch | None,
    crew: Hands | None,
) -> Batch[Result]:
    table = read_manifest(manifest)
    rows = table[table["phh3"] != ""].to_dict("records")
    if not rows:
        raise UsageError("no case has a PHH3 slide", path=manifest, next_step="fill the column phh3")
    cases = {str(row["case"]): _case(row, Path(workspace)) for row in rows}
    return run_batch(shard_of(cases, shard), work, Path(workspace), watch, crew)


def _case(row: Mapping[Any, Any], workspace: Path) -> Phh3Case:
    name = str(row["case"])
    slide = SlideSource(Path(str(row["phh3"])), phh3_mpp(row))
    return Phh3Case(name, slide, case_folder(workspace, name))


SUMMARY, TRANSFORM = "summary.json", "transform.json"
OF_POINTS, OF_ANNOTATIONS = ("points.parquet", "points.csv", "points.geojson"), "annotations.geojson"
"""Files of what was given; annotations are left out where the registration cannot be relied on."""


@dataclass(frozen=True)
class PairRegistered(Ingredients, stage="registration", schema=3):
    """What decides the registration of a pair, and what is carried over with it."""

    he: SlideSource
    phh3: SlideSource
    points: FileContent | None
    annotations: FileContent | None
    drawn_on: str
    config: RegistrationConfig
    accept_doubtful: bool = False


@dataclass(frozen=True, eq=False)
class Registered:
    """The folder of a pair, as `metaphase register` left it."""

    folder: Path
    summary: Mapping[str, Any] = field(repr=False)

    @property
    def verdict(self) -> str:
        """`reliable`, `doubtful` or `failed`; the summary's `reasons` tell why."""
        return str(self.summary["verdict"])

    @cached_property
    def transform(self) -> Transform:
        """Places of one slide on the other, in level-0 pixels: `phh3_to_he` and `he_to_phh3`."""
        return load_transform(self.folder / TRANSFORM)

    @cached_property
    def points(self) -> pd.DataFrame:
        """The points that were given, in H&E coordinates, with their confidence; rejected ones are empty."""
        return read_table(self.folder / OF_POINTS[0])


def register_slides(
    he: SlideSource,
    phh3: SlideSource,
    folder: str | Path,
    *,
    points: str | Path | None = None,
    annotations: Annotations | None = None,
    config: RegistrationConfig | None = None,
    accept_doubtful: bool = False,
) -> tuple[dict[str, Any], States]:
    """Register a pair into `folder` unless that is done; returns the summary, and whether there was work.

    The files are those of `metaphase.labels.registration.register_to_folder`.
    """
    folder, config = Path(folder), config or RegistrationConfig()

    def work(_report: Report) -> Facts:
        for name in (*OF_POINTS, OF_ANNOTATIONS):
            with explained(folder / name):
                (folder / name).unlink(missing_ok=True)
        with he.open() as first, phh3.open() as second:
            summary = register_to_folder(
                first,
                second,
                folder,
                points=points,
                annotations=annotations,
                config=config,
                accept_doubtful=accept_doubtful,
            )
        return {"verdict": summary["verdict"]}

    made_from = PairRegistered(
        he,
        phh3,
        None if points is None else FileContent(Path(points)),
        None if annotations is None else FileContent(annotations.path),
        "" if annotations is None else annotations.drawn_on,
        config,
        accept_doubtful,
    )
    writes = (SUMMARY, TRANSFORM, "registration.png", *(OF_POINTS if points is not None else ()))
    stage = Stage("registration", "PHH3 onto H&E", (), writes, work, made_from, sealed=True)
    states = settled(run_stages([stage], folder))
    return read_json(folder / SUMMARY, "no registration", next_step="remove it, and run it again"), states
