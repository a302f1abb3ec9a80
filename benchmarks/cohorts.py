"""Cohorts on several workers: scaling, cost of the crew, memory, kills, and two clients in one folder.

python -m benchmarks.cohorts [--slides 200] [--side-px 1024] [--kills 30] [--seed 1] [--only scaling ...]

*cost*: seconds of cores that client and worker need while the work itself only waits. *scaling*: the slides
(links to one simulated slide, 1 mm2 at 4,000 px) with one process, one worker and two, each of them on a core
of its own, so that a second worker is as good as a second machine's. Starting, with the first slide of each
worker, in whose time it loads what it needs, is told apart from the pace after. *kills*: SIGKILL at random
moments, in turn to a worker and to the client, which is started again, until so many fell. *clients*: two
commands in one folder. *folders*: index and tables of many finished slides. Tables must be those of one
process, byte for byte, and no slide may be searched twice while nobody is killed; ends with 1 where not.
`benchmarks.many_slides` has thousands of slides.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random

import psutil

from metaphase.analysis.index import write_cohort
from metaphase.analysis.record import write_stored
from metaphase.base.sharing.batch import Progress, run_batch
from metaphase.base.sharing.workers import dask_workers
from metaphase.base.tables import read_table, write_table
from metaphase.simulation.config import SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region
from metaphase.slides.writer import PyramidFormat, write_pyramid

KINDS = ("cost", "scaling", "kills", "clients", "folders")
TABLES = ("detections.parquet", "candidates.parquet")


@dataclass(frozen=True)
class Run:
    """What a command came to."""

    seconds: float
    largest_mb: float
    """Of one process."""
    code: int
    searched: int
    start_s: float
    """Until every worker had finished a slide."""
    slide_s: float
    """From then to the end of the last one, by slide."""
    slide_cpu_s: float
    """The same in seconds of all processes' cores, which hardly depend on who else uses them."""
    end_s: float
    """After that: index and tables."""
    cpu_s: float
    """Of all processes' cores, those that have ended apart."""


def write_slides(folder: Path, slides: int, side_px: int) -> list[Path]:
    """One small simulated slide under many names."""
    (case,) = cohort_cases(SimulationConfig(cases=1, centres=1, width=4096, height=4096, seed=5))
    pixels = render_region(case, "he", 0, 0, side_px, side_px)
    tiles = (pixels[y : y + 256, x : x + 256] for y in range(0, side_px, 256) for x in range(0, side_px, 256))
    first = folder / "first.tif"
    write_pyramid(first, tiles, side_px, side_px, PyramidFormat(mpp=0.25, tile_px=256))
    names = [folder / f"slide{number:04d}.tif" for number in range(slides)]
    for name in names:
        os.link(first, name)
    return names


@dataclass(frozen=True)
class Command:
    """A command that runs, and the file of what it says."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def searched(self) -> int:
        """Slides that it has searched itself."""
        return self.log.read_text(encoding="utf-8").count("search: done")

    def times_of(self, event: str) -> list[float]:
        """When slides started or finished, in seconds of the clock."""
        lines = (line for line in self.log.read_text(encoding="utf-8").splitlines() if line.startswith("{"))
        described = [json.loads(line) for line in lines]
        return [datetime.fromisoformat(one["time"]).timestamp() for one in described if one["event"] == event]


def started(slides: Sequence[Path], output: Path, *options: str, cores: int = 0) -> Command:
    """Begin, in a group of its own, on all cores or on so many."""
    command = [sys.executable, "-m", "metaphase", "detect", *map(str, slides), "-o", str(output)]
    command += ["--model", "simulated", "--tissue", "whole", "--any-stain", "--device", "cpu"]
    command += ["--explain", "--log-json"]
    if cores:
        command = ["taskset", "--cpu-list", f"0-{cores - 1}", *command]
    log = output.with_name(f"{output.name}-{time.monotonic_ns()}.log")
    with log.open("wb") as described:
        process = subprocess.Popen(
            [*command, *options], stdout=subprocess.DEVNULL, stderr=described, start_new_session=True
        )
    return Command(process, log)


def measured(command: Command, workers: int = 1) -> Run:
    """Watch a command to its end."""
    begun, clock, largest, used = time.monotonic(), time.time(), 0.0, [(0.0, 0.0)]
    watched = psutil.Process(command.process.pid)
    while command.process.poll() is None:
        with contextlib.suppress(psutil.Error):
            family = [watched, *watched.children(recursive=True)]
            largest = max(largest, *(one.memory_info().rss / 1e6 for one in family))
            used.append((time.time(), sum(sum(one.cpu_times()[:2]) for one in family)))
        time.sleep(0.2)
    seconds, done = time.monotonic() - begun, sorted(command.times_of("finished")) or [clock]
    first, last, after = done[min(workers, len(done)) - 1], done[-1], max(1, len(done) - workers)
    cpu_s = [max(cpu for when, cpu in used if when <= at) for at in (first, last)]
    start_s, slide_s, slide_cpu_s = first - clock, (last - first) / after, (cpu_s[1] - cpu_s[0]) / after
    end_s = clock + seconds - last
    code, cpu = command.process.returncode, max(cpu for _, cpu in used)
    return Run(seconds, largest, code, command.searched, start_s, slide_s, slide_cpu_s, end_s, cpu)


def same(first: Path, second: Path) -> bool:
    """Whether two folders have the same tables, and the same summaries but for times and paths."""
    tables = all((first / name).read_bytes() == (second / name).read_bytes() for name in TABLES)
    return tables and _summaries(first) == _summaries(second)


def _summaries(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(folder.glob("*/summary.json")):
        summary = json.loads(path.read_text(encoding="utf-8"))
        found[path.parent.name] = {
            key: summary[key] for key in ("count", "hotspot", "counted", "detections", "tissue_mm2")
        }
    return found


def cost(folder: Path, items: int = 10) -> bool:
    """What a crew of one worker needs beside the work."""
    with dask_workers("1") as pool:
        workers = psutil.Process().children(recursive=True)
        run_batch({"first": 0}, _waiting, folder / "cost", None, pool)
        before = time.process_time(), sum(sum(one.cpu_times()[:2]) for one in workers), time.monotonic()
        done = run_batch({str(item): item for item in range(items)}, _waiting, folder / "cost", None, pool)
        seconds = time.monotonic() - before[2]
        client = time.process_time() - before[0]
        worker = sum(sum(one.cpu_times()[:2]) for one in workers) - before[1]
    print(
        f"{items} items of 2 s in {seconds:.1f} s: client {100 * client / seconds:.1f} % of a core, ", end=""
    )
    print(f"worker {100 * worker / seconds:.1f} %, {seconds / items - 2:.3f} s an item", flush=True)
    return len(done.results) == items


def _waiting(item: int, progress: Progress) -> int:
    for step in range(20):
        progress(step, 20)
        time.sleep(0.1)
    return item


def scaling(slides: Sequence[Path], folder: Path) -> bool:
    """One process, one worker, two workers."""
    columns = ("", "cores", "start, s", "a slide, s", "of cores, s", "end, s", "largest, MB", "same tables")
    print(f"| {' | '.join(columns)} |\n|---{'|--:' * (len(columns) - 2)}|---|")
    fine = True
    for name, cores, workers in (
        ("process", 1, 0),
        ("1 worker", 1, 1),
        ("2 workers", 2, 2),
    ):
        output = folder / name.replace(" ", "-")
        options = ("--workers", str(workers)) if workers else ()
        run = measured(started(slides, output, *options, cores=cores), max(1, workers))
        equal = run.code == 0 and run.searched == len(slides) and same(folder / "process", output)
        fine &= equal
        numbers = (run.start_s, run.slide_s, run.slide_cpu_s, run.end_s, run.largest_mb)
        described = " | ".join(f"{number:.3g}" for number in numbers)
        print(f"| {name} | {cores} | {described} | {equal} |", flush=True)
    return fine


def kills(slides: Sequence[Path], folder: Path, wanted: int, random: Random, longest_s: float) -> bool:
    """Kill workers and clients in turn until enough fell, then let it come through."""
    output, killed = folder / "killed", {"workers": 0, "clients": 0}
    while True:
        process = started(slides, output, "--workers", "2").process
        enough = sum(killed.values()) >= wanted
        until = time.monotonic() + (1e9 if enough else random.uniform(3, longest_s))
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        if process.poll() is not None:
            if enough:
                break
            _started_anew(output)
            continue
        while process.poll() is None and random.random() < 0.5 and sum(killed.values()) < wanted - 1:
            workers = [
                one for one in psutil.Process(process.pid).children() if "spawn_main" in str(one.cmdline())
            ]
            if workers:
                random.choice(workers).kill()
                killed["workers"] += 1
            time.sleep(random.uniform(0.5, 3))
        process.kill()
        process.wait()
        killed["clients"] += 1
    fine = process.returncode == 0 and same(folder / "process", output) and not (output / ".batch").exists()
    print(
        f"{killed['workers']} workers and {killed['clients']} clients killed: same result {fine}", flush=True
    )
    return fine


def _started_anew(output: Path) -> None:
    """All came through before enough fell: some have to be searched again."""
    for number, note in enumerate(sorted(output.glob("*/stages/search.json"))):
        if number % 2:
            note.unlink()


def clients(slides: Sequence[Path], folder: Path) -> bool:
    """Two commands in one folder."""
    output, begun = folder / "clients", time.monotonic()
    both = [started(slides, output) for _ in range(2)]
    codes = [one.process.wait() for one in both]
    searched = sum(one.searched for one in both)
    fine = codes == [0, 0] and searched == len(slides) and same(folder / "process", output)
    seconds = time.monotonic() - begun
    print(f"two clients: {seconds:.1f} s, {searched} searches of {len(slides)} slides: same result {fine}")
    return fine


def folders(slides: Sequence[Path], folder: Path, wanted: int) -> bool:
    """Index and tables of many slides, and of one more: one is there under so many names."""
    output = folder / "folders"
    measured(started(slides[:1], output))
    first = output / slides[0].stem
    summary = json.loads((first / "summary.json").read_text(encoding="utf-8"))
    for number in range(wanted):
        if number == wanted - 1:
            whole = indexed(output)
        copy = shutil.copytree(first, output / f"copy{number:05d}", ignore=shutil.ignore_patterns("*.html"))
        for file in copy.glob(f"{first.name}.*"):
            file.rename(copy / file.name.replace(first.name, copy.name, 1))
        for table in ("detections.parquet", "candidates.parquet"):
            write_table(copy / table, read_table(copy / table).assign(slide=copy.name))
        write_stored(copy / "summary.json", summary | {"name": copy.name})
    one_more, size = indexed(output), (output / "index.html").stat().st_size
    print(f"{wanted} folders: {whole:.1f} s; one more: {one_more:.1f} s; {size:,} bytes", flush=True)
    return one_more < whole


def indexed(output: Path) -> float:
    """Seconds that index and tables take."""
    begun = time.monotonic()
    write_cohort(output)
    return time.monotonic() - begun


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slides", type=int, default=200)
    parser.add_argument("--side-px", type=int, default=1024, help="a multiple of 256, at most 4096")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--longest-s", type=float, default=30.0, help="until a client is killed")
    parser.add_argument("--folders", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=KINDS, help="by default all")
    given = parser.parse_args()
    chosen, fine = given.only or KINDS, True
    with tempfile.TemporaryDirectory(prefix="cohorts-") as name:
        folder = Path(name)
        slides = write_slides(folder, given.slides, given.side_px)
        if "cost" in chosen:
            fine &= cost(folder)
        if "scaling" in chosen:
            fine &= scaling(slides, folder)
        elif {"kills", "clients"} & set(chosen):
            measured(started(slides, folder / "process"))
        if "kills" in chosen:
            fine &= kills(slides, folder, given.kills, Random(given.seed), given.longest_s)
        if "clients" in chosen:
            fine &= clients(slides, folder)
        if "folders" in chosen:
            fine &= folders(slides, folder, given.folders)
    sys.exit(int(not fine))


if __name__ == "__main__":
    main()
