"""One count for one slide, whichever way it is asked for."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from typer.main import get_command

import metaphase as mp
from metaphase.analysis.record import SlideResult, load_result
from metaphase.analysis.review import apply_reviews, log_of
from metaphase.base.errors import sentence
from metaphase.base.tables import read_table
from metaphase.cli.main import app
from metaphase.counting.clinical import count_slide
from metaphase.counting.sites import SampleConfig, save_profile
from metaphase.detections.points import OperatingPoint
from metaphase.evaluation.operating_points import save_point
from metaphase.images.tissue.finding import load_tissue
from metaphase.labels.observers.positions import position_name
from metaphase.learn.calibration import draw_sample, fit_profile
from metaphase.web.access import Access, Guard
from metaphase.web.viewed import TileMaker, viewed_slides
from metaphase.web.viewing import viewing_app
from tests.analysis.conftest import he_pixels, he_slide, tiny_model, write_slide  # noqa: F401
from tests.analysis.test_summaries import check_summary
from tests.learn.test_calibration import answers_of
from tests.web.asgi import Client

COMMAND = get_command(app)
"""Made once: that takes longer than most commands."""


def call(*arguments: str | Path) -> str:
    done = CliRunner().invoke(COMMAND, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_four_routes_one_count(
    tmp_path: Path,
    he_slide: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`detect`, `score` on any of its files, and Python."""
    model = tiny_model(tmp_path / "own.safetensors")
    point = OperatingPoint(
        name="count", delta=0.93, theta1=3.0, theta2=9.0, kappa=0.7, false_per_mm2=2.0, source="graded slides"
    )
    save_point(model.with_suffix(".json"), point)
    slide = Path(shutil.copy(he_slide, tmp_path / "slide.tif"))
    monkeypatch.chdir(tmp_path)
    common = ("detect", slide, "-o", "results", "--model", model, "--device", "cpu", "--tissue", "whole")
    (found,) = json.loads(call(*common, "--format", "csv", "--format", "qupath", "--json"))["slides"]
    expected = found["count"]
    assert 0 < expected < len(read_table("results/slide/candidates.parquet"))
    folder = Path("results/slide")
    files = ("", "candidates.parquet", "detections.parquet", "detections.csv", "detections.geojson")
    for file in files:
        (scored,) = json.loads(call("score", folder / file, "--json"))
        assert (scored["count"], scored["config"]["threshold"]) == (expected, 0.93), file
        assert scored["grade_shown"]["text"] == found["grade_shown"]["text"]
        assert "0.93" in call("score", folder / file)
    table, tissue = read_table(folder / "candidates.parquet"), load_tissue(folder / "slide.tissue.png")
    assert count_slide(table, mpp=0.25, tissue=tissue).count == expected


KINDS = {
    "detected": ("model", "counting range", []),
    "calibrated": ("calibrated", "95 % interval", ["model"]),
    "reviewed": ("reviewed", "counting range", ["model"]),
    "both": ("reviewed", "95 % interval", ["calibrated", "model"]),
}


def test_every_page_and_program_shows_the_count_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the model, after calibration, after review, and after both: one number, one interval, one kind."""
    monkeypatch.chdir(tmp_path)
    slide = write_slide(tmp_path / "slide.tif", he_pixels()[:400, :500])
    model = tiny_model(tmp_path / "own.safetensors")
    point = {"name": "count", "theta1": 3.0, "theta2": 9.0, "kappa": 0.7, "source": "graded slides"}
    save_point(model.with_suffix(".json"), OperatingPoint(delta=0.93, false_per_mm2=2.0, **point))
    save_point(model.with_suffix(".json"), OperatingPoint(name="mitoses", delta=0.9, cases=("a", "b")))
    common = ("detect", slide, "--model", model, "--device", "cpu", "--tissue", "whole")
    counts, printed = {}, call(*common, "-o", "detected")
    for name, (kind, interval, beneath) in KINDS.items():
        site = ("--site", write_profile()) if name in ("calibrated", "both") else ()
        if name != "detected":
            shutil.copytree("calibrated" if name == "both" else "detected", name)
            if kind == "reviewed":
                review(Path(name) / "slide")
            printed = call(*common, "-o", name, *site)
        result = load_result(Path(name) / "slide")
        assert (result.in_force.kind, result.in_force.interval_name) == (kind, interval)
        assert [one.kind for one in result.beneath] == beneath
        all_say_the_same(result, printed)
        counts[name] = result.in_force
    assert len({one.count for one in counts.values()}) == len(counts)
    assert load_result("both/slide").beneath[0] == counts["calibrated"]


def write_profile() -> Path:
    """By answers about the detections, and with few draws, for these take the time."""
    path = Path("site.json")
    if not path.exists():
        draw_sample([Path("detected")], "lab", SampleConfig(30, 2, 64))
        answers_of(Path("lab")).to_csv("answers.csv", index=False)
        made = fit_profile("lab", "ours", answers="answers.csv")
        few = {
            name: values[::10] if isinstance(values, list) else values for name, values in made.draws.items()
        }
        save_profile(path, made.model_copy(update={"draws": few}))
    return path


def review(folder: Path) -> None:
    """The two strongest are none, and one was missed."""
    table = load_result(folder).candidates.sort_values("probability", ascending=False)
    with log_of(load_result(folder)) as log:
        for row in table.index[:2]:
            log.record("Anna", position_name(table["x"][row], table["y"][row]), "not")
        log.record("Anna", position_name(300.0, 200.0), "mitosis")
    apply_reviews([folder.parent])


def all_say_the_same(result: SlideResult, detected: str) -> None:
    folder, count = result.folder, result.in_force
    assert count.count_interval is not None
    expected = {"count": count.count, "count_interval": list(count.count_interval), "kind": count.kind}
    summary = json.loads((folder / "summary.json").read_text())
    check_summary(summary)
    (scored,) = json.loads(call("score", folder, "--json"))
    for described in (summary, scored):
        assert {name: described[name] for name in expected} == expected
        assert described["proliferation"] == count.count
    assert f"Mitotic count: {count}. Grade: {summary['grade_shown']['text']}." in detected
    assert sentence(count.interval_note) in detected
    printed = call("score", folder.parent)
    row = next(line for line in printed.splitlines() if line.split()[0] == "slide" and count.kind in line)
    assert re.search(rf"\b{count.text} +{count.interval_text} +{count.kind} ", row), printed
    assert count.interval_note in printed
    assert str(summary["counted"]) in row.split()
    report, index = (
        html.unescape(path.read_text()) for path in (folder / "report.html", folder.parent / "index.html")
    )
    assert f'id="count">{count.text}</p>' in report
    assert f"<b>{count.interval_text}</b> ({count.interval_name}): {count.interval_means}; " in report
    assert f"<b>{count.text}</b>" in index
    assert f">{count.interval_text}</td>" in index
    for text in (report, index, detected):
        assert ("95 % interval" in text) == (count.interval_name == "95 % interval")
    (row,) = read_table(folder.parent / "counts.csv").to_dict("records")
    written = [row[name] for name in ("count", "count_low", "count_high")]
    assert written == pytest.approx([count.count, *count.count_interval])
    assert (row["case"], row["kind"], row["report"]) == ("slide", count.kind, "slide/report.html")
    assert (row["detections"], row["counted"]) == (summary["detections"], summary["counted"])
    python = mp.load_result(folder)
    assert (python.count, python.interval) == (count.count, count.count_interval)
    computed = mp.score(python)
    assert (computed.count, computed.count_interval) == (count.count, count.count_interval)
    (viewed,) = viewed_slides([folder])
    access = Access()
    pages = Guard(viewing_app([viewed], TileMaker()), access)
    with Client(pages, "http://127.0.0.1:8502", access.token) as client:
        (listed,) = client.post("/api/slides", json={}).json()["slides"]
        shown = client.post(f"/api/count/{viewed.key}", json={}).json()
    viewed.close()
    for described in (listed["count"], {key: shown["count"][key] for key in listed["count"]}):
        assert described == count.model_dump(mode="json")
