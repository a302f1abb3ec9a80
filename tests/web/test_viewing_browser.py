"""The viewer in a real browser, on a slide of 100,000 px: review, a killed server, files that agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from metaphase.analysis.record import load_result
from metaphase.analysis.slide import apply_answers
from metaphase.counting.specimen import CountConfig
from metaphase.detections.files import read_detections
from metaphase.labels.observers.positions import PositionLog, position_name
from tests.web.results import (
    THRESHOLD,
    spread_positions,
    write_probability_map,
    write_registration,
    write_result,
    write_sparse_slide,
)
from tests.web.server import VIEW, Server

PATIENCE_MS = 60_000
WIDTH, HEIGHT = 100_000, 2048
PLACES = spread_positions(30, WIDTH, HEIGHT)
HOSTILE = "<img src=x onerror=alert(1)>"
ALL = "{ everywhere: true, floor: 0 }"


@pytest.fixture(scope="module")
def slide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sparse_slide(tmp_path_factory.mktemp("wide") / "wide.tif", WIDTH, HEIGHT, PLACES)


@pytest.fixture
def folder(tmp_path: Path, slide: Path) -> Path:
    return write_result(tmp_path / "results" / "wide", slide, WIDTH, HEIGHT, PLACES, HOSTILE)


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    started = Server(folder.parent, code=VIEW)
    yield started
    started.end()


class Tab:
    """A page that collects every error and every request that leaves the machine."""

    def __init__(self, browser, asked: str = ALL, **settings) -> None:
        self.complaints: list[str] = []
        self.context = browser.new_context(**settings)
        self.context.set_default_timeout(PATIENCE_MS)
        habits = f"localStorage['metaphase-view/habits'] ??= JSON.stringify({asked})"
        self.context.add_init_script(f"if (location.protocol === 'http:') {habits}")
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self._requested(request.url))

    def _requested(self, url: str) -> None:
        if urlsplit(url).hostname not in ("127.0.0.1", None):
            self.complaints.append(url)

    def counted(self) -> int:
        """Mitoses on the slide, as the page counts them."""
        described = self.page.inner_text("#counted")
        return int(described.split(", ")[1].split()[0])

    def figure(self) -> int:
        """The figure on show, once all of it is there."""
        self.page.wait_for_function("() => document.getElementById('figure').dataset.ready")
        return int(self.page.get_attribute("#figure", "data-ready"))

    def press(self, key: str) -> None:
        """Answer the figure on show."""
        before = self.figure()
        self.page.keyboard.press(key)
        self.page.wait_for_function(
            "old => !['', String(old)].includes(document.getElementById('figure').dataset.ready)", arg=before
        )

    def saved(self) -> None:
        self.page.wait_for_selector("#state[data-state=saved]")


@pytest.fixture
def tab(browser) -> Iterator[Tab]:
    opened = Tab(browser, viewport={"width": 1200, "height": 800})
    yield opened
    opened.context.close()
    assert opened.complaints == []


def begin(tab: Tab, url: str, observer: str = "Anna") -> None:
    tab.page.goto(url)
    tab.page.wait_for_selector("#numbers[data-count]")
    tab.page.fill("#observer", observer)
    tab.page.keyboard.press("Enter")
    tab.figure()


def count_is(tab: Tab, expected: float) -> None:
    tab.page.wait_for_function(
        "count => Number(document.getElementById('numbers').dataset.count) === count", arg=expected
    )


def answered_is(tab: Tab, described: str) -> None:
    tab.page.wait_for_function("told => document.getElementById('done').textContent === told", arg=described)


def test_reject_two_add_one_and_lose_nothing_to_a_killed_server(
    tab: Tab, server: Server, folder: Path
) -> None:
    page = tab.page
    begin(tab, server.url)
    assert page.inner_text("#name") == HOSTILE
    assert "0.25 µm/px" in page.inner_text("#where") or float(page.inner_text("#where").split()[-2]) < 1
    machine = load_result(folder)
    counted = tab.counted()
    assert counted == machine.machine.counted
    before = page.inner_text("#count")
    tab.press("n")
    tab.press("n")
    page.mouse.move(500, 300)
    page.keyboard.press("i")
    tab.saved()
    assert tab.counted() == counted - 1
    page.wait_for_function("before => document.getElementById('count').textContent !== before", arg=before)
    server.kill()
    tab.figure()
    page.keyboard.press("m")  # the next figure is here already, the server is not
    page.wait_for_selector("#state[data-state=failing]")
    again = Server(folder.parent, port=server.port, code=VIEW)
    try:
        tab.saved()
        page.reload()
        page.wait_for_selector("#work:not([hidden])")
        answered_is(tab, "3 of 30 answered")
        assert tab.counted() == counted - 1
        page.keyboard.press("ArrowLeft")
    finally:
        again.end()
    done = apply_answers(folder)
    assert done.summary["counted"] == counted - 1
    for kind in ("parquet", "geojson", "csv"):
        assert len(read_detections(folder / f"detections.{kind}").table) == counted - 1
    assert done.summary["machine"]["counted"] == counted
    assert done.likely is not None
    assert done.likely.answers > 0


@pytest.mark.slow
def test_the_end_of_a_review(tab: Tab, tmp_path: Path) -> None:
    """Answers after the last change nothing, the next slide is a key away, the list follows; back with ←."""
    page, side = tab.page, 1024
    positions = spread_positions(4, side, side)
    slide = write_sparse_slide(tmp_path / "small.tif", side, side, positions)
    for name in ("one", "two"):
        write_result(tmp_path / "results" / name, slide, side, side, positions, name)
    server = Server(tmp_path / "results", code=VIEW)
    try:
        begin(tab, server.url)
        for key in "mnumnn":
            page.keyboard.press(key)
        assert page.is_visible("#end")
        assert page.inner_text("#tally") == "2 accepted, 1 rejected, 0 added, 1 unsure."
        assert "go back with ←" in page.inner_text("#hint")
        page.wait_for_function(
            "() => document.querySelector('#list tbody td:last-child').textContent === '4 of 4'"
        )
        page.keyboard.press("s")
        answered_is(tab, "0 of 4 answered")
        assert page.inner_text("#name") == "two"
        page.keyboard.press("l")
        page.click("#list tbody td")
        page.wait_for_selector("#end:not([hidden])")
        page.keyboard.press("ArrowLeft")
        assert "you said" in page.inner_text("#facts")
        page.keyboard.press("n")
        assert "Changed from" in page.inner_text("#hint")
        tab.saved()
        page.click("#withdraw")
        page.click("#withdraw")
        answered_is(tab, "0 of 4 answered")
    finally:
        server.end()


@pytest.mark.slow
def test_undo_move_and_a_link_to_a_place(tab: Tab, server: Server) -> None:
    page = tab.page
    begin(tab, server.url)
    counted = tab.counted()
    tab.press("n")
    assert tab.counted() == counted - 1
    page.keyboard.press("z")
    assert tab.counted() == counted
    page.mouse.move(420, 320)
    page.keyboard.press("v")
    tab.saved()
    assert page.get_attribute("[data-answer=mitosis]", "aria-pressed") == "true"
    assert tab.counted() == counted
    page.keyboard.press("o")
    address, where = page.evaluate("() => [location.href, document.querySelector('#scale span').textContent]")
    assert "&w=" in address
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_function("text => document.querySelector('#scale span').textContent === text", arg=where)


@pytest.mark.slow
def test_layers_threshold_and_list(tab: Tab, server: Server, folder: Path) -> None:
    page = tab.page
    with PositionLog(folder, WIDTH, HEIGHT) as log:
        log.record("Ben", position_name(*PLACES[0]), "not")
    page.goto(server.url)
    page.wait_for_selector("#numbers[data-count]")
    low, high = tab.counted(), float(page.get_attribute("#numbers", "data-count"))
    page.fill("#threshold", "0.95")
    assert tab.counted() < low
    page.wait_for_function(
        "high => Number(document.getElementById('numbers').dataset.count) < high", arg=high
    )
    page.click("#reset")
    assert tab.counted() == low == load_result(folder).machine.counted - 1, (
        "answers count for who has no name, too"
    )
    count_is(tab, high)
    for key in "123456":
        box = page.locator("[data-layer]").nth(int(key) - 1)
        before = box.is_checked()
        page.keyboard.press(f"Shift+Digit{key}")
        assert box.is_checked() != before
    assert page.inner_text("#show-list") == "Slides"
    page.keyboard.press("l")
    assert page.inner_text("#list tbody td") == HOSTILE
    page.click("[data-sort=count]")
    assert page.get_attribute("#list th:nth-child(2)", "aria-sort") == "descending"


@pytest.mark.slow
def test_count_interval_and_score_on_the_page_and_the_list_by_the_width_of_intervals(
    tab: Tab, tmp_path: Path
) -> None:
    page, side = tab.page, 1024
    slide = write_sparse_slide(tmp_path / "small.tif", side, side, spread_positions(12, side, side))
    plain = CountConfig(threshold=THRESHOLD)
    for name, number, settings in (("a", 2, {}), ("b", 12, {}), ("c", 6, {"counting": plain}), ("d", 6, {})):
        positions = spread_positions(number, side, side)
        write_result(tmp_path / "results" / name, slide, side, side, positions, name, lowest=0.3, **settings)
    server = Server(tmp_path / "results", code=VIEW)
    try:
        begin(tab, server.url)
        record = load_result(tmp_path / "results" / "a").record
        assert page.inner_text("#count") == record.text
        assert page.inner_text("#interval") == f"true figures: {record.interval_text}"
        assert page.inner_text("#score") == record.score.text
        assert page.inner_text("#rule") == record.score.rule
        page.keyboard.press("l")
        page.click("[data-sort=width]")
        rows = [load_result(tmp_path / "results" / name).record for name in "abd"]
        widths = {one.name: one.likely.interval[1] - one.likely.interval[0] for one in rows}
        shown = page.locator("#list tbody td:first-child").all_inner_texts()
        assert [widths[name] for name in shown[:3]] == sorted(widths.values(), reverse=True)
        assert shown[3] == "c", "it has no interval"
        page.click("#list tbody tr:last-child")
        page.wait_for_function(
            "() => document.getElementById('interval').textContent.startsWith('no interval')"
        )
        assert page.inner_text("#list tbody tr:last-child td:nth-child(3)") == "–"
    finally:
        server.end()


SHADE = """() => {
  const canvas = document.querySelector("#zoom canvas");
  const {width, height} = canvas;
  const data = canvas.getContext("2d").getImageData(width / 4, height / 4, width / 2, height / 2).data;
  let sum = 0;
  for (let index = 0; index < data.length; index += 4) sum += data[index + 1] * (index % 977);
  return sum;
}"""


def settled(page) -> float:
    """What the first window shows, once it stays the same."""
    shown = [page.evaluate(SHADE)]
    while len(shown) < 4 or len(set(shown[-4:])) > 1:
        page.wait_for_timeout(400)
        shown.append(page.evaluate(SHADE))
    return float(shown[-1])


@pytest.mark.slow
def test_phh3_over_and_beside_and_the_probability_map(tab: Tab, tmp_path: Path) -> None:
    side = 3000
    positions = spread_positions(20, side, side)
    he = write_sparse_slide(tmp_path / "he.tif", side, side, positions)
    folder = write_result(tmp_path / "results" / "he", he, side, side, positions)
    write_probability_map(folder, side, side, positions)
    write_registration(tmp_path / "pair", he, side, side, positions)
    server, page = Server(folder.parent, code=VIEW), tab.page
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).path))
    try:
        page.goto(server.url)
        page.wait_for_selector("#numbers[data-count]")
        page.wait_for_selector("#layer-phh3")
        plain = settled(page)
        page.click("#layer-phh3 [value=over]")
        assert settled(page) != plain
        assert any(one.startswith("/tile/") and "/phh3/" in one for one in asked)
        page.fill("#layer-phh3 [type=range]", "0")
        assert settled(page) == plain
        page.keyboard.press("7")
        page.wait_for_selector("#stage.divided #beside canvas")
        before = settled(page)
        page.mouse.move(700, 400)
        page.mouse.wheel(0, -400)  # in the second window; the first follows
        assert settled(page) != before
        before = settled(page)
        page.click("#layer-probability [value=over]")
        assert settled(page) != before
        assert any("/probability/" in one and one.endswith(".png") for one in asked)
        page.keyboard.press("7")
        page.wait_for_selector("#stage:not(.divided)")
    finally:
        server.end()


@pytest.mark.slow
def test_a_tablet_shows_slide_and_answers_at_once_by_touch(browser, server: Server) -> None:
    tab = Tab(browser, viewport={"width": 768, "height": 1024}, has_touch=True)
    page = tab.page
    begin(tab, server.url)
    for selector in ("#stage", "#answers [data-answer=mitosis]", "#add"):
        box = page.locator(selector).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 768
        assert box["y"] + box["height"] <= 1024
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    before = tab.figure()
    page.tap("[data-answer=not]")
    page.wait_for_function(
        "before => document.getElementById('figure').dataset.ready > String(before)", arg=before
    )
    tab.saved()
    tab.context.close()
    assert tab.complaints == []
