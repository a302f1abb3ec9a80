"""Kill commands at every write, and fill the disk there: `python -m tests.faults [--points 20]`.

Each command runs undisturbed first; so many acts on its folder are counted. Then, for every act (or for so
many, evenly), it runs from the same start until it is killed there or the disk is full from there on, and is
given again undisturbed. The folder must then say what it says without the fault: *lost* is what is missing,
*wrong* what is another, *unnamed* an error without a name or a next step. Then the same on file systems
without locks or hard links, and with clocks that jump by an hour or stand still: the command must end with
the same result, or with an error that says what to do, and the same result elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.contents import contents, is_left_over
from tests.faults.injector import FAULTS, STATE, Fault, Faults, cannot, loaded
from tests.faults.scenarios import SCENARIOS, Scenario
from tests.hostile.inputs.sound import write_assets
from tests.hostile.trials import FAILED, UNFORESEEN, called, preload

KEPT: tuple[Fault, ...] = FAULTS[3:]
"""Faults that last as long as the command."""


@dataclass
class Tally:
    """What became of a command under faults."""

    acts: int = 0
    tried: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    left: int = 0
    """Hidden files that were left behind."""


@dataclass(frozen=True)
class Stand:
    """A folder in which commands are tried."""

    place: Path

    @property
    def here(self) -> Path:
        """Where they run."""
        return self.place / "in"

    @property
    def faults(self) -> Faults:
        """What they meet there."""
        return Faults(self.here)

    def begin(self, scenario: Scenario, start: Path) -> None:
        """Leave what the command finds, made once."""
        if not start.exists():
            self._empty()
            scenario.begin(self.here)
            for command in scenario.before:
                assert self.run(command)[0] == 0, self.said
            shutil.copytree(self.here, start)
        self._empty()
        shutil.copytree(start, self.here, dirs_exist_ok=True)

    def _empty(self) -> None:
        shutil.rmtree(self.here, ignore_errors=True)
        self.here.mkdir(parents=True)

    def run(self, command: Sequence[str]) -> tuple[int, str]:
        """A command in a process and a group of its own: its exit code, and what it said."""
        pid = os.fork()
        if not pid:
            code = 70
            try:
                os.setpgid(0, 0)
                os.chdir(self.here)
                said = os.open(self.place / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                for stream in (1, 2):
                    os.dup2(said, stream)
                code = called(list(command))
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(status), self.said

    @property
    def said(self) -> str:
        """What the last command said."""
        return (self.place / "said.txt").read_text(encoding="utf-8", errors="replace")


def tried(name: str, scenario: Scenario, root: Path, points: int, kinds: Sequence[Fault]) -> Tally:
    """A command under all these faults."""
    stand, start, tally = Stand(root / "work"), root / "starts" / name, Tally()
    stand.begin(scenario, start)
    with stand.faults.during("none"):
        code, said = stand.run(scenario.command)
    assert code == 0, f"{name} fails undisturbed: {said}"
    tally.acts, expected = stand.faults.seen, contents(stand.here)
    for fault, at in _moments(tally.acts, points, kinds):
        stand.begin(scenario, start)
        with stand.faults.during(fault, at):
            code, said = stand.run(scenario.command)
        tally.tried[fault] = tally.tried.get(fault, 0) + 1
        where = f"{name}, {fault}" + (f" at {at} of {tally.acts}" if at else "")
        if _is_unnamed(code, said):
            tally.unnamed.append(f"{where}: {said[-600:]}")
        again, said = (0, "") if code == 0 and not at else stand.run(scenario.command)
        if _is_unnamed(again, said):
            tally.unnamed.append(f"{where}, then again: {said[-600:]}")
        _compare(tally, where + f" ({code}, then {again})", expected, contents(stand.here))
    return tally


def _moments(acts: int, points: int, kinds: Sequence[Fault]) -> Iterator[tuple[Fault, int]]:
    chosen = range(1, acts + 1)
    if points and points < acts:
        chosen = sorted({1 + round(step * (acts - 1) / max(1, points - 1)) for step in range(points)})
    for fault in kinds:
        for at in [0] if fault in KEPT else chosen:
            yield fault, at


def _is_unnamed(code: int, said: str) -> bool:
    """Whether a command failed without an error that names what went wrong."""
    if any(sign in said for sign in UNFORESEEN) or FAILED.search(said):
        return True
    return code > 0 and "error: " not in said


def _compare(tally: Tally, where: str, expected: dict[str, Any], found: dict[str, Any]) -> None:
    tally.left += sum(map(is_left_over, found.keys() - expected.keys()))
    gone = sorted(expected.keys() - found.keys())
    other = [name for name in expected.keys() & found.keys() if expected[name] != found[name]]
    other += [name for name in found.keys() - expected.keys() if not is_left_over(name)]
    if gone:
        tally.lost.append(f"{where}: {', '.join(gone)}")
    if other:
        tally.wrong.append(f"{where}: {', '.join(sorted(other))}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--points", type=int, default=0, help="acts of each command to strike at; 0: all")
    parser.add_argument("--only", action="append", choices=sorted(SCENARIOS), help="these commands")
    parser.add_argument("--fault", action="append", choices=FAULTS[1:], help="by default all")
    given = parser.parse_args()
    if reason := cannot():
        print(f"skipped: {reason}")
        return 0
    if STATE not in os.environ:
        with loaded() as variables:
            command = [sys.executable, "-m", "tests.faults", *sys.argv[1:]]
            return subprocess.run(command, env=variables, check=False).returncode
    os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "METAPHASE_LOG": os.devnull}
    preload()
    fine, began = True, time.monotonic()
    print("| command | acts | kills | full disks | others | lost | wrong | unnamed errors | s |")
    print("|---" + "|--:" * 8 + "|")
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        root = Path(folder).resolve()
        write_assets(root / "assets")
        for name in given.only or SCENARIOS:
            tally = tried(name, SCENARIOS[name], root, given.points, given.fault or FAULTS[1:])
            others = sum(tally.tried.get(one, 0) for one in KEPT)
            bad = (tally.lost, tally.wrong, tally.unnamed)
            cells = (name, tally.acts, tally.tried.get("kill", 0), tally.tried.get("full disk", 0), others)
            seconds, began = time.monotonic() - began, time.monotonic()
            print("|", " | ".join(map(str, (*cells, *map(len, bad), round(seconds)))), "|", flush=True)
            for line in (*tally.lost, *tally.wrong, *tally.unnamed):
                print(f"    {json.dumps(line)}", file=sys.stderr, flush=True)
            fine &= not any(bad)
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
