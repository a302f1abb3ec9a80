"""Going on after a bad item."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

from metaphase.base.batch import BatchWatch, Failure, run_batch
from metaphase.base.errors import UsageError
from metaphase.cli.console import BarWatch, batch_bar, progress_bar


def work(item: str, progress: object) -> str:
    if item == "good.tif":
        return item
    if item == "odd.tif":
        raise ZeroDivisionError("a bug")
    raise UsageError("is bad", path=item)


ITEMS = {"bad.tif": "bad.tif", "case 1": "worse.tif", "case 2": "good.tif", "case 3": "odd.tif"}


def test_failures_are_told_with_their_name_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with batch_bar() as watch:
        batch = run_batch(ITEMS, work, tmp_path, watch)
    assert batch.results == {"case 2": "good.tif"}
    assert [failure.name for failure in batch.failures] == ["bad.tif", "case 1", "case 3"]
    assert list(batch.outcomes) == list(ITEMS)
    log = tmp_path / "errors.log"
    assert capsys.readouterr().err.splitlines() == [
        "error: bad.tif: is bad.",
        "error: case 1: worse.tif: is bad.",
        f"error: case 3: ZeroDivisionError: a bug. The traceback is in {log}.",
    ]
    assert "case 1\nTraceback" in log.read_text()
    assert not run_batch({"case 2": "good.tif"}, work, tmp_path).failures
    assert not log.exists()


def test_a_failure_lets_go_of_what_its_item_held_and_is_logged_at_once(tmp_path: Path) -> None:
    class Large:
        pass

    held: list[weakref.ref[Large]] = []
    logged: list[bool] = []

    def fail(item: str, progress: object) -> None:
        logged.append((tmp_path / "errors.log").exists())
        large = Large()
        held.append(weakref.ref(large))
        raise ZeroDivisionError(item)

    batch = run_batch({"a": "a", "b": "b"}, fail, tmp_path)
    gc.collect()
    assert [failure.message for failure in batch.failures] == ["ZeroDivisionError: a", "ZeroDivisionError: b"]
    assert [ref() for ref in held] == [None, None]
    assert logged == [False, True]


def test_a_watch_hears_everything_in_order() -> None:
    class Ears(BatchWatch):
        heard: list[str] = []  # noqa: RUF012 -- of one test

        def started(self, name: str, number: int, total: int):  # type: ignore[no-untyped-def]
            self.heard.append(f"{number + 1}/{total} {name}")
            return lambda done, total: self.heard.append(f"{done}/{total}")

        def finished(self, name: str, result: object) -> None:
            self.heard.append(f"{name} gave {result}")

        def failed(self, failure: Failure, log: Path | None) -> None:  # noqa: ARG002
            self.heard.append(f"{failure.name}: {failure.message}")

    def half(item: str, progress) -> str:  # type: ignore[no-untyped-def]
        progress(1, 2)
        return work(item, progress)

    ears = Ears()
    run_batch({"a": "good.tif", "b": "bad.tif"}, half, None, ears)
    assert ears.heard == ["1/2 a", "1/2", "a gave good.tif", "2/2 b", "1/2", "b: bad.tif: is bad."]


def test_a_line_of_the_bar_goes_with_its_item() -> None:
    bar = progress_bar()
    watch = BarWatch(bar)
    show = watch.started("case [1]", 0, 1)
    show(1, 4)
    assert [(task.completed, task.total) for task in bar.tasks] == [(0, 1), (1, 4)]
    watch.finished("case [1]", object())
    assert [(task.completed, task.total) for task in bar.tasks] == [(1, 1)]
