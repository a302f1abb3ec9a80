"""People's answers about detections: what to look at first, what the count is with them, how they come into
force, and files edited elsewhere as answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import shapely
from scipy.special import expit, logit

from metaphase.analysis.index import write_cohort
from metaphase.analysis.record import INDEX, SlideResult, load_result, load_results, source_of
from metaphase.analysis.slide import apply_answers, reviewed_count
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.files import refuse_link
from metaphase.base.later import pandas as pd
from metaphase.base.sharing.batch import one_at_a_time
from metaphase.base.tables import Remark, named, read_table
from metaphase.counting.clinical import SlideCount, count_slide
from metaphase.counting.hotspot import Hotspot, busiest_circle
from metaphase.counting.region_files import regions_among, write_regions
from metaphase.counting.regions import ANYWHERE, Region, Scope, is_of_region, on_slide
from metaphase.counting.specimen import CountConfig
from metaphase.detections.files import read_detections, result_folders
from metaphase.detections.matching import match, suppress
from metaphase.detections.table import (
    CANDIDATES,
    COUNTED,
    IGNORE,
    LOOKALIKE,
    MITOSIS,
    OPERATING_POINTS,
    REVIEWED,
    SUMMARY,
    DetectionSet,
    file_stem,
)
from metaphase.labels.observers.positions import (
    ANSWERS,
    SAME_UM,
    PositionLog,
    Reviewed,
    mark_name,
    moved_to,
    position_name,
    region_entry,
    reviewed_detections,
)
from metaphase.labels.observers.project import NOT, UNSURE
from metaphase.labels.observers.store import Entry, Given

# ---- what to look at first ----

NEAR_MISS = 0.5
"""In the hotspot, detections from this share of the threshold on are offered before other positions are."""


def review_order(candidates: pd.DataFrame, hotspot: Hotspot, config: CountConfig, mpp: float) -> list[int]:
    """Rows of the detections in the order of review: what the hotspot counts, what it nearly counts, then all
    else by its influence on the count; within each the most doubtful first."""
    positions, probability = candidates[["x", "y"]].to_numpy(float), candidates["probability"].to_numpy(float)
    if not len(positions):
        return []
    inside = hotspot.holds(positions)
    counted = probability >= config.threshold
    near = ~counted & (probability >= NEAR_MISS * config.threshold)
    group = np.select([inside & counted, inside & near], [0, 1], 2)
    company = np.ones(len(positions))  # counted detections within a hotspot's radius, as a share of the most
    if counted.any():
        tree, radius_px = scipy.spatial.cKDTree(positions[counted]), config.radius_um / mpp
        near_by = tree.query_ball_point(positions, radius_px, return_length=True).astype(float)
        company = near_by / max(1.0, near_by.max())
    low, high = 1e-6, 1 - 1e-6
    away = logit(probability.clip(low, high)) - logit(np.clip(config.threshold, low, high))
    doubt = 2 * expit(-np.abs(away))  # 1 at the threshold, falling with the odds on either side
    weight = np.where(group == 2, company, 1.0) * doubt
    return [int(row) for row in np.lexsort((-probability, -weight, group))]


# ---- what the count is with answers ----


def answers_of(result: SlideResult) -> list[Given]:
    """The answers about a slide that stand; none where nobody looked."""
    if not (result.folder / ANSWERS).is_file():
        return []
    with log_of(result) as log:
        return log.current()


def scope_of(result: SlideResult) -> Scope:
    """Where figures of a slide count, as people say now, in force or not."""
    if not (result.folder / ANSWERS).is_file():
        return ANYWHERE
    with log_of(result) as log:
        return log.scope()


def log_of(result: SlideResult) -> PositionLog:
    """The answers about a slide."""
    refuse_link(result.folder, result.folder.parent)
    return PositionLog(result.folder, result.record.width, result.record.height)


def reviewed_result(result: SlideResult, given: Sequence[Given], scope: Scope = ANYWHERE) -> Reviewed:
    """The detections of a slide with answers that stand."""
    about: dict[str, Any] = {"mpp": result.mpp, "threshold": result.counting.threshold, "scope": scope}
    return reviewed_detections(result.name, result.candidates, given, **about)


def count_with(
    result: SlideResult, given: Sequence[Given], config: CountConfig | None = None, scope: Scope = ANYWHERE
) -> tuple[Reviewed, SlideCount]:
    """Detections and count of a slide with answers and a scope, whether they are in force or not."""
    reviewed, config = reviewed_result(result, given, scope), config or result.counting
    site = None if result.site is None else result.site.knowledge(result.name)

    def counted(table: pd.DataFrame, config: CountConfig) -> SlideCount:
        table.attrs[OPERATING_POINTS] = Remark(result.stated)
        about: dict[str, Any] = {
            "config": config,
            "site": site,
            "listed": result.record.detection_threshold,
            "scope": scope,
        }
        return count_slide(table, mpp=result.mpp, tissue=result.tissue, **about)

    machine = result.machine if result.machine.scope == scope else counted(result.candidates, result.counting)
    return reviewed, reviewed_count(counted(reviewed.table, config), machine)


def runner_up(mitoses: pd.DataFrame, count: SlideCount, mpp: float) -> Hotspot | None:
    """The busiest circle of what lies outside the hotspot; None where there is nothing."""
    config, first = count.config, count.hotspot
    positions = mitoses.loc[mitoses["probability"] >= config.threshold, ["x", "y"]].to_numpy(float)
    positions = positions[count.scope.holds(positions)]
    outside = positions[~first.holds(positions)]
    if not len(outside):
        return None
    x_um, y_um, inside = busiest_circle(outside * mpp, config.radius_um, count.scope.shape(mpp))
    return Hotspot(
        x=x_um / mpp,
        y=y_um / mpp,
        radius_px=config.radius_um / mpp,
        count=inside,
        tissue_mm2=config.area_mm2,
    )


# ---- answers put in force, and taken back ----


def apply_reviews(
    paths: Sequence[str | Path],
    failed: Callable[[str], None] | None = None,
    *,
    slides: Path | None = None,
) -> list[SlideResult]:
    """Put what people answered about slides in force, in their files and in index and tables of the cohorts
    that they belong to.

    `failed` hears of slides whose files cannot be used, and the others go on; without it, that is an error.
    `slides` is the folder in which slides lie that have moved.
    """
    done, cohorts, problems = list[SlideResult](), dict[Path, None](), list[MetaphaseError]()
    for path in (Path(path).resolve() for path in paths):
        before, troubled = len(done), len(problems)
        for folder in result_folders(path):
            try:
                refuse_link(folder, folder.parent)
                result = load_result(folder)
                if (folder / ANSWERS).is_file() or result.record.review:
                    with one_at_a_time(folder.parent, folder.name, wait=False):
                        source = source_of(folder, result.record, slides, exact=True)
                        done.append(apply_answers(folder, source))
            except MetaphaseError as error:
                problems.append(error)
        if len(done) > before and not (path / SUMMARY).is_file():
            cohorts[path] = None
        elif len(done) > before and (path.parent / INDEX).is_file():
            cohorts[path.parent] = None
        elif len(done) == before and len(problems) == troubled:
            problems.append(
                UsageError("nobody has reviewed it", path=path, next_step="run metaphase view on it first")
            )
    for cohort in cohorts:
        write_cohort(cohort)
    for problem in problems:
        if failed is None or (not done and isinstance(problem, UsageError)):
            raise problem
        failed(str(problem))
    return done


def withdraw_review(
    paths: Sequence[str | Path], observer: str, *, slides: Path | None = None, apply: bool = True
) -> dict[str, int]:
    """Take back all answers of an observer, and say how many, by slide.

    They stay in the log. Where a review is in force, files and counts are made anew from the answers that
    stand, unless others are to `apply` them; those of a slide that has moved wait until it is found.
    """
    withdrawn, in_force, known = dict[str, int](), list[Path](), set[str]()
    earlier = list[Path]()
    for result in load_results(paths):
        shares = {share.observer.casefold() for share in result.record.review}
        items: list[str] = []
        if (result.folder / ANSWERS).is_file():
            with log_of(result) as log:
                mine, marks = log.current(observer), log.marks(observer)
                known |= {answer.observer for answer in log.current()}
                known |= {mark.observer for mark in log.marks()}
                earlier += [result.folder] if log.known(observer) in log.observers() else []
                items = [answer.item for answer in mine]
                items += [mark_name(mark.kind, mark.x, mark.y) for mark in marks]
                log.record_many(Entry(observer, item, None) for item in items)
        if items or observer.strip().casefold() in shares:
            withdrawn[result.name] = len(items)
            in_force += [result.folder] if result.record.review or result.record.answers else []
    if not withdrawn:
        if apply and earlier:  # a withdrawal may have been stopped before the index was written
            apply_reviews(earlier, slides=slides)
        raise UsageError(
            f"{observer} has no answer in force",
            path=paths[0],
            next_step=f"those who have are {named(sorted(known))}"
            if known
            else "nobody has: check the folder",
        )
    problems = list[str]()
    if apply:
        apply_reviews(in_force, problems.append, slides=slides)
    if problems:
        raise MetaphaseError(f"the answers are withdrawn, and files still speak of them: {problems[0]}")
    return withdrawn


# ---- files edited elsewhere, as a review ----

SINCE = "detection that was decided on after the file was exported"
MOVED_PX = 1.0
"""Positions that differ by no more are the same: some formats have whole pixels only."""


@dataclass(frozen=True)
class Taken:
    """What an edited file says about a slide: only what differs from the exported files is an answer."""

    slide: str
    mitoses: int
    """Detections of the file where figures count, those below the count's threshold included."""
    rejected: int
    """Exported detections that it holds no more, as look-alikes, or no longer as counted."""
    added: int
    accepted: int
    """Mitoses that did not count before."""
    moved: int
    left: dict[str, int] = field(default_factory=dict)
    """What became no answer: added points by their class, and second marks of one figure."""
    regions: int = 0
    """Regions that it holds; where it holds any, they stand in place of all others."""


def import_review(
    results: Sequence[SlideResult], file: str | Path, observer: str, *, complete: bool = False
) -> list[Taken]:
    """Take a file of any known format, edited in another program, as one observer's review.

    What is in the file as it was exported is no answer, unless the review is `complete`: then what counts and
    was left is accepted. Polygons whose class says that figures count there, or do not, are regions; a file
    with nothing else says nothing about detections. Taking a file twice changes nothing.
    """
    names = {result.name: result for result in results}
    only = next(iter(names)) if len(names) == 1 else None
    regions = () if only is None else regions_among(Path(file))
    if only is not None and regions:
        _outline(names[only], regions, observer, Path(file))
    scale = {result.name: result.mpp for result in results}
    points = read_detections(file, mpp=scale[only] if only else scale, slide=only)
    outlined = shapely.union_all([shapely.box(*region.shape.buffer(1).bounds) for region in regions])
    outline = points.table["label"].map(is_of_region).astype(bool)
    outline &= shapely.intersects_xy(outlined, points.table[["x", "y"]].to_numpy(float))
    points = points.with_table(points.table[~outline])
    if only is not None and regions and points.table.empty:
        return [Taken(only, 0, 0, 0, 0, 0, regions=len(regions))]
    if unknown := sorted(set(points.slides) - set(names)):
        raise UsageError(
            f"is about {named(unknown)}, which has no result",
            path=file,
            next_step=f"there are results of {named(sorted(names))}: name the slide's own folder",
        )
    return [
        replace(
            _take(names[slide], points.table[points.table["slide"] == slide], observer, complete),
            regions=len(regions),
        )
        for slide in points.slides
    ]


def _outline(result: SlideResult, regions: Sequence[Region], observer: str, file: Path) -> None:
    """Write the regions of a file in place of those that stand."""
    placed = [on_slide(region, result.record.width, result.record.height, file) for region in regions]
    names = {region.id for region in placed}
    with log_of(result) as log:
        before = log.scope().regions
        gone = [region for region in before if region.id not in names]
        new = [region for region in placed if not any(region.says(other) for other in before)]
        entries = [region_entry(observer, region, there=False) for region in gone]
        log.record_many([*entries, *(region_entry(observer, region) for region in new)])


def export_regions(results: Sequence[SlideResult], path: Path) -> dict[str, int]:
    """Write the regions that people outlined, as one file of a slide or a folder with one each; how many of
    which slide."""
    found = {result.name: scope_of(result).regions for result in results}
    found = {name: regions for name, regions in found.items() if regions}
    is_file = path.suffix.lower() in (".geojson", ".xml")
    if not found or (is_file and len(results) > 1):
        what = f"is one file for {len(results)} slides" if found else "nobody has outlined a region"
        raise UsageError(
            what, path=path, next_step="name a folder" if found else "outline one in metaphase view"
        )
    for name, regions in found.items():
        write_regions(regions, path if is_file else path / f"{file_stem(name)}.geojson")
    return {name: len(regions) for name, regions in found.items()}


def _take(result: SlideResult, points: pd.DataFrame, observer: str, complete: bool) -> Taken:
    """Answers of one slide: by the export that the file is nearest to, with what people had said or without.

    What differs from the other one as well is no answer of this observer.
    """
    exports = [read_table(result.folder / CANDIDATES), *([result.candidates] if result.record.review else ())]
    scopes = dict.fromkeys((result.record.scope, ANYWHERE))  # of now, and of before anybody outlined a region
    read = [_differences(result, points, known, scope, complete) for scope in scopes for known in exports]
    with log_of(result) as log:
        own = [answer for answer in log.current() if answer.observer == log.known(observer)]
        standing = {answer.item: answer.answer for answer in own}
        changed = [dict(answers.items() - standing.items()) for answers, _ in read]
        nearest = min(range(len(read)), key=lambda index: len(changed[index]))
        log.record_many(Entry(observer, item, answer) for item, answer in changed[nearest].items())
    _, taken = read[nearest]
    others = len(changed[0].keys() - changed[nearest].keys()) if nearest else 0
    return replace(taken, left=taken.left | {SINCE: others}) if others else taken


def _differences(
    result: SlideResult, points: pd.DataFrame, known: pd.DataFrame, scope: Scope, complete: bool
) -> tuple[dict[str, str], Taken]:
    """Answers by item: points are matched with what was exported, what counts first, nearest first."""
    positions, found = known[["x", "y"]].to_numpy(float), points[["x", "y"]].to_numpy(float)
    mitosis, probability = (known["label"] == MITOSIS).to_numpy(), known["probability"].to_numpy(float)
    counted = mitosis & (probability >= result.record.operating_points.count.delta) & scope.holds(positions)
    labels, reach_px = points["label"].to_numpy(object), SAME_UM / result.mpp
    counts = (labels == MITOSIS) & (points[COUNTED].ne(False).to_numpy() if COUNTED in points else True)
    partner = match(found, counts.astype(float), positions, reach_px)
    new = counts & (partner < 0)
    figures = np.flatnonzero(counts)  # those that are known first, so that a second mark gives way
    single = figures[suppress(found[figures, 0], found[figures, 1], ~new[figures] * 1.0, reach_px)]
    double = new & ~np.isin(np.arange(len(new)), single)
    first = [*result.candidates[["x", "y"]].to_numpy(float), *positions[len(result.candidates) :]]
    items, now = [position_name(*at) for at in first], [position_name(*at) for at in positions]
    gone = (
        mitosis
        & (probability >= result.record.operating_points.lowest)
        & ~np.isin(np.arange(len(known)), partner)
    )
    answers = {items[row]: NOT for row in np.flatnonzero(gone)}
    answers |= {position_name(*own): MITOSIS for own in found[new & ~double]}
    for label, own, counting, at in zip(labels, found, counts, partner, strict=True):
        if at < 0:
            continue
        if counting:
            moved = np.hypot(*(own - positions[at])) > MOVED_PX
            if complete or moved or not counted[at]:
                answers[items[at]] = moved_to(*own) if moved or items[at] != now[at] else MITOSIS
        elif counted[at] if label == MITOSIS else mitosis[at]:
            answers[items[at]] = UNSURE if label == IGNORE else NOT
    said, none = list(answers.values()), labels[(partner < 0) & ~np.isin(labels, (MITOSIS, LOOKALIKE))]
    left = {f"point of the class {name}": int((none == name).sum()) for name in sorted(set(none))}
    return answers, Taken(
        result.name,
        mitoses=int(((labels == MITOSIS) & scope.holds(found)).sum()),
        rejected=said.count(NOT),
        added=int((new & ~double).sum()),
        accepted=int((counts & (partner >= 0) & ~counted[partner]).sum()) if len(counted) else 0,
        moved=len(said) - sum(said.count(verdict) for verdict in (MITOSIS, NOT, UNSURE)),
        left=left | ({"second mark of a figure": int(double.sum())} if double.any() else {}),
    )


# ---- what people said, as truth ----


def reviewed_truth(results: Sequence[SlideResult]) -> DetectionSet:
    """Mitoses and look-alikes that people decided on, of all slides: what training and evaluation read.

    Detections that nobody looked at are no truth, and are to be ignored there.
    """
    parts = []
    for result in results:
        table = reviewed_result(result, answers_of(result)).table
        decided = table[table[REVIEWED].isin((MITOSIS, NOT))]
        doubtful = table[
            ~table[REVIEWED].isin((MITOSIS, NOT))
            & (table["probability"] >= result.record.operating_points.lowest)
        ]
        parts.append(pd.concat([decided, doubtful.assign(label=IGNORE)], ignore_index=True))
    return DetectionSet(pd.concat(parts, ignore_index=True), tuple(one.name for one in results), "the review")
