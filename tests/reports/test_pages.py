"""What all pages share: one renderer, one policy, and numbers for reading."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaphase.base.errors import ResultWarning
from metaphase.base.provenance import Ingredients
from metaphase.base.stages import Stage, StageState
from metaphase.evaluation.metrics import Estimate
from metaphase.evaluation.operating_points import GRID
from metaphase.lab.parts import Asked, Step
from metaphase.lab.running import Standing
from metaphase.labels.observers.consensus import CurvePoint, LearningCurve, merge_answers
from metaphase.labels.observers.store import AnswerStore, Entry
from metaphase.reports import evaluation
from metaphase.reports.agreement import write_agreement_page
from metaphase.reports.pages import (
    DASH,
    TextTable,
    area,
    count_text,
    data_uri,
    duration,
    measure,
    number,
    percent,
    probability_text,
    render,
    sentence,
)
from metaphase.reports.paper import Part, picture_figure, write_paper_page
from metaphase.reports.plots import Line, label_curve_plot
from metaphase.reports.run import Examples, write_experiments_page, write_run_page
from metaphase.reports.slide import slide_page
from tests.labels.observers.projects import write_project
from tests.reports.slide_report_samples import Page, noisy_slide, random_points, result_for
from tests.reports.test_slide_report_cohort import row, write_index

HOSTILE = "<script>alert('1')</script>\"><img src=x onerror=alert(2)>&amp; {{ 7*7 }}"
PARTS = {"base.html", "tables.html", "notebook.html"}
"""Templates that no page is made of alone; a notebook's is tried with `_repr_html_`."""
ODD = ResultWarning(HOSTILE, HOSTILE, HOSTILE)


@dataclass(frozen=True)
class Nothing(Ingredients, stage="nothing"):
    """Decides nothing."""


def named_stage(name: str, about: str) -> Stage:
    return Stage(name, about, (), (), lambda _report: {}, Nothing())


STAGES = (
    StageState(named_stage("simulate", HOSTILE), "kept", 3.0, {HOSTILE: 1234}),
    StageState(named_stage("test", ""), "waiting"),
)
TABLES = (TextTable(HOSTILE, ("network", HOSTILE), ((HOSTILE, "0.9"),), HOSTILE),)
PANELS = {"Held out": [Line("cnn3", [np.linspace(0, 1, len(GRID)).tolist()], [0.5])]}
SCRIPTS = {"slide": [None], "cohort": ["index.js", None]}


def slide(_folder: Path) -> str:
    pixels = noisy_slide(400, 300)
    return slide_page(pixels, result_for(pixels, random_points(9, pixels), name=HOSTILE, warnings=(ODD,)))


def cohort(folder: Path) -> str:
    write_index(folder, [row(HOSTILE, 3, 1, 5, HOSTILE)], {"b": HOSTILE}, ODD)
    return (folder / "index.html").read_text(encoding="utf-8")


def run(folder: Path) -> str:
    history = pd.DataFrame({"epoch": [1, 2], "loss": [0.5, 0.4], "f1": [0.6, 0.5]})
    examples = Examples("Hardest", HOSTILE, np.zeros((2, 16, 16, 3), np.uint8), (HOSTILE, "0.5"))
    page = write_run_page(
        folder / "run.html",
        name=HOSTILE,
        states=STAGES,
        headline=[("cnn3", "0.9")],
        tables=TABLES,
        panels=PANELS,
        histories={"cnn3": history},
        examples=[examples],
        choices=TABLES,
    )
    return page.read_text(encoding="utf-8")


def paper(folder: Path) -> str:
    part = Part("table-1", HOSTILE, HOSTILE, HOSTILE, table=TABLES[0], missing=HOSTILE)
    drawn = Part("figure-1", HOSTILE, HOSTILE, HOSTILE, figure=picture_figure(np.zeros((4, 4, 3), np.uint8)))
    return write_paper_page(folder, HOSTILE, [part, drawn], STAGES).read_text(encoding="utf-8")


def experiments(folder: Path) -> str:
    page = write_experiments_page(folder, STAGES, TABLES, PANELS)
    return page.read_text(encoding="utf-8")


def evaluated(_folder: Path) -> str:
    figure = (HOSTILE, b"png", HOSTILE)
    headline = {HOSTILE: Estimate(0.5, 0.4, 0.6)}
    settings = {HOSTILE: HOSTILE}
    return evaluation.page(evaluation.Report(HOSTILE, HOSTILE, headline, TABLES, (figure,), settings, (ODD,)))


def agreement(folder: Path) -> str:
    project = write_project(folder / "project", 3, {"title": HOSTILE})
    with AnswerStore(project) as store:
        for observer, answer in (("A <b>", "mitosis"), ("B", "not")):
            store.record_many(Entry(observer, item, answer, 2.0) for item in project.by_name)
        merged = merge_answers(project, store.current(), 2, store.changes())
    write_agreement_page(folder, project, merged)
    return (folder / "agreement.html").read_text(encoding="utf-8")


def lab_page(root: Path, row: Standing, rounds: Sequence[Asked] = (), **content: Any) -> str:
    pictures = {one.what: data_uri("image/png", label_curve_plot(one.curve)) for one in rounds if one.curve}
    nothing: dict[str, Any] = {"notes": [], "centres": [], "model": [], "warnings": [], "command": ""}
    nothing |= {"name": "here", "patients": 1, "splits": {"train": 1}, "refresh_s": 0}
    return render(
        "lab.html", root=root, standing=[row], rounds=rounds, pictures=pictures, **(nothing | content)
    )


def laboratory(folder: Path) -> str:
    points = (CurvePoint(10, 0.5, 0.4, 0.6), CurvePoint(20, 0.6, 0.5, 0.7))
    first = Asked(HOSTILE, "label", folder, 3, 2, pd.DataFrame(), 1, lambda: LearningCurve(points))
    second = Asked("review", "review", folder, 5, 0, pd.DataFrame())
    stage = named_stage("round 1", HOSTILE)
    row = Standing(Step(stage), "waiting for a person", HOSTILE, StageState(stage, "waiting"))
    return lab_page(
        folder,
        row,
        [first, second],
        name=HOSTILE,
        command=HOSTILE,
        centres=[HOSTILE],
        notes=[(HOSTILE, HOSTILE)],
        model=[HOSTILE],
        warnings=[HOSTILE],
    )


PAGES: dict[str, Callable[[Path], str]] = {
    "slide": slide,
    "cohort": cohort,
    "run": run,
    "experiments": experiments,
    "paper": paper,
    "evaluation": evaluated,
    "agreement": agreement,
    "lab": laboratory,
}


def test_every_template_is_tried_here() -> None:
    folder = files("metaphase.reports").joinpath("templates")
    names = {path.name for path in folder.iterdir() if path.name.endswith(".html")}
    assert names - PARTS == {f"{name}.html" for name in PAGES}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_a_policy_that_keeps_everything_else_out(tmp_path: Path, name: str) -> None:
    html = PAGES[name](tmp_path)
    page = Page(html)
    (policy,) = page.of("meta", **{"http-equiv": "Content-Security-Policy"})
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy["content"].split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert (rules["base-uri"], rules["form-action"]) == ("'none'", "'none'")
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digests = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts}
    beside = {"'self'", "file:"} if name == "cohort" else set()  # its rows
    assert set(rules.get("script-src", "").split()) == beside | {f"'sha256-{digest}'" for digest in digests}
    assert html.index("Content-Security-Policy") < min(html.index(tag) for tag in ("<style", "<body"))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_asks_nothing_of_a_network_and_runs_nothing_it_was_told(tmp_path: Path, name: str) -> None:
    page = Page(PAGES[name](tmp_path))
    assert [script.get("src") for script in page.of("script")] == SCRIPTS.get(name, [])
    assert all(image["src"].startswith("data:image/") for image in page.of("img") if "src" in image)
    assert not page.of("link")
    assert not [key for _, found in page.elements for key in found if key.startswith("on")]
    assert "{{ 7*7 }}" in page.text()
    assert "generator" in {meta.get("name") for meta in page.of("meta")}


def test_the_laboratorys_page_links_to_what_was_made_and_shows_itself_anew(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for name in ("model/our lab.json", "site.json"):
        (tmp_path / name).touch()
    stage = replace(named_stage("model", "the model"), writes=("site.json", "not made.json"))
    step = Step(stage, shows=("model/our lab.json",))
    row = Standing(step, "running", "about 3 min left", StageState(stage, "running"))
    shown = Page(lab_page(tmp_path, row, refresh_s=20))
    assert [link["href"] for link in shown.of("a")] == ["model/our%20lab.json", "site.json"]
    (refresh,) = shown.of("meta", **{"http-equiv": "refresh"})
    assert refresh["content"] == "20"


def test_the_stages_of_a_job_are_told(tmp_path: Path) -> None:
    for made in (run, experiments):
        text = Page(made(tmp_path)).text("td")
        assert "simulate done 3.0 s" in text, "a stage that was kept is done"
        assert "test waiting" in text


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        render("experiments.html")


# ---- numbers for reading ----


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (13.25, "13.2"), (99.96, "100"), (100.4, "100"), (1234.5, "1,234"), (math.nan, DASH)],
)
def test_counts(value: float, text: str) -> None:
    assert count_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, DASH), (math.inf, DASH), (12.0, "12"), (0.12345, "0.123"), (81234.5, "81,234"), (-0.5, "-0.5")],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


def test_shares_measures_and_times() -> None:
    assert (percent(0.256), percent(math.nan)) == ("26 %", DASH)
    assert measure("mean_per_mm2") == "Mean per mm²"
    assert measure("nearest_neighbour_um") == "Nearest neighbour (µm)"
    assert (duration(None), duration(754)) == ("", "12 min 34 s")
    assert (area(2.0), area(0.264), area(1234.5), area(math.nan)) == ("2.00", "0.26", "1,234.50", DASH)
    assert sentence("no tissue in 2 mm2 of a slide, mm2x") == "No tissue in 2 mm² of a slide, mm2x."


@given(st.floats(0, 1), st.integers(0, 1000))
def test_no_probability_seems_to_reach_a_threshold_that_it_missed(value: float, thousandth: int) -> None:
    threshold = thousandth / 1000
    shown = float(probability_text(value))
    assert abs(shown - value) < 0.001 + 1e-9
    if value < threshold - 1e-9:
        assert shown < threshold
