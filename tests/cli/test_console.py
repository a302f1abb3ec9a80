"""Going on after a bad item."""

from __future__ import annotations

from pathlib import Path

import pytest

from metaphase.cli.console import for_each, progress_bar, shown_on
from metaphase.errors import UsageError


def test_failures_are_told_with_their_name_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def work(item: str) -> str:
        if item == "good.tif":
            return item
        if item == "odd.tif":
            raise ZeroDivisionError("a bug")
        raise UsageError("is bad", path=item)

    items = {"bad.tif": "bad.tif", "case 1": "worse.tif", "case 2": "good.tif", "case 3": "odd.tif"}
    assert for_each(items, work, tmp_path) == (["good.tif"], 1)
    log = tmp_path / "errors.log"
    assert capsys.readouterr().err.splitlines() == [
        "error: bad.tif: is bad.",
        "error: case 1: worse.tif: is bad.",
        f"error: case 3: ZeroDivisionError: a bug. The traceback is in {log}.",
    ]
    assert "case 1\nTraceback" in log.read_text()
    assert for_each({"case 2": "good.tif"}, work, tmp_path) == (["good.tif"], 0)
    assert not log.exists()


def test_a_line_of_the_bar_goes_with_its_item() -> None:
    bar = progress_bar()
    with shown_on(bar, "case [1]") as show:
        show(1, 4)
        assert [(task.completed, task.total) for task in bar.tasks] == [(1, 4)]
    assert not bar.tasks
