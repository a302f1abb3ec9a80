"""The review of a hotspot in a real browser: many answers at once, magnifications, ruler, notes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from metaphase.analysis.record import load_result
from metaphase.analysis.slide import apply_answers
from metaphase.labels.observers.positions import PositionLog
from tests.web.results import MPP, spread_positions, write_result, write_sparse_slide
from tests.web.server import VIEW, Server
from tests.web.test_viewing_browser import Tab, answered_is

WIDTH, HEIGHT = 16_000, 2048
PLACES = spread_positions(30, WIDTH, HEIGHT)


@pytest.fixture(scope="module")
def slide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sparse_slide(tmp_path_factory.mktemp("desk") / "wide.tif", WIDTH, HEIGHT, PLACES)


@pytest.fixture
def folder(tmp_path: Path, slide: Path) -> Path:
    return write_result(
        tmp_path / "results" / "mosaic_P0_0", slide, WIDTH, HEIGHT, PLACES, "mosaic_P0_0", lowest=0.4
    )


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    started = Server(folder.parent, code=VIEW)
    yield started
    started.end()


@pytest.fixture
def tab(browser, server: Server) -> Iterator[Tab]:
    opened = Tab(browser, asked="{}", viewport={"width": 1280, "height": 800})
    page = opened.page
    page.goto(server.url)
    page.wait_for_selector("#numbers[data-count]")
    page.fill("#observer", "Anna")
    page.keyboard.press("Enter")
    page.wait_for_selector("#work:not([hidden])")
    yield opened
    opened.context.close()
    assert opened.complaints == []


def asked_in(folder: Path, lowest: float) -> list[float]:
    """Probabilities of what lies in the circle and is asked about."""
    result = load_result(folder)
    circle, table = result.record.hotspot, result.candidates
    away = ((table["x"] - circle.x) ** 2 + (table["y"] - circle.y) ** 2) ** 0.5
    inside = (away <= circle.radius_px) & (table["probability"] >= lowest)
    return [float(value) for value in table.loc[inside, "probability"]]


def test_a_hotspot_is_reviewed_by_pictures(tab: Tab, folder: Path) -> None:
    """What is asked lies in the circle and is listed; the sure ones take one press, and one undoes them."""
    page = tab.page
    page.keyboard.press("g")
    asked = asked_in(folder, 0.4)
    assert 3 < len(asked) < len(PLACES)
    assert page.locator("#cells li").count() == len(asked)
    page.wait_for_function(
        "() => [...document.querySelectorAll('#cells img')].every((one) => one.naturalWidth)"
    )
    sure = sum(value >= 0.8 for value in asked)
    page.keyboard.press("a")
    assert page.locator("#cells .picture[aria-pressed=true]").count() == sure
    page.keyboard.press("m")
    answered_is(tab, f"{sure} of {len(asked)} answered")
    page.keyboard.press("z")
    answered_is(tab, f"0 of {len(asked)} answered")
    page.keyboard.press("a")
    page.keyboard.press("m")
    for key in "ny" + "n" * (len(asked) - sure - 2):
        page.keyboard.press(key)
    assert page.inner_text("#said").endswith(f"{len(asked)} of {len(asked)} answered.")
    assert page.is_visible("#end")
    assert page.inner_text("#tally").startswith(f"{sure + 1} accepted, {len(asked) - sure - 1} rejected")
    assert "1 atypical" in page.inner_text("#tally")
    assert page.inner_text("#time").startswith(f"{len(asked)} answers in ")
    tab.saved()
    with PositionLog(folder, WIDTH, HEIGHT) as log:
        given, marks = log.current("Anna"), log.marks("Anna")
        assert 0 < log.seconds_spent("Anna") < 120
    assert (len(given), [one.kind for one in marks]) == (len(asked), ["atypical"])
    done = apply_answers(folder)
    assert done.record.hotspot.count == sure + 1
    assert "atypical, marked by Anna" in done.report.read_text()


def test_the_probability_shows_with_the_answer_and_the_floor_is_the_persons(tab: Tab, folder: Path) -> None:
    page = tab.page
    assert page.inner_text("#facts") == ""
    page.keyboard.press("p")
    assert page.inner_text("#facts").startswith("probability 0.")
    page.keyboard.press("p")
    page.keyboard.press("n")
    page.keyboard.press("ArrowLeft")
    assert "probability" in page.inner_text("#facts")
    page.click("#scope summary")
    before = page.inner_text("#asked")
    page.fill("#floor", "0.21")
    assert page.inner_text("#asked") != before
    assert int(page.inner_text("#asked").split()[0]) == len(asked_in(folder, 0.21))
    page.check("#everywhere")
    answered_is(tab, f"1 of {len(PLACES) - 1} answered")
    record = load_result(folder).record
    page.fill("#threshold", "0.95")
    page.wait_for_function("count => document.getElementById('count').textContent !== count", arg=record.text)
    assert load_result(folder).record == record, "the slider changes nothing"


@pytest.mark.slow
def test_magnifications_ruler_and_notes(tab: Tab, folder: Path) -> None:
    page = tab.page
    for key, lens in zip("12345", ("2.5x", "5x", "10x", "20x", "40x"), strict=True):
        page.keyboard.press(key)
        assert page.inner_text("#where b") == f" · {lens}".strip() or lens in page.inner_text("#where")
        assert page.get_attribute(f"[data-lens='{lens[:-1]}']", "aria-pressed") == "true"
    page.mouse.move(300, 300)
    page.keyboard.press("r")
    page.mouse.move(500, 300)
    page.keyboard.press("r")
    assert page.inner_text("#hint").startswith(f"{200 * 0.25:g} µm"), "40x is 0.25 um for a pixel"
    page.keyboard.press("w")
    page.keyboard.type("apoptosis?")
    page.keyboard.press("Enter")
    assert page.inner_text("#notes li button").startswith("1. apoptosis?")
    page.keyboard.press("z")
    assert page.locator("#notes li").count() == 0
    page.keyboard.press("w")
    page.keyboard.type("m n z")
    page.keyboard.press("Enter")
    tab.saved()
    with PositionLog(folder, WIDTH, HEIGHT) as log:
        (note,) = log.marks("Anna")
        assert log.current() == []
    assert note.text == "m n z"
    assert MPP == 0.25
    page.keyboard.press("l")
    assert page.locator("#list tbody td:first-child wbr").count() == 2, "the name breaks at its underscores"
