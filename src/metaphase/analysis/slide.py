"""The stages after the search of a slide, each kept or run again independently.

    look      no file: whether the picture is grey, and whether its nuclei have a likely size
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
from dataclasses import asdict, astuple, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

from metaphase.analysis.journal import read_probabilities
from metaphase.analysis.record import (
    AGAIN,
    COUNT,
    COUNT_DICOM,
    PROBABILITIES,
    PROBABILITIES_DICOM,
    REPORT,
    REVIEWED,
    SEARCH,
    SETTINGS,
    SITE,
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
from metaphase.base.errors import (
    MetaphaseError,
    ResultWarning,
    ResultWarnings,
    read_warnings,
    unique,
)
from metaphase.base.files import explained
from metaphase.base.foreign import parsing
from metaphase.base.later import pandas as pd
from metaphase.base.provenance import fingerprint_of
from metaphase.base.stages import (
    Facts,
    Report,
    Stage,
    States,
    kept_facts,
    kept_stage,
    run_stages,
    silent,
    stage,
    stage_states,
)
from metaphase.base.tables import Remark, read_table, write_table
from metaphase.counting.clinical import SlideCount, count_slide
from metaphase.counting.regions import Region, Scope
from metaphase.counting.scores import atypical_share
from metaphase.counting.sites import SiteProfile
from metaphase.counting.specimen import CountConfig
from metaphase.detections.files import write_detections
from metaphase.detections.formats.dicom import DICOM
from metaphase.detections.points import StatedPoints
from metaphase.detections.table import (
    CANDIDATES,
    COUNTED,
    DETECTIONS,
    LISTED,
    MITOSIS,
    OPERATING_POINTS,
    SUMMARY,
    DetectionSet,
)
from metaphase.images.inspection import Quality, quality_warnings
from metaphase.images.nuclei import look_warnings
from metaphase.images.tissue.finding import TissueMask, load_tissue
from metaphase.labels.observers.positions import ANSWERS, Mark, PositionLog, Share, reviewed_detections
from metaphase.labels.observers.store import Given
from metaphase.reports.dicom import write_count, write_probabilities
from metaphase.reports.record import CountedSlide, SlideFindings, SlideRecord
from metaphase.reports.slide import write_slide_report
from metaphase.reports.slide.inputs import ReportInput
from metaphase.slides.opening import SlideSource

USE_HE = "use the H&E slide of the same tissue, because the model cannot count on another stain"
REGION_FILE = "file of regions"
"""Observer name for a file of regions."""
IN_EVERY_CARD = (
    *("format", "name", "family", "gamma", "normalisation", "mpp", "patch_px", "classes", "members"),
    *("eight_bits", "seed", "weights_sha256", "graph_sha256"),
)
"""Fields of a model's card that identify it, repeated in the summary of every slide."""


Found = TypeVar("Found", bound=SlideCount)


@dataclass(frozen=True)
class SearchedSlide:
    """A slide whose search is done, with all that decides the stages after it."""

    folder: Path
    name: str
    source: SlideSource
    settings: SlideSettings
    site: SiteProfile | None
    filed: tuple[Region, ...] | None = None
    """Regions of a file that is given for it."""

    @classmethod
    def of(cls, result: SlideResult, source: SlideSource | None = None) -> Self:
        """The slide of a result, at its own source or a given one; no model is needed."""
        settings = load_settings(result.folder)
        found = source or source_of(result.folder, result.record, exact=True)
        return cls(result.folder, result.name, found, settings, load_site(result.folder, settings))

    @property
    def searched(self) -> tuple[str, ...]:
        """Paths of the files that the search writes."""
        maps = (PROBABILITIES,) if self.settings.probability_map else ()
        return (SEARCH, *tissue_files(self.name), *maps)

    def finish(self, report: Report = silent) -> tuple[SlideRecord, States]:
        """Run the stages that are out of date, and write the summary."""
        search = kept_stage(self.folder, "search", self.searched)
        (state,) = stage_states([search], self.folder)
        if state.status != "kept":
            raise MetaphaseError(
                f"the slide has to be searched again ({state.reason})", path=self.folder, next_step=AGAIN
            )
        if self.filed is not None:
            with self._log as log:
                log.record_many(log.filed(self.filed, REGION_FILE)[1])
        states = run_stages([search, *self.stages()], self.folder, report=report)
        record = self._record()
        write_stored(self.folder / SUMMARY, record.plain())
        return record, states[1:]

    def stages(self) -> list[Stage]:
        """The stages after the search, each with the settings and answers that decide its result."""
        asked, points, answers = self.settings, self.settings.points, self._answers
        review = self.review(
            answers=tuple((answer.observer, answer.item, answer.answer) for answer in answers),
            left_out=self._left_out,
            threshold=asked.counting.threshold if answers else None,
            scope=self._scope,
        )
        listed = points["mitoses"]["delta"]
        count = self.count(config=asked.counting, site=self.site, listed=listed, scope=self._scope)
        export = self.export(
            name=self.name,
            points=points,
            formats=tuple(sorted(asked.formats)),
        )
        marks = tuple((mark.kind, mark.x, mark.y, mark.text, mark.observer) for mark in self._marks)
        report = self.report(name=self.name, points=points, card=asked.card, marks=marks)
        stages = [
            self.look(),
            replace(review, writes=(REVIEWED,) if answers else ()),
            count,
            replace(export, writes=(*export.writes, *map(file_of, self._formats))),
            report,
        ]
        if DICOM.name in self._formats:
            maps = (PROBABILITIES_DICOM,) if self._has_map else ()
            archive = self.archive(points=points)
            stages.append(replace(archive, writes=(*archive.writes, *maps)))
        return stages

    # -- the work of the stages

    @stage("look", "colour, and size of nuclei", reads=("search",))
    def look(self, _report: Report) -> Facts:
        """Warnings about the picture itself: colour, and size of nuclei."""
        with self.source.open() as slide:
            slide.flaws = []
            return {"warnings": [warning.to_dict() for warning in look_warnings(slide)]}

    @stage("review", "what people answered", reads=("search",), sealed=True)
    def review(
        self,
        _report: Report,
        *,
        answers: tuple[tuple[str, str, str], ...],
        left_out: int,
        threshold: float | None,
        scope: Scope,
    ) -> Facts:
        """The detections as people left them, by the answers that stand: observer, item, answer.

        What was rejected stays in the table, as look-alikes; what the network said has its own column. The
        threshold is that of the count, by which it is said who looked at what.
        """
        found, path = read_search(self.folder), self.folder / REVIEWED
        with explained(path):
            path.unlink(missing_ok=True)
        if not answers or threshold is None:
            return {"shares": []}
        reviewed = reviewed_detections(
            self.name, found, self._answers, mpp=self._facts["mpp"], threshold=threshold, scope=scope
        )
        known = reviewed.table.columns
        write_table(path, reviewed.table.join(found[[name for name in found.columns if name not in known]]))
        return {"shares": [asdict(share) for share in reviewed.shares]}

    @stage(
        "count", "mitotic count and grade", reads=("search", "review"), writes=(COUNT,), schema=9, sealed=True
    )
    def count(
        self, _report: Report, *, config: CountConfig, site: SiteProfile | None, listed: float, scope: Scope
    ) -> Facts:
        """The clinical number, with people and without; threshold and thetas are the operating point's."""

        def found(table: pd.DataFrame) -> SlideFindings:
            mitoses, mpp = table[table["label"] == MITOSIS], self._facts["mpp"]
            about: dict[str, Any] = {"config": config, "site": known, "listed": listed, "scope": scope}
            count = count_slide(table, mpp=mpp, tissue=self._tissue, **about)
            mitoses = mitoses[scope.holds(mitoses[["x", "y"]].to_numpy(float))]
            number = int((mitoses["probability"] >= listed).sum())
            return SlideFindings(**dict(count), detections=number, atypical=atypical_share(mitoses, listed))

        known = None if site is None else site.knowledge(self.name)
        machine = found(self._with_points(read_search(self.folder)))
        shares = tuple(Share(**share) for share in kept_facts(self.folder, "review")["shares"])
        counted = CountedSlide(**dict(machine))
        if shares:
            reviewed = reviewed_count(found(self._table()), machine)
            counted = CountedSlide(**dict(reviewed), review=shares, machine=machine)
        write_stored(self.folder / COUNT, counted.model_dump(mode="json"))
        return {"count": counted.count, "grade": counted.grade}

    @stage(
        "export",
        "files for other programs",
        reads=("search", "review", "count"),
        writes=(CANDIDATES, DETECTIONS),
        schema=6,
    )
    def export(
        self, _report: Report, *, name: str, points: Mapping[str, Any], formats: tuple[str, ...]
    ) -> Facts:
        """The tables, and the formats asked for; what is outside the regions is listed, not counted."""
        table, facts = self._table(), self._facts
        mitosis, deltas = table["label"] == MITOSIS, [points[one]["delta"] for one in ("mitoses", "count")]
        for column, delta in zip((LISTED, COUNTED), deltas, strict=True):
            table[column] = mitosis & (table["probability"] >= delta)
        table[COUNTED] &= self._scope.holds(table[["x", "y"]].to_numpy(float))
        listed = table[mitosis & (table["probability"] >= min(deltas))].reset_index(drop=True)
        search = {**points.get("search", {}), "floor": min(deltas)}  # no more of it is in these
        listed.attrs = {**table.attrs, OPERATING_POINTS: Remark({**points, "search": search})}
        write_table(self.folder / CANDIDATES, table)
        write_table(self.folder / DETECTIONS, listed)
        circle = self._counted().hotspot
        for form in self._formats:
            write_detections(
                DetectionSet(listed, (name,), name),
                self.folder / file_of(form),
                form,
                mpp=facts["mpp"],
                sizes={name: (facts["width"], facts["height"])},
                sources={name: self.source.path},
                hotspots={name: circle.circles} if circle.count else {},
            )
        return {"detections": len(listed), "candidates": len(table)}

    @stage("report", "the page", reads=("search", "look", "review", "count"), writes=(REPORT,), schema=6)
    def report(
        self,
        _report: Report,
        *,
        name: str,
        points: Mapping[str, Any],
        card: Mapping[str, Any],
        marks: tuple[tuple[str, float, float, str, str], ...],
    ) -> Facts:
        """Write the HTML report, with what people marked: kind, position, text and observer."""
        marked = tuple(Mark(who, kind, x, y, text) for kind, x, y, text, who in marks)
        content = ReportInput(self._record(), self._tissue, self._table(), card, marked)
        with self.source.open() as slide:
            slide.flaws = []  # pictures show what is there
            write_slide_report(self.folder / REPORT, slide, content)
        return {}

    @stage(
        "archive",
        "report and map as DICOM",
        reads=("search", "review", "count"),
        writes=(COUNT_DICOM,),
        schema=3,
    )
    def archive(self, _report: Report, *, points: dict[str, Any]) -> Facts:
        """The count as a DICOM report, and the map where it was asked for."""
        write_count(self.folder / COUNT_DICOM, self.source.path, self._counted(), points)
        if self._has_map:
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
            slide=self.source.path.as_posix(),
            **{key: facts[key] for key in (*about, *how)},
            threshold=asked.counting.threshold,
            detection_threshold=asked.points["mitoses"]["delta"],
            operating_points=StatedPoints(**asked.points),
            model={key: value for key, value in asked.card.items() if key in IN_EVERY_CARD},
            answers=answers_key(self._answers, self._scope, self._marks),
            versions=facts.get("versions", {}),
            files=tuple(dict.fromkeys((*self.searched, *files))),
            search=asked.search,
        )

    # -- what the stages left

    @cached_property
    def _facts(self) -> Facts:
        return kept_facts(self.folder, "search")

    @property
    def _log(self) -> PositionLog:
        return PositionLog(self.folder, self._facts.get("width", 0), self._facts.get("height", 0))

    @cached_property
    def _review_log(self) -> tuple[list[Given], int, Scope, list[Mark]]:
        """The answers that stand, how many are left out, where figures count, and the marks."""
        if not (self.folder / ANSWERS).is_file():
            return [], 0, Scope(regions=self.filed or ()), []
        with self._log as log:
            scope = log.scope() if self.filed is None else log.filed(self.filed, REGION_FILE)[0]
            return log.current(), log.left_out(), scope, log.marks()

    @property
    def _answers(self) -> list[Given]:
        return self._review_log[0]

    @property
    def _left_out(self) -> int:
        return self._review_log[1]

    @property
    def _scope(self) -> Scope:
        return self._review_log[2]

    @property
    def _marks(self) -> list[Mark]:
        return self._review_log[3]

    @property
    def _tissue(self) -> TissueMask:
        return load_tissue(self.folder / tissue_files(self.name)[0])

    def _table(self) -> pd.DataFrame:
        """The detections as people left them, or as the networks did."""
        return self._with_points(
            read_table(self.folder / REVIEWED) if self._answers else read_search(self.folder)
        )

    def _with_points(self, table: pd.DataFrame) -> pd.DataFrame:
        """A table that says at which operating points it was made."""
        table.attrs[OPERATING_POINTS] = Remark(self.settings.points)
        return table

    def _counted(self) -> CountedSlide:
        return read_stored(self.folder / COUNT, CountedSlide)

    @property
    def _formats(self) -> list[str]:
        """Formats asked for, and those of earlier runs, which would otherwise be out of date."""
        return list(dict.fromkeys((*self.settings.formats, *formats_in(self.folder))))

    @property
    def _has_map(self) -> bool:
        """Whether a probability map belongs in the DICOM output."""
        there = (self.folder / PROBABILITIES_DICOM).is_file() and (self.folder / PROBABILITIES).is_file()
        return self.settings.probability_map or there

    def _warnings(self, count: SlideCount) -> ResultWarnings:
        """All warnings about a count: its own, those of slide and model, and answers that were left out."""
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
        seen = kept_facts(self.folder, "look").get("warnings", [])
        return unique((*asked.warnings, *read_warnings([*facts["warnings"], *seen]), *stain, *focus))


def reviewed_count(count: Found, machine: SlideCount) -> Found:
    """The count of a reviewed slide, with the model's own counts as `beneath`."""
    return count.model_copy(update={"beneath": machine.counts}) if count.kind == "reviewed" else count


def other_stain(facts: Facts) -> str:
    """What an image of immunohistochemistry looks like."""
    return f"looks like immunohistochemistry, not H&E (confidence {facts['stain_confidence']:.2f})"


# ---- what people answered ----


def answers_key(given: Sequence[Given], scope: Scope, marks: Sequence[Mark]) -> str:
    """A key of answers, scope and marks; empty without any."""
    entries: list[Any] = [(answer.observer, answer.item, answer.answer) for answer in given]
    entries += [astuple(mark) for mark in marks]
    return (fingerprint_of(entries) if entries else "") + scope.key


def apply_answers(folder: str | Path, source: SlideSource | None = None) -> SlideResult:
    """Update all files of a slide to people's answers, by running the stages that are out of date.

    Done again, or without any answer, it changes nothing.
    """
    result = load_result(folder)
    with parsing(result.folder, "its files contradict each other", next_step=AGAIN):
        record, _ = SearchedSlide.of(result, source).finish()
    return SlideResult(result.folder, record)
