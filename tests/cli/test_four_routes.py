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
        name="count", delta=0.93, theta1=3.0, theta2=9.0, kappa=0.7, prior={}, source="graded slides"
    )
    save_point(model.with_suffix(".json"), point)
    slide = Path(shutil.copy(he_slide, tmp_path / "slide.tif"))
    monkeypatch.chdir(tmp_path)
    common = ("detect", slide, "-o", "results", "--model", model, "--device", "cpu", "--tissue", "whole")
    (found,) = json.loads(call(*common, "--format", "csv", "--format", "qupath", "--json"))["slides"]
    expected = found["count"]
    assert 0 < expected < len(read_table("results/slide/candidates.parquet"))
    folder = Path("results/slide")
    for file in ("", "candidates.parquet", "detections.parquet", "detections.csv", "detections.geojson"):
        (scored,) = json.loads(call("score", folder / file, "--json"))
        assert (scored["count"], scored["config"]["threshold"]) == (expected, 0.93), file
        assert [one["found"] for one in scored["scores"]] == [one["found"] for one in found["scores"]]
        whole = file in ("", "candidates.parquet")  # the others leave weak detections out
        assert scored["likely"] == (found["likely"] if whole else None), file
        assert bool(scored["no_interval"]) != whole, file
        assert not whole or scored["to_look_at"] == found["to_look_at"]
        assert "0.93" in call("score", folder / file)
    table, tissue = read_table(folder / "candidates.parquet"), load_tissue(folder / "slide.tissue.png")
    assert count_slide(table, mpp=0.25, tissue=tissue).count == expected


KINDS = {"detected": "model", "calibrated": "model", "reviewed": "reviewed", "both": "reviewed"}


def test_every_page_and_program_shows_the_count_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the model, after calibration, after review, and after both: one number, one interval, one score."""
    monkeypatch.chdir(tmp_path)
    slide = write_slide(tmp_path / "slide.tif", he_pixels()[:400, :500])
    model = tiny_model(tmp_path / "own.safetensors")
    point = {"name": "count", "theta1": 3.0, "theta2": 9.0, "kappa": 0.7, "source": "graded slides"}
    save_point(model.with_suffix(".json"), OperatingPoint(delta=0.93, prior={}, **point))
    save_point(model.with_suffix(".json"), OperatingPoint(name="mitoses", delta=0.9, cases=("a", "b")))
    common = ("detect", slide, "--model", model, "--device", "cpu", "--tissue", "whole")
    counts, printed = {}, call(*common, "-o", "detected")
    for name, kind in KINDS.items():
        site = ("--site", write_profile()) if name in ("calibrated", "both") else ()
        if name != "detected":
            shutil.copytree("calibrated" if name == "both" else "detected", name)
            if kind == "reviewed":
                review(Path(name) / "slide")
            printed = call(*common, "-o", name, *site)
        result = load_result(Path(name) / "slide")
        assert result.in_force.kind == kind
        assert [one.kind for one in result.beneath] == ["model"] * (kind == "reviewed")
        all_say_the_same(result, printed)
        counts[name] = result.in_force
    assert counts["detected"].count == counts["calibrated"].count
    assert counts["reviewed"].count == counts["both"].count != counts["detected"].count
    assert len({one.likely for one in counts.values()}) == len(counts)
    assert load_result("both/slide").beneath[0] == counts["calibrated"]


def write_profile() -> Path:
    """By answers about the detections."""
    path = Path("site.json")
    if not path.exists():
        draw_sample([Path("detected")], "lab", SampleConfig(30))
        answers_of(Path("lab")).to_csv("answers.csv", index=False)
        save_profile(path, fit_profile("lab", "ours", answers="answers.csv"))
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
    folder, count, record = result.folder, result.in_force, result.record
    assert count.likely is not None
    interval, score = count.interval_text, record.score
    expected = {
        "count": count.count, "likely": count.likely.model_dump(mode="json"), "no_interval": "",
        "interval_text": interval, "interval_note": count.interval_note, "kind": count.kind,
        "scores": [one.model_dump(mode="json") for one in record.scores], "to_look_at": record.to_look_at,
    }  # fmt: skip
    assert record.to_look_at
    summary = json.loads((folder / "summary.json").read_text())
    check_summary(summary)
    (scored,) = json.loads(call("score", folder, "--json"))
    for described in (summary, scored):
        assert {name: described[name] for name in expected} == expected
        assert described["count"] == described["hotspot"]["count"] or summary["area_mm2"] < 2
    assert f"Mitotic count: {count}. Mitotic score: {score.text} ({score.rule})." in detected
    assert sentence(count.interval_note) in detected
    printed = call("score", folder.parent)
    row = next(line for line in printed.splitlines() if line.split()[0] == "slide" and count.kind in line)
    assert re.search(rf"\b{count.text} +{interval} +{count.kind} +{score.text} ", row), printed
    assert f"{count.kind_text}; {count.interval_note}" in printed
    assert str(summary["counted"]) in row.split()
    report, index = (
        html.unescape(path.read_text()) for path in (folder / "report.html", folder.parent / "index.html")
    )
    assert f'id="count">{count.text}</p>' in report
    assert f'id="likely">{interval}</p>' in report
    assert f'id="score">{score.text}</p>' in report
    assert sentence(count.interval_note) in report
    assert f"{record.to_look_at} more " in report
    assert f"<b>{count.text}</b>" in index
    assert f">{interval}</td>" in index
    assert f">{score.text}</td>" in index
    (row,) = read_table(folder.parent / "counts.csv").to_dict("records")
    written = [str(row[name]) for name in ("count", "likely", "likely_low", "likely_high", "score")]
    likely = (count.likely.figures, *count.likely.interval)
    assert written == [str(value) for value in (count.count, *likely, score.text)]
    assert row["to_look_at"] == record.to_look_at
    assert (row["case"], row["kind"], row["report"]) == ("slide", count.kind, "slide/report.html")
    assert (row["detections"], row["counted"]) == (summary["detections"], summary["counted"])
    python = mp.load_result(folder)
    assert (python.count, python.likely, python.score) == (count.count, count.likely, score.text)
    computed = mp.score(python)
    assert (computed.count, computed.likely, computed.scores) == (count.count, count.likely, record.scores)
    assert computed.to_look_at == record.to_look_at
    (viewed,) = viewed_slides([folder])
    access = Access()
    pages = Guard(viewing_app([viewed], TileMaker()), access)
    with Client(pages, "http://127.0.0.1:8502", access.token) as client:
        (listed,) = client.post("/api/slides", json={}).json()["slides"]
        shown = client.post(f"/api/count/{viewed.key}", json={}).json()
    viewed.close()
    for described in (listed["count"], {key: shown["count"][key] for key in listed["count"]}):
        assert described == count.model_dump(mode="json")
    assert shown["count"]["scores"] == expected["scores"]
    assert shown["count"]["to_look_at"] == record.to_look_at
