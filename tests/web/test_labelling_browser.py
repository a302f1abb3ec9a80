"""The page in a real browser: two observers, a killed server, nothing lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaphase.labels.observers.project import Project, load_project
from metaphase.labels.observers.store import AnswerStore
from tests.labels.observers.projects import write_project
from tests.web.server import Server, serving

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
ITEMS = 50
PATIENCE_MS = 60_000
NAMES = {"m": "mitosis", "n": "not", "a": "artefact", "u": "unsure"}


class Observer:
    """Somebody at the page, who notes what they answered."""

    def __init__(self, browser: playwright.Browser, server: Server, name: str) -> None:
        self.name = name
        self.given: dict[int, str] = {}
        self.errors: list[str] = []
        self._context = browser.new_context(viewport={"width": 1280, "height": 800})
        self._context.set_default_timeout(PATIENCE_MS)
        self.open(server)
        self.page.fill("#name", name)
        self.page.keyboard.press("Enter")

    def open(self, server: Server) -> None:
        """A new tab of the same browser, which remembers the name."""
        self.page = self._context.new_page()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(server.url)

    def item(self) -> int:
        """The item on show, once its picture is there."""
        self.page.wait_for_selector("#close[data-ready] img")
        return int((self.page.get_attribute("#close", "data-item") or "").partition("/")[0])

    def answer(self, keys: str) -> None:
        for key in keys:
            self.given[self.item()] = NAMES[key]
            self.page.keyboard.press(key)

    def undo(self) -> None:
        self.page.keyboard.press("z")
        del self.given[self.item()]

    def wait_for(self, state: str) -> None:
        self.page.wait_for_selector(f"#state[data-state={state}]")


def answers_of(project: Project, observer: str) -> dict[int, str]:
    with AnswerStore(project) as store:
        return {project.by_name[one.item].number: one.answer for one in store.current(observer)}


@pytest.mark.slow
def test_two_observers_and_a_killed_server(browser: playwright.Browser, tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", ITEMS)
    server = Server(project.folder)
    anna, ben = (Observer(browser, server, name) for name in ("Anna", "Ben"))
    for _ in range(5):
        anna.answer("mnau")
        ben.answer("nmnm")
    anna.undo()
    anna.answer("n")
    server.kill()
    for observer in (anna, ben):  # the next pictures are there already, the server is not
        observer.answer("amu")
        observer.wait_for("failing")
        assert "kept in this browser until the server is back" in (observer.page.text_content("#state") or "")
    anna.page.close(run_before_unload=False)
    with serving(project.folder, port=server.port) as again:
        anna.open(again)
        for observer in (anna, ben):
            observer.wait_for("saved")
            assert observer.page.text_content("#count") == f"23 of {ITEMS}"
            observer.answer("m" * (ITEMS - 23))
            observer.page.wait_for_selector("#done:not([hidden])")
            observer.wait_for("saved")
    for observer in (anna, ben):
        assert len(observer.given) == ITEMS
        assert answers_of(project, observer.name) == observer.given
        assert observer.errors == []


def test_the_grid_and_an_item_without_picture(browser: playwright.Browser, tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", 14)
    path = project.folder / "items.csv"
    path.write_text(path.read_text() + "lost,absent.png,9,9,c,0.5,0.5\n")
    with serving(project.folder) as server:
        anna = Observer(browser, server, "Anna")
        anna.page.wait_for_selector("#close[data-ready]")
        anna.page.keyboard.press("g")
        ready = playwright.expect(anna.page.locator("#cells figure[data-ready]"))
        ready.to_have_count(12, timeout=PATIENCE_MS)
        first = anna.page.get_attribute("#cells figure", "data-item")
        for _ in range(12 - anna.page.locator("#cells .missing").count()):
            anna.page.keyboard.press("m")
        anna.page.wait_for_selector(f'#cells > :first-child figure:not([data-item="{first}"])')
        for _ in range(1000):  # presses while the page turns count for nothing
            if not anna.page.locator("#done[hidden]").count():
                break
            anna.page.keyboard.press("n")
            anna.page.wait_for_timeout(50)
        assert anna.page.text_content("#count") == "14 of 14", (
            "one that cannot be shown is waited for by nobody"
        )
        assert anna.page.text_content("#rest") == "1 more cannot be shown and is left out."
        anna.wait_for("saved")
    assert list(load_project(project.folder).unavailable) == ["lost"]
    found = list(answers_of(project, "Anna").values())
    assert found.count("mitosis") in (11, 12)
    assert found.count("mitosis") + found.count("not") == 14
    assert anna.errors == []
