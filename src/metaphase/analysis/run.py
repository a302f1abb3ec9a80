"""`metaphase detect` for a slide and for a cohort: the search, and what follows from it (`slide.py`)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from metaphase.analysis.cohort import CohortSlide, asked_by
from metaphase.analysis.config import DetectionConfig
from metaphase.analysis.index import PRUNE, REMOVED, ask_for, write_cohort
from metaphase.analysis.record import (
    PROBABILITIES,
    SEARCH,
    SlideResult,
    SlideSettings,
    save_settings,
    site_key,
)
from metaphase.analysis.search import SlideSearched, TileSearch
from metaphase.analysis.slide import SearchedSlide, other_stain
from metaphase.base.errors import SlideError, read_warnings
from metaphase.base.files import explained, refuse_link
from metaphase.base.foreign import is_file
from metaphase.base.provenance import account_of, made_from
from metaphase.base.sharing.batch import Batch, BatchWatch, Progress, Workers, run_batch
from metaphase.base.stages import (
    Facts,
    Report,
    Stage,
    States,
    kept_facts,
    kept_key,
    note_of,
    run_stages,
    settled,
    stage_states,
)
from metaphase.base.tables import named, write_table
from metaphase.counting.regions import on_slide
from metaphase.counting.specimen import at_point
from metaphase.detections.formats.dicom import DICOM
from metaphase.detections.points import StatedPoints
from metaphase.detections.table import ATYPICAL
from metaphase.images.inspection import DAMAGED, damage_warnings, inspect_slide, slide_quality
from metaphase.images.tissue.finding import save_tissue
from metaphase.labels.observers.positions import ANSWERS
from metaphase.networks.cards import current_versions
from metaphase.networks.detector import ReadyDetector
from metaphase.reports.record import brief_points
from metaphase.slides.archive import is_remote
from metaphase.slides.dicom import is_dicom

if TYPE_CHECKING:
    from metaphase.networks.judging import NetworkJudge

WRONG_STAIN_CONFIDENCE = 0.8
"""A slide that is immunohistochemistry with this confidence is refused."""


# ---- one slide ----


@dataclass(frozen=True, eq=False)
class SlideOutcome(SlideResult):
    """A finished slide, and the state of each stage before this run."""

    states: States

    @property
    def resumed(self) -> bool:
        """Whether every stage was kept, so that nothing was done."""
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

    What people answered about it counts. A run that was stopped goes on at the tile where it stopped.
    """
    config = config or DetectionConfig()
    config.check(model)
    refuse_link(Path(folder), Path(folder).parent)
    _refuse_without_dicom(slide, config)

    def report(_what: str, done: float, total: float) -> None:
        if progress is not None and done:  # the beginning of a later stage is no step back
            progress(done, total)

    search = SlideSearch(slide, Path(folder), model, config)
    (state,) = stage_states([search.stage], search.folder)
    if state.status == "kept":
        facts = kept_facts(search.folder, "search")
        search.refuse_other_stain(facts)
        search.refuse_damage(facts)
    else:
        with slide.slide.open() as opened:  # fails before anything is changed where the slide cannot be read
            for region in slide.regions or ():
                on_slide(region, opened.width, opened.height)
        _refuse_answered(slide, search.folder)
    searched = run_stages([search.stage], search.folder, report=report)
    follows = search.follows()
    save_settings(search.folder, follows.settings, follows.site)
    record, states = follows.finish(report)
    return SlideOutcome(search.folder, record, settled((*searched, *states)))


def slide_states(
    slide: CohortSlide, folder: str | Path, model: ReadyDetector, config: DetectionConfig | None = None
) -> States:
    """The state of each stage of a slide, with the reason where it is out of date; runs none of them."""
    search = SlideSearch(slide, Path(folder), model, config or DetectionConfig())
    return stage_states([search.stage, *search.follows().stages()], search.folder)


@dataclass(frozen=True)
class SlideSearch:
    """The stage in which networks see a slide, and what they and the user say of those after it."""

    slide: CohortSlide
    folder: Path
    model: ReadyDetector
    config: DetectionConfig

    @property
    def stage(self) -> Stage:
        """The search as a stage."""
        slide, detector = self.slide, self.model.detector
        made_from = SlideSearched(
            slide.slide,
            slide.tissue,
            detector.exact_identities,
            self.config.peaks(detector),
            self.model.config,
            detector.atypical_sha256,
        )
        return Stage(
            "search",
            "detections on the tissue",
            (),
            self.follows().searched,
            lambda report: self._search(made_from, report),
            made_from,
            sealed=True,
        )

    def follows(self) -> SearchedSlide:
        """What follows the search: its settings, and the stages after it."""
        detector, config = self.model.detector, self.config
        points, peaks = config.points(detector), config.peaks(detector)
        searched_with = {"networks": account_of(detector.identities), "peaks": account_of(peaks)}
        if config.site is not None:
            config.site.refuse_other(detector.name, searched_with)
        how = {"search": {"method": peaks.method, "floor": peaks.floor}, "searched_with": searched_with}
        site = {} if config.site is None else {"site": config.site.described()}
        settings = SlideSettings(
            search=kept_key(self.folder, "search"),
            site=site_key(config.site),
            card=detector.card,
            points=detector.plain_points(points) | how | site,
            warnings=detector.warnings,
            counting=at_point(config.counting, points.count.model_dump()),
            formats=config.written,
            probability_map=config.probability_map,
        )
        slide = self.slide
        return SearchedSlide(self.folder, slide.name, slide.slide, settings, config.site, slide.regions)

    def _search(self, made_from: SlideSearched, report: Report) -> Facts:
        started, detector = time.perf_counter(), self.model.detector
        with self.slide.slide.open() as slide:
            slide.flaws = []
            seen = inspect_slide(slide)
            looks = {"stain": seen.stain.name, "stain_confidence": seen.stain.confidence}
            self.refuse_other_stain(looks)
            tissue = self.slide.tissue.of(slide)
            quality = slide_quality(slide, tissue)
            found_tissue = time.perf_counter()
            search = TileSearch(
                slide,
                tissue,
                self.model.engine,
                detector.mpp,
                made_from.peaks,
                made_from.key,
                self.config.tile_px,
                self.model.decoders,
                self.config.allow_damage,
            )
            with explained(self.folder / PROBABILITIES):
                (self.folder / PROBABILITIES).unlink(missing_ok=True)
            target = self.folder / PROBABILITIES if self.config.probability_map else None
            watch = partial(report, "search")
            with search.found(self.folder, self.slide.name, target, watch) as table:
                if detector.atypical is not None:
                    judge = _judge(detector.atypical, self.model.config.device)
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
                "versions": current_versions(),
                "seconds": {"tissue": round(found_tissue - started, 3), "detection": round(detection, 3)},
            }

    def refuse_damage(self, facts: Facts) -> None:
        """Refuse a result that was made without parts of the slide, unless these may be left out."""
        damaged = [warning.text for warning in read_warnings(facts["warnings"]) if warning.code == DAMAGED]
        if damaged and not self.config.allow_damage:
            raise SlideError(damaged[0], path=self.slide.slide.path, next_step="give --allow-damage")

    def refuse_other_stain(self, facts: Facts) -> None:
        """Refuse a slide that is surely not H&E, unless it is wanted all the same."""
        sure = facts["stain"] == "DAB" and facts["stain_confidence"] >= WRONG_STAIN_CONFIDENCE
        if sure and not self.config.any_stain:
            raise SlideError(
                other_stain(facts),
                path=self.slide.slide.path,
                next_step="give the H&E slide, or --any-stain to search it anyway",
            )


def _refuse_without_dicom(slide: CohortSlide, config: DetectionConfig) -> None:
    """Refuse DICOM results of another slide before it is searched."""
    path = slide.slide.path
    if DICOM.name in config.formats and is_file(path) and not (is_dicom(path) or is_remote(path)):
        raise SlideError(
            "is not a DICOM slide, and DICOM results refer to one",
            path=path,
            next_step="leave --format dicom out, or give the DICOM slide",
        )


def _refuse_answered(slide: CohortSlide, folder: Path) -> None:
    """Refuse a folder whose answers are about another slide of this name."""
    before = made_from(note_of(folder, "search")).get("ingredients", {}).get("slide", {}).get("content")
    if before is None or not (folder / ANSWERS).is_file() or before == slide.slide.account()["content"]:
        return
    raise SlideError(
        f"people answered about another slide of this name, whose results are in {folder}",
        path=slide.slide.path,
        next_step=f"choose another folder, or move {ANSWERS} away",
    )


@lru_cache(1)
def _judge(model: Path, device: str | None) -> NetworkJudge:
    """The network that tells atypical figures, loaded once for a cohort."""
    from metaphase.networks.judging import NetworkJudge  # needs torch

    return NetworkJudge([model], device)


# ---- many slides: a folder each, one index, one table of all ----


def detect_cohort(
    slides: Sequence[CohortSlide],
    output: str | Path,
    model: ReadyDetector,
    config: DetectionConfig | None = None,
    *,
    watch: BatchWatch | None = None,
    pool: Workers | None = None,
    asked: Mapping[str, Sequence[str]] | None = None,
    prune: bool = False,
) -> Batch[SlideOutcome]:
    """Detect slides into folders of their names; one that fails is recorded and the others go on.

    Writes the index of all reports and the tables of all slides that the folder's commands ask for. `asked`
    are the names of all slides that are asked for, by what asks for them (`cohort.asked_by`), where others do
    some of them. With `prune`, results that nobody asks for are moved to the folder `removed`.
    """
    output, config = Path(output), config or DetectionConfig()
    config.check(model)
    if slides:
        asked = asked or asked_by((slide.slide.path for slide in slides), slides)
        settings = SlideSearch(slides[0], output / slides[0].name, model, config).follows().settings
        ask_for(output, brief_points(StatedPoints(**settings.points)), asked, alone=prune)

    def work(slide: CohortSlide, progress: Progress) -> SlideOutcome:
        return detect_slide(slide, output / slide.name, model, config, progress=progress)

    batch = run_batch({slide.name: slide for slide in slides}, work, output, watch, pool)
    if batch.outcomes:
        cohort = write_cohort(output, prune=prune)
        if cohort.pruned and watch is not None:
            watch.noted(f"moved to {output / REMOVED}: {named(cohort.pruned)}")
        if cohort.apart and watch is not None:
            names = named(row["case"] for row in cohort.apart)
            watch.noted(
                f"{names}: not in index and tables ({cohort.apart[0]['reason']}). To change that, {PRUNE}"
            )
    return batch
