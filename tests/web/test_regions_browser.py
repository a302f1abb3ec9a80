"""Regions in a real browser: outlined by mouse and keyboard, changed, undone, and in force."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely

from metaphase.analysis.record import load_result
from metaphase.analysis.review import log_of
from metaphase.base.tables import read_table
from tests.web.results import THRESHOLD, spread_positions, write_result, write_sparse_slide
from tests.web.server import VIEW, Server
from tests.web.test_viewing_browser import Tab

WIDTH, HEIGHT = 12_000, 9_000
PLACES = spread_positions(300, WIDTH, HEIGHT)


@pytest.fixture(scope="module")
def slide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sparse_slide(tmp_path_factory.mktemp("broad") / "broad.tif", WIDTH, HEIGHT, PLACES)


@pytest.fixture
def folder(tmp_path: Path, slide: Path) -> Path:
    return write_result(tmp_path / "results" / "broad", slide, WIDTH, HEIGHT, PLACES)


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    started = Server(folder.parent, code=VIEW)
    yield started
    started.end()


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    opened = Tab(browser, viewport={"width": 1280, "height": 900})
    yield opened
    opened.context.close()
    assert opened.complaints == []


def settled(tab: Tab, regions: int) -> None:
    """The server has what was drawn, and the page its count."""
    tab.page.wait_for_function(
        "number => document.querySelectorAll('.outlined li').length === number"
        " && document.querySelector('.outlined').dataset.state !== 'saving'"
        " && !document.getElementById('numbers').dataset.waiting",
        arg=regions,
    )
    tab.page.wait_for_timeout(400)  # the count begins a moment after it is saved
    tab.page.wait_for_function("() => !document.getElementById('numbers').dataset.waiting")


def by_shapely(folder: Path) -> int:
    """Figures that count, by shapely alone, of what the log holds."""
    table = read_table(folder / "search.parquet")
    points = table.loc[table["probability"] >= THRESHOLD, ["x", "y"]].to_numpy()
    with log_of(load_result(folder)) as log:
        regions = log.scope().regions
    shapes = {kind: [one.shape for one in regions if one.kind == kind] for kind in ("include", "exclude")}
    inside = np.ones(len(points), bool)
    if shapes["include"]:
        inside = shapely.contains_xy(shapely.union_all(shapes["include"]), points)
    return int((inside & ~shapely.contains_xy(shapely.union_all(shapes["exclude"]), points)).sum())


@pytest.mark.slow
def test_outline_the_tumour_exclude_a_follicle_and_count_elsewhere(
    tab: Tab, server: Server, folder: Path, tmp_path: Path
) -> None:
    page = tab.page
    page.goto(server.url)
    page.wait_for_selector("#numbers[data-count]")
    whole = tab.counted()
    page.click("text=Polygon")  # nobody is there yet
    assert "name first" in page.inner_text("#regions .said")
    page.fill("#observer", "Anna")
    page.keyboard.press("Enter")
    page.wait_for_selector("#work:not([hidden])")
    page.click("#whole")
    page.wait_for_timeout(600)
    box = page.locator("#stage").bounding_box()
    assert box is not None

    def at(across: float, down: float) -> tuple[float, float]:
        return box["x"] + across * box["width"], box["y"] + down * box["height"]

    # The tumour, by mouse.
    page.click("text=Polygon")
    corners = [(0.3, 0.35), (0.7, 0.32), (0.72, 0.68), (0.35, 0.7)]
    for corner in [*corners, corners[0]]:
        page.mouse.click(*at(*corner))
        page.wait_for_timeout(350)  # two clicks, not a double one
    settled(tab, 1)
    tumour = tab.counted()
    assert tumour == by_shapely(folder) < whole
    assert "tumour, counts" in page.inner_text(".outlined")

    # A follicle, by keyboard alone.
    page.select_option("#regions select >> nth=0", "other")
    page.fill("#regions input[type=text]", "follicle")
    page.focus("text=Polygon")
    page.keyboard.press("Enter")
    for keys in (
        "",
        "ArrowRight ArrowRight ArrowRight ArrowRight",
        "ArrowDown ArrowDown ArrowDown",
        "ArrowLeft " * 4,
    ):
        for key in keys.split():
            page.keyboard.press(key)
        page.keyboard.press("Enter")
    page.keyboard.press("f")
    settled(tab, 2)
    without = tab.counted()
    assert without == by_shapely(folder) < tumour
    assert "follicle" in page.inner_text("#regions .said")
    pictures = tmp_path / "pictures"
    for width, height in ((1280, 900), (1920, 1080), (420, 900)):
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_timeout(700)
        page.screenshot(path=pictures / f"{width}.png")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.wait_for_timeout(500)

    # An artefact, freehand; undone and done again.
    page.select_option("#regions select >> nth=0", "artefact")
    page.click("text=Freehand")
    page.mouse.move(*at(0.5, 0.5))
    page.mouse.down()
    for step in range(40):
        angle = 2 * np.pi * step / 40
        page.mouse.move(*at(0.5 + 0.05 * np.sin(angle), 0.45 + 0.05 * np.cos(angle)))
    page.mouse.up()
    settled(tab, 3)
    third = tab.counted()
    assert third == by_shapely(folder) <= without
    page.keyboard.press("Control+z")
    settled(tab, 2)
    assert tab.counted() == without == by_shapely(folder)
    page.keyboard.press("Control+y")
    settled(tab, 3)
    assert tab.counted() == third == by_shapely(folder)

    # A corner of the tumour is moved by keyboard, a region is deleted.
    page.click("button[aria-label='Edit tumour']")
    page.keyboard.press("n")
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    settled(tab, 3)
    assert tab.counted() == by_shapely(folder)
    page.click("button[aria-label='Delete artefact']")
    settled(tab, 2)
    assert tab.counted() == by_shapely(folder)

    # Ten fields in place of the circle, and all of it in force.
    page.click("text=Ten fields")
    page.mouse.click(*at(0.45, 0.45))
    settled(tab, 2)
    assert "at a chosen place" in page.inner_text("#regions")
    page.screenshot(path=pictures / "fields.png")
    shown = int(page.inner_text("#count").replace(",", ""))
    page.click("#regions >> text=Apply")
    page.wait_for_function("() => document.getElementById('hint').textContent.includes('have changed')")
    record = load_result(folder).record
    assert record.count == shown
    assert len(record.hotspot.fields) == 10
    assert record.counted == by_shapely(folder)
    assert [one.name for one in record.scope.regions] == ["tumour", "follicle"]
    report = (folder / "report.html").read_text()
    assert "in tumour, without follicle; ten fields of 0.5 mm at a chosen place" in report
    page.goto((folder / "report.html").as_uri())
    for width in (1280, 1920, 420):
        page.set_viewport_size({"width": width, "height": 1000})
        page.screenshot(path=pictures / f"report{width}.png")
    page.goto("about:blank")


@pytest.mark.slow
def test_what_is_outlined_outlives_a_killed_server(tab: Tab, server: Server, folder: Path) -> None:
    page = tab.page
    page.goto(server.url)
    page.wait_for_selector("#numbers[data-count]")
    page.fill("#observer", "Anna")
    page.keyboard.press("Enter")
    tab.figure()
    server.kill()
    page.focus("text=Polygon")
    page.keyboard.press("Enter")
    for key in ("Enter", "ArrowRight", "Enter", "ArrowDown", "Enter", "f"):
        page.keyboard.press(key)
    page.wait_for_selector(".outlined[data-state=failing]")
    again = Server(folder.parent, port=server.port, code=VIEW)
    try:
        page.wait_for_selector(".outlined[data-state=saved]")
        page.reload()
        page.wait_for_selector(".outlined li")
        assert "tumour" in page.inner_text(".outlined")
    finally:
        again.end()
