"""From a manifest to the reference standard of a cohort: what is missing is made, what is there is kept.

A case's folder in the workspace holds the files of `metaphase.labels.phh3` (where networks find its mitoses)
and

    placed.parquet, .json                      points in H&E coordinates with what was measured there
    transform.json                             the map between the slides, with the verdict
    registration.png                           how well they fit
    reference.parquet, .csv, .geojson, .json   the decision about each point, and how it came about

The workspace itself holds `reference.parquet` and `.csv` of all cases, `cases.csv` (what became of each),
`manifest.csv` (cases fit for training), `errors.log`, and `decisions.csv` once people have reviewed points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

import pandas as pd

from metaphase.base.errors import UsageError
from metaphase.base.files import explained, write_bytes
from metaphase.base.provenance import Ingredients, facts_of
from metaphase.base.settings import settings
from metaphase.base.sharing.batch import (
    BatchWatch,
    Failure,
    Workers,
    one_at_a_time,
    run_batch,
)
from metaphase.base.stages import Facts
from metaphase.base.tables import (
    case_folder,
    phh3_mpp,
    read_manifest,
    read_table,
    stated_number,
    write_manifest,
    write_table,
)
from metaphase.detections.files import known_formats, read_detections
from metaphase.detections.table import DetectionSet
from metaphase.labels.phh3.candidates import BrownConfig
from metaphase.labels.phh3.cases import read_mitoses, search_case
from metaphase.labels.reference import (
    DECISION_COLUMNS,
    Applied,
    PlacedPoints,
    ReferenceConfig,
    ReferenceStandardError,
    VisibilityConfig,
    apply_decisions,
    decide,
    empty_reference,
    place_points,
    read_decisions,
    read_reference,
    write_reference,
)
from metaphase.labels.registration.outputs import PICTURE, TRANSFORM, draw_registration
from metaphase.labels.registration.similarity import RegistrationConfig
from metaphase.labels.registration.transform import save_transform
from metaphase.slides.opening import SlideSource

PLACED, PLACED_NOTE, NOTE = "placed.parquet", "placed.json", "reference.json"
CASES, MANIFEST, DECISIONS = "cases.csv", "manifest.csv", "decisions.csv"
SLIDES = ("he", "phh3")
"""Columns of the tables of cases."""
REVIEW = "review"
"""Folder of the workspace in which the review page keeps its answers."""
Status = Literal["done", "doubtful", "failed", "skipped"]
"""`doubtful`: registered, but not well enough to accept its points. `skipped`: not a pair of slides."""


@settings
class BuildConfig:
    """Settings of the whole chain, one group a step."""

    candidates: BrownConfig = field(default_factory=BrownConfig)
    registration: RegistrationConfig = field(default_factory=RegistrationConfig)
    visibility: VisibilityConfig = field(default_factory=VisibilityConfig)
    reference: ReferenceConfig = field(default_factory=ReferenceConfig)


@dataclass(frozen=True)
class Pair:
    """The two slides of a case."""

    case: str
    he: SlideSource
    phh3: SlideSource
    points: Path | None = None
    """File with the mitoses of the PHH3 slide, where they do not come from our networks."""


@dataclass(frozen=True, eq=False)
class PointsPlaced(Ingredients, stage="placed points", schema=3):
    """What decides where the points of a PHH3 slide lie in H&E."""

    he: SlideSource
    phh3: SlideSource
    points: pd.DataFrame
    registration: RegistrationConfig
    visibility: VisibilityConfig


@dataclass(frozen=True, eq=False)
class ReferenceDecided(Ingredients, stage="reference standard"):
    """What decides which of them are accepted."""

    placed: PointsPlaced
    reference: ReferenceConfig


PointSource = Callable[[Pair, Path, BuildConfig], DetectionSet]
"""Finds the mitoses of a pair's PHH3 slide; may keep files in the case's folder."""


@dataclass(frozen=True)
class CaseResult:
    """What became of a case."""

    case: str
    status: Status
    reason: str = ""
    points: int = 0
    accepted: int = 0
    again: str = ""
    """Why it was registered; empty where an earlier run had done it."""


CASE_COLUMNS = [column.name for column in fields(CaseResult)]


@dataclass(frozen=True)
class Built:
    """A cohort's reference standard."""

    table: pd.DataFrame
    cases: tuple[CaseResult, ...]

    @property
    def failures(self) -> tuple[CaseResult, ...]:
        """The pairs that gave nothing to rely on."""
        return tuple(case for case in self.cases if case.status in ("failed", "doubtful"))


def build_cohort(
    manifest: Path,
    workspace: Path,
    source: PointSource,
    config: BuildConfig | None = None,
    *,
    points: Path | None = None,
    watch: BatchWatch | None = None,
    pool: Workers | None = None,
) -> Built:
    """Build the reference standard of every pair in a manifest; a bad pair is noted and the others go on.

    Points that were registered before, from the same slides with the same settings, are not registered again.
    `points` is a folder or table with the mitoses of each case (see `given_points`). The tables are of all
    cases, those that other processes have built in the workspace among them.
    """
    settings, rows = config or BuildConfig(), read_manifest(manifest)
    for case in rows["case"]:
        if case_folder(workspace, case).name == REVIEW:
            raise UsageError(f"a case is called {REVIEW!r}", path=manifest, next_step="give it another name")

    def build(row: Facts, _show: object) -> CaseResult:
        if missing := _missing(row):
            return CaseResult(row["case"], "skipped", missing)
        he = SlideSource(Path(row["he"]), stated_number(row, "mpp"))
        phh3 = SlideSource(Path(row["phh3"]), phh3_mpp(row))
        pair = Pair(row["case"], he, phh3, _points_file(row, manifest.parent, points))
        return build_case(pair, case_folder(workspace, pair.case), source, settings)

    cases = {row["case"]: row for row in _records(rows)}
    outcomes = run_batch(cases, build, workspace, watch, pool).outcomes
    results = [
        CaseResult(case, "failed", outcome.message) if isinstance(outcome, Failure) else outcome
        for case, outcome in outcomes.items()
    ]
    with one_at_a_time(workspace, "tables", watch):
        _write_cases(workspace, rows, results)
        return Built(finish_cohort(workspace).table, tuple(results))


def _missing(row: Facts) -> str:
    """What a row lacks of a pair of slides."""
    missing = [name for name, key in (("H&E", "he"), ("PHH3", "phh3")) if not row[key]]
    return f"the manifest names no {' and no '.join(missing)} slide" if missing else ""


def build_case(pair: Pair, folder: Path, source: PointSource, config: BuildConfig) -> CaseResult:
    """The reference standard of one pair, into its folder; what an earlier run finished is kept."""
    with explained(folder / NOTE):
        (folder / NOTE).unlink(missing_ok=True)
    found = source(pair, folder, config)
    names = [name for name in ("x", "y", "probability", "candidate") if name in found.table.columns]
    record = PointsPlaced(pair.he, pair.phh3, found.table[names], config.registration, config.visibility)
    there = all((folder / name).is_file() for name in (PLACED, TRANSFORM, PICTURE))
    again = record.why(folder / PLACED_NOTE) or ("" if there else "a file of it is gone")
    if again:
        _register(pair, folder, found, config, record)
    placed = facts_of(folder / PLACED_NOTE)
    table = decide(read_table(folder / PLACED), placed["he_mpp"], config.reference)
    write_reference(folder, table, shapes=True)
    status, reason = _status(placed["verdict"], config.reference)
    facts = {"verdict": placed["verdict"], "status": status, "reason": reason}
    ReferenceDecided(record, config.reference).write(folder / NOTE, facts)
    return CaseResult(pair.case, status, reason, len(table), int(table["accepted"].sum()), again)


def _register(
    pair: Pair, folder: Path, found: DetectionSet, config: BuildConfig, record: PointsPlaced
) -> None:
    """Register the pair and write what came out, the note last."""
    with pair.he.open() as he, pair.phh3.open() as phh3:
        placement: PlacedPoints = place_points(
            he, phh3, found, pair.case, registration=config.registration, visibility=config.visibility
        )
        registration = placement.registration
        verdict = asdict(registration.verdict)
        facts = {"verdict": verdict, "he_mpp": he.mpp}
        with record.noted(folder / PLACED, facts, note=folder / PLACED_NOTE):
            save_transform(folder / TRANSFORM, registration.transform, verdict=verdict)
            write_bytes(folder / PICTURE, draw_registration(registration, placement.points))
            write_table(folder / PLACED, placement.table)


def _status(verdict: Facts, config: ReferenceConfig) -> tuple[Status, str]:
    reason = "; ".join(verdict["reasons"])
    if verdict["status"] == "doubtful" and (config.accept_doubtful or config.keep == "all"):
        return "done", f"used despite doubts: {reason}"
    return ("done", "") if verdict["status"] == "reliable" else (verdict["status"], reason)


def finish_cohort(workspace: Path) -> Applied:
    """Apply people's decisions to the tables of all cases, and write these and the cohort's table anew."""
    folders = {case: case_folder(workspace, case) for case in _read_cases(workspace)["case"]}
    tables = {case: read_reference(folder) for case, folder in folders.items() if (folder / NOTE).is_file()}
    filled = [table for table in tables.values() if len(table)]
    path = workspace / DECISIONS
    decisions = read_decisions(path) if path.is_file() else pd.DataFrame(columns=list(DECISION_COLUMNS))
    review = apply_decisions(pd.concat(filled or [empty_reference()], ignore_index=True), decisions)
    for case, before in tables.items():
        own = review.table[review.table["case"] == case].reset_index(drop=True)
        if not own.equals(before):
            write_reference(folders[case], own, shapes=True)
    write_reference(workspace, review.table)
    return review


def _read_cases(workspace: Path) -> pd.DataFrame:
    """What became of each case when the workspace was built."""
    path = workspace / CASES
    if not path.is_file():
        raise ReferenceStandardError(
            "holds no reference standard", path=workspace, next_step="run metaphase reference build first"
        )
    return read_table(path)


def read_pairs(workspace: Path) -> dict[str, Pair]:
    """The pairs of slides of a workspace, by case."""
    pairs = {}
    for row in _records(_read_cases(workspace).dropna(subset=["he", "phh3"])):
        he, phh3 = (SlideSource(Path(row[name]), stated_number(row, f"{name}_mpp")) for name in SLIDES)
        pairs[row["case"]] = Pair(row["case"], he, phh3)
    return pairs


# ---- where the points come from ----


def point_source(
    manifest: Path, points: Path | None, models: Mapping[str, Path], device: str | None = None
) -> PointSource:
    """Points of another tool (given, or in the manifest), those of CNN1 and CNN2, or what is there."""
    if points is not None or "points" in read_manifest(manifest).columns:
        if models:
            raise UsageError("both models and points are given", next_step="give one of them")
        if points is not None and not points.exists():
            raise UsageError("no such file or folder", path=points, next_step="check --points")
        return given_points
    if "cnn1" in models and "cnn2" not in models:
        raise UsageError("CNN1 alone finds no mitoses", next_step="give --cnn2, too")
    if not models:
        return network_points(())
    from metaphase.labels.phh3.networks import load_classifier

    return network_points([load_classifier(name, path, device) for name, path in models.items()])


def network_points(classifiers: Sequence[Any]) -> PointSource:
    """Candidates scored by CNN1 and CNN2 (`phh3.classification.Classifier`); without them, what is there."""

    def found(pair: Pair, folder: Path, config: BuildConfig) -> DetectionSet:
        if classifiers:
            from metaphase.labels.phh3.networks import classify_case

            search_case(pair.phh3, folder, config.candidates)
            classify_case(pair.phh3, folder, pair.case, classifiers)
        return DetectionSet(read_mitoses(folder), (pair.case,), str(folder))

    return found


def given_points(pair: Pair, folder: Path, config: BuildConfig) -> DetectionSet:  # noqa: ARG001 -- a PointSource
    """The points of a file of any detection format; of several labels, the mitoses."""
    if pair.points is None:
        raise ReferenceStandardError(
            f"there are no points of case {pair.case}",
            next_step="fill the column points of the manifest, or add a file named after the case",
        )
    with pair.phh3.open() as slide:
        found = read_detections(pair.points, mpp=slide.mpp, slide=pair.case).of_label("mitosis")
    names = {pair.case} if len(found.slides) > 1 else {pair.case, pair.phh3.path.stem, pair.phh3.path.name}
    if names.isdisjoint(found.slides):
        raise ReferenceStandardError(
            f"has no row for case {pair.case}",
            path=pair.points,
            next_step="name the cases in a column slide; empty x and y mean that nothing was found",
        )
    own = found.table[found.table["slide"].isin(names)].reset_index(drop=True)
    return replace(found, table=own, slides=(pair.case,))


def _points_file(row: Facts, folder: Path, points: Path | None) -> Path | None:
    """A case's points: its own manifest column first, else its file in a folder, else the table of all."""
    own = row.get("points")
    if isinstance(own, str) and own:
        return folder / own
    if points is None or not points.is_dir():
        return points
    suffixes = {suffix for known in known_formats().values() for suffix in known.suffixes}
    files = sorted(path for path in points.iterdir() if path.suffix.lower() in suffixes)
    return next((path for path in files if path.stem == row["case"]), None)


def _records(table: pd.DataFrame) -> list[Facts]:
    return cast("list[Facts]", table.to_dict("records"))


def _write_cases(workspace: Path, rows: pd.DataFrame, results: Sequence[CaseResult]) -> None:
    """What became of each case, and the manifest of those fit for training."""
    slides = rows.assign(
        **{name: [str(Path(value).resolve()) if value else "" for value in rows[name]] for name in SLIDES}
    )
    facts = pd.DataFrame([asdict(result) for result in results], columns=CASE_COLUMNS)
    pairs = slides.reindex(columns=["he", "phh3", "mpp", "phh3_mpp"]).rename(columns={"mpp": "he_mpp"})
    pairs["phh3_mpp"] = pairs["phh3_mpp"].fillna(pairs["he_mpp"])
    write_table(workspace / CASES, pd.concat([facts, pairs], axis=1))
    fit = (facts["status"] == "done").to_numpy()
    write_manifest(workspace / MANIFEST, slides.drop(columns="points", errors="ignore")[fit])
