"""`metaphase detect` from the outside: files, exit codes, one bad slide among good ones, kill and resume."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from metaphase.base import settings
from metaphase.cli.detect import _summary_lines
from metaphase.cli.main import app
from metaphase.counting.clinical import Count, Likely
from metaphase.counting.scores import MitoticScore
from metaphase.detections.points import StatedPoints
from tests.analysis.conftest import he_slide, model
from tests.cli.running import run

__all__ = ["he_slide", "model"]  # fixtures shared with the pipeline's tests


def test_a_folder_is_searched_a_bad_slide_stops_nothing_and_nothing_is_told_twice(
    tmp_path: Path, he_slide: Path, model: Path
) -> None:
    slides, out = tmp_path / "slides", tmp_path / "out"
    slides.mkdir()
    for name in ("b.tif", "a.tif"):
        (slides / name).write_bytes(he_slide.read_bytes())
    (slides / "bad.tif").write_bytes(he_slide.read_bytes()[:5000])
    (slides / "notes.csv").write_text("no slide")
    Image.fromarray(np.full((300, 300, 3), 200, np.uint8)).save(slides / "field.png")
    command = ("detect", slides, "-o", out, "--model", model, "--device", "cpu", "--threshold", "0.9")
    first = run(*command)
    assert first.returncode == 1
    assert "4 slides; skipped, because not slides: notes.csv" in first.stderr
    assert "bad.tif" in first.stderr
    assert "Traceback" not in first.stderr
    assert first.stderr.count("states no believable micrometres per pixel. Give --mpp") == 1
    assert "column mpp of a manifest" in first.stderr
    warnings = [line for line in first.stderr.splitlines() if line.startswith("warning: ")]
    assert warnings
    assert all(line.startswith("warning: 2 slides (a, b): ") for line in warnings)
    counted, counts, meaning, stated, open_this = first.stdout.splitlines()
    assert counted == f"2 slides counted, 2 failed: see {out / 'errors.log'}."
    assert re.fullmatch(r"All counts are \d+\.", counts), "they are of the same slide"
    assert meaning.startswith("No interval: nothing is known of how this model errs")
    assert stated == (
        "Model tiny, not calibrated for this laboratory. Thresholds: 0.9 to list, 0.9 to count."
    )
    assert open_this == f"Report: {out / 'index.html'}. Table of counts: {out / 'counts.csv'}."
    assert len((out / "errors.log").read_text().splitlines()) == 2
    assert (out / "a" / "report.html").stat().st_size > 10_000
    index = (out / "index.html").read_text()
    assert "bad.tif" in index
    assert "a/report.html" in index
    again = run(*command, "--allow-failed")
    assert again.returncode == 0, "a slide that is recorded as bad is a result"
    assert again.stdout.startswith("2 slides counted (2 unchanged since an earlier run), 2 failed: see ")
    assert "warning" not in again.stderr
    none = run("detect", slides / "bad.tif", "-o", tmp_path / "none", "--model", model, "--device", "cpu")
    assert none.returncode == 1
    headers = [(folder / "counts.csv").read_text().splitlines()[0] for folder in (out, tmp_path / "none")]
    assert headers[0] == headers[1], "the same columns where no slide was counted"


@pytest.mark.parametrize("slides", [1, 12, 200])
def test_the_end_is_five_lines_for_any_number_of_slides(slides: int) -> None:
    points = StatedPoints(model="tiny", mitoses={"delta": 0.24}, count={"delta": 0.57})  # type: ignore[arg-type]
    likely = Likely(figures=3, interval=(0, 9), unmarked=0.5, answers=0, site_answers=0)
    counts = [Count(kind="model", count=number, likely=likely) for number in range(slides)]
    score = MitoticScore(rule="Nottingham, fields of 0.5 mm", most=(7, 14), found=1, low=1, high=2)
    record = SimpleNamespace(operating_points=points, score=score)
    outcomes: Any = [SimpleNamespace(in_force=count, record=record, resumed=False) for count in counts]
    lines = _summary_lines(outcomes, 0, Path("out"))
    assert len(lines) == 5
    assert all(line.endswith(".") and len(line) < 120 for line in lines)
    assert lines[0] == {1: "1 slide counted."}.get(slides, f"{slides} slides counted.")
    assert (
        lines[1]
        == {
            1: "Mitotic count: 0 (true figures: 0 to 9), by the model alone. "
            "Mitotic score: 1 to 2 (Nottingham, fields of 0.5 mm).",
            12: "Counts are 0 to 11, median 5.5.",
            200: "Counts are 0 to 199, median 99.5.",
        }[slides]
    )
    outcomes[-1].in_force = counts[-1].model_copy(update={"kind": "reviewed"})
    assert len(_summary_lines(outcomes, 3, Path("out"))) == 5
    assert _summary_lines([], 3, Path("out")) == [
        f"0 slides counted, 3 failed: see {Path('out') / 'errors.log'}."
    ]


def test_json_names_model_resolution_and_files(tmp_path: Path, he_slide: Path, model: Path) -> None:
    result = run(
        "detect", he_slide, "-o", tmp_path, "--model", model, "--format", "csv", "--format", "asap", "--json",
        "--field-diameter", "0.63",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    described = json.loads(result.stdout)
    (summary,) = described["slides"]
    assert described["failed"] == []
    assert described["model"]["name"] == "tiny"
    assert "model" not in summary
    assert summary["mpp_source"] == "metadata"
    assert {"detections.csv", "detections.xml", "report.html"} <= set(summary["files"])
    assert summary["seconds"]["detection"] > 0
    assert [one["rule"] for one in summary["scores"]] == ["Nottingham, fields of 0.63 mm"]
    assert "fields of 0.63 mm" in (tmp_path / "he" / "report.html").read_text()
    wrong = run("detect", he_slide, "-o", tmp_path, "--model", model, "--field-diameter", "0.39")
    assert wrong.returncode == 2
    assert "--field-diameter is 0.39. Give a number from 0.4 to 0.69" in wrong.stderr


def test_wrong_use_is_exit_code_2(tmp_path: Path, he_slide: Path) -> None:
    assert run("detect", he_slide, "-o", tmp_path, "--threshold", "7").returncode == 2
    assert run("detect", he_slide, "-o", tmp_path, "--device", "cuda:9").returncode == 2


KILLED = """
import os, signal
from metaphase.cli.main import main
from metaphase.analysis.journal import TileJournal
add = TileJournal.add
def added(journal, *found):
    add(journal, *found)
    if len(journal.finished) == 10:
        os.kill(os.getpid(), signal.SIGKILL)
TileJournal.add = added
main()
"""


@pytest.mark.slow
def test_kill_and_run_again(tmp_path: Path, he_slide: Path, model: Path) -> None:
    options = ["--model", str(model), "--set", "tile_px=64", "--device", "cpu"]
    run("detect", he_slide, "-o", tmp_path / "whole", *options)
    command = [sys.executable, "-c", KILLED, "detect", str(he_slide), "-o", str(tmp_path / "killed")]
    assert (
        subprocess.run([*command, *options], capture_output=True, check=False).returncode == -signal.SIGKILL
    )
    assert not (tmp_path / "killed" / "he" / "summary.json").exists()
    assert run("detect", he_slide, "-o", tmp_path / "killed", *options).returncode == 0
    tables = [pd.read_parquet(tmp_path / name / "he" / "candidates.parquet") for name in ("whole", "killed")]
    pd.testing.assert_frame_equal(*tables)


def test_a_cohort_is_searched_by_its_manifest(tmp_path: Path, he_slide: Path, model: Path) -> None:
    for case in ("a", "b"):
        (tmp_path / case).mkdir()
        (tmp_path / case / "he.tif").write_bytes(he_slide.read_bytes())
    manifest = tmp_path / "manifest.csv"
    manifest.write_text("case,he,split\na,a/he.tif,train\nb,b/he.tif,test\nc,,test\n")
    out = tmp_path / "out"
    result = run("detect", "--manifest", manifest, "--split", "test", "-o", out, "--model", model)
    assert result.returncode == 0, result.stderr
    assert set(pd.read_parquet(out / "candidates.parquet")["slide"]) == {"b"}
    assert not (out / "a").exists()
    assert run("detect", he_slide, "--manifest", manifest, "-o", out).returncode == 2
    assert run("detect", "--manifest", manifest, "--split", "none", "-o", out).returncode == 2


@pytest.mark.slow
def test_runs_into_one_folder_add_up(tmp_path: Path, he_slide: Path, model: Path) -> None:
    for name in ("a", "b", "bad"):
        content = he_slide.read_bytes()
        (tmp_path / f"{name}.tif").write_bytes(content if name != "bad" else content[:5000])
    slides = [tmp_path / f"{name}.tif" for name in ("a", "b", "bad")]
    options = ("--model", model, "--device", "cpu", "--threshold", "0.9")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    first = run("detect", *slides, "-o", whole, *options)
    assert first.returncode == 1
    assert re.search(r"^a: done in [\d.]+ s \(1/3, about .* left\)$", first.stderr, re.MULTILINE)
    assert run("detect", slides[1], "-o", parts, *options).returncode == 0
    assert run("detect", *slides, "-o", parts, *options).returncode == 1
    for name in ("detections.parquet", "candidates.parquet", "index.html"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name
    described = ("--json", "--log-json")
    pool = run("detect", *slides, "-o", tmp_path / "crew", *options, "--workers", "1", *described)
    assert pool.returncode == 1
    assert "Traceback" not in pool.stderr
    lines = [json.loads(line) for line in pool.stderr.splitlines()]
    events = [(line["event"], line["name"]) for line in lines]
    assert {*events} == {(event, name) for name in "ab" for event in ("started", "finished")} | {
        ("started", "bad"),
        ("failed", "bad"),
    }
    assert (lines[-1]["done"], lines[-1]["total"], lines[-1]["seconds_left"]) == (3, 3, 0)
    printed = json.loads(pool.stdout)
    assert [one["name"] for one in printed["failed"]] == ["bad"]
    assert [one["name"] for one in printed["slides"]] == ["a", "b"]
    for name in ("detections.parquet", "candidates.parquet", "index.html"):
        assert (tmp_path / "crew" / name).read_bytes() == (whole / name).read_bytes(), name
    assert set(pd.read_parquet(parts / "candidates.parquet")["slide"]) == {"a", "b"}
    assert "bad" in (parts / "errors.log").read_text()
    (tmp_path / "bad.tif").write_bytes(he_slide.read_bytes())
    again = run("detect", tmp_path / "bad.tif", "-o", parts, *options[:-1], "0.8")
    assert again.returncode == 0
    assert "a, b: not in index and tables (searched or counted by another model" in again.stderr
    assert set(pd.read_parquet(parts / "candidates.parquet")["slide"]) == {"bad"}
    assert not (parts / "errors.log").exists()


@pytest.mark.slow
def test_two_commands_in_one_folder_share_the_work(tmp_path: Path, he_slide: Path, model: Path) -> None:
    slides = []
    for name in "ab":
        slides.append(tmp_path / f"{name}.tif")
        slides[-1].write_bytes(he_slide.read_bytes())
    options = ["--model", str(model), "--device", "cpu", "--set", "tile_px=128", "--explain"]
    shared = tmp_path / "shared"
    command = [sys.executable, "-m", "metaphase", "detect", *map(str, slides), *options]
    both = [
        subprocess.Popen([*command, "-o", str(shared)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        for _ in range(2)
    ]
    described = [process.communicate()[1].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    searched = [line for text in described for line in text.splitlines() if "search: done" in line]
    assert sorted(line[0] for line in searched) == ["a", "b"]
    assert not (shared / ".batch").exists()
    assert list(pd.read_parquet(shared / "candidates.parquet")["slide"].unique()) == ["a", "b"]


def test_the_demonstration_finds_a_real_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a part of a field that has one 320, 240 px from its corner."""
    part = tmp_path / "part.png"
    Image.open(settings.fields_of_view()["brecahad-10033"]).crop((295, 0, 935, 560)).save(part)
    monkeypatch.setattr(settings, "fields_of_view", lambda: {"part": part})
    done = CliRunner().invoke(app, ["demo", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    results = tmp_path / "out" / "results"
    assert str(results / "carcinoma" / "report.html") in done.stdout.replace("\n", "")
    found = pd.read_parquet(results / "carcinoma" / "detections.parquet").query("counted")
    away = np.hypot(found["x"] - 256 - 320, found["y"] - 256 - 240)
    assert away.min() < 30
    assert len(found) < 6
