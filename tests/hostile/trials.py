"""One hostile input at a time, in a process of its own with limits, and what became of it.

The harness imports the commands once and forks a child for every input. The child makes the input, runs the
real entry point on it, and judges what it left; the parent looks at how the child ended, how long it worked
(not waited for a core: the machine may be busy) and how much memory it had.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import os
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Literal, TextIO, get_args

import typer.main

from tests.hostile.sandbox import around, written_elsewhere

Outcome = Literal[
    "left out", "refused", "harmless", "traceback", "hang", "memory", "silently wrong", "bad generator"
]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""Left out is what needs a package that is not installed."""
FAILURES: tuple[Outcome, ...] = OUTCOMES[3:]
HANG_S = 20
"""Seconds of work, beyond which the kernel ends a child."""
BLOCKED_S = 600.0
"""Seconds after which a child is ended that does not work but waits."""
MEMORY_BYTES = 2 << 30
HARD_BYTES = 3 << 30
"""Beyond this a child gets no more memory."""
UNFORESEEN = ("Traceback (most recent call last)", "The traceback is in")
"""What the commands say where nobody thought of an input ..."""
FAILED = re.compile(r"^error: [^(]*: [A-Z]\w*(Error|Exception): ", re.MULTILINE)
"""... or of one among others."""
PRELOADED = (
    "metaphase.cli.main", "metaphase.analysis.run", "metaphase.networks.detector",
    "metaphase.analysis.cohort", "metaphase.analysis.scoring", "metaphase.simulation.cohort",
    "metaphase.learn.experiments", "metaphase.learn.run", "metaphase.labels.observers.store",
    "metaphase.learn.calibration", "metaphase.reports.evaluation", "metaphase.evaluation.mitoses", "sqlite3",
    "tifffile", "PIL.PngImagePlugin",
    "pydicom", "wsidicom", "highdicom", "onnxruntime", "metaphase.networks.engine.engine",
    "metaphase.base.sharing.workers", "metaphase.labels.building",
    "metaphase.labels.registration.outputs", "metaphase.web.viewing", "pyarrow.parquet", "rich.traceback",
    "pyarrow.dataset", "pyarrow.pandas_compat", "rich._emoji_codes", "typer.rich_utils", "typer._adapters",
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
    """Asked whatever the command says: no escapes reach the terminal. Never may it write elsewhere."""


Maker = Callable[[Random, Path], Attempt]
"""Makes an input in an empty folder."""


@dataclass(frozen=True)
class Trial:
    """An input by its name."""

    family: str
    number: int
    seed: int
    maker: Maker

    @property
    def name(self) -> str:
        """With which it can be tried again."""
        return f"{self.family}-{self.number}"


@dataclass(frozen=True)
class Result:
    """What became of an input."""

    trial: Trial
    outcome: Outcome
    detail: str = ""
    command: str = ""
    work_s: float = 0.0
    memory_bytes: int = 0


def preload() -> None:
    """Import and make what the commands do when they are called, so that children start at once."""
    for module in PRELOADED:
        with contextlib.suppress(ModuleNotFoundError):  # other versions of a package may lack it
            importlib.import_module(module)
    entry = importlib.import_module("metaphase.cli.main")
    entry.app = typer.main.get_command(entry.app)  # as each call of it would make it
    pages = importlib.import_module("metaphase.reports.pages")._environment()
    for template in pages.list_templates():
        pages.get_template(template)
    gc.freeze()


def run_trials(trials: Iterable[Trial], folder: Path, *, at_once: int = 1) -> Iterator[Result]:
    """Try all of them, in the order in which they end."""
    baseline = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    waiting, running = iter(trials), dict[int, tuple[Trial, Path, float]]()
    while True:
        for trial in islice(waiting, at_once - len(running)):
            place = folder / f"{trial.name}-{trial.seed}"
            running[_fork(trial, place)] = (trial, place, time.monotonic())
        if not running:
            return
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        if pid in running:
            trial, place, _ = running.pop(pid)
            memory = max(0, usage.ru_maxrss * 1024 - baseline)
            yield _judged(trial, place, status, usage.ru_utime + usage.ru_stime, memory)
            shutil.rmtree(place, ignore_errors=True)
            continue
        for late, (_, _, started) in running.items():
            if time.monotonic() - started > BLOCKED_S:
                os.killpg(late, signal.SIGKILL)
        time.sleep(0.002)


def _fork(trial: Trial, place: Path) -> int:
    shutil.rmtree(place, ignore_errors=True)
    (place / "in").mkdir(parents=True)
    pid = os.fork()
    if pid == 0:
        os._exit(_child(trial, place))
    return pid


def _child(trial: Trial, place: Path) -> int:
    """In the child: never returns into the parent's code."""
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    said = (place / "said.txt").open("w+", buffering=1, encoding="utf-8", errors="surrogateescape")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(said.fileno(), 1)
    os.dup2(said.fileno(), 2)
    try:
        os.chdir(place / "in")
        attempt = trial.maker(Random(f"{trial.seed} {trial.family} {trial.number}"), place / "in")
        arguments = [os.fsdecode(part) for part in attempt.arguments]
        (place / "command.json").write_text(json.dumps(arguments))
    except BaseException as error:  # noqa: BLE001 -- told to the parent
        missing = isinstance(error, ModuleNotFoundError) or type(error).__name__ == "Skipped"
        (place / "verdict.json").write_text(json.dumps({"generator": repr(error), "missing": missing}))
        return 0
    resource.setrlimit(resource.RLIMIT_DATA, (HARD_BYTES, HARD_BYTES))
    limit_s = math.ceil(time.process_time()) + HANG_S
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    before = around(place)
    code = called(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    printed = (place / "said.txt").read_bytes().decode("utf-8", "surrogateescape")
    wrong = written_elsewhere(before, place, arguments) or attempt.always(printed)
    verdict = {"code": code, "wrong": wrong or ("" if code else attempt.judge(printed))}
    (place / "verdict.json").write_text(json.dumps(verdict))
    return 0


def called(arguments: list[str]) -> int:
    """The exit code of a command in this process."""
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


def _judged(trial: Trial, place: Path, status: int, work_s: float, memory: int) -> Result:
    printed = (place / "said.txt").read_bytes().decode("utf-8", "replace")
    outcome, detail = _outcome(place, status, printed, memory)
    return Result(trial, outcome, detail, _command(place), work_s, memory)


def _outcome(place: Path, status: int, printed: str, memory: int) -> tuple[Outcome, str]:
    last = next((line for line in reversed(printed.splitlines()) if line.strip()), "")[-300:]
    if memory > MEMORY_BYTES or "MemoryError" in printed:
        return "memory", f"{memory / 1e9:.1f} GB {last}"
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        return "hang", last
    if os.WIFSIGNALED(status):
        return "traceback", f"signal {os.WTERMSIG(status)} {last}"
    try:
        verdict = json.loads((place / "verdict.json").read_text())
    except (OSError, ValueError):
        return "traceback", f"ended with {status} and no verdict {last}"
    if "generator" in verdict:
        return "left out" if verdict["missing"] else "bad generator", verdict["generator"]
    if any(sign in printed for sign in UNFORESEEN) or FAILED.search(printed):
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
    """Families against outcomes, as Markdown."""
    counts = Counter((result.trial.family, result.outcome) for result in results)
    families = sorted({result.trial.family for result in results})
    rows = [[name, *(counts[name, one] for one in OUTCOMES)] for name in families]
    rows = [[name, sum(cells), *cells] for name, *cells in rows]
    totals = [sum(column) for column in list(zip(*rows, strict=True))[1:]]
    heads = ("family", "inputs", *OUTCOMES)
    for row in (heads, ("---", *["--:"] * (len(heads) - 1)), *rows, ("**all**", *totals)):
        print("|", " | ".join(f"{cell:,}" if isinstance(cell, int) else cell for cell in row), "|", file=out)
    if results:
        longest, largest = max(one.work_s for one in results), max(one.memory_bytes for one in results)
        print(f"\nThe longest worked {longest:.1f} s, the largest took {largest / 1e9:.2f} GB.", file=out)
