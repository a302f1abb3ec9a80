"""Features together: any two of models, profiles, reviews, damage, moved slides, formats and cohorts.

Whatever is combined, all routes to a slide's record say the same: report, index, tables, summary, terminal,
Python and the viewer.
"""

from __future__ import annotations

import errno
import html
import io
import itertools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import tifffile
from click.testing import CliRunner
from PIL import Image

import metaphase as mp
from metaphase.analysis import slide as slide_stages
from metaphase.analysis.cohort import CohortSlide
from metaphase.analysis.config import DetectionConfig
from metaphase.analysis.record import (
    SlideResult,
    file_of,
    formats_in,
    load_result,
    load_results,
)
from metaphase.analysis.review import apply_reviews, log_of, withdraw_review
from metaphase.analysis.run import detect_slide
from metaphase.analysis.slide import apply_answers
from metaphase.base import files as base_files
from metaphase.base.errors import OutputError, SlideError, UsageError
from metaphase.base.files import write_text
from metaphase.base.provenance import CHECK
from metaphase.base.tables import read_table
from metaphase.counting.clinical import SlideCount, counts_row
from metaphase.counting.sites import SampleConfig, save_profile
from metaphase.detections.files import read_detections, result_folders
from metaphase.detections.points import OperatingPoint
from metaphase.evaluation.operating_points import save_point
from metaphase.images.tissue.finding import TissueSource
from metaphase.labels.observers.positions import moved_to, position_name
from metaphase.learn.calibration import draw_sample, fit_profile
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine.settings import EngineConfig
from metaphase.reports.cohort import read_rows
from metaphase.reports.pages import number as shown_number
from metaphase.reports.pages import probability_text, sentence
from metaphase.reports.record import SlideFindings
from metaphase.reports.slide.inputs import ReportInput
from metaphase.slides.opening import SlideSource
from metaphase.web.access import Access, Guard
from metaphase.web.viewed import TileMaker, ViewedSlide, viewed_slides
from metaphase.web.viewing import viewing_app
from tests.analysis.conftest import he_pixels, marked_figures, tiny_model, write_slide
from tests.analysis.test_detection import with_atypical
from tests.analysis.test_summaries import check_summary
from tests.cli.test_four_routes import COMMAND, call
from tests.learn.test_calibration import answers_of
from tests.web.asgi import Client

HERE = "http://127.0.0.1:8502"
WIDTH, HEIGHT = 384, 320
POINTS = {"own": (0.8, 0.95123456), "other": (0.13, 0.16)}
"""Of each model: the thresholds of the list and of the count."""
NOTICE, FAILURE, DATA = "Research only; not for diagnosis.", "Faint figures are missed", "Slides of a test"
DIFFERENT = "what each interval rests on differs: see the slide's report"
ADDED = ((320.0, 110.0), (345.0, 300.0))
"""What the machine missed: inside what is damaged of a TIFF, and of a DICOM slide."""


# ---- which features go together ----


class Row(NamedTuple):
    """A combination of features, and who puts the review in force and takes it back."""

    model: str
    review: str
    damage: str
    place: str
    formats: str
    extent: str
    by: str = ""


FACTORS = (
    ("alone", "calibrated"),
    ("none", "reviewed", "withdrawn"),
    ("sound", "damaged"),
    ("local", "moved"),
    ("default", "csv and asap", "dicom"),
    ("one slide", "cohort", "two models"),
)
ROWS = (
    Row("alone", "none", "sound", "moved", "dicom", "one slide"),
    Row("alone", "none", "damaged", "moved", "default", "two models"),
    Row("calibrated", "none", "sound", "local", "csv and asap", "cohort"),
    Row("calibrated", "reviewed", "sound", "local", "default", "one slide", "python"),
    Row("alone", "reviewed", "damaged", "local", "csv and asap", "two models", "command"),
    Row("alone", "reviewed", "damaged", "moved", "dicom", "cohort", "viewer"),
    Row("calibrated", "reviewed", "sound", "moved", "csv and asap", "cohort", "command"),
    Row("alone", "withdrawn", "damaged", "moved", "csv and asap", "one slide", "python"),
    Row("calibrated", "withdrawn", "damaged", "moved", "default", "cohort", "command"),
    Row("calibrated", "withdrawn", "sound", "local", "dicom", "two models", "viewer"),
)
FORMATS: Mapping[str, tuple[str, ...]] = {"default": (), "csv and asap": ("csv", "asap"), "dicom": ("dicom",)}


# ---- slides, models and searches, made once ----


@dataclass
class Bench:
    """Slides and models in a folder, and the results that are copied into each test."""

    folder: Path
    results: dict[tuple[str, ...], Path] = field(default_factory=dict)

    def model(self, name: str) -> Path:
        """`own`, with a prior over laboratories and a network of atypical figures, or `other`."""
        path = self.folder / name / "tiny.safetensors"
        if not path.exists():
            path.parent.mkdir()
            made = with_atypical(path.parent) if name == "own" else tiny_model(path, seed=7)
            card = made.with_suffix(".json")
            said = {"name": name, "known_failures": [FAILURE], "data": [{"name": DATA, "terms": "own work"}]}
            card.write_text(json.dumps(json.loads(card.read_text()) | said))
            point = {"theta1": 3.0, "theta2": 9.0, "kappa": 0.7, "source": "graded slides"}
            known = {"prior": {}} if name == "own" else {}
            save_point(card, OperatingPoint(name="count", delta=POINTS[name][1], **point, **known))
            save_point(card, OperatingPoint(name="mitoses", delta=POINTS[name][0]))
        return path

    def slide(self, name: str, damage: str = "sound", *, dicom: bool = False) -> Path:
        """`one`, or `two` that shows it upside down; each DICOM file has a folder of its own."""
        kind = "dicom" if dicom else "tiff"
        path = self.folder / f"{kind}-{damage}" / (f"{name}/{name}.dcm" if dicom else f"{name}.tif")
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = he_pixels()[:HEIGHT, :WIDTH]
            pixels = pixels if name == "one" else np.ascontiguousarray(pixels[::-1])
            if damage == "damaged":
                sound = self.slide(name, dicom=dicom)
                path.write_bytes((damaged_dicom if dicom else damaged_tiff)(sound))
            elif dicom:
                write_dicom(path, pixels)
            else:
                write_slide(path, pixels)
        return path

    def searched(self, slide: Path, model: str) -> Path:
        """The folder of a slide's result by a model, with the default settings."""
        key = str(slide), model
        if key not in self.results:
            output = self.folder / f"results-{len(self.results)}"
            detect(output, slide, self.model(model), "--allow-damage")
            self.results[key] = output / slide.stem
        return self.results[key]

    @property
    def site(self) -> Path:
        """A laboratory's profile by answers about both slides."""
        path = self.folder / "site.json"
        if not path.exists():
            found = [self.searched(self.slide(name), "own") for name in ("one", "two")]
            draw_sample(found, self.folder / "lab", SampleConfig(30))
            answers = self.folder / "answers.csv"
            answers_of(self.folder / "lab").to_csv(answers, index=False)
            save_profile(path, fit_profile(self.folder / "lab", "ours", answers=answers))
        return path


def damaged_tiff(sound: Path) -> bytes:
    """A slide of which a tile is empty, which no decoder takes."""
    content = bytearray(sound.read_bytes())
    with tifffile.TiffFile(sound) as tiff:
        page = tiff.pages.first
        start, size = page.dataoffsets[1], page.databytecounts[1]
    content[start : start + size] = bytes(size)
    return bytes(content)


def damaged_dicom(sound: Path) -> bytes:
    """A slide of which the last frame has zeros in the middle, which decoders pass over in silence."""
    content = bytearray(sound.read_bytes())
    start = content.rfind(b"\xff\xda")
    content[start + 600 : start + 700] = bytes(100)
    return bytes(content)


def write_dicom(path: Path, pixels: Any) -> None:
    """A level of JPEG frames, or a skip where DICOM is not installed."""
    pytest.importorskip("wsidicom", reason="the extra dicom is not installed")
    pytest.importorskip("highdicom", reason="the extra dicom is not installed")
    from wsidicom.codec import JpegSettings

    from tests.slides.dicoms import write_series

    coded = {"transcoding": JpegSettings(quality=95), "force_transcoding": True, "add_missing_levels": False}
    series = path.with_name(f"{path.stem}-series")
    (file,) = write_series(series, pixels, **coded).iterdir()
    shutil.move(file, path)
    for made in (series, series.with_name(f"{series.name}-plain")):
        shutil.rmtree(made)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test works in a folder of its own, and names files by their paths from there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def detect(output: str | Path, *arguments: str | Path) -> str:
    """The command, with a model among its arguments, on a processor."""
    slides = [one for one in arguments if Path(one).suffix != ".safetensors"]
    (model,) = (one for one in arguments if Path(one).suffix == ".safetensors")
    return call("detect", *slides, "-o", output, "--model", model, "--device", "cpu", "--tissue", "whole")


# ---- what the routes say ----


@contextmanager
def viewer(folder: Path, moved: Path | None = None) -> Iterator[tuple[list[ViewedSlide], Client]]:
    """The viewer of results, as a program asks it."""
    viewed, tiles, access = viewed_slides([folder], moved=moved), TileMaker(), Access()
    try:
        with Client(Guard(viewing_app(viewed, tiles, moved=moved), access), HERE, access.token) as client:
            yield viewed, client
    finally:
        tiles.close()
        for one in viewed:
            one.close()


def posted(client: Client, address: str, **sent: Any) -> Any:
    reply = client.post(address, json=sent)
    assert reply.status_code == 200, reply.text
    return reply.json()


def page(path: Path) -> str:
    return html.unescape(path.read_text())


def lines_of(printed: str) -> dict[str, list[list[str]]]:
    """The words of printed rows, two spaces or more apart, by the first of them."""
    found: dict[str, list[list[str]]] = {}
    for line in printed.splitlines():
        words = re.split(r" {2,}", line.strip())
        found.setdefault(words[0], []).append(words[1:])
    return found


def routes_to_a_slide_agree(result: SlideResult, printed: str, row: Row) -> None:
    """Files, commands and Python about one slide."""
    folder, record = result.folder, result.record
    count = record.in_force
    assert marked_figures(folder) == count.count
    summary = json.loads((folder / "summary.json").read_text())
    check_summary(summary)
    summary.pop(CHECK)
    assert summary == result.summary
    (scored,) = json.loads(call("score", folder, "--json"))
    assert scored.pop("case") == result.name
    assert scored == {name: summary[name] for name in scored}
    assert set(scored) == {*SlideCount.model_fields, *SlideCount.model_computed_fields}
    (words,) = lines_of(printed)[result.name]
    cells = [str(record.counted), count.text, count.interval_text or "-", count.kind, result.score]
    threshold = [f"{record.threshold:g}"] if row.extent == "two models" else []
    assert words[: len(threshold) + 5] == [*threshold, *cells]
    notes = {one.in_force.interval_note for one in load_results([folder.parent])}
    assert f"{count.kind_text}; {count.interval_note if len(notes) == 1 else DIFFERENT}" in printed
    python = mp.load_result(folder)
    assert (python.count, python.likely, python.score) == (count.count, count.likely, record.score.text)
    assert python.record == record
    assert mp.score(python).to_dict() == scored
    tables_agree(result, row)
    report_agrees(result)
    assert {path.name for path in folder.iterdir()} == {
        *record.files,
        *("summary.json", "stages"),
        *(("review.sqlite",) if row.review != "none" else ()),
    }


def tables_agree(result: SlideResult, row: Row) -> None:
    """Tables and exports hold what the record says, and the machine's probabilities."""
    folder, record = result.folder, result.record
    searched, candidates = read_table(folder / "search.parquet"), read_table(folder / "candidates.parquet")
    assert int(candidates["counted"].sum()) == record.counted
    assert int(candidates["listed"].sum()) == record.detections
    listed = read_table(folder / "detections.parquet")
    assert len(listed) == int((candidates["listed"] | candidates["counted"]).sum())
    assert result.table.equals(listed)
    if record.atypical is None:
        assert "atypical" not in candidates
    else:
        assert record.atypical.of == int(candidates.loc[candidates["listed"], "atypical"].notna().sum())
    said = candidates["review"].fillna("") if record.review else pd.Series("", index=candidates.index)
    machine = candidates["machine_probability" if record.review else "probability"]
    assert machine[: len(searched)].tolist() == searched["probability"].tolist(), "what the network said"
    assert machine[len(searched) :].isna().all(), "and of what people added, it said nothing"
    untouched = said == ""
    assert candidates["probability"][untouched].tolist() == machine[untouched].tolist()
    assert (candidates["label"] == "mitosis").equals(said != "not")
    assert bool(record.review) == (folder / "reviewed.parquet").exists() == ("reviewers" in candidates)
    expected = {"qupath", *(FORMATS[row.formats] if result.name == "one" or row.extent == "cohort" else ())}
    assert set(formats_in(folder)) == expected
    for form in expected:
        points = read_detections(folder / file_of(form), mpp=result.mpp, slide=result.name).table
        points = points[points["label"] == "mitosis"]
        counted = points.get("counted", np.ones(len(points)))  # where all count, a format need not say so
        assert int(counted.sum()) == record.count, "of so small a slide all figures count"
        np.testing.assert_allclose(
            np.sort(points[["x", "y"]].to_numpy(), axis=0), np.sort(listed[["x", "y"]], axis=0), atol=0.1
        )
    if "dicom" in expected:
        assert dicom_count(folder / "count.dcm") == pytest.approx(record.count)


def dicom_count(path: Path) -> float:
    import highdicom

    (hotspot,) = highdicom.sr.srread(path).content.get_planar_roi_measurement_groups()
    return float({each.name.meaning: each.value for each in hotspot.get_measurements()}["Mitotic count"])


def report_agrees(result: SlideResult) -> None:
    """The page: what the model is for, the count, and every detection with what the network said of it."""
    record, text = result.record, page(result.report)
    assert f'<div class="notice" role="note"><b>For research.</b> {NOTICE}</div>' in text
    assert f"{NOTICE} Model {record.operating_points.model}." in text
    for term, said in (("Intended use", NOTICE), ("Known failures", FAILURE), (DATA, "own work")):
        assert f"<dt>{term}</dt><dd>{said}</dd>" in text
    count = record.in_force
    assert f'id="count">{count.text}</p>' in text
    assert f'id="likely">{count.interval_text or "not known"}</p>' in text
    assert f'id="basis">{sentence(count.interval_note)}</p>' in text
    assert f'id="score">{record.score.text}</p>' in text
    assert f"<b>{count.kind_text.capitalize()}.</b>" in text
    for one in record.beneath:
        likely = f", true figures likely {one.interval_text}" if one.interval_text else ""
        assert f"{one.kind_text.capitalize()}: {one.text}{likely}." in text
    listed = f"{record.detections}, threshold {record.detection_threshold}"
    assert f"<dt>Listed as mitoses</dt><dd>{listed}</dd>" in text
    assert f"<dt>Counted on the slide</dt><dd>{record.counted}</dd>" in text
    assert (f'id="to-look-at">{record.to_look_at} more' in text) == bool(record.to_look_at)
    assert ("Reviewed." in text) == bool(record.review)
    for share in record.review:
        assert str(share) in text
    for warning in record.warnings:
        assert sentence(warning.text) in text
    if record.atypical is not None:
        assert f" of {record.atypical.of} listed mitos" in text
    probability = read_table(result.folder / "search.parquet")["probability"]
    above = int((probability >= record.threshold).sum())
    assert f"{above} detections at or above the threshold, {len(probability) - above} under it" in text
    detections = re.findall(r'data-text="Detection \d+: (.*?), at (.*?) px\."', text)
    shown = {position: said for said, position in detections}
    assert shown == detections_in_words(result)


def detections_in_words(result: SlideResult) -> dict[str, str]:
    """What the report says of each detection, by its position, from the table of candidates."""
    table, words = read_table(result.folder / "candidates.parquet"), dict[str, str]()
    for row in table[table["label"] == "mitosis"].to_dict("records"):
        machine, verdict = row.get("machine_probability", row["probability"]), row.get("review", "")
        found = "accepted" if np.isfinite(machine) else "added"
        said = {"mitosis": found, "unsure": "left open", "": ""}[verdict]
        parts = (
            f"probability {probability_text(machine)}" if np.isfinite(machine) else "",
            f"{said} by {row['reviewers']}" if said else "",
            "counted" if row["counted"] else "not counted",  # where, is not said of so small a slide
        )
        words[f"{row['x']:.0f}, {row['y']:.0f}"] = ", ".join(filter(None, parts))
    return words


def viewer_agrees(client: Client, viewed: list[ViewedSlide], results: Path) -> None:
    """The list and each slide, as the viewer answers now."""
    listed = {one["name"]: one for one in posted(client, "/api/slides")["slides"]}
    assert set(listed) == {folder.name for folder in result_folders(results)}
    for one in viewed:
        result, shown = load_result(results / one.name), posted(client, f"/api/count/{one.key}")
        assert listed[one.name]["count"] == result.in_force.model_dump(mode="json")
        interval = () if result.likely is None else result.likely.interval
        assert listed[one.name]["width"] == (interval[1] - interval[0] if interval else None)
        assert not listed[one.name]["waits"]
        assert listed[one.name]["problem"] == ""
        assert shown["count"] == {name: result.summary[name] for name in shown["count"]}
        assert set(shown["count"]) == {*SlideCount.model_fields, *SlideCount.model_computed_fields}
        assert shown["lines"] == [str(count) for count in result.record.counts]
        assert shown["row"] == listed[one.name]
        found = client.get(f"/api/slide/{one.key}").json()
        assert found["probability"] == read_table(result.folder / "search.parquet")["probability"].tolist()
        if "damaged-tiles" not in {warning.code for warning in result.warnings}:
            assert client.get(f"{found['tiles']}/0/0_0.jpg").status_code == 200


def index_agrees(results: Path, counted: list[str], apart: Mapping[str, str]) -> None:
    """Index and tables hold these slides and no others, and name those `apart` with the reason."""
    text, table = page(results / "index.html"), read_table(results / "counts.csv")
    assert NOTICE in text
    assert table["case"].tolist() == counted
    assert ("Not in these counts" in text) == bool(apart)
    made, rows = read_rows(results / "index.js")
    assert [row["case"] for row in rows] == counted
    assert {row["case"]: row["reason"] for row in made["apart"]} == apart
    for row in table.to_dict("records"):
        record = load_result(results / row["case"]).record
        count = record.in_force
        interval = (np.nan, np.nan) if count.likely is None else count.likely.interval
        values = [row[name] for name in ("count", "likely_low", "likely_high")]
        assert values == pytest.approx([count.count, *interval], nan_ok=True)
        assert (row["score"], row["to_look_at"]) == (record.score.text, record.to_look_at)
        assert (row["threshold"], row["proliferation"]) == (record.threshold, record.proliferation)
        for name in ("per_mm2", "per_10_fields", "counted_mm2", "area_mm2"):
            exact = counts_row(row["case"], record)[name]
            assert row[name] == float(f"{exact:.4g}"), "the record has all digits"
        circle = [record.hotspot.x, record.hotspot.y, record.hotspot.radius_px]
        assert [row[f"hotspot_{name}"] for name in ("x", "y", "radius_px")] == [
            round(one, 1) for one in circle
        ]
        assert (row["kind"], row["model"]) == (count.kind, record.operating_points.model)
        assert (row["counted"], row["detections"]) == (record.counted, record.detections)
        assert row["warnings"] == len({one.code for one in record.warnings})
        cells = (
            f'<a href="{row["report"]}">{row["case"]}</a></td><td><b>{count.text}</b></td>',
            f"<td>{shown_number(record.per_mm2)}</td>",
            f'<td class="nowrap">{count.interval_text or "–"}</td><td class="text wide">{count.kind}</td>',
            f'<td class="nowrap">{record.score.text}</td>',
        )
        assert "".join(cells) in text
    assert ("Methods, as text to copy" in text) == bool(counted)
    for name, reason in apart.items():
        record = load_result(results / name).record
        described = f">{name}</a>: {record.text}, model {record.operating_points.model}"
        assert described in text.partition("Not in these counts")[2]
        assert reason.capitalize() in text
    for file in ("detections.parquet", "candidates.parquet"):
        whole = read_table(results / file)
        parts = pd.concat([read_table(results / name / file) for name in counted], ignore_index=True)
        pd.testing.assert_frame_equal(whole, parts, check_dtype=False, check_like=True)


# ---- what people do ----


def answer(results: Path) -> None:
    """Of each slide, Anna rejects one detection, accepts one that did not count, moves one, is not sure of
    one, and adds two."""
    for result in load_results([results]):
        table = result.candidates
        first, second, third, *_ = order = table["probability"].sort_values(ascending=False).index
        under = next(row for row in order if table["probability"][row] < result.record.threshold)
        names = [position_name(*at) for at in table[["x", "y"]].to_numpy()]
        said = {
            names[first]: "not",
            names[second]: moved_to(table["x"][second] + 3, table["y"][second] + 2),
            names[third]: "unsure",
            names[under]: "mitosis",
            **{position_name(*at): "mitosis" for at in ADDED},
        }
        with log_of(result) as log:
            for item, verdict in said.items():
                log.record("Anna", item, verdict)


def contents(folder: Path) -> dict[str, Any]:
    """All files below but answers, notes of stages and what tells files that were written anew; without the
    path of the slide, and without the time at which a DICOM object was made."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        left_out = path.name.startswith("review.sqlite") or path.name in ("index.js", "cohort.json")
        if path.is_file() and not left_out and path.parent.name != "stages":
            name = str(path.relative_to(folder))
            found[name] = dicom_content(path) if path.suffix == ".dcm" else path.read_bytes()
            if path.name == "summary.json":
                found[name] = json.loads(found[name]) | {"slide": "", CHECK: ""}
    return found


def dicom_content(path: Path) -> str:
    import pydicom

    def forget(_dataset: object, element: Any) -> None:
        if element.VR in ("DA", "TM", "DT"):
            element.value = None

    dataset = pydicom.dcmread(path)
    dataset.walk(forget)
    return str(dataset)


def apply_by(row: Row, results: Path, where: Path | None, client: Client) -> None:
    """Put all answers in force, in one of three ways that end alike."""
    records = {result.name: result.record for result in load_results([results])}
    moved = () if where is None else ("--slides", where)
    if row.by == "command":
        done = json.loads(call("review", "apply", results, *moved, "--json"))
        assert [one["name"] for one in done] == list(records)
        assert done == [{"folder": str(one.folder), **one.summary} for one in load_results([results])]
    elif row.by == "viewer":
        applied = posted(client, "/api/apply")
        assert applied["failed"] == []
        assert applied["applied"] == {one.name: str(one.in_force) for one in load_results([results])}
    else:
        apply_reviews([results], slides=where)
    for result in load_results([results]):
        before, now = records[result.name], result.record
        assert now.kind == "reviewed"
        found = set(SlideFindings.model_fields) - {"warnings"}  # those of the slide are the record's
        assert now.unreviewed.model_dump(include=found) == before.unreviewed.model_dump(include=found)
        ((observer, added, rejected),) = ((one.observer, one.added, one.rejected) for one in now.review)
        assert (observer, added, rejected) == ("Anna", 2, 1)
        assert now.counted == before.counted - 1 + 1 + 2


def withdraw_by(
    row: Row, results: Path, where: Path | None, client: Client, viewed: list[ViewedSlide]
) -> None:
    """Take all answers back, in one of three ways that end alike."""
    if row.by == "command":
        moved = () if where is None else ("--slides", where)
        call("review", "withdraw", results, "--observer", "Anna", *moved)
    elif row.by == "viewer":
        for one in viewed:
            assert posted(client, f"/api/withdraw/{one.key}", observer="Anna")["standing"] == []
    else:
        withdraw_review([results], "Anna", slides=where)


# ---- the combinations ----


def test_any_two_features_are_together_in_a_row() -> None:
    for one, other in itertools.combinations(range(len(FACTORS)), 2):
        together = {(row[one], row[other]) for row in ROWS}
        assert together == set(itertools.product(FACTORS[one], FACTORS[other]))
    for review in ("reviewed", "withdrawn"):
        assert {row.by for row in ROWS if row.review == review} == {"command", "viewer", "python"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: ", ".join(filter(None, row)))
def test_all_routes_agree_whatever_is_combined(row: Row, bench: Bench, here: Path) -> None:
    results = here / "results"
    names = ["one"] if row.extent == "one slide" else ["one", "two"]
    slides = {}
    for name in names:
        model = "other" if name == "two" and row.extent == "two models" else "own"
        dicom = row.formats == "dicom" and model == "own"
        slide = bench.slide(name, row.damage if name == "one" else "sound", dicom=dicom)
        slides[name] = Path("slides") / slide.relative_to(slide.parents[1 + dicom])
        slides[name].parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(slide, slides[name])
        shutil.copytree(bench.searched(slide, model), results / name)
    damage = ["--allow-damage"] if row.damage == "damaged" else []
    options = [part for form in FORMATS[row.formats] for part in ("--format", form)] + damage
    options += ["--site", str(bench.site)] if row.model == "calibrated" else []
    options.append(str(bench.model("own")))
    together = [slides["two"]] if row.extent == "cohort" else []
    if row.extent == "two models":
        detect("results", slides["two"], bench.model("other"))
    searches = {name: (results / name / "search.parquet").read_bytes() for name in names}
    detected = detect("results", slides["one"], *together, *options)
    before = contents(results)
    where = None
    if row.place == "moved":
        where = Path("archive") / "2026"
        where.mkdir(parents=True)
        shutil.move("slides", where)
        with pytest.raises(SlideError, match=r"no longer there.*--slides"):
            _ = load_result(results / "one").source
    with viewer(results, where) as (viewed, client):
        if row.review == "none":
            record = load_result(results / "one").record
            said = (
                f"Mitotic count: {record.in_force}. Mitotic score: {record.score.text} ({record.score.rule})."
            )
            assert together or said in detected
        else:
            answer(results)
            assert all(one["waits"] for one in posted(client, "/api/slides")["slides"])
            assert contents(results) == before, "answers change no file before they are applied"
            apply_by(row, results, where, client)
            viewer_agrees(client, viewed, results)
        if row.review == "withdrawn":
            withdraw_by(row, results, where, client, viewed)
            after = contents(results)
            assert [name for name in {**before, **after} if before.get(name) != after.get(name)] == []
        if row.review != "reviewed":
            viewer_agrees(client, viewed, results)
    if row.review != "none":
        with viewer(results, where) as (viewed, client):
            viewer_agrees(client, viewed, results)
    printed = call("score", "results")
    for result in load_results([results]):
        calibrated = row.model == "calibrated" and (result.name == "one" or row.extent == "cohort")
        assert result.in_force.kind == ("reviewed" if row.review == "reviewed" else "model")
        if row.extent == "two models" and result.name == "two":
            assert (result.likely, result.record.score.high) == (None, 3), "on so little tissue more may be"
            assert "nothing is known" in result.in_force.no_interval
        else:
            assert result.likely is not None, "whatever is damaged or moved"
            assert (result.likely.site_answers > 0) == calibrated
            assert (result.likely.answers > 0) == (calibrated or row.review == "reviewed")
        routes_to_a_slide_agree(result, printed, row)
        codes = {warning.code for warning in result.warnings}
        assert ("damaged-tiles" in codes) == (row.damage == "damaged" and result.name == "one")
        assert (result.folder / "search.parquet").read_bytes() == searches[result.name]
    apart = {"two": "searched or counted by another model or with other settings"}
    apart = apart if row.extent == "two models" else {}
    index_agrees(results, ["one"] if apart else names, apart)
    if row.damage == "damaged":
        assert "damaged tiles" in page(results / "index.html").lower()
    now, moved = contents(results), where or Path()
    again = detect("results", moved / slides["one"], *(moved / each for each in together), *options)
    assert f"({1 + len(together)} unchanged since an earlier run)" in again
    assert contents(results) == now, "detect keeps what people said"


# ---- what a command asks for, and where slides are ----


@pytest.mark.parametrize("asked", ["manifest", "folder"])
def test_slides_that_nobody_asks_for_any_more_leave_index_table_and_log(
    asked: str, bench: Bench, here: Path
) -> None:
    """Their results stay, apart, until somebody prunes them; answers are never lost."""
    Path("slides").mkdir()
    for name in ("one", "two"):
        slide = bench.slide(name)
        shutil.copy(slide, "slides")
        shutil.copytree(bench.searched(slide, "own"), Path("results") / name)
    Path("slides/torn.tif").write_bytes(b"no slide")

    def search(names: tuple[str, ...], *options: str) -> str:
        for path in Path("slides").iterdir():
            if asked == "folder" and path.stem not in names:
                path.unlink()
        rows = (f"{name},slides/{name}.tif,,," for name in names)
        Path("slides.csv").write_text("\n".join(("case,he,phh3,laboratory,split", *rows)))
        which = ("slides",) if asked == "folder" else ("--manifest", "slides.csv")
        return detect("results", *which, bench.model("own"), "--allow-failed", *options)

    results = here / "results"
    search(("one", "two", "torn"))
    index_agrees(results, ["one", "two"], {})
    assert "torn" in (results / "errors.log").read_text()
    assert "<dt>torn</dt>" in page(results / "index.html")
    answer(results)
    apply_reviews([results])
    search(("one",))
    assert not (results / "errors.log").exists()
    assert "torn" not in page(results / "index.html")
    index_agrees(results, ["one"], {"two": "no longer asked for"})
    assert load_result(results / "two").in_force.kind == "reviewed"
    search(("one",), "--prune")
    index_agrees(results, ["one"], {})
    assert [folder.name for folder in result_folders(results)] == ["one"]
    assert load_result(results / "removed" / "two").in_force.kind == "reviewed"
    assert (results / "removed" / "two" / "review.sqlite").is_file()


@pytest.fixture
def two(bench: Bench, here: Path) -> Path:
    """Results of two slides, and the slides."""
    slides = [Path(shutil.copy(bench.slide(name), here)) for name in ("one", "two")]
    for slide in slides:
        shutil.copytree(bench.searched(bench.slide(slide.stem), "own"), here / "results" / slide.stem)
    detect("results", *slides, bench.model("own"))
    return here / "results"


def test_a_folder_of_many_slides_is_not_one_result_and_names_them(two: Path) -> None:
    with pytest.raises(
        UsageError, match=r"holds the results of 2 slides.*Name the folder of one, such as .*one"
    ):
        mp.load_result(two)


def test_a_slide_that_has_moved_keeps_no_other_from_its_review(two: Path, here: Path) -> None:
    Path("elsewhere").mkdir()
    shutil.move(here / "one.tif", "elsewhere/renamed.tif")
    answer(two)
    done = CliRunner().invoke(COMMAND, ["review", "apply", str(two)])
    assert done.exit_code == 1
    assert "no longer there" in done.output
    assert "--slides" in done.output
    assert [one.in_force.kind for one in load_results([two])] == ["model", "reviewed"]
    index_agrees(two, ["one", "two"], {})
    call("review", "apply", two, "--slides", "elsewhere")
    assert [one.in_force.kind for one in load_results([two])] == ["reviewed", "reviewed"]
    index_agrees(two, ["one", "two"], {})
    assert load_result(two / "one").source.path == Path("elsewhere/renamed.tif")


def test_what_an_interval_rests_on_is_not_said_of_another_slide(two: Path) -> None:
    """How many answers an interval rests on is a number of each slide."""
    for number, result in enumerate(load_results([two])):
        table = result.candidates.sort_values("probability", ascending=False)
        with log_of(result) as log:
            for position in table[["x", "y"]].to_numpy()[: number + 1]:
                log.record("Anna", position_name(*position), "not")
    applied = call("review", "apply", two)
    assert [one.likely.answers for one in load_results([two]) if one.likely] == [1, 2]
    for text in (applied, call("score", two), page(two / "index.html")):
        assert set(re.findall(r"(\d+) answers in the circle", text)) in ({"1", "2"}, set())


def test_the_viewer_shows_what_is_sound_of_a_damaged_slide(bench: Bench, here: Path) -> None:
    """As the report does: it was searched with --allow-damage, and what cannot be decoded is white."""
    slide = bench.slide("one", "damaged")
    shutil.copytree(bench.searched(slide, "own"), here / "results" / "one")
    with viewer(here / "results") as ((viewed,), client):
        tiles = client.get(f"/api/slide/{viewed.key}").json()["tiles"]
        reply = client.get(f"{tiles}/0/0_0.jpg")
    assert reply.status_code == 200, reply.text
    shown, sound = np.asarray(Image.open(io.BytesIO(reply.content))), he_pixels()[:HEIGHT, :WIDTH]
    assert (shown[16:240, 272:] > 250).all()
    assert np.abs(shown[:, :256].astype(int) - sound[:, :256]).mean() < 12


# ---- a full disk ----


@contextmanager
def full_disk(at: int, *, lasting: bool) -> Iterator[None]:
    """A disk that is full when the file of this number is begun; `lasting`, for all after it, too."""
    begun = itertools.count(1)

    def temporary(**options: Any) -> Any:
        number = next(begun)
        if number == at or (lasting and number > at):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return tempfile.TemporaryDirectory(**options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base_files, "tempfile", SimpleNamespace(TemporaryDirectory=temporary))
        yield


@pytest.mark.parametrize(("review", "lasting"), [("given", True), ("withdrawn", False)])
def test_a_full_disk_at_any_write_of_a_review_loses_nothing(
    review: str, lasting: bool, bench: Bench, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old record stays until all is written, and whoever comes next, a person or `detect`, ends it."""
    monkeypatch.setattr(slide_stages, "write_slide_report", plain_report)
    slide = bench.slide("one")
    ready = ReadyDetector(load_detector([bench.model("own")]), EngineConfig(device="cpu"))
    case = CohortSlide("one", SlideSource(slide), TissueSource(whole=True))
    config = DetectionConfig(formats=("csv",))
    start = Path(shutil.copytree(bench.searched(slide, "own"), here / "start"))
    detect_slide(case, start, ready, config)
    answer(start)
    if review == "withdrawn":
        apply_answers(start)
        with log_of(load_result(start)) as log:
            for one in log.current():
                log.record(one.observer, one.item, None)
    whole = Path(shutil.copytree(start, here / "whole"))
    before, record = load_result(start).record, apply_answers(whole).record
    expected = contents(whole)
    assert (before.kind, record.kind) in (("model", "reviewed"), ("reviewed", "model"))
    for number in itertools.count(1):
        stopped = Path(shutil.copytree(start, here / f"stopped-{number}"))
        try:
            with full_disk(number, lasting=lasting):
                apply_answers(stopped)
            break
        except OutputError as error:
            said = str(error)
        assert os.strerror(errno.ENOSPC) in said
        assert load_result(stopped).record == before
        assert contents(stopped).keys() >= contents(whole).keys() - {"reviewed.parquet"}
        if review == "given":
            again = Path(shutil.copytree(stopped, here / f"again-{number}"))
            apply_answers(again)
            assert contents(again) == expected
        outcome = detect_slide(case, stopped, ready, config)
        assert outcome.record == record
        assert outcome.states[0].status == "kept"
        assert contents(stopped) == expected
    assert number > 15
    assert contents(stopped) == expected


def plain_report(path: Path, _slide: object, content: ReportInput) -> None:
    """What the page says, without its pictures."""
    record = content.record.model_copy(update={"seconds": {}})
    write_text(path, f"{record}\n{content.detections.to_csv()}")
