"""The table of stages by itself: order, records, interruption."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from metaphase.base import stages
from metaphase.base.errors import MetaphaseError, OutputError
from metaphase.base.provenance import Ingredients
from metaphase.base.stages import Facts, Report, Stage, run_stages, stage_states

NAMES = ("first", "second", "third")


@dataclass(frozen=True)
class Copied(Ingredients, stage="copy"):
    word: str = ""


class Job:
    """Three stages, each of which copies what the one before wrote; may be told to fail."""

    def __init__(self, folder: Path, word: str = "x", fails: str = "") -> None:
        self.folder, self.word, self.fails = folder, word, fails
        self.worked: list[str] = []

    def stages(self, renew: bool = False) -> list[Stage]:
        before = ("", *NAMES)
        return [
            Stage(name, "", (read,) if read else (), (f"{name}.txt",), self.work(name, read),
                  Copied(self.word if name == "second" else ""), renew=renew)
            for name, read in zip(NAMES, before, strict=False)
        ]  # fmt: skip

    def work(self, name: str, read: str) -> Callable[[Report], Facts]:
        def do(report: Report) -> Facts:
            report(name, 0, 1)
            self.worked.append(name)
            path = self.folder / f"{name}.txt"
            if name == self.fails:
                path.write_text("half")
                raise MetaphaseError("told to fail")
            begun = path.read_text() if path.exists() else ""
            source = (self.folder / f"{read}.txt").read_text() if read else ""
            path.write_text(source + (self.word if name == "second" else name) + begun)
            return {"letters": len(path.read_text())}

        return do


def statuses(job: Job) -> list[str]:
    return [state.status for state in stage_states(job.stages(), job.folder)]


def test_stages_run_once_in_order(tmp_path: Path) -> None:
    job = Job(tmp_path)
    seen = []
    states = run_stages(job.stages(), tmp_path, watch=lambda now: seen.append([s.status for s in now]))
    assert job.worked == list(NAMES)
    assert [state.facts for state in states] == [{"letters": 5}, {"letters": 6}, {"letters": 11}]
    assert seen[0] == ["running", "waiting", "waiting"]
    assert seen[-1] == ["done"] * 3
    assert {state.status for state in run_stages(job.stages(), tmp_path)} == {"kept"}
    assert job.worked == list(NAMES)


def test_a_sealed_file_that_was_changed_is_made_again(tmp_path: Path) -> None:
    job = Job(tmp_path)
    table = [replace(stage, sealed=stage.name != "third", renew=True) for stage in job.stages()]
    run_stages(table, tmp_path)
    whole = {name: (tmp_path / f"{name}.txt").read_text() for name in NAMES}
    for name in NAMES:
        (tmp_path / f"{name}.txt").write_text(whole[name][:-1])
    states = stage_states(table, tmp_path)
    assert [state.status for state in states] == ["waiting", "waiting", "kept"]
    assert states[0].explanation == "first: waiting (first.txt has changed)"
    run_stages(table, tmp_path)
    assert job.worked == [*NAMES, "first", "second"]
    assert [(tmp_path / f"{name}.txt").read_text() == whole[name] for name in NAMES] == [True, True, False]


@pytest.mark.parametrize("fails", NAMES)
def test_a_failure_keeps_what_was_done(tmp_path: Path, fails: str) -> None:
    broken = Job(tmp_path, fails=fails)
    seen: list[list[str]] = []
    with pytest.raises(MetaphaseError, match="told to fail"):
        run_stages(broken.stages(), tmp_path, watch=lambda now: seen.append([s.status for s in now]))
    assert seen[-1][NAMES.index(fails)] == "failed"
    later = Job(tmp_path)
    assert statuses(later)[NAMES.index(fails)] == "failed"
    state = stage_states(later.stages(), tmp_path)[NAMES.index(fails)]
    assert "told to fail" in state.reason

    def stop(what: str, done: float, total: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_stages(later.stages(), tmp_path, report=stop)
    assert statuses(later)[NAMES.index(fails)] == "interrupted", "what failed before is tried again"
    run_stages(later.stages(), tmp_path)
    assert later.worked == list(NAMES[NAMES.index(fails) :])
    assert statuses(later) == ["kept"] * 3


def test_other_settings_redo_a_stage_and_those_after_it(tmp_path: Path) -> None:
    run_stages(Job(tmp_path).stages(), tmp_path)
    other = Job(tmp_path, word="y")
    assert statuses(other) == ["kept", "waiting", "waiting"]
    run_stages(other.stages(renew=True), tmp_path)
    assert (tmp_path / "third.txt").read_text() == "firstythird"
    assert statuses(Job(tmp_path)) == ["kept", "waiting", "waiting"]


def test_half_a_result_is_kept_for_the_same_work_only(tmp_path: Path) -> None:
    with pytest.raises(MetaphaseError):
        run_stages(Job(tmp_path, fails="second").stages(renew=True), tmp_path)
    run_stages(Job(tmp_path).stages(renew=True), tmp_path)
    assert (tmp_path / "second.txt").read_text() == "firstxhalf", "the same work goes on"
    with pytest.raises(MetaphaseError):
        run_stages(Job(tmp_path, word="y", fails="second").stages(renew=True), tmp_path)
    run_stages(Job(tmp_path, word="z").stages(renew=True), tmp_path)
    assert (tmp_path / "second.txt").read_text() == "firstz", "other work starts anew"


def test_a_removed_output_is_made_again(tmp_path: Path) -> None:
    run_stages(Job(tmp_path).stages(), tmp_path)
    (tmp_path / "second.txt").unlink()
    job = Job(tmp_path)
    run_stages(job.stages(), tmp_path)
    assert job.worked == ["second"]


def test_a_stage_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    stage = Stage("lazy", "", (), ("nothing.txt",), lambda _: {}, Copied())
    with pytest.raises(OutputError, match=r"left no nothing\.txt"):
        run_stages([stage], tmp_path)


def test_what_is_removed_for_other_settings_is_never_taken_for_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_stages(Job(tmp_path).stages(renew=True), tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stages, "_remove", killed)
    with pytest.raises(KeyboardInterrupt):
        run_stages(Job(tmp_path, word="y").stages(renew=True), tmp_path)
    assert statuses(Job(tmp_path))[1] == "waiting", "the note went before the files"


def joined(folder: Path, name: str, reads: tuple[str, ...], fails: str, _report: Report) -> Facts:
    """What the stages before wrote, and the name; for stages that run in processes of their own."""
    if name == fails:
        raise MetaphaseError("told to fail", path=folder, next_step="do not tell")
    text = "".join((folder / f"{read}.txt").read_text() for read in reads) + name
    (folder / f"{name}.txt").write_text(text)
    return {"letters": len(text)}


def square(folder: Path, fails: str = "") -> list[Stage]:
    """Two stages between one that they read and one that reads both."""
    reads: dict[str, tuple[str, ...]] = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}
    return [
        Stage(name, "", read, (f"{name}.txt",), partial(joined, folder, name, read, fails), Copied(name))
        for name, read in reads.items()
    ]


def test_side_by_side_comes_to_the_same(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    stages = square(tmp_path)
    states = run_stages(stages, tmp_path, watch=lambda now: seen.append([s.status for s in now]), at_once=2)
    assert (tmp_path / "d.txt").read_text() == "abacd"
    assert [state.facts["letters"] for state in states] == [1, 2, 2, 5]
    assert ["done", "running", "running", "waiting"] in seen
    assert {state.status for state in run_stages(stages, tmp_path, at_once=2)} == {"kept"}


def test_side_by_side_a_failure_lets_the_others_end(tmp_path: Path) -> None:
    with pytest.raises(MetaphaseError) as described:
        run_stages(square(tmp_path, fails="b"), tmp_path, at_once=2)
    assert str(described.value) == f"{tmp_path}: told to fail. Do not tell."
    assert [state.status for state in stage_states(square(tmp_path), tmp_path)] == [
        "kept", "failed", "kept", "waiting",
    ]  # fmt: skip


@pytest.mark.parametrize("how", [KeyboardInterrupt, SystemExit])
def test_side_by_side_an_interruption_ends_what_runs(tmp_path: Path, how: type[BaseException]) -> None:
    def interrupt(states: stages.States) -> None:
        if states[-1].status == "running":
            raise how

    slow = Stage("slow", "", (), ("slow.txt",), partial(written_late, tmp_path / "slow.txt"), Copied("slow"))
    with pytest.raises(how):
        run_stages([slow], tmp_path, watch=interrupt, at_once=2)
    assert not (tmp_path / "slow.txt").exists(), "it was waited for"


def written_late(path: Path, _report: Report) -> Facts:
    time.sleep(20)
    path.touch()
    return {}


def test_an_error_travels_between_processes() -> None:
    """Copying and pickling take an object apart in the same way."""
    error = copy.copy(OutputError("full", path=Path("x"), next_step="make room"))
    assert (type(error), str(error), error.path) == (OutputError, "x: full. Make room.", Path("x"))
