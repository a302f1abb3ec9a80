"""People's answers about the detections of slides: what to look at first, what the count is now, and the
files rewritten from what they said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.spatial import cKDTree
from scipy.special import expit, logit

from metaphase.base.errors import (
    MetaphaseError,
    ResultWarning,
    ResultWarnings,
    UsageError,
    read_warnings,
    unique,
)
from metaphase.base.foreign import parsing
from metaphase.base.provenance import fingerprint_of
from metaphase.base.tables import named, read_table
from metaphase.counting.clinical import SlideCount, count_slide, count_warnings, counts_in
from metaphase.counting.hotspot import Hotspot, busiest_circle
from metaphase.counting.specimen import CountConfig
from metaphase.detections.files import read_detections, result_folders
from metaphase.detections.matching import match
from metaphase.detections.table import (
    COUNTED,
    IGNORE,
    LISTED,
    LOOKALIKE,
    MITOSIS,
    REVIEWED,
    REVIEWERS,
    SUMMARY,
    DetectionSet,
)
from metaphase.detections.table import MACHINE as PROBABILITY
from metaphase.jobs.cohort import INDEX, write_cohort
from metaphase.jobs.results import (
    ANSWERED,
    CANDIDATES,
    COUNT_DICOM,
    MACHINE,
    REPORT,
    REVIEW,
    SlideResult,
    formats_in,
    load_result,
    load_results,
    write_summary,
    write_tables,
)
from metaphase.labels.observers.positions import (
    REVIEW as ANSWERS,
)
from metaphase.labels.observers.positions import (
    SAME_UM,
    PositionLog,
    Reviewed,
    Share,
    moved_to,
    position_name,
    reviewed_detections,
)
from metaphase.labels.observers.project import NOT
from metaphase.labels.observers.store import Entry, Given
from metaphase.reports.dicom import write_count
from metaphase.reports.slide import write_slide_report
from metaphase.reports.slide.inputs import ReportInput

# ---- what to look at first ----

NEAR_MISS = 0.5
"""In the hotspot, detections from this share of the threshold on are offered before other positions are."""


def review_order(candidates: pd.DataFrame, hotspot: Hotspot, config: CountConfig, mpp: float) -> list[int]:
    """Rows of the detections in the order of review: what the hotspot counts, what it nearly counts, then all
    else by its influence on the count; within each the most doubtful first."""
    positions, probability = candidates[["x", "y"]].to_numpy(float), candidates["probability"].to_numpy(float)
    if not len(positions):
        return []
    inside = np.hypot(*(positions - (hotspot.x, hotspot.y)).T) <= hotspot.radius_px * (1 + 1e-9)
    counted = probability >= config.threshold
    near = ~counted & (probability >= NEAR_MISS * config.threshold)
    group = np.select([inside & counted, inside & near], [0, 1], 2)
    company = np.ones(len(positions))  # counted detections within a hotspot's radius, as a share of the most
    if counted.any():
        tree, radius_px = cKDTree(positions[counted]), config.radius_um / mpp
        near_by = tree.query_ball_point(positions, radius_px, return_length=True).astype(float)
        company = near_by / max(1.0, near_by.max())
    low, high = 1e-6, 1 - 1e-6
    away = logit(probability.clip(low, high)) - logit(np.clip(config.threshold, low, high))
    doubt = 2 * expit(-np.abs(away))  # 1 at the threshold, falling with the odds on either side
    weight = np.where(group == 2, company, 1.0) * doubt
    return [int(row) for row in np.lexsort((-probability, -weight, group))]


# ---- what the count is now ----


def reviewed_result(result: SlideResult, given: Sequence[Given]) -> Reviewed:
    """The detections of a slide with answers that stand."""
    limit = result.counting.threshold
    return reviewed_detections(result.name, result.candidates, given, mpp=result.mpp, threshold=limit)


def reviewed_count(result: SlideResult, reviewed: Reviewed, config: CountConfig | None = None) -> SlideCount:
    """Count, grade, interval and hotspot of a reviewed slide, by the profile that it was counted by.

    At another threshold, and without draws, no profile holds.
    """
    config = config or result.counting
    holds = config.draws > 0 and config.threshold == result.counting.threshold
    site = result.site.calibration(result.name) if holds and result.site is not None else None
    count = count_slide(reviewed.table, mpp=result.mpp, tissue=result.tissue, config=config, site=site)
    is_reviewed = count.in_force.kind == "reviewed"
    return replace(count, beneath=counts_in(result.machine)) if is_reviewed else count


def answers_key(given: Sequence[Given]) -> str:
    """Tells answers from others."""
    return fingerprint_of([(one.observer, one.item, one.answer) for one in given])


def runner_up(mitoses: pd.DataFrame, count: SlideCount, mpp: float) -> Hotspot | None:
    """The busiest circle of what lies outside the hotspot; None where there is nothing."""
    config, first = count.config, count.hotspot
    positions = mitoses.loc[mitoses["probability"] >= config.threshold, ["x", "y"]].to_numpy(float)
    outside = positions[np.hypot(*(positions - (first.x, first.y)).T) > first.radius_px * (1 + 1e-9)]
    if not len(outside):
        return None
    x_um, y_um, inside = busiest_circle(outside * mpp, config.radius_um)
    return Hotspot(x_um / mpp, y_um / mpp, first.radius_px, inside, config.area_mm2)


# ---- the files of a slide, rewritten from what people said ----


def answers_of(result: SlideResult) -> list[Given]:
    """The answers about a slide that stand; none where nobody looked."""
    if not (result.folder / ANSWERS).is_file():
        return []
    with log_of(result) as log:
        return log.current()


def log_of(result: SlideResult) -> PositionLog:
    """The answers about a slide."""
    return PositionLog(result.folder, int(result.summary["width"]), int(result.summary["height"]))


def apply_review(folder: str | Path) -> SlideResult:
    """Rewrite report, exports and summary of a slide from its detections as people left them.

    The machine's count stays in `count.json` and beside the new one. Done again, it gives the same files.
    Where no answer stands, the result is the machine's, as before the review.
    """
    result = load_result(folder)
    given = answers_of(result)
    if not _is_reviewed(result):
        raise UsageError(
            "nobody has reviewed this slide", path=result.folder, next_step="run metaphase view on it first"
        )
    if not given and REVIEW not in result.summary:
        return result
    again = "run metaphase detect again, into the same folder"
    with parsing(result.folder, "its files contradict each other", next_step=again):
        reviewed = reviewed_result(result, given)
        count = reviewed_count(result, reviewed)
        warnings = (*_warnings(result, reviewed, count), *_left_out(result))
        summary = _summary(result, reviewed, count, warnings)
        summary |= {ANSWERED: answers_key(given)} if reviewed.shares else {}
        _write_tables(result, reviewed)
        _write_report(result, reviewed, count, warnings)
        write_summary(result.folder, summary)
    return SlideResult(result.folder, summary)


def _is_reviewed(result: SlideResult) -> bool:
    """Whether anybody ever began to review a slide."""
    return (result.folder / ANSWERS).is_file() or REVIEW in result.summary


def apply_reviews(
    paths: Sequence[str | Path], failed: Callable[[str], None] | None = None
) -> list[SlideResult]:
    """Put the reviews of slides in force, and rewrite index and tables of the cohorts that they belong to.

    `failed` hears of slides whose files cannot be used, and the others go on; without it, that is an error.
    """
    done, cohorts = list[SlideResult](), set[Path]()
    for path in map(Path, paths):
        before, problems = len(done), 0
        for folder in result_folders(path):
            try:
                if _is_reviewed(load_result(folder)):
                    done.append(apply_review(folder))
            except MetaphaseError as error:
                if failed is None:
                    raise
                problems += 1
                failed(str(error))
        if len(done) == before and not problems:
            raise UsageError("nobody has reviewed it", path=path, next_step="run metaphase view on it first")
        if not (path / SUMMARY).is_file():
            cohorts.add(path)
        elif (path.parent / INDEX).is_file():
            cohorts.add(path.parent)
    for cohort in cohorts:
        write_cohort(cohort)
    return done


def _left_out(result: SlideResult) -> ResultWarnings:
    """A warning where answers stand that are about no position of the slide."""
    if not (result.folder / ANSWERS).is_file():
        return ()
    with log_of(result) as log:
        number = log.left_out()
    text = f"{number} answers are about positions off the slide, or cannot be understood, and do not count"
    return (ResultWarning("answers-left-out", text, "see review.sqlite for who gave them"),) if number else ()


def withdraw_review(paths: Sequence[str | Path], observer: str) -> dict[str, int]:
    """Take back all answers of an observer, and say how many, by slide.

    They stay in the log. Where a review is in force, files and counts are what they are without them.
    """
    withdrawn, in_force, known = dict[str, int](), list[Path](), set[str]()
    for result in (one for one in load_results(paths) if (one.folder / ANSWERS).is_file()):
        with log_of(result) as log:
            mine = log.current(observer)
            known |= {one.observer for one in log.current()}
            log.record_many(Entry(observer, one.item, None) for one in mine)
        if mine:
            withdrawn[result.name] = len(mine)
            in_force += [result.folder] if REVIEW in result.summary else []
    apply_reviews(in_force)
    if not withdrawn:
        raise UsageError(
            f"{observer} has no answer in force",
            path=paths[0],
            next_step=f"those who have are {named(sorted(known))}"
            if known
            else "nobody has: check the folder",
        )
    return withdrawn


def _write_tables(result: SlideResult, reviewed: Reviewed) -> None:
    """What was rejected stays among the candidates, as look-alikes, and is no detection."""
    before = read_table(result.folder / CANDIDATES).iloc[: len(result.candidates)]
    table = (
        reviewed.table if reviewed.shares else reviewed.table.drop(columns=[PROBABILITY, REVIEWED, REVIEWERS])
    )
    known = (*reviewed.table.columns, LISTED, COUNTED)
    table = table.join(before[[name for name in before.columns if name not in known]])
    mitosis = table["label"] == MITOSIS
    for column, point in ((LISTED, "mitoses"), (COUNTED, "count")):
        table[column] = mitosis & (table["probability"] >= result.points[point]["delta"])
    formats = formats_in(result.folder)
    write_tables(
        result.folder,
        result.name,
        table,
        mitosis & (table["probability"] >= result.lowest),
        result.stated,
        formats=formats,
        mpp=result.mpp,
        size_px=(int(result.summary["width"]), int(result.summary["height"])),
        slide=result.source.path if formats else None,
    )


def _write_report(
    result: SlideResult, reviewed: Reviewed, count: SlideCount, warnings: ResultWarnings
) -> None:
    content = ReportInput(
        tissue=result.tissue,
        detections=reviewed.mitoses,
        score=count,
        card=result.summary["model"],
        points=result.points,
        warnings=warnings,
        timings=result.summary["seconds"],
        stain=result.summary["stain"],
        versions=result.summary["versions"],
        name=result.name,
        review=tuple(share_text(share) for share in reviewed.shares),
    )
    with result.source.open() as slide:
        write_slide_report(result.folder / REPORT, slide, content)
    if (result.folder / COUNT_DICOM).exists():
        path = result.folder / COUNT_DICOM
        write_count(path, result.source.path, count.to_dict(), dict(result.points))


def _warnings(result: SlideResult, reviewed: Reviewed, count: SlideCount) -> ResultWarnings:
    """What slide and new count say against the number; the machine's own doubts are gone."""
    facts = result.summary.get(MACHINE, result.summary)
    if not reviewed.shares:
        return read_warnings(facts["warnings"])
    own = read_warnings(result.machine["warnings"])
    of_slide = [warning for warning in read_warnings(facts["warnings"]) if warning not in own]
    return unique((*count_warnings(count), *of_slide))


def _summary(
    result: SlideResult, reviewed: Reviewed, count: SlideCount, warnings: ResultWarnings
) -> dict[str, Any]:
    before = result.summary.get(MACHINE, result.summary)
    machine = {key: before[key] for key in ("detections", "counted", "warnings")}
    if not reviewed.shares:
        people = (REVIEW, MACHINE, ANSWERED)
        kept = {key: value for key, value in result.summary.items() if key not in people}
        return kept | dict(result.machine) | machine
    listed = reviewed.mitoses["probability"] >= result.points["mitoses"]["delta"]
    return {
        **result.summary,
        **count.to_dict(),
        "detections": int(listed.sum()),
        "warnings": [warning.to_dict() for warning in warnings],
        REVIEW: [asdict(share) for share in reviewed.shares],
        MACHINE: machine,
    }


def share_text(share: Share) -> str:
    """What one observer looked at, in a line."""
    part = f" ({share.counted / share.of:.0%})" if share.of else ""
    parts = [
        f"{share.counted} of {share.of} counted detections{part}",
        f"{share.rejected} rejected" if share.rejected else "",
        f"{share.below} below the threshold" if share.below else "",
        f"{share.added} added" if share.added else "",
    ]
    return f"{share.observer}: {', '.join(filter(None, parts))}"


# ---- files edited elsewhere, as a review ----

MOVED_PX = 1.0
"""Positions that differ by no more are the same: some formats have whole pixels only."""


@dataclass(frozen=True)
class Taken:
    """What an edited file said about a slide: only what differs from the exported files is an answer."""

    slide: str
    mitoses: int
    """Detections that the file holds, those below the count's threshold included."""
    rejected: int
    """Exported detections that it holds no more, as look-alikes, or no longer as counted."""
    added: int
    accepted: int
    """Mitoses that did not count before."""
    moved: int


def import_review(
    results: Sequence[SlideResult], file: str | Path, observer: str, *, complete: bool = False
) -> list[Taken]:
    """Take a file of any known format, edited in another program, as one observer's review.

    What is in the file as it was exported is no answer, unless the review is `complete`: then what counts and
    was left is accepted. Taking a file twice changes nothing.
    """
    names = {one.name: one for one in results}
    only = next(iter(names)) if len(names) == 1 else None
    scale = {one.name: one.mpp for one in results}
    points = read_detections(file, mpp=scale[only] if only else scale, slide=only)
    if unknown := sorted(set(points.slides) - set(names)):
        raise UsageError(
            f"is about {named(unknown)}, which has no result",
            path=file,
            next_step=f"there are results of {named(sorted(names))}: name the slide's own folder",
        )
    return [
        _take(names[slide], points.table[points.table["slide"] == slide], observer, complete)
        for slide in points.slides
    ]


def _take(result: SlideResult, points: pd.DataFrame, observer: str, complete: bool) -> Taken:
    """Answers of one slide: points are matched with what was exported, what counts first, nearest first."""
    known = read_table(result.folder / CANDIDATES)
    positions, found = known[["x", "y"]].to_numpy(float), points[["x", "y"]].to_numpy(float)
    mitosis, probability = (known["label"] == MITOSIS).to_numpy(), known["probability"].to_numpy(float)
    counted = mitosis & (probability >= result.points["count"]["delta"])
    labels = points["label"].to_numpy(object)
    counts = (labels == MITOSIS) & (points[COUNTED].ne(False).to_numpy() if COUNTED in points else True)
    partner = match(found, counts.astype(float), positions, SAME_UM / result.mpp)
    first = [*result.candidates[["x", "y"]].to_numpy(float), *positions[len(result.candidates) :]]
    items, now = [position_name(*at) for at in first], [position_name(*at) for at in positions]
    gone = mitosis & (probability >= result.lowest) & ~np.isin(np.arange(len(known)), partner)
    answers = {items[row]: NOT for row in np.flatnonzero(gone)}
    for label, own, counting, at in zip(labels, found, counts, partner, strict=True):
        if at < 0:
            answers |= {position_name(*own): MITOSIS} if counting else {}
        elif counting:
            moved = np.hypot(*(own - positions[at])) > MOVED_PX
            if complete or moved or not counted[at]:
                answers[items[at]] = moved_to(*own) if moved or items[at] != now[at] else MITOSIS
        elif counted[at] if label == MITOSIS else label == LOOKALIKE and mitosis[at]:
            answers[items[at]] = NOT
    with log_of(result) as log:
        standing = {one.item: one.answer for one in log.current() if one.observer == log.known(observer)}
        new = {item: answer for item, answer in answers.items() if standing.get(item) != answer}
        log.record_many(Entry(observer, item, answer) for item, answer in new.items())
    said = list(answers.values())
    return Taken(
        result.name,
        mitoses=int((labels == MITOSIS).sum()),
        rejected=said.count(NOT),
        added=int((counts & (partner < 0)).sum()),
        accepted=int((counts & (partner >= 0) & ~counted[partner]).sum()) if len(counted) else 0,
        moved=len(said) - said.count(NOT) - said.count(MITOSIS),
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
        doubtful = table[~table[REVIEWED].isin((MITOSIS, NOT)) & (table["probability"] >= result.lowest)]
        parts.append(pd.concat([decided, doubtful.assign(label=IGNORE)], ignore_index=True))
    return DetectionSet(pd.concat(parts, ignore_index=True), tuple(one.name for one in results), "the review")
