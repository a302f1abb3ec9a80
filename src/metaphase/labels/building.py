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

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast
from uuid import NAMESPACE_URL, uuid5

import numpy as np
import pandas as pd

from metaphase.base.arrays import Floats
from metaphase.base.errors import UsageError
from metaphase.base.files import explained, write_bytes, write_text
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
    as_text,
    case_folder,
    named,
    phh3_mpp,
    read_manifest,
    read_table,
    stated_number,
    write_manifest,
    write_table,
)
from metaphase.detections.files import known_formats, read_detections
from metaphase.detections.table import DetectionSet
from metaphase.labels.observers.project import ITEMS, SETTINGS, Answer, Project, Settings, load_project
from metaphase.labels.observers.store import AnswerStore, Entry
from metaphase.labels.phh3.candidates import BrownConfig
from metaphase.labels.phh3.cases import read_mitoses, search_case
from metaphase.labels.reference import (
    ACCEPT,
    DECISION_COLUMNS,
    PLACES,
    REJECT,
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
    rows_of,
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


@dataclass(frozen=True)
class Built:
    """A cohort's reference standard."""

    table: pd.DataFrame
    cases: tuple[CaseResult, ...]
    review: Applied

    @property
    def failures(self) -> tuple[CaseResult, ...]:
        """The pairs that gave nothing to rely on."""
        return tuple(one for one in self.cases if one.status in ("failed", "doubtful"))


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
    `points` is a folder or table with the mitoses of each case (see `read_points`). The tables are of all
    cases, those that other processes have built in the workspace among them.
    """
    settings, folder = config or BuildConfig(), manifest.parent
    rows = read_manifest(manifest)
    for case in rows["case"]:
        if case_folder(workspace, case).name == REVIEW:
            raise UsageError(f"a case is called {REVIEW!r}", path=manifest, next_step="give it another name")

    def build(row: Facts, _show: object) -> CaseResult:
        case = str(row["case"])
        if missing := _missing(row):
            return CaseResult(case, "skipped", missing)
        return build_case(_pair(row, folder, points), case_folder(workspace, case), source, settings)

    cases = {str(row["case"]): row for row in _records(rows)}
    outcomes = run_batch(cases, build, workspace, watch, pool).outcomes
    built = {
        case: CaseResult(case, "failed", outcome.message) if isinstance(outcome, Failure) else outcome
        for case, outcome in outcomes.items()
    }
    with one_at_a_time(workspace, "tables", watch):
        results = list(built.values())
        _write_cases(workspace, rows, results)
        return finish_cohort(workspace, results)


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


def finish_cohort(workspace: Path, results: Sequence[CaseResult] | None = None) -> Built:
    """Apply people's decisions to the tables of all cases, and write these and the cohort's table anew."""
    results = read_cases(workspace) if results is None else list(results)
    built = [one.case for one in results if (case_folder(workspace, one.case) / NOTE).is_file()]
    tables = [read_reference(case_folder(workspace, case)) for case in built]
    table = pd.concat([one for one in tables if len(one)] or [empty_reference()], ignore_index=True)
    path = workspace / DECISIONS
    decisions = read_decisions(path) if path.is_file() else pd.DataFrame(columns=list(DECISION_COLUMNS))
    review = apply_decisions(table, decisions)
    for case, before in zip(built, tables, strict=True):
        own = review.table[review.table["case"] == case].reset_index(drop=True)
        if not own.equals(before):
            write_reference(case_folder(workspace, case), own, shapes=True)
    write_reference(workspace, review.table)
    return Built(review.table, tuple(results), review)


def read_cases(workspace: Path) -> list[CaseResult]:
    """What became of each case when the workspace was built."""
    path = workspace / CASES
    if not path.is_file():
        raise ReferenceStandardError(
            "holds no reference standard", path=workspace, next_step="run metaphase reference build first"
        )
    table = read_table(path)
    table = table.assign(reason=as_text(table["reason"]), again=as_text(table["again"]))
    names = [one.name for one in fields(CaseResult)]
    return [CaseResult(**row) for row in _records(table[names])]


def read_pairs(workspace: Path) -> dict[str, Pair]:
    """The pairs of slides of a workspace, by case."""
    read_cases(workspace)
    pairs = {}
    for row in _records(read_table(workspace / CASES)):
        if isinstance(row["he"], str) and isinstance(row["phh3"], str):
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


# ---- manifest and records ----


def _pair(row: Facts, folder: Path, points: Path | None) -> Pair:
    he = SlideSource(Path(row["he"]), stated_number(row, "mpp"))
    phh3 = SlideSource(Path(row["phh3"]), phh3_mpp(row))
    return Pair(str(row["case"]), he, phh3, _points_file(row, folder, points))


def _records(table: pd.DataFrame) -> list[Facts]:
    return cast("list[Facts]", table.to_dict("records"))


def _write_cases(workspace: Path, rows: pd.DataFrame, results: Sequence[CaseResult]) -> None:
    """What became of each case, and the manifest of those fit for training."""
    absolute = {
        name: [str(Path(value).resolve()) if value else "" for value in rows[name]] for name in SLIDES
    }
    slides = rows.assign(**absolute)
    facts = pd.DataFrame([asdict(one) for one in results], columns=[one.name for one in fields(CaseResult)])
    pairs = slides.reindex(columns=["he", "phh3", "mpp", "phh3_mpp"]).rename(columns={"mpp": "he_mpp"})
    pairs["phh3_mpp"] = pairs["phh3_mpp"].fillna(pairs["he_mpp"])
    write_table(workspace / CASES, pd.concat([facts, pairs], axis=1))
    fit = [one.status == "done" for one in results]
    write_manifest(workspace / MANIFEST, slides.drop(columns="points", errors="ignore")[fit])


# ---- what there is to review, and what people decided ----
#
# The project lies in the folder `review` of the workspace, so that decisions are kept and locked as all
# answers are (`metaphase.web.labelling`). An item is named after its case and its places in both slides: a
# point that a new registration has moved is a new item, and nobody's decision is carried to a position they
# have not seen. Items that are no longer in the table stay in the project and are not shown.

Row = dict[str, Any]
CLOSE_UM = 64.0
CLEAR_CONTRAST = 2.0
"""From this contrast on a figure is plain to see in H&E."""
SETTINGS_OF_REVIEW = Settings(
    title="Reference standard",
    question="Is there a mitosis at the mark in H&E?",
    answers=(
        Answer(name=ACCEPT, key="m", label="Mitosis", colour="#e2774a"),
        Answer(name=REJECT, key="n", label="Not a mitosis", colour="#5f97d3"),
    ),
    close_um=CLOSE_UM,
)


@dataclass(frozen=True)
class Review:
    """The points of a workspace and the project that keeps the decisions about them."""

    workspace: Path
    table: pd.DataFrame
    """Points with a position in H&E, the least sure first, with `item` and its `number`."""
    pairs: Mapping[str, Pair]
    project: Project

    @cached_property
    def by_number(self) -> Mapping[int, Row]:
        """Rows of the table by the number that the browser knows."""
        return {int(row["number"]): row for row in _records(self.table)}

    @property
    def order(self) -> list[int]:
        """Numbers of the points in the order in which they are shown."""
        return [int(number) for number in self.table["number"]]


def load_review(workspace: Path, cases: Collection[str] = (), most: int | None = None) -> Review:
    """Bring the project of a workspace up to date and open it, for all cases or for some.

    With `most`, only so many of the least sure points are shown.
    """
    pairs = read_pairs(workspace)
    table = read_reference(workspace)
    if unknown := sorted(set(cases) - set(pairs)):
        raise UsageError(f"there is no case {named(unknown)}", path=workspace, next_step="check --case")
    table = table[table["x"].notna() & table["y"].notna()]
    table = table.assign(item=[item_name(row) for row in _records(table)])
    if table.empty:
        raise ReferenceStandardError("there is no point to review", path=workspace)
    project = _updated(workspace / REVIEW, table, pairs)
    shown = table[table["case"].isin(cases)] if cases else table
    shown = shown.iloc[np.argsort(sureness(shown), kind="stable")[:most]].reset_index(drop=True)
    numbers = [project.by_name[name].number for name in shown["item"]]
    return Review(workspace, shown.assign(number=numbers), pairs, project)


def sureness(table: pd.DataFrame) -> Floats:
    """How sure all agree about each point, from 0 to 1: its place, its PHH3 network, and the eye in H&E."""
    visible = (table["contrast"].fillna(0) / CLEAR_CONTRAST).clip(0, 1)
    return (table["confidence"] * table["probability"] * visible).to_numpy(float)


def item_name(row: Row) -> str:
    """How a point is called; positions to a tenth of a pixel."""
    return " ".join([str(row["case"]), *(f"{row[name]:.1f}" for name in PLACES)])


def _updated(folder: Path, table: pd.DataFrame, pairs: Mapping[str, Pair]) -> Project:
    """The project with the items of the table; earlier ones stay."""
    items = table[["item", "case", *PLACES]].round(dict.fromkeys(PLACES, 1))
    items = items.assign(
        slide=[str(pairs[case].he.path) for case in table["case"]],
        mpp=pd.Series([pairs[case].he.mpp for case in table["case"]], index=table.index, dtype=float),
    ).drop_duplicates("item")
    path = folder / ITEMS
    if path.is_file():
        old = read_table(path)
        gone = old[~old["item"].isin(items["item"])]
        items = pd.concat([items, gone], ignore_index=True) if len(gone) else items
    write_table(path, items)
    write_text(folder / SETTINGS, SETTINGS_OF_REVIEW.model_dump_json(indent=1) + "\n")
    return load_project(folder)


# ---- from the review page's answers to the table of decisions that the reference standard takes ----


def collect_decisions(workspace: Path, elsewhere: Path | None = None) -> pd.DataFrame:
    """Write the decisions of all observers to `decisions.csv` of the workspace, and return them.

    Decisions made `elsewhere` (a CSV) are first taken into the review's own database; taking them twice does
    no harm.
    """
    if elsewhere is not None:
        _take(load_review(workspace), read_decisions(elsewhere), elsewhere)
    folder = workspace / REVIEW
    if not (folder / ITEMS).is_file():
        raise UsageError(
            "nobody has reviewed anything here",
            path=workspace,
            next_step="run metaphase reference review, or give --decisions",
        )
    with AnswerStore(load_project(folder)) as store:
        given = [(one.item, one.answer, one.observer, one.time) for one in store.current()]
    positions = read_table(folder / ITEMS).set_index("item")[["case", *PLACES]]
    found = pd.DataFrame(given, columns=["item", "decision", "observer", "time"]).join(positions, on="item")
    decisions = found.sort_values("time", kind="stable", ignore_index=True)[list(DECISION_COLUMNS)]
    write_table(workspace / DECISIONS, decisions)
    return decisions


def _take(review: Review, decisions: pd.DataFrame, source: Path) -> None:
    """Put decisions into the database; those about points that do not exist are an error."""
    rows = rows_of(review.table, decisions)
    if (rows < 0).any():
        raise UsageError(
            f"row {int((rows < 0).argmax()) + 1} does not match a point of the reference standard",
            path=source,
            next_step="take case, x, y, x_phh3 and y_phh3 from reference.csv",
        )
    items = review.table["item"].to_numpy(object)[rows]
    entries = []
    for item, row in zip(items, decisions[["observer", "decision", "time"]].to_numpy(object), strict=True):
        observer, decision, time = map(str, row)
        identity = uuid5(NAMESPACE_URL, "\0".join((str(item), observer, decision, time)))  # written once
        entries.append(Entry(observer, str(item), decision, time=time, uuid=str(identity)))
    with AnswerStore(review.project) as store:
        store.record_many(entries)
