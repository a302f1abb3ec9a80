"""The pages in a real browser, cut off from every network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from metaphase.reports.slide import write_slide_report
from tests.reports.slide_report_samples import noisy_slide, random_points, result_for
from tests.reports.test_slide_report_cohort import FOCUS, row, write_index


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    slide = noisy_slide(1200, 900)
    result = result_for(slide, random_points(60, slide), warnings=(FOCUS,))
    path = tmp_path_factory.mktemp("browser") / "slide é #1.html"
    write_slide_report(path, slide, result)
    return path


class Tab:
    """A page that collects every complaint and every request beyond files and data."""

    def __init__(self, browser, **settings) -> None:
        self.complaints: list[str] = []
        self.context = browser.new_context(offline=True, **settings)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self._requested(request.url))

    def _requested(self, url: str) -> None:
        if not url.startswith(("file:", "data:")):
            self.complaints.append(url)


@pytest.fixture
def tab(browser) -> Iterator[Tab]:
    opened = Tab(browser)
    yield opened
    opened.context.close()
    assert opened.complaints == []


def test_layers_go_and_come_back(tab: Tab, report: Path) -> None:
    tab.page.goto(report.as_uri())
    assert not tab.page.locator(".stage .density").is_visible()  # there is less tissue than a hotspot has
    tab.page.get_by_label("Density").check()
    for layer, what in (("density", ".density"), ("mitoses", ".rings"), ("tissue", "path.tissue")):
        drawn = tab.page.locator(f".stage {what}")
        assert drawn.is_visible()
        tab.page.get_by_label(layer.capitalize()).first.uncheck()
        assert not drawn.is_visible()
        tab.page.get_by_label(layer.capitalize()).first.check()
        assert drawn.is_visible()


def test_a_crop_shows_where_it_lies_and_keys_lead_on(tab: Tab, report: Path) -> None:
    page = tab.page
    page.goto(report.as_uri())
    assert page.locator("#picked").is_hidden()
    second = page.locator(".crop button").nth(1)
    second.focus()
    page.keyboard.press("Enter")
    assert second.get_attribute("aria-pressed") == "true"
    x, y = second.get_attribute("data-overview").split()
    ring = page.locator("#pointer-overview")
    assert (ring.get_attribute("cx"), ring.get_attribute("cy")) == (x, y)
    assert ring.is_visible()
    first_text = page.locator("#picked-text").inner_text()
    page.keyboard.press("ArrowRight")
    assert page.locator("#picked-text").inner_text() != first_text
    page.keyboard.press("Escape")
    assert page.locator("#picked").is_hidden()
    assert page.evaluate("document.activeElement.closest('.crop') !== null")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(768, 1024), (1024, 768), (1280, 800), (400, 800)])
def test_an_enlarged_figure_opens_inside_the_window(browser, report: Path, width: int, height: int) -> None:
    tab = Tab(browser, viewport={"width": width, "height": height})
    tab.page.goto(report.as_uri())
    for index in (0, 11):
        tab.page.locator(".crop button").nth(index).click()
        box = tab.page.locator("#picked").bounding_box()
        assert min(box["x"], box["y"]) >= 0
        assert box["x"] + box["width"] <= width
        assert box["y"] + box["height"] <= height
        for scale in ("close", "half", "wide"):
            assert tab.page.locator(f"#picked-{scale}").evaluate("image => image.naturalWidth") > 0
        tab.page.keyboard.press("Escape")
    tab.context.close()
    assert tab.complaints == []


def wordy_index(folder: Path) -> Path:
    """An index of slides with long names and warnings."""
    rows = [row(f"{number} {'name ' * 9}", 3, 1, 9, FOCUS.code) for number in range(9)]
    write_index(folder, [*rows, row("other", 3)], None, FOCUS)
    return folder / "index.html"


@pytest.mark.slow
def test_a_printed_page_is_not_cut(browser, report: Path, tmp_path: Path) -> None:
    index = wordy_index(tmp_path)
    tab = Tab(browser, viewport={"width": 688, "height": 1000})  # A4 between margins of 14 mm
    tab.page.emulate_media(media="print")
    for page in (report, index):
        tab.page.goto(page.as_uri())
        assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    right = "cells => Math.max(...cells.map(cell => cell.getBoundingClientRect().right))"
    assert tab.page.locator("td").evaluate_all(right) <= 688
    tab.context.close()


@pytest.mark.slow
def test_the_index_fits_a_tablet(browser, tmp_path: Path) -> None:
    tab = Tab(browser, viewport={"width": 768, "height": 1024})
    tab.page.goto(wordy_index(tmp_path).as_uri())
    for cell in tab.page.locator("tbody tr").first.locator("td:visible").all():
        box = cell.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 768
    tab.context.close()


def test_a_ring_of_the_closeup_leads_to_its_crop(tab: Tab, report: Path) -> None:
    tab.page.goto(report.as_uri())
    link = tab.page.locator(".rings a").first
    link.focus()
    tab.page.keyboard.press("Enter")
    chosen = link.get_attribute("href")
    assert tab.page.locator(f"{chosen} button").get_attribute("aria-pressed") == "true"


def test_all_pictures_decode_and_a_narrow_screen_does_not_scroll_sideways(browser, report: Path) -> None:
    tab = Tab(browser, viewport={"width": 360, "height": 700}, color_scheme="dark")
    tab.page.goto(report.as_uri())
    assert tab.page.evaluate(
        "[...document.images].filter(i => i.getAttribute('src')).every(i => i.naturalWidth)"
    )
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tab.context.close()
    assert tab.complaints == []


@pytest.mark.slow
def test_without_scripts_everything_shows(browser, report: Path) -> None:
    tab = Tab(browser, java_script_enabled=False)
    tab.page.goto(report.as_uri())
    assert tab.page.locator(".crop img").first.is_visible()
    tab.page.get_by_label("Density").check()
    assert tab.page.locator(".stage .density").is_visible()
    tab.page.get_by_label("Density").uncheck()
    assert not tab.page.locator(".stage .density").is_visible()
    tab.context.close()


def test_the_index_sorts_searches_filters_and_turns_pages(tab: Tab, tmp_path: Path) -> None:
    rows = [
        row(f"s{number}", number % 60, 0, 70, *["out-of-focus"] * (number > 117)) for number in range(120)
    ]
    write_index(tmp_path, rows, None, FOCUS)
    page = tab.page
    page.goto((tmp_path / "index.html").as_uri())

    def names() -> list[str]:
        return page.locator("td.name").all_inner_texts()

    assert names()[:3] == ["s59", "s119", "s58"]
    assert page.locator("output").inner_text() == "1 to 50 of 120"
    page.get_by_label("Further slides").click()
    page.get_by_label("Further slides").click()
    assert len(names()) == 20
    page.get_by_role("button", name="Mitotic count").click()
    assert names()[:2] == ["s0", "s60"]
    assert page.locator("tbody tr").first.locator("td").nth(3).inner_text() == "0 to 70"
    assert page.locator("tbody tr").first.locator("td").nth(8).inner_text() == "30.00"
    page.get_by_role("button", name="Slide", exact=True).click()
    assert names()[:3] == ["s0", "s1", "s2"]
    page.get_by_label("Search").fill("S11")
    assert len(names()) == 11
    page.get_by_label("Warning").select_option("out-of-focus")
    assert names() == ["s118", "s119"]
    assert page.locator("td.name a").first.get_attribute("href") == "s118/report.html"
    page.get_by_label("Warning").select_option("-")
    assert len(names()) == 9
