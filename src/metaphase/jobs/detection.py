"""`metaphase detect`: from slides to their detections, counts and reports.

A slide's folder is a small workspace of four stages, each kept or done again by itself:

    search    search.parquet, NAME.tissue.png, .geojson (probability.tif): what the networks find on tissue
    count     count.json: mitotic count, grade and proliferation score at the operating point
    export    candidates.parquet, detections.parquet and the formats asked for
    report    report.html, summary.json

The folder of a cohort holds `index.html`, the tables of all slides, and `errors.log` where a slide failed.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from metaphase import __version__
from metaphase.base.batch import Batch, BatchWatch, Progress, run_batch
from metaphase.base.cautions import Caution, Cautions, read_cautions, unique
from metaphase.base.errors import SlideError, UsageError
from metaphase.base.files import write_text
from metaphase.base.provenance import Ingredients, decides
from metaphase.base.tables import read_table, write_table
from metaphase.counting import CountConfig, SlideCount, background_doubt, count_slide
from metaphase.detections import FORMATS, DetectionSet, joined, write_detections
from metaphase.images.inspection import inspect_slide, quality_doubts, slide_quality
from metaphase.images.stain.guess import StainGuess
from metaphase.images.tissue import TissueMask, load_tissue, save_tissue
from metaphase.jobs.cohort import CohortSlide
from metaphase.jobs.searching import SlideSearched, TileSearch
from metaphase.jobs.stages import Facts, Report, Stage, States, run_stages, stage_states
from metaphase.networks.cards import OperatingPoint, current_versions
from metaphase.networks.detector import Detector, ReadyDetector
from metaphase.networks.engine import PeakConfig
from metaphase.reports.cohort import CohortRow, write_cohort_index
from metaphase.reports.slide import ReportInput, write_slide_report
from metaphase.slides import Slide

SEARCH, COUNT, SUMMARY = "search.parquet", "count.json", "summary.json"
DETECTIONS, CANDIDATES, PROBABILITIES = "detections.parquet", "candidates.parquet", "probability.tif"
REPORT, INDEX = "report.html", "index.html"
ENDINGS = {form.name: form.ending for form in FORMATS}
MIN_TILE_PX = 64
WRONG_STAIN_CONFIDENCE = 0.8
"""A slide that is immunohistochemistry with this confidence is refused."""
POINT = "operating_point"
"""Attribute of the tables: the operating point that they were cut at."""


# ---- what is asked for ----


@dataclass(frozen=True)
class DetectionConfig:
    """How slides are searched and counted; where nothing is given, the model's operating point applies."""

    threshold: float | None = None
    """Probability from which a detection is a mitosis; by default the model's."""
    suppress_um: float | None = None
    """Of two detections nearer than this, the weaker one goes; by default the model's distance."""
    smooth_um: float | None = None
    """Probabilities are averaged over this distance first; by default the model's."""
    floor: float = 0.1
    """Weakest detections that are kept."""
    any_stain: bool = field(default=False, metadata=decides())
    """Search slides that look like immunohistochemistry too."""
    tile_px: int | None = field(default=None, metadata=decides())
    """Side of the tiles, a multiple of 4; by default what runs fastest. Results do not depend on it."""
    probability_map: bool = False
    """Also write the probabilities as a pyramidal TIFF."""
    formats: tuple[str, ...] = ("qupath",)
    """Formats to write besides Parquet."""
    counting: CountConfig = field(default_factory=CountConfig)
    """Hotspot, grades and uncertainty; its threshold is that of the operating point."""

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 < self.threshold <= 1:
            raise UsageError(
                f"a threshold of {self.threshold:g}", next_step="give a probability above 0 and up to 1"
            )
        if self.tile_px is not None and self.tile_px < MIN_TILE_PX:
            raise UsageError(f"tiles of {self.tile_px} px", next_step=f"give {MIN_TILE_PX} or more")
        unknown = [name for name in self.formats if name not in ENDINGS]
        if unknown:
            raise UsageError(
                f"there is no format {unknown[0]!r}", next_step=f"known are {', '.join(ENDINGS)}"
            )

    def point(self, detector: Detector) -> OperatingPoint:
        """The operating point used: the model's, with what was given in its place."""
        own = detector.point
        given = {"delta": self.threshold, "suppress_um": self.suppress_um, "smooth_um": self.smooth_um}
        changed = {name: float(value) for name, value in given.items() if value is not None}
        if not changed:
            return own
        parameters = own.parameters | changed
        told = {"parameters": parameters, "source": "given by the user"}
        rate = None if self.threshold is not None else own.false_per_mm2
        return own.model_copy(update=told | {"false_per_mm2": rate})

    def peaks(self, detector: Detector) -> PeakConfig:
        """What becomes a detection."""
        parameters = self.point(detector).parameters
        return PeakConfig(
            floor=self.floor, suppress_um=parameters["suppress_um"], smooth_um=parameters["smooth_um"]
        )


# ---- what decides each stage, beside the stages before it ----


@dataclass(frozen=True)
class SlideCounted(Ingredients, stage="count"):
    """The clinical number."""

    config: CountConfig
    """Its threshold is the operating point's."""
    false_per_mm2: float | None


@dataclass(frozen=True)
class SlideExported(Ingredients, stage="export"):
    """The files that others read."""

    name: str
    point: Mapping[str, Any]
    formats: tuple[str, ...]


@dataclass(frozen=True)
class SlideReported(Ingredients, stage="report"):
    """The page, and the summary for programs."""

    name: str
    card: Mapping[str, Any]


# ---- one slide ----


@dataclass(frozen=True)
class SlideOutcome:
    """A finished slide: its folder, its summary, and what this run had to do for it."""

    folder: Path
    summary: dict[str, Any]
    states: States

    @property
    def resumed(self) -> bool:
        """Found finished, nothing was done."""
        return all(state.status == "kept" for state in self.states)

    @property
    def searched(self) -> bool:
        """Whether this run asked the networks."""
        return self.states[0].status != "kept"

    @property
    def warnings(self) -> Cautions:
        """What to beware of."""
        return read_cautions(self.summary["warnings"])


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
    return _SlideJob(slide, Path(folder), model, config or DetectionConfig()).run(progress)


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
    def point(self) -> OperatingPoint:
        return self.config.point(self.detector)

    @cached_property
    def counting(self) -> CountConfig:
        return replace(self.config.counting, threshold=self.point.parameters["delta"])

    @property
    def tissue_files(self) -> tuple[str, str]:
        return f"{self.slide.name}.tissue.png", f"{self.slide.name}.tissue.geojson"

    def run(self, progress: Progress | None) -> SlideOutcome:
        """Do what is left."""

        def report(_what: str, done: float, total: float) -> None:
            if progress is not None:
                progress(done, total)

        states = run_stages(self.stages(), self.folder, report=report)
        summary = json.loads((self.folder / SUMMARY).read_text(encoding="utf-8"))
        return SlideOutcome(self.folder, summary, states)

    def stages(self) -> list[Stage]:
        """The table."""
        point, config, name = self.point, self.config, self.slide.name
        searched = SlideSearched(
            self.slide.slide,
            self.slide.tissue,
            self.detector.identities,
            config.peaks(self.detector),
            self.model.config,
        )
        counted = SlideCounted(self.counting, point.false_per_mm2)
        exported = SlideExported(name, self.detector.stated(point), config.formats)
        reported = SlideReported(name, self.detector.card)
        maps = (PROBABILITIES,) if config.probability_map else ()
        files = (CANDIDATES, DETECTIONS, *(f"detections{ENDINGS[form]}" for form in config.formats))
        return [
            Stage("search", "detections on the tissue", (), (SEARCH, *self.tissue_files, *maps),
                  lambda report: self._search(searched, report), searched),
            Stage("count", "mitotic count and grade", ("search",), (COUNT,), self._count, counted),
            Stage("export", "files for other programs", ("search", "count"), files, self._export, exported),
            Stage("report", "the page and the summary", ("search", "count", "export"), (REPORT, SUMMARY),
                  self._report, reported),
        ]  # fmt: skip

    # -- the work of the stages

    def _search(self, made_from: SlideSearched, report: Report) -> Facts:
        started = time.perf_counter()
        with self.slide.slide.open() as slide:
            stain, doubts = _inspect(slide, self.config.any_stain)
            tissue = self.slide.tissue.of(slide)
            quality = slide_quality(slide, tissue)
            doubts = (*doubts, *quality_doubts(quality, self.detector.optical_density))
            found_tissue = time.perf_counter()
            search = TileSearch(
                slide, tissue, self.model.engine, self.detector.mpp, made_from.peaks, made_from.key,
                self.config.tile_px,
            )  # fmt: skip
            target = self.folder / PROBABILITIES if self.config.probability_map else None
            (self.folder / PROBABILITIES).unlink(missing_ok=True)
            table = search.found(
                self.folder, self.slide.name, target, lambda done, total: report("search", done, total)
            )
            save_tissue(tissue, self.folder, self.slide.name)
            write_table(self.folder / SEARCH, table)
            resolution = slide.info.resolution
            seconds = {
                "tissue": found_tissue - started,
                "detection": time.perf_counter() - found_tissue,
            }
            return {
                "width": slide.width,
                "height": slide.height,
                "mpp": slide.mpp,
                "mpp_source": resolution.source if resolution else None,
                "stain": stain.name,
                "tissue_mm2": tissue.area_mm2,
                "warnings": [doubt.to_dict() for doubt in doubts],
                "device": str(self.model.engine.device),
                "arithmetic": self.model.engine.arithmetic,
                "seconds": {step: round(value, 3) for step, value in seconds.items()},
            }

    def _count(self, _report: Report) -> Facts:
        count = self._slide_count
        doubts = unique((*background_doubt(count, self.point.false_per_mm2), *count.warnings))
        content = count.to_dict() | {"warnings": [doubt.to_dict() for doubt in doubts]}
        write_text(self.folder / COUNT, json.dumps(content, indent=2, allow_nan=False) + "\n")
        return {"count": count.count, "grade": count.grade}

    def _export(self, _report: Report) -> Facts:
        facts, name = self._facts(), self.slide.name
        table = self._detections()
        table.attrs[POINT] = self.detector.stated(self.point)
        counted = table[table["probability"] >= self.counting.threshold].reset_index(drop=True)
        counted.attrs = table.attrs
        write_table(self.folder / CANDIDATES, table)
        write_table(self.folder / DETECTIONS, counted)
        detections = DetectionSet(counted, (name,), name)
        sizes = {name: (facts["width"], facts["height"])}
        for form in self._formats():
            target = self.folder / f"detections{ENDINGS[form]}"
            write_detections(detections, target, form, mpp=facts["mpp"], sizes=sizes)
        return {"detections": len(counted), "candidates": len(table)}

    def _formats(self) -> list[str]:
        """Formats asked for, and those that an earlier run left: no file speaks of another operating point."""
        there = [name for name, ending in ENDINGS.items() if (self.folder / f"detections{ending}").exists()]
        return list(dict.fromkeys((*self.config.formats, *there)))

    def _report(self, _report: Report) -> Facts:
        facts, count = self._facts(), self._slide_count
        doubts = unique(
            (*background_doubt(count, self.point.false_per_mm2), *read_cautions(facts["warnings"]))
        )
        content = ReportInput(
            tissue=self._tissue(),
            detections=self._detections(),
            score=count,
            card=self.detector.card,
            threshold=self.counting.threshold,
            warnings=doubts,
            timings=facts["seconds"],
            stain=facts["stain"],
            name=self.slide.name,
            versions=current_versions(),
        )
        with self.slide.slide.open() as slide:
            write_slide_report(self.folder / REPORT, slide, content)
        summary = self._summary(facts, count, unique((*doubts, *count.warnings)))
        write_text(self.folder / SUMMARY, json.dumps(summary, indent=2, allow_nan=False) + "\n")
        return {}

    def _summary(self, facts: Facts, count: SlideCount, doubts: Cautions) -> dict[str, Any]:
        """Everything about a result that a program or a reviewer may ask for, as plain values."""
        about = ("width", "height", "mpp", "mpp_source", "stain", "tissue_mm2")
        how = ("device", "arithmetic", "seconds")
        files = dict.fromkeys(name for stage in self.stages() for name in stage.writes)
        return {
            "name": self.slide.name,
            "slide": str(self.slide.slide.path),
            **{key: facts[key] for key in about},
            "threshold": self.counting.threshold,
            POINT: self.detector.stated(self.point),
            "score": count.to_dict() | {"warnings": [doubt.to_dict() for doubt in count.warnings]},
            "warnings": [doubt.to_dict() for doubt in doubts],
            "model": self.detector.card,
            **{key: facts[key] for key in how},
            "versions": {"metaphase": __version__, "python": platform.python_version()},
            "files": list(files),
        }

    # -- what the search left

    def _facts(self) -> Facts:
        states = stage_states(self.stages()[:1], self.folder)
        return states[0].facts

    def _detections(self) -> pd.DataFrame:
        return read_table(self.folder / SEARCH)

    def _tissue(self) -> TissueMask:
        return load_tissue(self.folder / self.tissue_files[0])

    @cached_property
    def _slide_count(self) -> SlideCount:
        """Once the search is done."""
        return count_slide(
            self._detections(), mpp=self._facts()["mpp"], tissue=self._tissue(), config=self.counting
        )


def _inspect(slide: Slide, any_stain: bool) -> tuple[StainGuess, Cautions]:
    """What the slide looks like; one of another stain is refused unless told otherwise."""
    seen = inspect_slide(slide)
    if seen.stain.name != "DAB":
        return seen.stain, seen.warnings
    text = f"looks like immunohistochemistry, not H&E (confidence {seen.stain.confidence:.2f})"
    if seen.stain.confidence >= WRONG_STAIN_CONFIDENCE and not any_stain:
        raise SlideError(
            text,
            path=slide.info.path,
            next_step="give the H&E slide, or --any-stain to search it all the same",
        )
    advice = "use the H&E slide of the same tissue, for the model cannot count on another stain"
    return seen.stain, (*seen.warnings, Caution("not-he", text, advice))


# ---- many slides ----


def detect_cohort(
    slides: Sequence[CohortSlide],
    output: str | Path,
    model: ReadyDetector,
    config: DetectionConfig | None = None,
    *,
    watch: BatchWatch | None = None,
) -> Batch[SlideOutcome]:
    """Detect slides into folders of their names; one that fails is recorded and the others go on.

    Writes the index of all reports and the tables of all slides.
    """
    output = Path(output)

    def work(slide: CohortSlide, progress: Progress) -> SlideOutcome:
        return detect_slide(slide, output / slide.name, model, config, progress=progress)

    batch = run_batch({slide.name: slide for slide in slides}, work, output, watch)
    if batch.outcomes:
        rows = [_row(name, outcome) for name, outcome in batch.results.items()]
        failed = [CohortRow(failure.name, error=failure.message) for failure in batch.failures]
        write_cohort_index(output / INDEX, [*rows, *failed])
    if batch.results:
        write_cohort_tables(output, list(batch.results.values()))
    return batch


def _row(name: str, outcome: SlideOutcome) -> CohortRow:
    score = outcome.summary["score"]
    return CohortRow(
        name,
        report=outcome.folder / REPORT,
        count=score["count"],
        count_interval=tuple(score["count_interval"]),
        grade=score["grade"],
        proliferation=score["proliferation"],
        area_mm2=outcome.summary["tissue_mm2"],
        warnings=outcome.warnings,
    )


def write_cohort_tables(folder: Path, outcomes: Sequence[SlideOutcome]) -> None:
    """Detections and candidates of all slides as one table each; slides without any are named in them too."""
    for file in (DETECTIONS, CANDIDATES):
        parts = [
            DetectionSet(read_table(outcome.folder / file), (str(outcome.summary["name"]),))
            for outcome in outcomes
        ]
        whole = joined(parts, folder / file)
        whole.table.attrs[POINT] = outcomes[0].summary[POINT]
        write_detections(whole, folder / file, "parquet")
