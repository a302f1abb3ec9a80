"""One hostile input at a time, in a process of its own with limits, and what became of it.

The harness imports the commands once and forks a child for every input. The child makes the input, runs the
real entry point on it, and judges what it left; the parent looks at how the child ended, how long it took and
how much memory it had.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal, TextIO

Outcome = Literal["refused", "harmless", "traceback", "hang", "memory", "silently wrong", "bad generator"]
OUTCOMES: tuple[Outcome, ...] = (
    "refused", "harmless", "traceback", "hang", "memory", "silently wrong", "bad generator",
)  # fmt: skip
FAILURES: tuple[Outcome, ...] = OUTCOMES[2:]
HANG_S = 20.0
MEMORY_BYTES = 2 << 30
HARD_BYTES = 3 << 30
"""Beyond this a child gets no more memory."""
UNFORESEEN = ("Traceback (most recent call last)", "The traceback is in")
"""What the commands say where nobody thought of an input."""
PRELOADED = (
    "metaphase.cli.main", "metaphase.jobs.detection_cohort", "metaphase.networks.detector",
    "metaphase.jobs.tissue", "metaphase.jobs.counting", "metaphase.simulation", "metaphase.jobs.experiments",
    "metaphase.jobs.training.run", "metaphase.labels.observers.exchange", "metaphase.jobs.labelling",
    "metaphase.reports.evaluation", "metaphase.evaluation", "sqlite3", "tifffile", "PIL.PngImagePlugin",
)  # fmt: skip

Judge = Callable[[str], str]
"""Told what was printed, says what is silently wrong with what a command accepted, or nothing."""


def right(_printed: str) -> str:
    """Whatever is accepted is fine."""
    return ""


def must_refuse(_printed: str) -> str:
    """Nothing is fine but an error."""
    return "accepted"


@dataclass(frozen=True)
class Attempt:
    """A command on an input that was just made."""

    arguments: Sequence[str | bytes | Path]
    judge: Judge = right
    """Asked where the command ends with 0."""
    always: Judge = right
    """Asked whatever the command says: nothing may be written elsewhere, no escapes reach the terminal."""


Maker = Callable[[Random, Path], Attempt]
"""Makes an input in an empty folder."""


@dataclass(frozen=True)
class Trial:
    """An input by its name."""

    family: str
    number: int
    maker: Maker


@dataclass(frozen=True)
class Result:
    """What became of an input."""

    trial: Trial
    outcome: Outcome
    detail: str = ""
    command: str = ""
    seconds: float = 0.0
    memory_bytes: int = 0


def preload() -> None:
    """Import what the commands import when they are called, so that children start at once."""
    for module in PRELOADED:
        importlib.import_module(module)


def run_trials(
    trials: Iterable[Trial], folder: Path, *, seed: int, at_once: int = 2, hang_s: float = HANG_S
) -> Iterator[Result]:
    """Try all of them; one that hangs is tried once more alone, for the machine may have been busy."""
    again = []
    for result in _run(trials, folder, seed, at_once, hang_s):
        if result.outcome == "hang":
            again.append(result.trial)
        else:
            yield result
    yield from _run(again, folder, seed, 1, hang_s)


def _run(trials: Iterable[Trial], folder: Path, seed: int, at_once: int, hang_s: float) -> Iterator[Result]:
    baseline = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    waiting, running = iter(trials), dict[int, tuple[Trial, Path, float]]()
    more = True
    while more or running:
        while more and len(running) < at_once:
            trial = next(waiting, None)
            if trial is None:
                more = False
                break
            place = folder / f"{trial.family}-{trial.number}"
            running[_fork(trial, place, seed)] = (trial, place, time.monotonic())
        if not running:
            break
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        if pid in running:
            trial, place, started = running.pop(pid)
            memory = max(0, usage.ru_maxrss * 1024 - baseline)
            yield _judged(trial, place, status, time.monotonic() - started, memory)
            shutil.rmtree(place, ignore_errors=True)
            continue
        for late, (trial, place, started) in list(running.items()):
            if time.monotonic() - started > hang_s:
                os.killpg(late, signal.SIGKILL)
                os.waitpid(late, 0)
                del running[late]
                yield Result(trial, "hang", "", _command(place), hang_s)
                shutil.rmtree(place, ignore_errors=True)
        time.sleep(0.005)


def _fork(trial: Trial, place: Path, seed: int) -> int:
    shutil.rmtree(place, ignore_errors=True)
    (place / "in").mkdir(parents=True)
    pid = os.fork()
    if pid == 0:
        os._exit(_child(trial, place, seed))
    return pid


def _child(trial: Trial, place: Path, seed: int) -> int:
    """In the child: never returns into the parent's code."""
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    said = (place / "said.txt").open("w+", buffering=1, encoding="utf-8", errors="surrogateescape")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(said.fileno(), 1)
    os.dup2(said.fileno(), 2)
    try:
        os.chdir(place / "in")
        attempt = trial.maker(Random(f"{seed} {trial.family} {trial.number}"), place / "in")
        arguments = [os.fsdecode(part) for part in attempt.arguments]
        (place / "command.json").write_text(json.dumps(arguments))
    except BaseException as error:  # noqa: BLE001 -- told to the parent
        (place / "verdict.json").write_text(json.dumps({"generator": repr(error)}))
        return 0
    resource.setrlimit(resource.RLIMIT_DATA, (HARD_BYTES, HARD_BYTES))
    code = _called(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    printed = (place / "said.txt").read_bytes().decode("utf-8", "surrogateescape")
    verdict = {"code": code, "wrong": attempt.always(printed) or ("" if code else attempt.judge(printed))}
    (place / "verdict.json").write_text(json.dumps(verdict))
    return 0


def _called(arguments: list[str]) -> int:
    from metaphase.cli.main import main

    sys.argv = ["metaphase", *arguments]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 -- as an interpreter would
        traceback.print_exc()
        return 70
    return 0


def _judged(trial: Trial, place: Path, status: int, seconds: float, memory: int) -> Result:
    printed = (place / "said.txt").read_bytes().decode("utf-8", "replace")
    outcome, detail = _outcome(place, status, printed, memory)
    return Result(trial, outcome, detail, _command(place), seconds, memory)


def _outcome(place: Path, status: int, printed: str, memory: int) -> tuple[Outcome, str]:
    last = next((line for line in reversed(printed.splitlines()) if line.strip()), "")[-300:]
    if memory > MEMORY_BYTES or "MemoryError" in printed:
        return "memory", f"{memory / 1e9:.1f} GB {last}"
    if os.WIFSIGNALED(status):
        return "traceback", f"signal {os.WTERMSIG(status)} {last}"
    try:
        verdict = json.loads((place / "verdict.json").read_text())
    except (OSError, ValueError):
        return "traceback", f"ended with {status} and no verdict {last}"
    if "generator" in verdict:
        return "bad generator", verdict["generator"]
    if any(sign in printed for sign in UNFORESEEN):
        return "traceback", _place_of(printed) + last
    if verdict["wrong"]:
        return "silently wrong", verdict["wrong"]
    return ("refused" if verdict["code"] else "harmless"), last


def _place_of(printed: str) -> str:
    """The last line of our own code that a traceback names."""
    ours = [line.strip() for line in printed.splitlines() if "metaphase/" in line and ", line " in line]
    return ours[-1].partition("metaphase/")[2] + " | " if ours else ""


def _command(place: Path) -> str:
    try:
        return " ".join(json.loads((place / "command.json").read_text()))
    except (OSError, ValueError):
        return "?"


def print_table(results: Sequence[Result], out: TextIO) -> None:
    """Families against outcomes."""
    counts = Counter((result.trial.family, result.outcome) for result in results)
    families = list(dict.fromkeys(result.trial.family for result in results))
    heads = ("family", "inputs", *OUTCOMES)
    rows = [
        (name, str(sum(counts[name, one] for one in OUTCOMES)), *(str(counts[name, one]) for one in OUTCOMES))
        for name in families
    ]
    totals = [str(sum(int(row[column]) for row in rows)) for column in range(1, len(heads))]
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    for row in (heads, *rows, ("all", *totals)):
        cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        print(row[0].ljust(widths[0]), *cells, sep="  ", file=out)
