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
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from metaphase.base.arrays import Box
from metaphase.base.errors import MetaphaseError, ResultWarnings, SlideError, UsageError
from metaphase.base.files import explained, stated_path, stored_path, write_text
from metaphase.base.foreign import files_in, is_file, library, parsing, read_json, state_of
from metaphase.base.later import pandas as pd
from metaphase.base.provenance import CHECK, FileContent, account_of, fingerprint_of, made_from
from metaphase.base.remote import RemotePath, location
from metaphase.base.stages import kept_key, note_of
from metaphase.base.tables import named, read_table, require_columns, tails
from metaphase.base.typed import Kind, Stored, read_typed
from metaphase.counting.clinical import Count, Likely
from metaphase.counting.sites import SiteProfile, load_profile, save_profile
from metaphase.counting.specimen import CountConfig
from metaphase.detections.files import known_formats, result_folders
from metaphase.detections.points import StatedPoints
from metaphase.detections.table import DETECTIONS, SUMMARY
from metaphase.images.tissue.finding import TissueMask, load_tissue
from metaphase.reports.pages import jpeg_uris, render
from metaphase.reports.record import SCHEMA, SlideFindings, SlideRecord
from metaphase.slides.opening import SlideSource, is_slide_there

SEARCH, SETTINGS, SITE, REVIEWED, COUNT = (
    "search.parquet",
    "settings.json",
    "site.json",
    "reviewed.parquet",
    "count.json",
)
PROBABILITIES = "probability.tif"
REPORT = "report.html"
INDEX, COUNTS = "index.html", "counts.csv"
"""Of all slides, in the folder above."""
COUNT_DICOM, PROBABILITIES_DICOM = "count.dcm", "probability.dcm"
AGAIN = "run metaphase detect again as before, into the same folder"
NOTEBOOK_PX, NOTEBOOK_BYTES = 240, 20_000
"""Of a slide's picture in a notebook."""
ZARR_PX = 512
"""Side of the chunks of a probability map."""


def file_of(form: str) -> str:
    """File of a slide's detections in a format."""
    return f"detections{known_formats()[form].ending}"


def formats_in(folder: Path) -> list[str]:
    """Formats in which detections lie in a slide's folder, Parquet apart."""
    known = known_formats().values()
    there = (one.name for one in known if (folder / f"detections{one.ending}").exists())
    return [name for name in there if name != "parquet"]


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
    site: str
    """Key of the laboratory's profile beside it; empty without one."""
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


def read_stored(path: Path, kind: type[Kind]) -> Kind:
    """Read and check a file of the record."""
    what, again = "holds no finished result", "remove it and run metaphase detect again, into the same folder"
    if kind is SlideSettings and not is_file(path):
        raise MetaphaseError(f"has no {path.name}", path=path.parent, next_step=AGAIN)
    content = read_json(path, what, next_step=again)
    if kind is SlideRecord and content.get("schema") != SCHEMA:
        raise MetaphaseError(
            f"was written by another version of metaphase (schema {content.get('schema', 1)}, not {SCHEMA})",
            path=path,
            next_step=f"{AGAIN}: nothing is searched again",
        )
    check = content.pop(CHECK, None)  # files of earlier versions have none
    if check is not None and check != fingerprint_of(content):
        what = "was edited or damaged, and says what nobody counted"
        raise MetaphaseError(what, path=path, next_step=again)
    made = read_typed(path, kind, what, next_step=again)
    with parsing(path, what, next_step=again):
        settings = content["counting" if kind is SlideSettings else "config"]
        if missing := {field.name for field in fields(CountConfig)} ^ set(settings):
            raise ValueError(f"the settings of the count lack, or do not know, {named(sorted(missing))}")
    return made


def write_stored(path: Path, plain: Mapping[str, Any]) -> None:
    """Write a file of the record with its checksum, unless it says the same already."""
    content = json.loads(json.dumps(plain, allow_nan=False))  # as it is read back
    content.pop(CHECK, None)
    text = json.dumps(content | {CHECK: fingerprint_of(content)}, indent=2) + "\n"
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text(path, text)


def save_settings(folder: Path, settings: SlideSettings, site: SiteProfile | None) -> None:
    """Write what is needed to count the slide again without a model; the profile first."""
    path = folder / SITE
    if site is not None:
        save_profile(path, site)
    else:
        with explained(path):
            path.unlink(missing_ok=True)
    write_stored(folder / SETTINGS, settings.model_dump(mode="json"))


def site_key(site: SiteProfile | None) -> str:
    """A key of a laboratory's profile; empty without one."""
    return "" if site is None else fingerprint_of(account_of(site))


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
    def count(self) -> int:
        """Mitotic figures in the densest circle."""
        return self.record.count

    @property
    def likely(self) -> Likely | None:
        """How many true figures that circle holds, with its 95 % interval."""
        return self.record.likely

    @property
    def score(self) -> str:
        """The mitotic score: one, a range, or `withheld`."""
        return self.record.score.text

    @property
    def warnings(self) -> ResultWarnings:
        """What to know before relying on the result."""
        return self.record.warnings

    @cached_property
    def table(self) -> pd.DataFrame:
        """The detections from the lower of the two operating points on, one row each."""
        return read_table(self.folder / DETECTIONS)

    @property
    def report(self) -> Path:
        """Path of the HTML report."""
        return self.folder / REPORT

    def __repr__(self) -> str:
        return f"{self.name}: mitotic count {self.in_force}\nreport: {self.report}"

    def _repr_html_(self) -> str:
        """For notebooks: count, warnings, a link to the report and the slide in small, where it is there."""
        picture = ""
        with suppress(MetaphaseError), self.source.open() as slide:
            (picture,) = jpeg_uris([slide.thumbnail(NOTEBOOK_PX)], NOTEBOOK_BYTES)
        link = stored_path(self.report, Path())
        return render("notebook.html", result=self, link=link, picture=picture)

    @property
    def machine(self) -> SlideFindings:
        """What was counted without people."""
        return self.record.unreviewed

    @property
    def counting(self) -> CountConfig:
        """Settings of the count."""
        return self.record.config

    @cached_property
    def candidates(self) -> pd.DataFrame:
        """All that the networks found."""
        return read_search(self.folder)

    @cached_property
    def tissue(self) -> TissueMask:
        """Source of the tissue mask that was searched."""
        return load_tissue(self.folder / tissue_files(self.name)[0])

    def geo(self, what: Literal["detections", "candidates", "tissue", "circle"] = "detections") -> Any:
        """As a `GeoDataFrame` in level-0 pixels: points with their columns, or outlines. Needs geopandas."""
        geopandas = library("geopandas", "geo", "a geographic table needs")
        if what == "tissue":
            return geopandas.GeoDataFrame(geometry=list(self.tissue.polygons()))
        if what == "circle":
            return geopandas.GeoDataFrame({"count": [self.count]}, geometry=[self.record.hotspot.shape])
        table = self.table if what == "detections" else self.candidates
        return geopandas.GeoDataFrame(table, geometry=geopandas.points_from_xy(table["x"], table["y"]))

    def write_probabilities(self, path: str | Path) -> Any:
        """Write the probability map as a zarr array (rows, columns) of 0 to 255, and return that; needs zarr.

        Value (i, j) is about level-0 x = 4 j, y = 4 i of a slide at the model's resolution. `detect` made the
        map where it was given `probability_map`.
        """
        zarr = library("zarr", "zarr", "writing it needs")
        if not is_file(source := self.folder / PROBABILITIES):
            raise MetaphaseError(
                "was not asked for", path=source, next_step="detect with probability_map=True"
            )
        with SlideSource(source).open() as read:
            array = zarr.create_array(
                str(path),
                shape=(read.height, read.width),
                chunks=(ZARR_PX, ZARR_PX),
                dtype="uint8",
                dimension_names=("y", "x"),
                attributes={"mpp": read.mpp, "certain": 255},
                overwrite=True,
            )
            for box in Box(0, 0, read.width, read.height).tiles(ZARR_PX):
                array[box.slices] = read.read_level(0, box)[..., 0]
        return array

    @cached_property
    def settings(self) -> SlideSettings:
        """Model, operating points and settings of the count."""
        return load_settings(self.folder)

    @cached_property
    def site(self) -> SiteProfile | None:
        """The laboratory's profile that it was counted by."""
        return load_site(self.folder, self.settings)

    @property
    def points(self) -> Mapping[str, Any]:
        """The operating points used, without the cases that they were tuned on."""
        points: Mapping[str, Any] = self.summary["operating_points"]
        return points

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


def load_site(folder: Path, settings: SlideSettings) -> SiteProfile | None:
    """The laboratory's profile by which a slide is read; any other in its folder is refused."""
    site = load_profile(folder / SITE) if is_file(folder / SITE) else None
    if site_key(site) != settings.site:
        raise MetaphaseError(
            "is not the profile by which the slide was read", path=folder / SITE, next_step=AGAIN
        )
    return site


def source_of(
    folder: Path, record: SlideRecord, slides: Path | None = None, *, exact: bool = False
) -> SlideSource:
    """What opens the slide of a record: the file of its content, by its path from here or a folder above,
    or in a folder `slides`.

    A content is recognised by its size, and where it must be `exact` by what it holds.
    """
    content = made_from(note_of(folder, "search")).get("ingredients", {}).get("slide", {}).get("content")
    stated = record.mpp if record.mpp_source == "flag" else None
    path = found_from(folder, record.slide)
    if is_slide_there(path) and _holds(path, content, exact=exact):
        return SlideSource(path, stated)
    for other in files_in(slides, "**/*") if slides is not None else ():
        if _holds(other, content, exact=False) and _holds(other, content, exact=True):
            return SlideSource(other, stated)
    what = "is another slide now" if is_slide_there(path) else "is no longer there"
    raise SlideError(
        f"the slide of {folder} {what}" + (f", and is not in {slides} either" if slides is not None else ""),
        path=path,
        next_step="put it back, or say where slides are now with --slides (view, review apply)",
    )


def _holds(path: Path, content: Any, *, exact: bool) -> bool:
    """Whether a file, or a folder of files, has a content; a record of other searches knows of none."""
    if isinstance(content, dict):
        likely = path.is_dir() and all((path / name).is_file() for name in content)
    else:
        likely = is_file(path) and str(content).startswith(f"{state_of(path)[0]}-")
    return content is None or (likely and (not exact or FileContent(path).account() == content))


def found_from(folder: Path, stated: str) -> Path:
    """A file that a folder's summary states: by its path from here, it or its end from a folder above."""
    path = location(stated_path(stated))
    if isinstance(path, RemotePath):
        return path
    above = folder.resolve().parents
    ends = (parent / end for end in tails(path.as_posix())[1:] for parent in above)
    paths = (path, *(parent / path for parent in above), folder / path.name, *ends)
    return next((candidate for candidate in paths if is_slide_there(candidate)), path)


def load_result(folder: str | Path) -> SlideResult:
    """Read the folder of one slide."""
    folder = Path(folder)
    if not is_file(folder / SUMMARY) and (slides := result_folders(folder)):
        raise UsageError(
            f"holds the results of several slides ({named(slide.name for slide in slides)})",
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
