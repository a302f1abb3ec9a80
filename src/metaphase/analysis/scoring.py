"""`metaphase score`: from anybody's detections to the mitotic count, grade and proliferation score."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from metaphase.analysis.record import AGAIN, SITE, SlideResult, load_results
from metaphase.base.errors import ResultWarning, ResultWarnings, UsageError, unique
from metaphase.base.foreign import is_file, parsing
from metaphase.base.later import pandas as pd
from metaphase.base.sharing.batch import Batch, BatchWatch, Failure, run_batch
from metaphase.base.tables import TableError, as_text, case_folder, flat_case, named, read_table
from metaphase.counting.clinical import SlideCount, count_slide, counts_table, proliferation_score
from metaphase.counting.regions import ANYWHERE, Scope
from metaphase.counting.sites import SiteProfile, load_profile
from metaphase.counting.specimen import CountConfig, at_point, specimen, stated_share
from metaphase.detections.files import detection_files, joined, read_detections, result_folders
from metaphase.detections.points import UNTUNED, OperatingPoint, changed_point, plain_point
from metaphase.detections.table import (
    CANDIDATES,
    COUNTED,
    IGNORE,
    LOOKALIKE,
    MITOSIS,
    OPERATING_POINTS,
    REVIEWED,
    DetectionSet,
)
from metaphase.evaluation.comparison import Cohort, cohort_of, load_cohort
from metaphase.evaluation.operating_points import (
    SEARCH,
    load_points,
    read_point,
    read_search,
    read_statement,
    summary_beside,
)
from metaphase.images.tissue.finding import TissueMask, TissueSource, load_tissue
from metaphase.slides.opening import SlideSource, is_slide_there


@dataclass(frozen=True)
class CountedCase:
    """One slide to count on."""

    name: str
    points: pd.DataFrame
    mpp: float
    slide: Path | None
    """Where its tissue can be seen."""
    tissue: TissueSource
    """What says where that is: the mask that `metaphase detect` left beside the table, or the manifest."""
    area_mm2: float | None
    warnings: ResultWarnings = ()
    """What the files of its points held that became no point."""
    listed: float | None = None
    """Probability from which on they are listed, where the files state one."""
    kept_from: float = 0.0
    """Probability from which on they are all there, as far as the files state it."""
    scope: Scope = ANYWHERE
    """Where they count, as results say."""


def tables_in(paths: Iterable[Path]) -> list[Path]:
    """All files of detections that these paths name."""
    return [table for path in paths for table in detection_files(path, every=True)]


def count_point(files: Sequence[Path], card: Path | None = None) -> OperatingPoint:
    """The operating point to count at: that of a card which is given, else that which results of `metaphase
    detect` carry, else the paper's floor. Tables that say what was counted, and not where, are refused."""
    tables = tables_in(files)
    if card is not None:
        point, whole = load_points(card).count, all(table.name == CANDIDATES for table in tables)
        source = f"of {card.name}: {point.source}".rstrip(": ")
        return point.model_copy(update={"source": source, "prior": point.prior if whole else None})
    stated = read_point(tables, "count")
    if stated is None:
        _refuse_counted(tables)
        return UNTUNED.count.model_copy(update={"source": "the paper's floor, because the files state none"})
    model = (read_statement(tables[0]) or {}).get("model")
    source = f"of the model {model}" + (f": {stated.source}" if stated.source else "")
    return stated.model_copy(update={"source": source})


def site_for(site: str | Path | SiteProfile, files: Sequence[Path]) -> SiteProfile:
    """A laboratory's profile, refused where the tables were not made as those it was learned on."""
    profile = site if isinstance(site, SiteProfile) else load_profile(site)
    for table in tables_in(files):
        stated = read_statement(table) or {}
        profile.refuse_other(str(stated.get("model", "nobody knows")), stated.get("searched_with", {}), table)
    return profile


def sites_beside(files: Sequence[Path]) -> dict[str, SiteProfile]:
    """The profiles by which slides were counted whose results are given, by slide."""
    return {
        summary_beside(table)["name"]: load_profile(table.parent / SITE)
        for table in tables_in(files)
        if table.name == CANDIDATES and is_file(table.parent / SITE)
    }


def stored_results(paths: Sequence[Path]) -> list[SlideResult]:
    """The results in folders of `metaphase detect`, whose counts stand; none where other files are given."""
    return load_results(paths) if all(result_folders(path) for path in paths) else []


def _refuse_counted(tables: Sequence[Path]) -> None:
    """Refuse a table that was counted at a point which it does not tell any more."""
    for table in tables:
        if table.suffix.lower() == ".csv" and COUNTED in read_table(table).columns:
            raise UsageError(
                f"its column {COUNTED} says what was counted, but no threshold is stated",
                path=table,
                next_step="give --card or --threshold, or the Parquet table of the same results",
            )


def count_points(
    files: Sequence[Path],
    card: Path | None = None,
    thresholds: Sequence[float] = (),
    *,
    theta1: float | None = None,
    theta2: float | None = None,
) -> list[OperatingPoint]:
    """The points to count at: one, or one a threshold that is given."""
    try:
        own = count_point(files, card)
    except (UsageError, TableError):  # what tables state does not matter where a threshold is given
        if not thresholds or card is not None:
            raise
        own = UNTUNED.count
    deltas: Sequence[float | None] = thresholds or (None,)
    return [changed_point(own, delta=delta, theta1=theta1, theta2=theta2) for delta in deltas]


def stated_counts(
    counts: Sequence[tuple[str, SlideCount]], points: Sequence[OperatingPoint], files: Sequence[Path] = ()
) -> pd.DataFrame:
    """The table of counts; one at a single operating point carries it, with the cases it was tuned on. All
    carry how the detections in `files` were searched for."""
    table = counts_table(counts)
    table.attrs[SEARCH] = read_search(tables_in(files))
    if len(points) == 1:
        table.attrs[OPERATING_POINTS] = {"model": "", "count": plain_point(points[0])}
    return table


def read_cases(
    detections: Sequence[Path],
    *,
    manifest: Path | None = None,
    slide: Path | None = None,
    mpp: float | None = None,
    area_mm2: float | None = None,
) -> list[CountedCase]:
    """What to count: every slide that the detections cover."""
    if area_mm2 is not None and math.isnan(area_mm2):
        raise UsageError("the area is nan mm2", next_step="give the area of the tissue, above 0, or none")
    cohort = load_cohort(manifest, mpp) if manifest is not None else None
    if cohort is None and mpp is None and slide is not None:
        with SlideSource(slide).open() as opened:
            mpp = opened.mpp
    files = tables_in(detections)
    summaries = {file: summary_beside(file) for file in files}
    results = {file: one for file, one in summaries.items() if "name" in one and "mpp" in one}
    stated = {float(result["mpp"]) for result in results.values()}
    mpp = stated.pop() if mpp is None and len(stated) == 1 else mpp
    scale = mpp if cohort is None else cohort.mpp_by_name()
    parts = [
        _mitoses(read_detections(file, mpp=scale, slide=results[file]["name"] if file in results else None))
        for file in files
    ]
    points = joined(parts, "detections")
    if slide is not None and len(points.slides) != 1:
        raise UsageError(
            f"the detections belong to {len(points.slides)} slides, and one slide was given",
            path=slide,
            next_step="name the slides in a manifest (column he) and give that with --manifest",
        )
    cohort = cohort or cohort_of(points.slides, points.source, mpp)
    return _lined_up(
        cohort,
        cohort.rename_slides(points),
        slide,
        area_mm2,
        [path if path.is_dir() else path.parent for path in detections],
        _stated(files),
        {str(one["name"]): _scope_of(one, file) for file, one in results.items()},
    )


def _scope_of(summary: Mapping[str, Any], file: Path) -> Scope:
    """Where figures count by a summary."""
    with parsing(file, "its summary says wrongly where figures count", next_step=AGAIN):
        return Scope.model_validate_json(json.dumps(summary.get("scope", {})))


def _stated(files: Sequence[Path]) -> dict[str, Any]:
    """From where on files say that they list detections, and have all of them."""
    stated = [read_statement(table) for table in files]
    lists = {stated_share(points, "mitoses", "delta") for points in stated}
    kept = (stated_share(points, "search", "floor") or 0.0 for points in stated)
    return {"listed": lists.pop() if len(lists) == 1 else None, "kept_from": max(kept, default=0.0)}


def _mitoses(points: DetectionSet) -> DetectionSet:
    """The points that may count; labels that mean nothing here are named, and alone they are refused."""
    labels = points.table["label"]
    others = ~labels.isin((MITOSIS, LOOKALIKE, IGNORE))
    text = f"{int(others.sum())} points are labelled {named(labels[others])}, and are not counted"
    advice = "use the labels mitosis (or 1), lookalike (or 0) and ignore"
    if others.any() and others.all():
        raise TableError(text, path=points.source, next_step=advice)
    warnings = (*points.warnings, *((ResultWarning("other-labels", text, advice),) if others.any() else ()))
    reviewed = as_text(points.table[REVIEWED]) != "" if REVIEWED in points.table.columns else False
    rejected = (labels == LOOKALIKE) & reviewed  # these tell about the rest
    return replace(points.with_table(points.table[(labels == MITOSIS) | rejected]), warnings=warnings)


def _lined_up(
    cohort: Cohort,
    points: DetectionSet,
    slide: Path | None,
    area_mm2: float | None,
    folders: Sequence[Path],
    stated: dict[str, Any],
    scopes: Mapping[str, Scope],
) -> list[CountedCase]:
    rows = {str(row["case"]): row for row in cohort.manifest.to_dict(orient="records")}
    parts = dict(iter(points.table.groupby("slide", sort=False)))
    cases = []
    for name in points.slides:
        row = rows[name]
        seen = slide or (Path(str(row["he"])) if row["he"] else None)
        area = float(row["area_mm2"]) if area_mm2 is None else area_mm2
        cases.append(
            CountedCase(
                name=name,
                points=parts.get(name, points.table.iloc[:0]),
                mpp=float(row["mpp"]),
                slide=seen if seen is not None and is_slide_there(seen) else None,
                tissue=_tissue_of(name, str(row.get("tissue") or ""), folders),
                area_mm2=None if math.isnan(area) else area,
                warnings=points.warnings,
                scope=scopes.get(name, ANYWHERE),
                **stated,
            )
        )
    return cases


def _tissue_of(name: str, stated: str, folders: Sequence[Path]) -> TissueSource:
    """The manifest's mask, else the one that `metaphase detect` left for this slide, else tissue is found."""
    called = case_folder("", flat_case(name)).name
    left = (inside / f"{called}.tissue.png" for folder in folders for inside in (folder, folder / called))
    mask = next((path for path in left if is_file(path)), None)
    return TissueSource.stated(stated) if stated or mask is None else TissueSource(mask=mask)


def count_cohort(
    cases: Sequence[CountedCase],
    points: Sequence[OperatingPoint],
    config: CountConfig | None = None,
    *,
    tissue: bool = True,
    site: SiteProfile | None = None,
    sites: Mapping[str, SiteProfile] = {},
    watch: BatchWatch | None = None,
) -> Batch[list[SlideCount]]:
    """Counts of every case at every operating point; a case that fails is recorded and the others go on.

    With `tissue`, that of slides at hand is found first. A `site` narrows the
    intervals, and so do profiles of single slides in `sites`.
    """
    settings = [at_point(config or CountConfig(), point.model_dump()) for point in points]

    def work(case: CountedCase, _progress: object) -> list[SlideCount]:
        about: dict[str, Any] = {"mpp": case.mpp, "tissue": _mask_of(case) if tissue else None}
        own = sites.get(case.name, site)
        about |= {"area_mm2": case.area_mm2, "site": None if own is None else own.knowledge(case.name)}
        about |= {"listed": case.listed, "kept_from": case.kept_from, "scope": case.scope}
        counts = [count_slide(case.points, **about, config=setting) for setting in settings]
        return [
            count.model_copy(update={"warnings": unique((*count.warnings, *case.warnings))})
            for count in counts
        ]

    return run_batch({case.name: case for case in cases}, work, None, watch)


def proliferation_at(cases: Sequence[CountedCase], thresholds: Sequence[float]) -> pd.DataFrame:
    """The proliferation score of every case at every threshold, as `tune_count` takes it."""
    rows = []
    for case in cases:
        tissue = _mask_of(case)
        slide = specimen(case.points, case.mpp, tissue, case.area_mm2, CountConfig(), case.scope)
        for delta in thresholds:
            at = replace(slide, config=CountConfig(threshold=delta))
            rows.append((case.name, delta, proliferation_score(at)))
    return pd.DataFrame(rows, columns=["case", "threshold", "proliferation"])


def _mask_of(case: CountedCase) -> TissueMask | None:
    """The tissue, from the slide where it is at hand, else from the mask that was left beside the table."""
    if case.slide is not None:
        with SlideSource(case.slide, case.mpp).open() as slide:
            return case.tissue.of(slide)
    return None if case.tissue.mask is None else load_tissue(case.tissue.mask)


@dataclass(frozen=True)
class Scored:
    """Counts of slides, and the operating points at which they were counted."""

    counts: Sequence[tuple[str, SlideCount]]
    points: Sequence[OperatingPoint]
    failures: Sequence[Failure] = ()


def score_detections(
    detections: Sequence[Path],
    *,
    manifest: Path | None = None,
    slide: Path | None = None,
    mpp: float | None = None,
    area_mm2: float | None = None,
    tissue: bool = True,
    thresholds: Sequence[float] = (),
    theta1: float | None = None,
    theta2: float | None = None,
    card: Path | None = None,
    site: str | Path | SiteProfile | None = None,
    config: CountConfig | None = None,
    watch: BatchWatch | None = None,
) -> Scored:
    """Counts of all slides that files of detections cover.

    Results of `metaphase detect` keep the counts that they state, unless anything is said of how to count.
    """
    asked = (manifest, slide, mpp, area_mm2, theta1, theta2, card, site, config)
    if tissue and not thresholds and all(value is None for value in asked):
        stored = stored_results(detections)
        if stored:
            points = [count_point([result.folder]) for result in stored]
            different = [point for number, point in enumerate(points) if point not in points[:number]]
            return Scored([(result.name, result.record) for result in stored], different)
    points = count_points(detections, card, thresholds, theta1=theta1, theta2=theta2)
    cases = read_cases(detections, manifest=manifest, slide=slide, mpp=mpp, area_mm2=area_mm2)
    profile = None if site is None else site_for(site, detections)
    beside = sites_beside(detections) if site is None and card is None else {}
    batch = count_cohort(cases, points, config, tissue=tissue, site=profile, sites=beside, watch=watch)
    counts = [(name, count) for name, counts in batch.results.items() for count in counts]
    return Scored(counts, points, batch.failures)
