"""Going on after a bad item."""

from __future__ import annotations

import gc
import json
import os
import re
import socket
import threading
import time
import weakref
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from metaphase.base.errors import OutputError, ResultWarning, UsageError
from metaphase.base.sharing import batch as batch_module
from metaphase.base.sharing import leases
from metaphase.base.sharing.batch import SHARED, BatchWatch, Failure, known_failures, one_at_a_time, run_batch
from metaphase.base.sharing.leases import Holder, holding
from metaphase.cli.progress import BarWatch, batch_bar, progress_bar

PATIENCE_S = 60.0


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
    said = re.sub(r"in [\d.]+ s", "in 0.0 s", capsys.readouterr().err)
    said = re.sub(r"about \d+ s", "about 0 s", said)
    assert said.splitlines() == [
        "error: bad.tif: is bad.",
        "case 2: done in 0.0 s (3/4, about 0 s left)",
        f"error: case 3: ZeroDivisionError: a bug. The traceback is in {log}.",
        "error: 1 more slide (case 1) failed like bad.tif: is bad.",
    ]
    lines = log.read_text().splitlines()
    assert lines[:3] == [
        "bad.tif: is bad.",
        "case 1: worse.tif: is bad.",
        "case 3: ZeroDivisionError: a bug",
    ], "a line for what was foreseen, and a traceback of what was not"
    assert lines[3].startswith("Traceback")
    assert [one.bad_input for one in batch.failures] == [True, True, False]
    assert not Failure.of("a", OutputError("the disk is full")).bad_input, "another try may help"
    assert not run_batch(dict.fromkeys(ITEMS, "good.tif"), work, tmp_path).failures
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


def test_a_kind_of_warning_is_told_once_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    pale, blurred = (
        ResultWarning("pale", "it is pale"),
        ResultWarning("blurred", "a third is blurred", "look at it"),
    )
    worse, old = ResultWarning("blurred", "a half is blurred"), ResultWarning("old", "it is old")
    items = {
        "a": SimpleNamespace(warnings=[pale]),
        "b": SimpleNamespace(warnings=[pale, blurred]),
        "c": SimpleNamespace(warnings=[worse]),
        "d": SimpleNamespace(warnings=[old]),
        "kept": SimpleNamespace(warnings=[pale, old], resumed=True),
    }
    with batch_bar() as watch:
        run_batch(items, lambda item, _progress: item, None, watch)
    described = capsys.readouterr().err.splitlines()
    assert described[-3:] == [
        "warning: 2 slides (a, b): it is pale",
        "warning: 2 slides (b, c), for example b: a third is blurred. Look at it.",
        "warning: d: it is old",
    ]
    assert sum(line.startswith("warning") for line in described) == 3


def test_a_line_of_the_bar_goes_with_its_item() -> None:
    bar = progress_bar()
    watch = BarWatch(bar)
    show = watch.started("case [1]", 0, 1)
    show(1, 4)
    assert [(task.completed, task.total) for task in bar.tasks] == [(0, 1), (1, 4)]
    watch.finished("case [1]", object())
    assert [(task.completed, task.total) for task in bar.tasks] == [(1, 1)]


def test_what_failed_adds_up_over_runs_until_it_is_done(tmp_path: Path) -> None:
    run_batch({"case 1": "worse.tif"}, work, tmp_path)
    run_batch({"case 3": "odd.tif", "case 2": "good.tif"}, work, tmp_path)
    assert [failure.name for failure in known_failures(tmp_path)] == ["case 1", "case 3"]
    assert (tmp_path / "errors.log").read_text().startswith("case 1: worse.tif: is bad.\ncase 3: Zero")
    run_batch({"case 1": "good.tif", "case 3": "good.tif"}, work, tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_item_that_another_process_works_on_comes_last_and_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_module, "LOOK_AGAIN_S", 0.05)
    order: list[str] = []
    with ExitStack() as other:
        other.enter_context(holding(tmp_path / SHARED / "a.lease"))

        class Ears(BatchWatch):
            def taken(self, name: str, holder: Holder) -> None:
                order.append(f"{name} is with {holder}")
                threading.Timer(0.2, other.close).start()

        def note(item: str, _progress: object) -> str:
            order.append(item)
            return item

        batch = run_batch({"a": "a", "b": "b"}, note, tmp_path, Ears())
    assert list(batch.results) == ["a", "b"]
    assert order == [f"a is with process {os.getpid()} on {socket.gethostname()}", "b", "a"]
    assert not (tmp_path / SHARED).exists()


def test_an_item_that_was_taken_over_while_this_process_stood_still_is_left_to_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_module, "LOOK_AGAIN_S", 0.05)
    monkeypatch.setattr(leases, "BEAT_S", 0.02)
    tries: list[str] = []

    def slow(item: str, progress) -> str:  # type: ignore[no-untyped-def]
        tries.append(item)
        if len(tries) == 1:
            (lease,) = (tmp_path / SHARED).glob("*.lease")
            lease.write_bytes(b'{"token": "of another"}')
            until = time.monotonic() + PATIENCE_S
            while time.monotonic() < until:
                time.sleep(0.02)
                progress(1, 2)
        return item

    def other_is_done(_self: object, _name: str, _holder: Holder) -> None:
        for lease in (tmp_path / SHARED).glob("*.lease"):
            lease.unlink()

    monkeypatch.setattr(BatchWatch, "taken", other_is_done)
    assert run_batch({"a": "a"}, slow, tmp_path).results == {"a": "a"}
    assert len(tries) == 2


def test_what_a_dead_process_left_is_taken_over_at_once_and_with_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dead = {"token": "t", "host": "h", "machine": leases.this_machine(), "process": 2**40, "started": ""}
    (tmp_path / SHARED).mkdir()
    (tmp_path / SHARED / "a.lease").write_text(json.dumps(dead))
    started = time.monotonic()
    with batch_bar() as watch:
        assert run_batch({"a": "good.tif"}, work, tmp_path, watch).results == {"a": "good.tif"}
    assert time.monotonic() - started < batch_module.LOOK_AGAIN_S
    assert f"a: process {2**40} on h has ended, its work is taken over" in capsys.readouterr().err


def test_a_lease_of_nobody_is_taken_over_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "LOOK_AGAIN_S", 0.01)
    monkeypatch.setattr(leases, "UNFINISHED_S", 0.02)
    (tmp_path / SHARED).mkdir()
    (tmp_path / SHARED / "a.lease").touch()
    assert run_batch({"a": "good.tif"}, work, tmp_path).results == {"a": "good.tif"}


@pytest.mark.parametrize("beats", [True, False])
def test_a_lease_of_another_machine_is_believed_only_where_it_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beats: bool
) -> None:
    monkeypatch.setattr(batch_module, "LOOK_AGAIN_S", 0.01)
    monkeypatch.setattr(leases, "LAPSE_S", 0.1)
    path, looks = tmp_path / SHARED / "a.lease", iter(range(1000))
    path.parent.mkdir()

    def renew() -> None:
        path.write_text(json.dumps({"token": "t", "machine": "other", "host": "far", "beat": next(looks)}))

    class Ears(BatchWatch):
        def taken(self, name: str, holder: Holder) -> None:  # noqa: ARG002
            if beats:
                renew()

    renew()
    with ExitStack() as stack:
        if beats:
            stack.enter_context(pytest.raises(OutputError, match="is working on it"))
        stack.enter_context(one_at_a_time(tmp_path, "a", Ears(), wait=False))
    assert path.exists() == beats


def test_a_failure_costs_the_same_however_many_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []
    whole = batch_module.read_json
    monkeypatch.setattr(
        batch_module, "read_json", lambda *args, **options: read.append(1) or whole(*args, **options)
    )
    items = {f"{number}": "bad.tif" for number in range(40)}
    assert len(run_batch(items, work, tmp_path).failures) == 40
    assert len(read) <= 3 * 40
    log = (tmp_path / "errors.log").read_text()
    assert len(log.splitlines()) == 40


@pytest.mark.parametrize("folder", ["/proc/self/out", "/sys/out", "/proc/1/fd"])
def test_folders_of_the_kernel_are_refused_at_the_start(folder: str) -> None:
    with pytest.raises(OutputError, match=rf"{folder}: belongs to the kernel"):
        run_batch({"a": "good.tif"}, work, Path(folder))


def test_what_is_no_folder_is_refused_at_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for folder in (tmp_path / "pipe", tmp_path / "pipe" / "out"):
        with pytest.raises(OutputError, match="pipe: is not a folder"):
            run_batch({"a": "good.tif"}, work, folder)


def test_a_pipe_in_the_place_of_the_log_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "errors.log")
    assert len(run_batch({"a": "bad.tif"}, work, tmp_path).failures) == 1
