"""Pages as axe sees them: what keeps a reader of low vision, or without a mouse, from using them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metaphase.analysis.index import write_cohort
from tests.labels.observers.projects import write_project
from tests.web.results import spread_positions, write_result, write_sparse_slide
from tests.web.server import VIEW, Server, serving

pytestmark = pytest.mark.slow
AXE = Path(__file__).parents[2] / "build" / "axe" / "axe.min.js"
WIDTHS = (1280, 420)
SIDE = 4096
RUN = """async () => (await axe.run()).violations.map((one) => [
  one.id, one.impact, ...one.nodes.slice(0, 4).map((node) => `${node.target} ${node.failureSummary}`),
].join(" | "))"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("axe")
    places = spread_positions(24, SIDE, SIDE)
    slide = write_sparse_slide(folder / "slide.tif", SIDE, SIDE, places)
    for name in ("one", "two"):
        write_result(folder / "results" / name, slide, SIDE, SIDE, places, name, lowest=0.4)
    write_cohort(folder / "results")
    return folder / "results"


@pytest.fixture
def check(browser: Any) -> Any:
    """Opens an address at each width and scheme, does something there, and tells what axe finds."""
    if not AXE.is_file():
        pytest.skip("no build/axe: make build/axe/axe.min.js fetches it from npm")

    def look(address: str, act: Callable[[Any], None] | None = None) -> None:
        for width in WIDTHS:
            for scheme in ("light", "dark"):
                context = browser.new_context(
                    viewport={"width": width, "height": 860}, color_scheme=scheme, bypass_csp=True
                )
                page = context.new_page()
                page.goto(address)
                if act is not None:
                    act(page)
                page.evaluate(AXE.read_text())
                assert page.evaluate(RUN) == [], f"{width} px, {scheme}"
                context.close()

    return look


def test_report_and_index(check, results: Path) -> None:
    check((results / "one" / "report.html").as_uri())
    check((results / "one" / "report.html").as_uri(), lambda page: page.click(".crop button"))
    check((results / "index.html").as_uri())


def test_viewer_in_each_mode(check, results: Path) -> None:
    """As it is opened, one by one with the list, with a note, by pictures, at the end; and its report."""

    def open_(page: Any) -> None:
        page.wait_for_selector("#numbers[data-count]")

    def review(page: Any) -> None:
        open_(page)
        page.keyboard.press("l")
        page.fill("#observer", "Anna")
        page.keyboard.press("Enter")
        page.wait_for_selector("#work:not([hidden])")

    def note(page: Any) -> None:
        review(page)
        page.click("#scope summary")
        page.keyboard.press("w")
        page.keyboard.type("mucin")
        page.keyboard.press("Enter")
        page.keyboard.press("w")

    def pictures(page: Any) -> None:
        review(page)
        page.keyboard.press("g")
        for key in "mnuy":
            page.keyboard.press(key)
        page.keyboard.press("a")

    def end(page: Any) -> None:
        review(page)
        page.keyboard.press("e")
        page.wait_for_selector("#end:not([hidden])")

    def report(page: Any) -> None:
        open_(page)
        page.goto(
            page.get_attribute("#report", "href") and page.evaluate("document.getElementById('report').href")
        )
        page.wait_for_selector("#links")
        assert page.locator("#links a").count() == 3

    server = Server(results, code=VIEW)
    try:
        for act in (open_, review, note, pictures, end, report):
            check(server.url, act)
    finally:
        server.end()


def test_labelling(check, tmp_path: Path) -> None:
    def entrance(page: Any) -> None:
        page.wait_for_selector("#entrance:not([hidden])")

    def begin(page: Any) -> None:
        page.fill("#name", "Anna")
        page.keyboard.press("Enter")
        page.wait_for_selector("#close[data-ready] .scale")
        assert page.inner_text("header .title") == "Labelling"

    def grid(page: Any) -> None:
        begin(page)
        page.keyboard.press("g")

    with serving(write_project(tmp_path / "p", 14).folder) as server:
        for act in (entrance, begin, grid):
            check(server.url, act)
