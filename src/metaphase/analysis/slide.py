"""What follows from the search of a slide, in stages, each kept or done again by itself.

    review    reviewed.parquet: the detections as people left them
    count     count.json: mitotic count, grade and proliferation score, with people and without
    export    candidates.parquet, detections.parquet and the formats asked for
    report    report.html
    archive   count.dcm (probability.dcm): report and map as DICOM, where the format dicom is asked for

Last, `summary.json` says all of it to programs. `metaphase detect`, a review that is applied or withdrawn,
and the viewer run these stages and no others. Nothing here needs networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import pandas as pd

from metaphase.analysis.journal import read_probabilities
from metaphase.analysis.record import (
    AGAIN,
    CANDIDATES,
    COUNT,
    COUNT_DICOM,
    PROBABILITIES,
    PROBABILITIES_DICOM,
    REPORT,
    REVIEWED,
    SEARCH,
    SETTINGS,
    SITE,
    CountedSlide,
    SlideFindings,
    SlideRecord,
    SlideResult,
    SlideSettings,
    file_of,
    formats_in,
    load_result,
    load_settings,
    load_site,
    read_search,
    read_stored,
    source_of,
    tissue_files,
    write_stored,
)
from metaphase.base.errors import ResultWarning, ResultWarnings, read_warnings, spelled, unique
from metaphase.base.files import explained
from metaphase.base.foreign import parsing
from metaphase.base.provenance import Ingredients, fingerprint_of
from metaphase.base.stages import Facts, Report, Stage, States, kept_facts, kept_stage, run_stages, silent
from metaphase.base.tables import Remark, read_table, write_table
from metaphase.counting.calibration import atypical_share
from metaphase.counting.clinical import SlideCount, count_slide, slide_density
from metaphase.counting.sites import SiteProfile
from metaphase.counting.specimen import CountConfig, specimen
from metaphase.detections.files import write_detections
from metaphase.detections.formats.dicom import DICOM
from metaphase.detections.points import StatedPoints
from metaphase.detections.table import (
    CHANCE,
    COUNTED,
    DETECTIONS,
    LISTED,
    MITOSIS,
    OPERATING_POINTS,
    SUMMARY,
    DetectionSet,
)
from metaphase.images.inspection import Quality, quality_warnings
from metaphase.images.tissue.finding import TissueMask, load_tissue
from metaphase.labels.observers.positions import ANSWERS, PositionLog, Share, reviewed_detections
from metaphase.labels.observers.store import Given
from metaphase.reports.dicom import write_count, write_probabilities
from metaphase.reports.slide import write_slide_report
from metaphase.reports.slide.inputs import ReportInput
from metaphase.slides.opening import SlideSource

USE_HE = "use the H&E slide of the same tissue, because the model cannot count on another stain"
IN_EVERY_CARD = (
    *("format", "name", "family", "gamma", "normalisation", "mpp", "patch_px", "classes", "members"),
    *("eight_bits", "seed", "weights_sha256", "graph_sha256"),
)
"""What of a model's card identifies it, and is repeated in the summary of every slide."""


Found = TypeVar("Found", bound=SlideCount)


# ---- what decides each stage, beside the stages before it ----


@dataclass(frozen=True)
class SlideReviewed(Ingredients, stage="review"):
    """The detections as people left them."""

    answers: tuple[tuple[str, str, str], ...]
    """Those that stand, oldest first: observer, item, answer."""
    left_out: int
    """How many more stand that are about no position of the slide."""
    threshold: float | None
    """Of the count, by which it is said who looked at what; None without answers."""


@dataclass(frozen=True)
class SlideCounted(Ingredients, stage="count", schema=5):
    """The clinical number."""

    config: CountConfig
    """Its threshold, thetas and rate of false positives are the operating point's."""
    site: SiteProfile | None
    listed: float
    """Threshold of the list."""


@dataclass(frozen=True)
class SlideExported(Ingredients, stage="export", schema=4):
    """The files that others read."""

    name: str
    points: Mapping[str, Any]
    formats: tuple[str, ...]
    site: SiteProfile | None


@dataclass(frozen=True)
class SlideReported(Ingredients, stage="report", schema=4):
    """The page, and the summary for programs."""

    name: str
    points: Mapping[str, Any]
    card: Mapping[str, Any]


@dataclass(frozen=True)
class SlideArchived(Ingredients, stage="archive", schema=3):
    """Report and map as DICOM."""

    points: Mapping[str, Any]


# ---- one slide ----


@dataclass(frozen=True)
class SearchedSlide:
    """A slide whose search is done, and all that decides what follows."""

    folder: Path
    name: str
    source: SlideSource
    settings: SlideSettings
    site: SiteProfile | None

    @classmethod
    def of(cls, result: SlideResult, source: SlideSource | None = None) -> Self:
        """That of a result, where it is or at another `source`; no model is needed."""
        folder, found = result.folder, source or source_of(result.folder, result.record)
        return cls(folder, result.name, found, load_settings(folder), load_site(folder))

    @property
    def searched(self) -> tuple[str, ...]:
        """Files of the search."""
        maps = (PROBABILITIES,) if self.settings.probability_map else ()
        return (SEARCH, *tissue_files(self.name), *maps)

    def finish(self, report: Report = silent) -> tuple[SlideRecord, States]:
        """Do what is left, and say it in the summary."""
        search = kept_stage(self.folder, "search", self.searched, AGAIN)
        states = run_stages([search, *self.stages()], self.folder, report=report)
        record = self._record()
        write_stored(self.folder / SUMMARY, record.plain())
        return record, states[1:]

    def stages(self) -> list[Stage]:
        """The table."""
        asked, name, points = self.settings, self.name, self.settings.points
        answers = tuple((one.observer, one.item, one.answer) for one in self._answers)
        looked_at = asked.counting.threshold if answers else None
        reviewed = SlideReviewed(answers, self._left_out, looked_at)
        counted = SlideCounted(asked.counting, self.site, points["mitoses"]["delta"])
        exported = SlideExported(name, points, tuple(sorted(asked.formats)), self.site)
        files = (CANDIDATES, DETECTIONS, *map(file_of, self._formats))
        archived = (COUNT_DICOM, *((PROBABILITIES_DICOM,) if asked.probability_map else ()))
        stages = [
            Stage("review", "what people answered", ("search",), (REVIEWED,) if answers else (), self._review,
                  reviewed, sealed=True),
            Stage("count", "mitotic count and grade", ("search", "review"), (COUNT,), self._count, counted,
                  sealed=True),
            Stage("export", "files for other programs", ("search", "review"), files, self._export, exported),
            Stage("report", "the page", ("search", "review", "count"), (REPORT,), self._report,
                  SlideReported(name, points, asked.card)),
            Stage("archive", "report and map as DICOM", ("search", "review", "count"), archived,
                  self._archive, SlideArchived(points)),
        ]  # fmt: skip
        return stages if DICOM.name in asked.formats else stages[:-1]

    # -- the work of the stages

    def _review(self, _report: Report) -> Facts:
        """What was rejected stays in the table, as look-alikes; what the network said has its own column."""
        found, path = read_search(self.folder), self.folder / REVIEWED
        with explained(path):
            path.unlink(missing_ok=True)
        if not self._answers:
            return {"shares": []}
        threshold = self.settings.counting.threshold
        reviewed = reviewed_detections(
            self.name, found, self._answers, mpp=self._facts["mpp"], threshold=threshold
        )
        known = reviewed.table.columns
        write_table(path, reviewed.table.join(found[[name for name in found.columns if name not in known]]))
        return {"shares": [asdict(share) for share in reviewed.shares]}

    def _count(self, _report: Report) -> Facts:
        machine = self._found(read_search(self.folder))
        shares = tuple(Share(**share) for share in kept_facts(self.folder, "review")["shares"])
        counted = CountedSlide(**dict(machine))
        if shares:
            reviewed = reviewed_count(self._found(self._table()), machine)
            counted = CountedSlide(**dict(reviewed), review=shares, machine=machine)
        write_stored(self.folder / COUNT, counted.model_dump(mode="json"))
        return {"count": counted.count, "grade": counted.grade}

    def _found(self, table: pd.DataFrame) -> SlideFindings:
        """The count of a table, and what of it is listed."""
        listed, mitoses = self.settings.points["mitoses"]["delta"], table[table["label"] == MITOSIS]
        count = count_detections(table, self._facts["mpp"], self._tissue, self.settings, self.site, self.name)
        number = int((mitoses["probability"] >= listed).sum())
        return SlideFindings(**dict(count), detections=number, atypical=atypical_share(mitoses, listed))

    def _export(self, _report: Report) -> Facts:
        table, facts, points = self._table(), self._facts, self.settings.points
        mitosis, deltas = table["label"] == MITOSIS, [points[name]["delta"] for name in ("mitoses", "count")]
        for column, delta in zip((LISTED, COUNTED), deltas, strict=True):
            table[column] = mitosis & (table["probability"] >= delta)
        if self.site is not None:
            slide = specimen(table, facts["mpp"], self._tissue, None, self.settings.counting)
            table[CHANCE] = self.site.calibration(self.name).chance(slide)
        listed = table[mitosis & (table["probability"] >= min(deltas))].reset_index(drop=True)
        listed.attrs = table.attrs
        write_table(self.folder / CANDIDATES, table)
        write_table(self.folder / DETECTIONS, listed)
        for form in self._formats:
            write_detections(
                DetectionSet(listed, (self.name,), self.name),
                self.folder / file_of(form),
                form,
                mpp=facts["mpp"],
                sizes={self.name: (facts["width"], facts["height"])},
                sources={self.name: self.source.path},
            )
        return {"detections": len(listed), "candidates": len(table)}

    def _report(self, _report: Report) -> Facts:
        counted, table, asked = self._counted(), self._table(), self.settings
        density = slide_density(table, mpp=self._facts["mpp"], tissue=self._tissue, config=asked.counting)
        content = ReportInput(
            tissue=self._tissue,
            detections=table,
            score=counted,
            density=density,
            card=asked.card,
            points=asked.points,
            warnings=self._warnings(counted),
            timings=self._facts["seconds"],
            stain=self._facts["stain"],
            name=self.name,
            versions=asked.versions,
            review=tuple(map(str, counted.review)),
            atypical=counted.atypical,
        )
        with self.source.open() as slide:
            slide.flaws = []  # pictures show what is there
            write_slide_report(self.folder / REPORT, slide, content)
        return {}

    def _archive(self, _report: Report) -> Facts:
        points = self.settings.points
        write_count(self.folder / COUNT_DICOM, self.source.path, self._counted(), points)
        if self.settings.probability_map:
            levels, mpp = read_probabilities(self.folder / PROBABILITIES)
            write_probabilities(self.folder / PROBABILITIES_DICOM, self.source.path, levels, mpp, points)
        return {}

    def _record(self) -> SlideRecord:
        counted, facts, asked = self._counted(), self._facts, self.settings
        about = ("width", "height", "mpp", "mpp_source", "stain", "tissue_mm2")
        how = ("device", "arithmetic", "seconds")
        files = [name for stage in self.stages() for name in stage.writes]
        files += [SETTINGS, *(() if self.site is None else (SITE,))]
        return SlideRecord(
            **dict(counted) | {"warnings": self._warnings(counted)},
            name=self.name,
            slide=spelled(self.source.path),
            **{key: facts[key] for key in (*about, *how)},
            threshold=asked.counting.threshold,
            detection_threshold=asked.points["mitoses"]["delta"],
            operating_points=StatedPoints(**asked.points),
            model={key: value for key, value in asked.card.items() if key in IN_EVERY_CARD},
            answers=answers_key(self._answers),
            versions=asked.versions,
            files=tuple(dict.fromkeys((*self.searched, *files))),
            search=asked.search,
        )

    # -- what the stages left

    @cached_property
    def _facts(self) -> Facts:
        return kept_facts(self.folder, "search")

    @cached_property
    def _log(self) -> tuple[list[Given], int]:
        return answers_in(self.folder, self._facts.get("width", 0), self._facts.get("height", 0))

    @property
    def _answers(self) -> list[Given]:
        return self._log[0]

    @property
    def _left_out(self) -> int:
        return self._log[1]

    @property
    def _tissue(self) -> TissueMask:
        return load_tissue(self.folder / tissue_files(self.name)[0])

    def _table(self) -> pd.DataFrame:
        """The detections as people left them, or as the networks did."""
        table = read_table(self.folder / REVIEWED) if self._answers else read_search(self.folder)
        table.attrs[OPERATING_POINTS] = Remark(self.settings.points)
        return table

    def _counted(self) -> CountedSlide:
        return read_stored(self.folder / COUNT, CountedSlide)

    @property
    def _formats(self) -> list[str]:
        """Formats asked for, and those of earlier runs, lest these speak of another operating point."""
        return list(dict.fromkeys((*self.settings.formats, *formats_in(self.folder))))

    def _warnings(self, count: SlideCount) -> ResultWarnings:
        """What speaks against a count."""
        what = "answers are about positions off the slide, or cannot be understood, and do not count"
        left = ResultWarning(
            "answers-left-out", f"{self._left_out} {what}", f"see {ANSWERS} for who gave them"
        )
        return unique((*count.warnings, *self.slide_warnings, *((left,) if self._left_out else ())))

    @property
    def slide_warnings(self) -> ResultWarnings:
        """What model, slide, stain and focus say against any count."""
        facts, asked = self._facts, self.settings
        stain = () if facts["stain"] != "DAB" else (ResultWarning("not-he", other_stain(facts), USE_HE),)
        focus = quality_warnings(Quality(**facts["quality"]), asked.card.get("optical_density"))
        return unique((*asked.warnings, *read_warnings(facts["warnings"]), *stain, *focus))


def count_detections(
    table: pd.DataFrame,
    mpp: float,
    tissue: TissueMask,
    settings: SlideSettings,
    site: SiteProfile | None,
    name: str,
    config: CountConfig | None = None,
) -> SlideCount:
    """The count of a slide's detections by its settings; at another threshold, and without draws, no profile
    holds."""
    config = config or settings.counting
    holds = config.draws > 0 and config.threshold == settings.counting.threshold
    table.attrs[OPERATING_POINTS] = Remark(settings.points)
    calibration = site.calibration(name) if holds and site is not None else None
    return count_slide(table, mpp=mpp, tissue=tissue, config=config, site=calibration)


def reviewed_count(count: Found, machine: SlideCount) -> Found:
    """The count of a reviewed slide, with those beneath it that it has without people."""
    return count.model_copy(update={"beneath": machine.counts}) if count.kind == "reviewed" else count


def other_stain(facts: Facts) -> str:
    """What an image of immunohistochemistry looks like."""
    return f"looks like immunohistochemistry, not H&E (confidence {facts['stain_confidence']:.2f})"


# ---- what people answered ----


def answers_in(folder: Path, width: int, height: int) -> tuple[list[Given], int]:
    """The answers about a slide that stand, and how many more are about no position of it."""
    if not (folder / ANSWERS).is_file():
        return [], 0
    with PositionLog(folder, width, height) as log:
        return log.current(), log.left_out()


def answers_key(given: Sequence[Given]) -> str:
    """Tells answers from others; empty without any."""
    return fingerprint_of([(one.observer, one.item, one.answer) for one in given]) if given else ""


def apply_answers(folder: str | Path, source: SlideSource | None = None) -> SlideResult:
    """Bring all files of a slide to what people answered: those stages are done that are out of date.

    Done again, or without any answer, it changes nothing.
    """
    result = load_result(folder)
    with parsing(result.folder, "its files contradict each other", next_step=AGAIN):
        record, _ = SearchedSlide.of(result, source).finish()
    return SlideResult(result.folder, record)
