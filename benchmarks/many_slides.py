"""A cohort of many small slides, some of them bad, killed half way: time, memory, sizes, and nothing missing.

python -m benchmarks.many_slides [--slides 10000] [--workers 2] [--folder FOLDER] [--bad 0.01] [--seed 1]

Slides of 192 px, all different, are made on the fly: tiled JPEG TIFFs of two levels, and striped ones of one.
One in a hundred is bad: cut off, empty, text, without its head or without a resolution. `detect --workers N`
is killed, with all its processes, when half of the slides are done; it is given again, then once more when
nothing is left to do. Where `distributed` is not installed, N commands share the folder instead.

Ends with 1 unless every sound slide has its result and its row in counts.csv, every bad one its line in
errors.log, no slide that was done is searched again, and some slides give the same candidates alone. A
`--folder` is kept, and its slides are used again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import tifffile

from metaphase.base.arrays import RGB
from metaphase.simulation.config import SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region

SIDE_PX, RENDERED_PX = 192, 1024
OPTIONS = ("--model", "simulated", "--tissue", "whole", "--any-stain", "--device", "cpu")
BAD = ("cut off", "empty", "text", "no head", "no resolution")
COMPARED = 20
"""Slides that are searched alone as well."""
QUIET_S = 30.0
"""What a killed command had started must have ended after this time."""


# ---- slides ----


def write_slides(folder: Path, number: int, bad_share: float, seed: int) -> dict[str, str]:
    """The slides by name, with what is wrong with each; those that are there stay."""
    (case,) = cohort_cases(
        SimulationConfig(cases=1, centres=1, width=RENDERED_PX, height=RENDERED_PX, seed=seed)
    )
    random, every = Random(seed), max(2, round(1 / bad_share)) if bad_share else number + 1
    kinds = {
        f"slide{index:05d}": BAD[index // every % len(BAD)] if index % every == every // 2 else ""
        for index in range(number)
    }
    folder.mkdir(parents=True, exist_ok=True)
    tissue = render_region(case, "he", 0, 0, RENDERED_PX, RENDERED_PX)
    for index, (name, kind) in enumerate(kinds.items()):
        x, y = (random.randrange(RENDERED_PX - SIDE_PX) for _ in range(2))
        path = folder / f"{name}.tif"
        if not path.exists():
            write_slide(path, tissue[y : y + SIDE_PX, x : x + SIDE_PX], kind, tiled=index % 2 == 0)
    return kinds


def write_slide(path: Path, pixels: RGB, kind: str, *, tiled: bool) -> None:
    """A TIFF of one of the two kinds, spoilt where it is to be bad."""
    hidden = path.with_suffix(".part")
    layout: dict[str, Any] = {"tile": (64, 64)} if tiled else {"rowsperstrip": 32}
    scale: dict[str, Any] = (
        {} if kind == "no resolution" else {"resolution": (40_000, 40_000), "resolutionunit": 3}
    )
    stored: dict[str, Any] = {
        "photometric": "rgb",
        "compression": "jpeg",
        "compressionargs": {"level": 85},
        "metadata": None,
    }
    with tifffile.TiffWriter(hidden) as tiff:
        tiff.write(np.ascontiguousarray(pixels), **stored, **layout, **scale)
        if tiled:
            tiff.write(np.ascontiguousarray(pixels[::2, ::2]), **stored, **layout, subfiletype=1)
    data = hidden.read_bytes()
    spoilt = {
        "cut off": data[: len(data) // 2],
        "empty": b"",
        "text": b"no slide\n" * 99,
        "no head": bytes(512) + data[512:],
    }
    hidden.write_bytes(spoilt.get(kind, data))
    hidden.rename(path)


# ---- commands ----


@dataclass
class Job:
    """The processes of `detect`, each in a group of its own, and the most that they took together."""

    processes: list[subprocess.Popen[bytes]]
    begun: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    all_mb: float = 0.0
    """Of all processes together; what they share counts for each."""
    one_mb: float = 0.0
    """Of the largest process."""

    def watch(self) -> bool:
        """Whether any of them still runs; notes what they take."""
        memory = [memory_mb(process) for process in members({one.pid for one in self.processes})]
        self.all_mb, self.one_mb = max(self.all_mb, sum(memory)), max(self.one_mb, *memory, 0.0)
        self.seconds = time.monotonic() - self.begun
        return any(process.poll() is None for process in self.processes)

    def kill(self) -> bool:
        """End all at once; whether everything that they had started is gone."""
        groups = {process.pid for process in self.processes}
        for group in groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        for process in self.processes:
            process.wait()
        until = time.monotonic() + QUIET_S
        while members(groups) and time.monotonic() < until:
            time.sleep(0.1)
        return not members(groups)

    @property
    def code(self) -> int:
        """The exit code; the largest of several."""
        return max(process.returncode for process in self.processes)


def started(slides: Sequence[Path], output: Path, workers: int) -> Job:
    """`detect` on so many workers, or so many commands that share its folder."""
    command = [sys.executable, "-m", "metaphase", "detect", *map(str, slides), "-o", str(output), *OPTIONS]
    several = workers if workers > 1 and find_spec("distributed") is None else 1
    if workers > 1 and several == 1:
        command += ["--workers", str(workers)]
    variables = os.environ | {"OMP_NUM_THREADS": "1"} if several > 1 else None
    with output.with_name(f"{output.name}.log").open("ab") as said:
        options: dict[str, Any] = {
            "stdout": said,
            "stderr": said,
            "start_new_session": True,
            "env": variables,
        }
        return Job([subprocess.Popen(command, **options) for _ in range(several)])


def members(groups: set[int]) -> list[int]:
    """Processes of these groups that have not ended."""
    return [
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _is_of(entry, groups)
    ]


def _is_of(entry: Path, groups: set[int]) -> bool:
    with contextlib.suppress(OSError):
        return os.getpgid(int(entry.name)) in groups and ") Z " not in (entry / "stat").read_text()
    return False


def memory_mb(process: int) -> float:
    """What a process holds; 0 where it has ended."""
    with contextlib.suppress(OSError, IndexError):
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return 0.0


def searches(output: Path) -> dict[str, int]:
    """When each slide was searched."""
    notes = output.glob("*/stages/search.json")
    return {note.parent.parent.name: note.stat().st_mtime_ns for note in notes}


# ---- the trial ----


def tried(folder: Path, kinds: dict[str, str], workers: int) -> Iterator[str]:
    """Kill, resume, ask again; prints what it took, and says what is not as it should be."""
    slides, output = folder / "slides", folder / "results"
    sound = {name for name, kind in kinds.items() if not kind}
    print("| command | seconds | memory, MB | largest process, MB | slides searched | exit code |")
    print("|---" + "|--:" * 5 + "|", flush=True)
    before: dict[str, int] = {}
    for what in ("killed half way", "the rest", "again"):
        job = started([slides], output, workers)
        while job.watch():
            if what == "killed half way" and len(searches(output)) >= len(sound) // 2:
                if not job.kill():
                    yield "processes outlived the kill"
                break
            time.sleep(0.5)
        after = searches(output)
        new = sum(before.get(name) != when for name, when in after.items())
        code = "" if what == "killed half way" else job.code
        row = (what, f"{job.seconds:.0f}", f"{job.all_mb:.0f}", f"{job.one_mb:.0f}", new, code)
        print("|", " | ".join(map(str, row)), "|", flush=True)
        if again := sum(name in after and after[name] != when for name, when in before.items()):
            yield f"{again} slides that were searched were searched again"
        if code not in ("", int(len(sound) < len(kinds))):
            yield f"{what}: exit code {code}"
        before = after
    yield from missing(output, kinds)
    yield from other_than_alone(folder, sorted(sound))


def missing(output: Path, kinds: dict[str, str]) -> Iterator[str]:
    """Results, rows and lines that are not there, or there for others."""
    sound = {name for name, kind in kinds.items() if not kind}
    files = ("summary.json", "report.html", "detections.parquet")
    lacking = [name for name in sound if not all((output / name / file).is_file() for file in files)]
    if lacking:
        yield f"{len(lacking)} sound slides lack results: {', '.join(sorted(lacking)[:5])}"
    rows = pd.read_csv(output / "counts.csv")["case"].tolist()
    if sorted(rows) != sorted(sound):
        yield f"counts.csv has {len(rows)} rows of {len(sound)} sound slides"
    errors = output / "errors.log"
    lines = errors.read_text(encoding="utf-8").splitlines() if errors.exists() else []
    named = [line.partition(":")[0] for line in lines]
    if sorted(named) != sorted(kinds.keys() - sound):
        yield f"errors.log has {len(named)} lines of {len(kinds) - len(sound)} bad slides"
    if leases := list(output.glob(".batch/*.lease")):
        yield f"{len(leases)} leases were left"
    for file in ("index.html", "index.js", "counts.csv", "detections.parquet"):
        if (output / file).is_file():
            print(f"{file}: {(output / file).stat().st_size:,} bytes")
    held = [path.stat().st_size for path in output.rglob("*") if path.is_file()]
    print(f"all results: {len(held):,} files, {sum(held) / 1e6:,.0f} MB")
    print(f"{len(rows):,} rows in counts.csv, {len(lines):,} lines in errors.log")


def other_than_alone(folder: Path, names: Sequence[str]) -> Iterator[str]:
    """Slides of other candidates than in a folder of their own, by one process."""
    chosen = names[:: max(1, len(names) // COMPARED)][:COMPARED]
    job = started([folder / "slides" / f"{name}.tif" for name in chosen], folder / "alone", 1)
    while job.watch():
        time.sleep(0.5)
    both = [
        [pd.read_parquet(folder / part / name / "candidates.parquet") for name in chosen]
        for part in ("results", "alone")
    ]
    print(f"{len(chosen)} slides searched alone: {sum(map(len, both[1]))} candidates")
    if not all(together.equals(alone) for together, alone in zip(*both, strict=True)):
        yield "slides have other candidates alone"


def main() -> int:
    """Make, search, kill, resume, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slides", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="for slides and results; by default one that is removed")
    parser.add_argument("--bad", type=float, default=0.01, help="share of bad slides")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with contextlib.ExitStack() as at_the_end:
        folder = given.folder or Path(at_the_end.enter_context(tempfile.TemporaryDirectory(prefix="many-")))
        begun = time.monotonic()
        kinds = write_slides(folder / "slides", given.slides, given.bad, given.seed)
        bad = sum(map(bool, kinds.values()))
        print(
            f"{len(kinds):,} slides, {bad} of them bad, made in {time.monotonic() - begun:.0f} s\n",
            flush=True,
        )
        wrong = list(tried(folder.resolve(), kinds, given.workers))
    print("\n".join(f"wrong: {line}" for line in wrong) or "every slide has its result or its line")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
