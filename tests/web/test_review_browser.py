"""The review page in a real browser: decisions by key, a killed server, nothing lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metaphase.labels.building import finish_cohort
from metaphase.labels.reviewing import collect_decisions
from tests.labels.reference.workspaces import built_workspace

PATIENCE_MS = 60_000
CODE = """
import sys
from metaphase.web.labelling import serve_review
serve_review(sys.argv[1], port=0, ready=lambda running: print(running.url, flush=True))
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_workspace(tmp_path_factory.mktemp("review"))


@pytest.fixture
def server(workspace: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, str(workspace)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield process, process.stdout.readline().strip()
    process.send_signal(signal.SIGINT)
    process.wait(60)
    process.stdout.close()


@pytest.fixture
def page(browser: Any, server: tuple[subprocess.Popen[str], str]) -> Iterator[Any]:
    errors: list[str] = []
    opened = browser.new_page(viewport={"width": 1200, "height": 800})
    opened.set_default_timeout(PATIENCE_MS)
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.goto(server[1])
    opened.fill("#name", "Anna")
    opened.keyboard.press("Enter")
    yield opened
    opened.close()
    assert errors == []


def press(page, key: str) -> str:
    """Answer the point on show, once both pictures are there; returns which it was."""
    for side in ("he", "phh3"):
        page.wait_for_selector(f"#{side}[data-ready] img")
    item = page.get_attribute("#he", "data-item")
    assert page.get_attribute("#phh3", "data-item") == item
    page.keyboard.press(key)
    if key in "mn":
        page.wait_for_function("item => document.getElementById('he').dataset.item !== item", arg=item)
    return str(item)


def test_decisions_by_key_reach_the_reference_standard(page, server, workspace: Path) -> None:
    first = press(page, "n")
    press(page, "m")
    press(page, "n")
    page.keyboard.press("z")
    page.wait_for_selector("#state[data-state=saved]")
    assert page.inner_text("#count") == "2 of 8"
    assert "automatically: a mitosis" in page.inner_text("#facts")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(f"#he[data-item='{first}'][data-ready]")
    assert page.get_attribute("#answers [data-answer=reject]", "aria-pressed") == "true"
    server[0].kill()
    collect_decisions(workspace)
    done = finish_cohort(workspace)
    assert (done.reviewed, done.changed) == (2, 1)
