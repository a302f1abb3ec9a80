"""The pages of runs and experiments: complete, offline, safe, and useful half-way."""

from __future__ import annotations

import html
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from metaphase.base.stages import stage_states
from metaphase.evaluation.operating_points import GRID
from metaphase.learn.chain import Chain
from metaphase.learn.comparison import summarise
from metaphase.learn.experiments import write_results
from metaphase.learn.run import run_table
from metaphase.learn.summary import run_report
from metaphase.reports.pages import duration
from metaphase.reports.plots import Line, network_f1_plot
from metaphase.reports.run import write_run_page
from tests.learn.run_samples import finished_workspace, tiny_config
from tests.learn.test_experiments import TRAINED_ON, result

PNG = b"\x89PNG\r\n\x1a\n"


def page_of(workspace: Path) -> str:
    chain = Chain(tiny_config(), workspace, "cpu")
    report = run_report(chain, stage_states(run_table(chain), workspace))
    path = write_run_page(workspace / "index.html", **report)
    return path.read_text(encoding="utf-8")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_workspace(), tmp_path / "<b>run & co"))


def test_the_page_of_a_finished_run_has_all_parts(workspace: Path) -> None:
    text = page_of(workspace)
    for part in (
        "Test on whole slides",
        "Learning",
        "Patches worth a look",
        "What ran",
        "All stages are done",
    ):
        assert part in text
    for name in ("cnn3", "ensemble", "cnn5-0p04", "birch", "Suspects: missed mitoses?", "difficult sets"):
        assert name in text
    assert text.count("data:image/jpeg") > 20
    assert text.count("data:image/png") == 2
    assert len(text) < 4_000_000


def test_the_page_asks_nothing_of_a_network_and_escapes_names(workspace: Path) -> None:
    text = page_of(workspace)
    assert "<b>run" not in text
    assert "&lt;b&gt;run &amp; co" in text
    assert not re.findall(r"(?:src|href)=\"(?!data:)", text)
    assert "<script" not in text
    assert "default-src 'none'" in html.unescape(text)


def test_the_page_of_an_unfinished_run_shows_what_there_is(workspace: Path) -> None:
    (workspace / "results.json").unlink()
    for stage in ("test", "cnn5-0p04"):
        (workspace / "stages" / f"{stage}.json").unlink()
    text = page_of(workspace)
    assert "The run is not finished" in text
    assert "Test on whole slides" not in text
    assert "Learning" in text


def test_the_page_of_a_run_that_never_began(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    text = page_of(tmp_path / "new")
    assert "Patches worth a look" not in text
    assert text.count(">waiting<") == 11


def test_the_experiments_leave_tables_curves_and_a_page(tmp_path: Path) -> None:
    config = tiny_config(experiments={"seeds": 2})
    rng = np.random.default_rng(0)
    measured = {name: result(rng, 0.6) for name in ("exp1-1", "exp1-2", "cnn4-1", "cnn3", "ensemble")}
    summary = summarise(config, measured, TRAINED_ON)
    write_results(tmp_path / "results", summary, measured, ())
    page = (tmp_path / "results" / "index.html").read_text(encoding="utf-8")
    assert {path.name for path in (tmp_path / "results").iterdir()} == {
        "results.json", "table.md", "curves.png", "index.html",
    }  # fmt: skip
    assert (tmp_path / "results" / "curves.png").read_bytes().startswith(PNG)
    assert "home (trained on)" in page
    assert "1 of 2" in page
    assert "bagging" in (tmp_path / "results" / "table.md").read_text()


def test_experiments_without_any_result_have_a_page(tmp_path: Path) -> None:
    summary = summarise(tiny_config(), {}, {})
    write_results(tmp_path, summary, {}, ())
    assert "Not all" not in (tmp_path / "index.html").read_text(encoding="utf-8")
    assert not (tmp_path / "curves.png").exists()


def test_curves_without_any_detection_can_be_drawn() -> None:
    lines = {"a": [Line("none", [[float("nan")] * len(GRID)], [0.5])], "b": []}
    assert network_f1_plot(lines).startswith(PNG)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.04, "0.0 s"), (59.99, "60.0 s"), (60, "1 min 0 s"), (7260, "2 h 1 min")],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
