"""The files of a searched slide: their names, how tables and summary are written, and how they are read back.

Nothing here needs networks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from metaphase.base.errors import MetaphaseError, ResultWarnings, SlideError, UsageError, read_warnings
from metaphase.base.files import write_text
from metaphase.base.foreign import is_file, parsing, read_json
from metaphase.base.remote import url_of
from metaphase.base.tables import (
    Remark,
    named,
    read_table,
    require_columns,
    table_attributes,
    write_table,
)
from metaphase.counting.calibration import CalibratedCount
from metaphase.counting.clinical import Count, ShownGrade, counts_in
from metaphase.counting.sites import SiteProfile, load_profile
from metaphase.counting.specimen import CountConfig
from metaphase.detections.files import known_formats, result_folders, write_detections
from metaphase.detections.table import DETECTIONS, OPERATING_POINTS, SUMMARY, DetectionSet
from metaphase.images.tissue.finding import TissueMask, load_tissue
from metaphase.labels.observers.positions import Share
from metaphase.reports.pages import jpeg_uris, render
from metaphase.slides.opening import SlideSource, is_slide_there

SCHEMA = 2
"""Of summary.json: raised when its keys change their meaning."""
SEARCH, COUNT, SITE = "search.parquet", "count.json", "site.json"
CANDIDATES, PROBABILITIES = "candidates.parquet", "probability.tif"
REPORT = "report.html"
COUNT_DICOM, PROBABILITIES_DICOM = "count.dcm", "probability.dcm"
REVIEW, MACHINE, ANSWERED = "review", "machine", "answers"
"""Parts of a summary where people looked: who looked at what, what was found without them, and a key that
tells these answers from others."""
TUNED_ON = ("cases", "patients", "laboratories")
"""Of an operating point, what its model's card and the Parquet tables tell and a summary does not."""

NOTEBOOK_PX, NOTEBOOK_BYTES = 240, 20_000
"""Of a slide's picture in a notebook."""


def file_of(form: str) -> str:
    """File of a slide's detections in a format."""
    return f"detections{known_formats()[form].ending}"


def formats_in(folder: Path) -> list[str]:
    """Formats in which detections lie in a slide's folder, Parquet apart."""
    return [name for name in known_formats() if name != "parquet" and (folder / file_of(name)).exists()]


def tissue_files(name: str) -> tuple[str, str]:
    """Files of a slide's tissue: the mask and its outline."""
    return f"{name}.tissue.png", f"{name}.tissue.geojson"


# ---- what the files of a slide must say ----

Known = float | None
"""A number, or None where it is not known."""


class _Stated(BaseModel):
    """Part of a file. Keys that are not named here may be there, and are for people."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, use_attribute_docstrings=True)


class _Warning(_Stated):
    model_config = ConfigDict(extra="forbid")

    code: str
    """Short name of the warning, for programs."""
    text: str
    """What happened."""
    next_step: str = ""
    """What to do about it."""


class _Circle(_Stated):
    x: float
    """Centre, in level-0 pixels."""
    y: float
    """Centre, in level-0 pixels."""
    radius_px: Annotated[float, Field(gt=0)]
    """Radius, in level-0 pixels."""
    count: Annotated[int, Field(ge=0)]
    """Mitotic figures inside."""
    tissue_mm2: Known
    """Tissue inside."""
    per_mm2: Known
    """Mitotic figures per mm² of that tissue."""


class _OneCount(_Stated):
    kind: Literal["reviewed", "calibrated", "model"]
    """Where the count comes from: people, the laboratory's profile, or the model alone."""
    count: Known
    """Mitotic count in 2 mm²."""
    count_interval: tuple[Known, Known] | None
    """Lower and upper end of its interval."""
    interval_name: str
    """`95 % interval`, or `counting range` where the model's own errors are not included."""
    interval_means: str
    """What the interval covers."""
    leaves_out: str
    """What the interval does not cover."""


class _Count(_OneCount):
    """As `SlideCount.to_dict` has it."""

    beneath: list[_OneCount]
    """Counts of the other kinds, the better first."""
    counted_mm2: Known
    """Area of the count: 2 mm², or all tissue where there is less."""
    counted: int
    """Detections of the whole slide at or above the threshold of the count, as people left them."""
    unseen: int | None = None
    """How many of them nobody has reviewed."""
    maximum: int
    """Mitotic figures in the busiest circle."""
    draws: int
    """Bootstrap draws behind the counting range."""
    area_mm2: Known
    """Tissue of the slide."""
    heterogeneity: dict[str, Known]
    """How unevenly mitotic figures are spread, by measure."""
    grade: int | None
    """Grade that follows from count, theta1 and theta2 alone. Show `grade_shown` instead."""
    grade_shown: ShownGrade
    """The grade, as far as it can be defended."""
    grade_probabilities: tuple[Known, Known, Known]
    """Probabilities of grades 1, 2 and 3 by the model's count."""
    proliferation: Known
    """Proliferation score: the count."""
    hotspot: _Circle
    """The busiest circle of 2 mm²."""
    warnings: list[_Warning]
    """What to know before relying on the result."""
    config: CountConfig
    """Settings of the count."""
    calibrated: CalibratedCount | None = None
    """The calibrated count; null without a profile of the laboratory."""


class _Point(_Stated):
    delta: Annotated[float, Field(ge=0, le=1)]
    """The threshold: lowest probability."""
    source: str = ""
    """How the threshold was chosen."""
    recall: Known = None
    """Recall there, on images that no network was trained on."""
    false_per_mm2: Known = None
    """False positives per mm² there."""
    suppress_um: Known = None
    """Of two detections closer than this, the weaker one was dropped."""
    smooth_um: Known = None
    """Distance over which probabilities were averaged."""
    theta1: Known = None
    """Counts up to this are grade 1."""
    theta2: Known = None
    """Counts above this are grade 3."""
    thetas_given: bool | None = None
    """Whether the user gave both thetas."""
    metric: str = ""
    """Metric by which the threshold was tuned."""
    value: Known = None
    """Its value on the tuning set."""
    kappa: Known = None
    """Quadratic kappa of the grades on the tuning set."""
    delta_range: tuple[float, float] | None = None
    """95 % interval of the threshold when patients are drawn anew."""


class _Points(_Stated):
    model: str = ""
    """Name of the model. Its card has the cases that chose the thresholds: `metaphase model info NAME`."""
    mitoses: _Point
    """The threshold of what is listed."""
    count: _Point
    """The threshold of what is counted."""
    search: dict[str, Any] = {}
    """How detections were taken from the probability map."""
    searched_with: dict[str, Any] = {}
    """Networks and settings that decide detections. A profile holds for these alone."""
    site: str | None = None
    """The laboratory's profile, where one was given."""


class _Machine(_Stated):
    detections: int
    """Detections listed without the review."""
    counted: int
    """Detections counted without the review."""
    warnings: list[_Warning]
    """Warnings without the review."""


class _Atypical(_Stated):
    share: float
    """Mean probability of being atypical."""
    interval: tuple[float, float]
    """95 % interval of the share."""
    of: int
    """Number of detections."""


class _Summary(_Count):
    """The result of `metaphase detect` for one slide."""

    version: Annotated[int, Field(alias="schema")]
    """Version of this format."""
    name: Annotated[str, Field(min_length=1)]
    """Name of the slide, and of its folder."""
    slide: str
    """Path of the slide, as it was given."""
    width: Annotated[int, Field(gt=0)]
    """Width of level 0, in pixels."""
    height: Annotated[int, Field(gt=0)]
    """Height of level 0, in pixels."""
    mpp: Annotated[float, Field(gt=0)]
    """Micrometres per level-0 pixel."""
    mpp_source: str
    """Who stated it: the file (`metadata`) or the user (`flag`)."""
    stain: str | None
    """The stain that the image shows."""
    tissue_mm2: Known
    """Tissue that was searched."""
    threshold: Known = None
    """Threshold of the count."""
    detection_threshold: Known = None
    """Threshold of the list of detections."""
    detections: int
    """Detections at or above it."""
    atypical: _Atypical | None = None
    """Share of atypical mitotic figures; null where no network judged it."""
    operating_points: _Points
    """Both thresholds, with what belongs to them."""
    model: dict[str, Any]
    """The part of the model's card that identifies it: name, network, checksums."""
    device: str | None = None
    """The device that searched."""
    arithmetic: str | None = None
    """The arithmetic of the search."""
    seconds: dict[str, float]
    """Seconds by part of the work."""
    versions: dict[str, str]
    """Versions of metaphase and Python."""
    files: list[str] = []
    """Files in the slide's folder."""
    review: list[Share] | None = None
    """Of a reviewed slide: what each observer looked at."""
    machine: _Machine | None = None
    """Of a reviewed slide: the result without the review."""
    answers: str | None = None
    """Of a reviewed slide: a key that tells these answers from others."""


def summary_schema() -> dict[str, Any]:
    """The JSON Schema of `summary.json`."""
    return _Summary.model_json_schema()


def _read(path: Path, kind: type[_Stated]) -> dict[str, Any]:
    """The content of a file that says what it must."""
    again = "remove it and run metaphase detect again, into the same folder"
    content = read_json(path, "holds no finished result", next_step=again)
    if kind is _Summary and isinstance(content, dict) and content.get("schema") != SCHEMA:
        raise MetaphaseError(
            f"was written by another version of metaphase (schema {content.get('schema', 1)}, not {SCHEMA})",
            path=path,
            next_step="run metaphase detect again as before, into the same folder: nothing is searched again",
        )
    with parsing(path, "holds no finished result", next_step=again):
        try:
            kind.model_validate_json(json.dumps(content))
            if missing := {field.name for field in fields(CountConfig)} ^ set(content["config"]):
                raise ValueError(f"the settings of the count lack, or do not know, {named(sorted(missing))}")
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        except UsageError as error:
            raise ValueError(str(error)) from error
    return content


def read_count(folder: Path) -> dict[str, Any]:
    """What was counted without people, as `SlideCount.to_dict` has it."""
    return _read(folder / COUNT, _Count)


def found_from(folder: Path, stated: str) -> Path:
    """A file that a folder's summary states: by its path from here, from a folder above, or in the folder."""
    path = Path(stated)
    if url_of(path):
        return path
    paths = (path, *(parent / path for parent in folder.resolve().parents), folder / path.name)
    return next((one for one in paths if is_slide_there(one)), path)


# ---- one slide ----


@dataclass(frozen=True, eq=False)
class SlideResult:
    """The folder of a slide, as `metaphase detect` or `metaphase review apply` left it."""

    folder: Path
    summary: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What the slide is called."""
        return str(self.summary["name"])

    @property
    def mpp(self) -> float:
        """Micrometres per level-0 pixel."""
        return float(self.summary["mpp"])

    @property
    def source(self) -> SlideSource:
        """The slide itself, by its path from here or from a folder above; where it has moved, an error says
        where it was."""
        stated = self.summary["mpp_source"] == "flag"
        path = found_from(self.folder, str(self.summary["slide"]))
        if not is_slide_there(path):
            raise SlideError(
                f"the slide of {self.folder} is no longer there",
                path=path,
                next_step="put it back, start where detect was started, or run metaphase detect again",
            )
        return SlideSource(path, self.mpp if stated else None)

    @property
    def in_force(self) -> Count:
        """The best count there is, of which kind, and what its interval means."""
        return counts_in(self.summary)[0]

    @property
    def beneath(self) -> tuple[Count, ...]:
        """The counts that it stands for."""
        return counts_in(self.summary)[1:]

    @property
    def count(self) -> float | None:
        """The mitotic count in force; None where there is none."""
        count: float | None = self.summary["count"]
        return count

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """Where the count may lie; what that means, `in_force` tells."""
        low, high = self.summary["count_interval"] or (None, None)
        return low, high

    @property
    def grade(self) -> str:
        """The mitotic grade as it may be shown: one, a range, or `withheld`."""
        return str(self.summary["grade_shown"]["text"])

    @property
    def warnings(self) -> ResultWarnings:
        """What to beware of."""
        return read_warnings(self.summary["warnings"])

    @cached_property
    def table(self) -> pd.DataFrame:
        """The detections from the lower of the two operating points on, one row each."""
        return read_table(self.folder / DETECTIONS)

    @property
    def report(self) -> Path:
        """The page to open."""
        return self.folder / REPORT

    def __repr__(self) -> str:
        return f"{self.name}: mitotic count {self.in_force}\nreport: {self.report}"

    def _repr_html_(self) -> str:
        """For notebooks: count, warnings, a link to the report and the slide in small, where it is there."""
        picture = ""
        with suppress(MetaphaseError), self.source.open() as slide:
            (picture,) = jpeg_uris([slide.thumbnail(NOTEBOOK_PX)], NOTEBOOK_BYTES)
        link = Path(os.path.relpath(self.report)).as_posix()
        return render("notebook.html", result=self, link=link, picture=picture)

    @cached_property
    def machine(self) -> Mapping[str, Any]:
        """What was counted without people, as `SlideCount.to_dict` has it."""
        return read_count(self.folder)

    @property
    def described(self) -> dict[str, Any]:
        """What is in force, as `SlideCount.to_dict` has it."""
        return {key: value for key, value in self.summary.items() if key in self.machine}

    @cached_property
    def counting(self) -> CountConfig:
        """How it was counted."""
        return CountConfig(**self.machine["config"])

    @cached_property
    def candidates(self) -> pd.DataFrame:
        """All that the networks found."""
        found = read_table(self.folder / SEARCH)
        require_columns(found, ("x", "y", "probability"), self.folder / SEARCH)
        return found

    @cached_property
    def tissue(self) -> TissueMask:
        """Where it was sought."""
        return load_tissue(self.folder / tissue_files(self.name)[0])

    @cached_property
    def site(self) -> SiteProfile | None:
        """The laboratory's profile that it was counted by."""
        return load_profile(self.folder / SITE) if is_file(self.folder / SITE) else None

    @property
    def points(self) -> Mapping[str, Any]:
        """The operating points used, without the cases that they were tuned on."""
        points: Mapping[str, Any] = self.summary[OPERATING_POINTS]
        return points

    @cached_property
    def stated(self) -> Mapping[str, Any]:
        """The same with these cases, as tables carry them."""
        return table_attributes(self.folder / CANDIDATES).get(OPERATING_POINTS) or self.points

    @property
    def lowest(self) -> float:
        """Probability from which a detection is exported."""
        return min(float(self.points[name]["delta"]) for name in ("mitoses", "count"))


def load_result(folder: str | Path) -> SlideResult:
    """Read the folder of one slide."""
    folder = Path(folder)
    result = SlideResult(folder, _read(folder / SUMMARY, _Summary))
    _ = result.machine
    missing = [name for name in (SEARCH, tissue_files(result.name)[0]) if not is_file(folder / name)]
    if missing:
        raise MetaphaseError(f"has no {missing[0]}", path=folder, next_step="run metaphase detect again")
    return result


def review_in_force(folder: Path) -> bool:
    """Whether the files of a folder are those of a reviewed table."""
    try:
        return REVIEW in read_json(folder / SUMMARY, "not a summary", next_step="run metaphase detect again")
    except MetaphaseError:
        return False


def load_results(paths: Iterable[str | Path]) -> list[SlideResult]:
    """All results in folders; a folder without any is an error."""
    found = []
    for path in paths:
        folders = result_folders(path)
        if not folders:
            raise UsageError(
                "holds no results", path=path, next_step="give the folder that metaphase detect -o named"
            )
        found += [load_result(folder) for folder in folders]
    return found


def brief_points(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Operating points without the lists of cases that they were tuned on."""
    parts = {name: part for name, part in stated.items() if isinstance(part, Mapping)}
    brief = {name: {key: part[key] for key in part if key not in TUNED_ON} for name, part in parts.items()}
    return {**stated, **brief}


def write_tables(
    folder: Path,
    name: str,
    table: pd.DataFrame,
    shown: pd.Series[bool],
    stated: Mapping[str, Any],
    *,
    formats: Sequence[str],
    mpp: float,
    size_px: tuple[int, int],
    slide: Path | None,
) -> int:
    """Write all candidates of a slide and those that are `shown`, these in other formats, too; how many."""
    table.attrs[OPERATING_POINTS] = Remark(stated)
    listed = table[shown].reset_index(drop=True)
    listed.attrs = table.attrs
    write_table(folder / CANDIDATES, table)
    write_table(folder / DETECTIONS, listed)
    detections, sources = DetectionSet(listed, (name,), name), {} if slide is None else {name: slide}
    for form in formats:
        target = folder / file_of(form)
        write_detections(detections, target, form, mpp=mpp, sizes={name: size_px}, sources=sources)
    return len(listed)


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write what programs read of a slide, where it says something new."""
    path, text = folder / SUMMARY, json.dumps(summary, indent=2, allow_nan=False) + "\n"
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text(path, text)
