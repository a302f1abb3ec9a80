"""`metaphase detect` for a slide and for a cohort: detections, count and report.

A slide's folder is a small workspace of four or five stages, each kept or done again by itself:

    search    search.parquet, NAME.tissue.png, .geojson (probability.tif): what the networks find on tissue
    count     count.json (site.json): mitotic count, grade and proliferation score (their profile)
    export    candidates.parquet, detections.parquet and the formats asked for
    report    report.html
    archive   count.dcm (probability.dcm): report and map as DICOM, where the format dicom is asked for

`summary.json` says all of it to programs.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from metaphase.base.errors import ResultWarning, ResultWarnings, SlideError, read_warnings, spelled, unique
from metaphase.base.files import explained, write_text
from metaphase.base.foreign import is_file
from metaphase.base.provenance import Ingredients, account_of
from metaphase.base.sharing.batch import Batch, BatchWatch, Progress, Workers, run_batch
from metaphase.base.tables import named, read_table, write_table
from metaphase.counting.calibration import atypical_share
from metaphase.counting.clinical import SlideCount, count_slide, count_warnings
from metaphase.counting.sites import SiteProfile, save_profile
from metaphase.counting.specimen import CountConfig, specimen
from metaphase.detections.formats.dicom import DICOM
from metaphase.detections.points import UsedPoints
from metaphase.detections.table import (
    ATYPICAL,
    CHANCE,
    COUNTED,
    DETECTIONS,
    LISTED,
    OPERATING_POINTS,
)
from metaphase.images.inspection import (
    DAMAGED,
    Quality,
    damage_warnings,
    inspect_slide,
    quality_warnings,
    slide_quality,
)
from metaphase.images.tissue.finding import TissueMask, load_tissue, save_tissue
from metaphase.jobs.cohort import OTHERWISE, CohortSlide, write_cohort
from metaphase.jobs.counting import counted_at
from metaphase.jobs.results import (
    CANDIDATES,
    COUNT,
    COUNT_DICOM,
    PROBABILITIES,
    PROBABILITIES_DICOM,
    REPORT,
    SCHEMA,
    SEARCH,
    SITE,
    SlideResult,
    brief_points,
    file_of,
    formats_in,
    load_result,
    read_count,
    review_in_force,
    tissue_files,
    write_summary,
    write_tables,
)
from metaphase.jobs.searching import DetectionConfig, SlideSearched, TileSearch, read_probabilities
from metaphase.jobs.slide_review import apply_review
from metaphase.jobs.stages import Facts, Report, Stage, States, kept_facts, run_stages, settled, stage_states
from metaphase.networks.cards import current_versions
from metaphase.networks.detector import Detector, ReadyDetector
from metaphase.reports.dicom import write_count, write_probabilities
from metaphase.reports.slide import write_slide_report
from metaphase.reports.slide.inputs import ReportInput
from metaphase.slides.archive import is_remote
from metaphase.slides.dicom import is_dicom
from metaphase.version import __version__

if TYPE_CHECKING:
    from metaphase.networks.judging import NetworkJudge

DICOM_FORMAT = DICOM.name
USE_HE = "use the H&E slide of the same tissue, because the model cannot count on another stain"
CARD_ONLY = (
    *("thresholds", "metrics", "recipe", "calibration", "second", "atypical"),
    *("data", "intended_use", "known_failures", "optical_density", "versions"),
)
"""What of a model's card is not repeated in the summary of every slide."""
WRONG_STAIN_CONFIDENCE = 0.8
"""A slide that is immunohistochemistry with this confidence is refused."""


# ---- what decides each stage, beside the stages before it ----


@dataclass(frozen=True)
class SlideCounted(Ingredients, stage="count", schema=4):
    """The clinical number."""

    config: CountConfig
    """Its threshold, thetas and rate of false positives are the operating point's."""
    site: SiteProfile | None


@dataclass(frozen=True)
class SlideExported(Ingredients, stage="export", schema=3):
    """The files that others read."""

    name: str
    points: Mapping[str, Any]
    formats: tuple[str, ...]
    site: SiteProfile | None


@dataclass(frozen=True)
class SlideReported(Ingredients, stage="report", schema=3):
    """The page, and the summary for programs."""

    name: str
    points: Mapping[str, Any]
    card: Mapping[str, Any]


@dataclass(frozen=True)
class SlideArchived(Ingredients, stage="archive", schema=2):
    """Report and map as DICOM."""

    points: Mapping[str, Any]


# ---- one slide ----


@dataclass(frozen=True, eq=False)
class SlideOutcome(SlideResult):
    """A finished slide, and what this run had to do for it."""

    states: States

    @property
    def resumed(self) -> bool:
        """Found finished, nothing was done."""
        return all(state.status == "kept" for state in self.states)


def detect_slide(
    slide: CohortSlide,
    folder: str | Path,
    model: ReadyDetector,
    config: DetectionConfig | None = None,
    *,
    progress: Progress | None = None,
) -> SlideOutcome:
    """Search one slide, count, and write everything into `folder`; what is there and still holds is kept.

    A run that was stopped goes on at the tile where it stopped.
    """
    config = config or DetectionConfig()
    config.check(model)
    return _SlideJob(slide, Path(folder), model, config).run(progress)


def slide_states(
    slide: CohortSlide, folder: str | Path, model: ReadyDetector, config: DetectionConfig | None = None
) -> States:
    """Where the stages of a slide stand, and why those that are not kept would be done; nothing is done."""
    job = _SlideJob(slide, Path(folder), model, config or DetectionConfig())
    return stage_states(job.stages(), job.folder)


@dataclass(frozen=True)
class _SlideJob:
    """The stages of one slide, and what they share."""

    slide: CohortSlide
    folder: Path
    model: ReadyDetector
    config: DetectionConfig

    @property
    def detector(self) -> Detector:
        return self.model.detector

    @cached_property
    def points(self) -> UsedPoints:
        return self.config.points(self.detector)

    @cached_property
    def stated(self) -> dict[str, Any]:
        """Model, operating points and how detections were taken, as tables and summary carry them."""
        peaks = self.config.peaks(self.detector)
        search = {"method": peaks.method, "floor": peaks.floor}
        site = {} if self.config.site is None else {"site": self.config.site.described()}
        return (
            self.detector.stated(self.points) | {"search": search, "searched_with": self.searched_with} | site
        )

    @cached_property
    def searched_with(self) -> dict[str, Any]:
        """What decides detections beside the slide: a laboratory's profile holds for this alone."""
        return {
            "networks": account_of(self.detector.identities),
            "peaks": account_of(self.config.peaks(self.detector)),
        }

    @cached_property
    def counting(self) -> CountConfig:
        return counted_at(self.points.count, self.config.counting)

    def run(self, progress: Progress | None) -> SlideOutcome:
        """Do what is left."""

        def report(_what: str, done: float, total: float) -> None:
            if progress is not None:
                progress(done, total)

        self._refuse_without_dicom()
        stages = self.stages()
        if stage_states(stages[:1], self.folder)[0].status == "kept":
            self._refuse_other_stain(self._facts())
            self._refuse_damage(self._facts())
        states = run_stages(stages, self.folder, report=report)
        return SlideOutcome(self.folder, self._settled_summary(stages, states), settled(states))

    def stages(self) -> list[Stage]:
        """The table."""
        stated, config, name = self.stated, self.config, self.slide.name
        searched = SlideSearched(
            self.slide.slide,
            self.slide.tissue,
            self.detector.searches_with,
            config.peaks(self.detector),
            self.model.config,
            self.detector.tells_atypical,
        )
        if config.site is not None:
            config.site.refuse_other(self.detector.name, self.searched_with)
        counted = SlideCounted(self.counting, config.site)
        exported = SlideExported(name, stated, tuple(sorted(config.written)), config.site)
        reported = SlideReported(name, stated, self.detector.card)
        maps = (PROBABILITIES,) if config.probability_map else ()
        sites = () if config.site is None else (SITE,)
        files = (CANDIDATES, DETECTIONS, *map(file_of, config.written))
        archived = (COUNT_DICOM, *((PROBABILITIES_DICOM,) if config.probability_map else ()))
        archive = [
            Stage("archive", "report and map as DICOM", ("search", "count"), archived, self._archive,
                  SlideArchived(stated)),
        ] if DICOM_FORMAT in config.written else []  # fmt: skip
        return [
            Stage("search", "detections on the tissue", (), (SEARCH, *tissue_files(name), *maps),
                  lambda report: self._search(searched, report), searched, sealed=True),
            Stage("count", "mitotic count and grade", ("search",), (COUNT, *sites), self._count, counted,
                  sealed=True),
            Stage("export", "files for other programs", ("search",), files, self._export, exported),
            Stage("report", "the page", ("search", "count"), (REPORT,), self._report, reported),
            *archive,
        ]  # fmt: skip

    # -- the work of the stages

    def _search(self, made_from: SlideSearched, report: Report) -> Facts:
        started = time.perf_counter()
        with self.slide.slide.open() as slide:
            slide.flaws = []
            seen = inspect_slide(slide)
            looks = {"stain": seen.stain.name, "stain_confidence": seen.stain.confidence}
            self._refuse_other_stain(looks)
            tissue = self.slide.tissue.of(slide)
            quality = slide_quality(slide, tissue)
            found_tissue = time.perf_counter()
            search = TileSearch(
                slide, tissue, self.model.engine, self.detector.mpp, made_from.peaks, made_from.key,
                self.config.tile_px, self.model.decoders, self.config.allow_damage,
            )  # fmt: skip
            with explained(self.folder / PROBABILITIES):
                (self.folder / PROBABILITIES).unlink(missing_ok=True)
            target = self.folder / PROBABILITIES if self.config.probability_map else None
            watch = partial(report, "search")
            with search.found(self.folder, self.slide.name, target, watch) as table:
                if self.detector.atypical is not None:
                    judge = _judge(self.detector.atypical, self.model.config.device)
                    table[ATYPICAL] = judge.calibrated(slide, table[["x", "y"]].to_numpy(np.float64))
                tissue = search.sound_tissue
                save_tissue(tissue, self.folder, self.slide.name)
                write_table(self.folder / SEARCH, table)
            resolution, engine = slide.info.resolution, self.model.engine
            detection = time.perf_counter() - found_tissue
            return {
                "width": slide.width,
                "height": slide.height,
                "mpp": slide.mpp,
                "mpp_source": resolution.source if resolution else None,
                **looks,
                "tissue_mm2": tissue.area_mm2,
                "quality": asdict(quality),
                "warnings": [
                    warning.to_dict()
                    for warning in (*seen.warnings, *damage_warnings(slide.flaws, slide.mpp))
                ],
                "device": str(engine.device),
                "arithmetic": engine.arithmetic,
                "seconds": {"tissue": round(found_tissue - started, 3), "detection": round(detection, 3)},
            }

    def _count(self, _report: Report) -> Facts:
        count = self._slide_count
        (self.folder / SITE).unlink(missing_ok=True)
        if self.config.site is not None:
            save_profile(self.folder / SITE, self.config.site)
        content = count.to_dict() | {"warnings": [warning.to_dict() for warning in count_warnings(count)]}
        write_text(self.folder / COUNT, json.dumps(content, indent=2, allow_nan=False) + "\n")
        return {"count": count.count, "grade": count.grade}

    def _export(self, _report: Report) -> Facts:
        facts, table = self._facts(), self._detections()
        table[LISTED] = table["probability"] >= self.points.mitoses.delta
        table[COUNTED] = table["probability"] >= self.points.count.delta
        if self.config.site is not None:
            calibration = self.config.site.calibration(self.slide.name)
            table[CHANCE] = calibration.chance(
                specimen(table, facts["mpp"], self._tissue, None, self.counting)
            )
        listed = write_tables(
            self.folder,
            self.slide.name,
            table,
            table["probability"] >= self.points.lowest,
            self.stated,
            formats=self._formats(),
            mpp=facts["mpp"],
            size_px=(facts["width"], facts["height"]),
            slide=self.slide.slide.path,
        )
        return {"detections": listed, "candidates": len(table)}

    def _report(self, _report: Report) -> Facts:
        facts, count = self._facts(), self._slide_count
        content = ReportInput(
            tissue=self._tissue,
            detections=self._detections(),
            score=count,
            card=self.detector.card,
            points=self.stated,
            warnings=(*count_warnings(count), *self._slide_warnings(facts)),
            timings=facts["seconds"],
            stain=facts["stain"],
            name=self.slide.name,
            versions=current_versions(),
        )
        with self.slide.slide.open() as slide:
            slide.flaws = []  # pictures show what is there
            write_slide_report(self.folder / REPORT, slide, content)
        return {}

    def _archive(self, _report: Report) -> Facts:
        path = self.slide.slide.path
        write_count(self.folder / COUNT_DICOM, path, self._slide_count.to_dict(), self.stated)
        if self.config.probability_map:
            levels, mpp = read_probabilities(self.folder / PROBABILITIES)
            write_probabilities(self.folder / PROBABILITIES_DICOM, path, levels, mpp, self.stated)
        return {}

    # -- what the stages left

    def _settled_summary(self, stages: list[Stage], states: States) -> dict[str, Any]:
        """The summary on the disk; a review that was in force is in force again."""
        reviewed = review_in_force(self.folder)
        if reviewed and all(state.status == "kept" for state in states):
            return dict(load_result(self.folder).summary)
        summary = self._summary(stages)
        write_summary(self.folder, summary)
        return dict(apply_review(self.folder).summary) if reviewed else summary

    def _summary(self, stages: list[Stage]) -> dict[str, Any]:
        """Everything about a result that a program or a person may ask for, as plain values."""
        facts = self._facts()
        count = read_count(self.folder)
        warnings = unique((*read_warnings(count["warnings"]), *self._slide_warnings(facts)))
        about = ("width", "height", "mpp", "mpp_source", "stain", "tissue_mm2")
        how = ("device", "arithmetic", "seconds")
        files = [name for stage in stages for name in stage.writes]
        return {
            "schema": SCHEMA,
            "name": self.slide.name,
            "slide": spelled(self.slide.slide.path),
            **count,
            "warnings": [warning.to_dict() for warning in warnings],
            "threshold": self.counting.threshold,
            "detections": int((self._detections()["probability"] >= self.points.mitoses.delta).sum()),
            "detection_threshold": self.points.mitoses.delta,
            ATYPICAL: atypical_share(self._detections(), self.points.mitoses.delta),
            **{key: facts[key] for key in about},
            OPERATING_POINTS: brief_points(self.stated),
            "model": {key: value for key, value in self.detector.card.items() if key not in CARD_ONLY},
            **{key: facts[key] for key in how},
            "versions": {"metaphase": __version__, "python": platform.python_version()},
            "files": list(dict.fromkeys((*files, *map(file_of, self._formats())))),
        }

    def _facts(self) -> Facts:
        return kept_facts(self.folder, "search")

    def _detections(self) -> pd.DataFrame:
        table = read_table(self.folder / SEARCH)
        table.attrs[OPERATING_POINTS] = self.stated
        return table

    def _formats(self) -> list[str]:
        """Formats asked for, and those of earlier runs, lest these speak of another operating point."""
        return list(dict.fromkeys((*self.config.written, *formats_in(self.folder))))

    @cached_property
    def _slide_count(self) -> SlideCount:
        """Once the search is done."""
        site = None if self.config.site is None else self.config.site.calibration(self.slide.name)
        return count_slide(
            self._detections(), mpp=self._facts()["mpp"], tissue=self._tissue, config=self.counting, site=site
        )

    @property
    def _tissue(self) -> TissueMask:
        """Once the search is done."""
        return load_tissue(self.folder / tissue_files(self.slide.name)[0])

    def _slide_warnings(self, facts: Facts) -> ResultWarnings:
        """What the slide itself, its stain and its focus say against the result, given this model."""
        quality = Quality(**facts["quality"])
        stain = () if facts["stain"] != "DAB" else (ResultWarning("not-he", _other_stain(facts), USE_HE),)
        warnings = quality_warnings(quality, self.detector.optical_density)
        return (*self.detector.warnings, *read_warnings(facts["warnings"]), *stain, *warnings)

    def _refuse_without_dicom(self) -> None:
        """Refuse DICOM results of another slide before it is searched."""
        path = self.slide.slide.path
        if DICOM_FORMAT in self.config.formats and is_file(path) and not (is_dicom(path) or is_remote(path)):
            raise SlideError(
                "is not a DICOM slide, and DICOM results refer to one",
                path=path,
                next_step="leave --format dicom out, or give the DICOM slide",
            )

    def _refuse_damage(self, facts: Facts) -> None:
        """Refuse a result that was made without parts of the slide, unless these may be left out."""
        damaged = [warning.text for warning in read_warnings(facts["warnings"]) if warning.code == DAMAGED]
        if damaged and not self.config.allow_damage:
            raise SlideError(damaged[0], path=self.slide.slide.path, next_step="give --allow-damage")

    def _refuse_other_stain(self, facts: Facts) -> None:
        """Refuse a slide that is surely not H&E, unless it is wanted all the same."""
        sure = facts["stain"] == "DAB" and facts["stain_confidence"] >= WRONG_STAIN_CONFIDENCE
        if sure and not self.config.any_stain:
            raise SlideError(
                _other_stain(facts),
                path=self.slide.slide.path,
                next_step="give the H&E slide, or --any-stain to search it anyway",
            )


@lru_cache(1)
def _judge(model: Path, device: str | None) -> NetworkJudge:
    """The network that tells atypical figures, for all slides of a cohort."""
    from metaphase.networks.judging import NetworkJudge  # needs torch

    return NetworkJudge([model], device)


def _other_stain(facts: Facts) -> str:
    return f"looks like immunohistochemistry, not H&E (confidence {facts['stain_confidence']:.2f})"


# ---- `metaphase detect` for many slides: a folder each, one index, one table of all ----
#
# The folder of a cohort holds `index.html`, `detections.parquet` and `candidates.parquet` of all slides, and
# `errors.log` where a slide failed.


def detect_cohort(
    slides: Sequence[CohortSlide],
    output: str | Path,
    model: ReadyDetector,
    config: DetectionConfig | None = None,
    *,
    watch: BatchWatch | None = None,
    pool: Workers | None = None,
) -> Batch[SlideOutcome]:
    """Detect slides into folders of their names; one that fails is recorded and the others go on.

    Writes the index of all reports and the tables of all slides in the folder, those of other runs too.
    """
    output = Path(output)
    (config or DetectionConfig()).check(model)

    def work(slide: CohortSlide, progress: Progress) -> SlideOutcome:
        return detect_slide(slide, output / slide.name, model, config, progress=progress)

    batch = run_batch({slide.name: slide for slide in slides}, work, output, watch, pool)
    if batch.outcomes:
        points = next((one.summary[OPERATING_POINTS] for one in batch.results.values()), None)
        cohort = write_cohort(output, points)
        if cohort.otherwise and watch is not None:
            watch.noted(f"{named(one['case'] for one in cohort.otherwise)}: {OTHERWISE}")
    return batch
