"""The folder of a slide is one record: its files by name, and what they say, as typed models.

    search.parquet, NAME.tissue.png, .geojson (probability.tif)   what the networks found on the tissue
    settings.json (site.json)          model card, operating points, how to count (laboratory's profile)
    review.sqlite                      what people answered, and took back
    reviewed.parquet                   the detections as people left them, where anybody answered
    count.json                         mitotic count and grade, with people and without
    candidates.parquet, detections.*   the tables, and the formats asked for
    report.html (count.dcm, probability.dcm)
    summary.json                     all of it, for programs: `SlideRecord`

Nothing here needs networks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pandas as pd
from pydantic import AfterValidator, Field, ValidationError

from metaphase.base.errors import MetaphaseError, ResultWarnings, SlideError, UsageError, spelled
from metaphase.base.files import write_text
from metaphase.base.foreign import is_file, parsing, read_json
from metaphase.base.provenance import FileContent, made_from
from metaphase.base.remote import url_of
from metaphase.base.stages import kept_key, note_of
from metaphase.base.tables import named, read_table, require_columns
from metaphase.base.typed import Number, Stored
from metaphase.counting.calibration import AtypicalShare
from metaphase.counting.clinical import Count, SlideCount
from metaphase.counting.sites import SiteProfile, load_profile, save_profile
from metaphase.counting.specimen import CountConfig
from metaphase.detections.files import known_formats, result_folders
from metaphase.detections.points import StatedPoints
from metaphase.detections.table import DETECTIONS, SUMMARY
from metaphase.images.tissue.finding import TissueMask, load_tissue
from metaphase.labels.observers.positions import Share
from metaphase.reports.pages import jpeg_uris, render
from metaphase.slides.opening import SlideSource, is_slide_there

SCHEMA = 3
"""Of summary.json: raised when its keys change their meaning."""
SEARCH, SETTINGS, SITE, REVIEWED, COUNT = (
    "search.parquet", "settings.json", "site.json", "reviewed.parquet", "count.json",
)  # fmt: skip
CANDIDATES, PROBABILITIES = "candidates.parquet", "probability.tif"
REPORT = "report.html"
COUNT_DICOM, PROBABILITIES_DICOM = "count.dcm", "probability.dcm"
AGAIN = "run metaphase detect again as before, into the same folder"
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


# ---- what the files of a slide say ----


def _sound_points(points: dict[str, Any]) -> dict[str, Any]:
    StatedPoints.model_validate(points)
    return points


class SlideSettings(Stored):
    """What reads a searched slide: all that model and user decide about it after the search."""

    search: str
    """Key of the search that this belongs to."""
    card: dict[str, Any]
    """The model's card."""
    points: Annotated[dict[str, Any], AfterValidator(_sound_points)]
    """The operating points with the cases that they were tuned on, as tables carry them."""
    warnings: ResultWarnings
    """What the model's card says against it."""
    counting: CountConfig
    """Settings of the count."""
    formats: tuple[str, ...]
    """Formats asked for, Parquet apart."""
    probability_map: bool
    """Whether the probabilities were asked for."""
    versions: dict[str, str]
    """What computed the search."""


class SlideFindings(SlideCount):
    """The count of a slide, and what is listed there."""

    detections: int
    """Detections at or above the threshold of the list."""
    atypical: AtypicalShare | None
    """Share of atypical mitotic figures; null where no network judged it."""


class CountedSlide(SlideFindings):
    """What count.json holds: the findings in force, and where people looked those without them."""

    review: tuple[Share, ...] = ()
    """What each observer looked at; empty where nobody did."""
    machine: SlideFindings | None = None
    """Of a reviewed slide: the findings without the review."""

    @property
    def unreviewed(self) -> SlideFindings:
        """The findings without any review."""
        return self if self.machine is None else self.machine


class SlideRecord(CountedSlide):
    """The result of `metaphase detect` for one slide."""

    version: Annotated[int, Field(alias="schema")] = SCHEMA
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
    tissue_mm2: Number
    """Tissue that was searched."""
    threshold: float
    """Threshold of the count."""
    detection_threshold: float
    """Threshold of the list of detections."""
    operating_points: StatedPoints
    """Both thresholds, with what belongs to them."""
    model: dict[str, Any]
    """The part of the model's card that identifies it: name, network, checksums."""
    search: str
    """Key of the search that it rests on."""
    answers: str = ""
    """Of a reviewed slide: a key that tells the answers in force from others."""
    device: str | None = None
    """The device that searched."""
    arithmetic: str | None = None
    """The arithmetic of the search."""
    seconds: dict[str, float]
    """Seconds by part of the work."""
    versions: dict[str, str]
    """Versions of metaphase and of what computed the search."""
    files: tuple[str, ...] = ()
    """Files in the slide's folder."""

    def plain(self) -> dict[str, Any]:
        """As summary.json has it: the cases of operating points are in the model's card."""
        brief = {name: {"cases", "patients", "laboratories"} for name in ("mitoses", "count")}
        return self.model_dump(mode="json", by_alias=True, exclude={"operating_points": brief})


Kind = TypeVar("Kind", bound=Stored)


def summary_schema() -> dict[str, Any]:
    """The JSON Schema of `summary.json`."""
    return SlideRecord.model_json_schema(mode="serialization")


def read_stored(path: Path, kind: type[Kind]) -> Kind:
    """A file of the record, which says what it must."""
    again = "remove it and run metaphase detect again, into the same folder"
    content = read_json(path, "holds no finished result", next_step=again)
    if kind is SlideRecord and content.get("schema") != SCHEMA:
        raise MetaphaseError(
            f"was written by another version of metaphase (schema {content.get('schema', 1)}, not {SCHEMA})",
            path=path,
            next_step=f"{AGAIN}: nothing is searched again",
        )
    with parsing(path, "holds no finished result", next_step=again):
        try:
            made = kind.model_validate_json(json.dumps(content))
            settings = content["counting" if kind is SlideSettings else "config"]
            if missing := {field.name for field in fields(CountConfig)} ^ set(settings):
                raise ValueError(f"the settings of the count lack, or do not know, {named(sorted(missing))}")
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        except UsageError as error:
            raise ValueError(str(error)) from error
    return made


def write_stored(path: Path, plain: Mapping[str, Any]) -> None:
    """Write a file of the record, where it says something new."""
    text = json.dumps(plain, indent=2, allow_nan=False) + "\n"
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text(path, text)


def save_settings(folder: Path, settings: SlideSettings, site: SiteProfile | None) -> None:
    """Leave what reads the slide, for whoever counts it again without a model."""
    write_stored(folder / SETTINGS, settings.model_dump(mode="json"))
    if site is None:
        (folder / SITE).unlink(missing_ok=True)
    else:
        save_profile(folder / SITE, site)


# ---- one slide ----


@dataclass(frozen=True, eq=False)
class SlideResult:
    """The folder of a slide, as its stages left it."""

    folder: Path
    record: SlideRecord

    @property
    def name(self) -> str:
        """What the slide is called."""
        return self.record.name

    @property
    def mpp(self) -> float:
        """Micrometres per pixel."""
        return self.record.mpp

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """The record as plain values, as summary.json has it."""
        return self.record.plain()

    @property
    def source(self) -> SlideSource:
        """The slide itself; where it has moved, an error says where it was."""
        return source_of(self.folder, self.record)

    @property
    def in_force(self) -> Count:
        """The best count there is, of which kind, and what its interval means."""
        return self.record.in_force

    @property
    def beneath(self) -> tuple[Count, ...]:
        """The counts that it stands for."""
        return self.record.beneath

    @property
    def count(self) -> float:
        """The mitotic count in force."""
        return self.record.count

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """Where the count may lie; what that means, `in_force` tells."""
        return self.record.count_interval or (None, None)

    @property
    def grade(self) -> str:
        """The mitotic grade as it may be shown: one, a range, or `withheld`."""
        return self.record.grade_shown.text

    @property
    def warnings(self) -> ResultWarnings:
        """What to beware of."""
        return self.record.warnings

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

    @property
    def machine(self) -> SlideFindings:
        """What was counted without people."""
        return self.record.unreviewed

    @property
    def counting(self) -> CountConfig:
        """How it was counted."""
        return self.record.config

    @cached_property
    def candidates(self) -> pd.DataFrame:
        """All that the networks found."""
        return read_search(self.folder)

    @cached_property
    def tissue(self) -> TissueMask:
        """Where it was sought."""
        return load_tissue(self.folder / tissue_files(self.name)[0])

    @cached_property
    def settings(self) -> SlideSettings:
        """What it was read by."""
        return load_settings(self.folder)

    @cached_property
    def site(self) -> SiteProfile | None:
        """The laboratory's profile that it was counted by."""
        return load_site(self.folder)

    @property
    def stated(self) -> Mapping[str, Any]:
        """The operating points used with the cases that they were tuned on, as tables carry them."""
        return self.settings.points


def read_search(folder: Path) -> pd.DataFrame:
    """All that the networks found on a slide."""
    found = read_table(folder / SEARCH)
    require_columns(found, ("x", "y", "probability"), folder / SEARCH)
    return found


def load_settings(folder: Path) -> SlideSettings:
    """What a slide is read by; that of another search is refused."""
    settings = read_stored(folder / SETTINGS, SlideSettings)
    if settings.search != kept_key(folder, "search"):
        raise MetaphaseError("belongs to another search", path=folder / SETTINGS, next_step=AGAIN)
    return settings


def load_site(folder: Path) -> SiteProfile | None:
    """The laboratory's profile in a slide's folder, where there is one."""
    return load_profile(folder / SITE) if is_file(folder / SITE) else None


def source_of(folder: Path, record: SlideRecord) -> SlideSource:
    """What opens the slide of a record, by its path from here or from a folder above."""
    path = found_from(folder, record.slide)
    if not is_slide_there(path):
        raise SlideError(
            f"the slide of {folder} is no longer there",
            path=path,
            next_step="put it back, or say where slides are now with --slides (view, review apply)",
        )
    return SlideSource(path, record.mpp if record.mpp_source == "flag" else None)


def located(result: SlideResult, slides: Path | None = None) -> SlideSource:
    """What opens the slide of a result: where it was, or the one of the same content in a folder `slides`."""
    try:
        return result.source
    except SlideError:
        if slides is None:
            raise
    before = made_from(note_of(result.folder, "search")).get("ingredients", {}).get("slide", {})
    stated = result.record.mpp if result.record.mpp_source == "flag" else None
    for path in _of_size(slides, before.get("content")):
        if FileContent(path).account() == before.get("content"):
            return SlideSource(path, stated)
    raise SlideError(
        f"no slide in it has the content of {spelled(result.record.slide)}, on which {result.folder} rests",
        path=slides,
        next_step="name the folder where the slides are now",
    )


def _of_size(slides: Path, content: Any) -> Iterator[Path]:
    """Files of a folder, and folders in it, that may hold a content."""
    for path in sorted(slides.rglob("*")):
        if isinstance(content, str) and path.is_file() and content.startswith(f"{path.stat().st_size}-"):
            yield path
        if isinstance(content, dict) and path.is_dir() and all((path / name).is_file() for name in content):
            yield path


def found_from(folder: Path, stated: str) -> Path:
    """A file that a folder's summary states: by its path from here, from a folder above, or in the folder."""
    path = Path(stated)
    if url_of(path):
        return path
    paths = (path, *(parent / path for parent in folder.resolve().parents), folder / path.name)
    return next((one for one in paths if is_slide_there(one)), path)


def load_result(folder: str | Path) -> SlideResult:
    """Read the folder of one slide."""
    folder = Path(folder)
    if not is_file(folder / SUMMARY) and (slides := result_folders(folder)):
        raise UsageError(
            f"holds the results of several slides ({named(one.name for one in slides)})",
            path=folder,
            next_step=f"name the folder of one, such as {slides[0]}",
        )
    result = SlideResult(folder, read_stored(folder / SUMMARY, SlideRecord))
    if result.record.search != kept_key(folder, "search"):
        raise MetaphaseError(
            "its slide is being searched again, or that was stopped", path=folder, next_step=AGAIN
        )
    missing = [name for name in (SEARCH, tissue_files(result.name)[0]) if not is_file(folder / name)]
    if missing:
        raise MetaphaseError(f"has no {missing[0]}", path=folder, next_step="run metaphase detect again")
    return result


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
