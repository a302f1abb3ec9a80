"""Kill commands and servers at random moments: the result is the same, and no answer is lost.

python -m benchmarks.kills [--only detect] [--kills 100] [--seed 1]

`detect`, `run` and `lab next` (which asks nobody here) are killed (SIGKILL) again and again until they come
through, and what they left is compared with the result of a run that nobody disturbed. The labelling server
and the viewer are killed while observers answer, and in the viewer outline regions and choose the place of
the count; afterwards every answer that was acknowledged must be in the
database. Nothing that a command started may outlive it. Ends with 1 where anything was lost, differs or
stayed.
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
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

from tests.learn.run_samples import TINY, TINY_LAB
from tests.web.pages import Page, command, labelling, post, served, viewing

from metaphase.base.tables import read_manifest, read_table
from metaphase.lab.folder import Lab
from metaphase.lab.running import begin
from metaphase.simulation.cohort import simulate_cohort
from metaphase.simulation.config import SimulationConfig

KINDS = ("detect", "run", "lab", "label", "view")
SIDE_PX = 768
BATCH, OBSERVERS = 5, 8
LONGEST_S = 20.0
"""A command that goes on where it was is killed within this time, so that each of its parts is hit."""
SERVED_S = 1.5
"""A server is killed within this time of its first line."""
QUIET_S = 20.0
"""What a killed command had started must have ended after this time."""


@dataclass(frozen=True)
class Tally:
    """What became of one kind of thing that was killed."""

    name: str
    kills: int
    checked: int
    what: str
    lost: int
    stayed: int = 0

    def __str__(self) -> str:
        stayed = f", {self.stayed} times something stayed behind" if self.stayed else ""
        return f"| {self.name} | {self.kills} | {self.checked:,} {self.what} | {self.lost} |{stayed}"


# ---- commands that go on where they were ----


@dataclass(frozen=True)
class Job:
    """A command by its folder of results, and what it says when it has come through."""

    name: str
    arguments: Callable[[Path], list[str]]
    result: Callable[[Path], Any]


def start(job: Job, output: Path) -> subprocess.Popen[bytes]:
    """Begin, in a group of its own."""
    return subprocess.Popen(
        job.arguments(output),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def stays(group: int) -> bool:
    """Whether something of a group of processes is left after a while."""
    until = time.monotonic() + QUIET_S
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    return True


def kill_job(job: Job, folder: Path, kills: int, random: Random) -> Tally:
    """Kill it so often, and count results that differ from the undisturbed one."""
    started = time.monotonic()
    if start(job, folder / "undisturbed").wait():
        raise RuntimeError(f"{job.name} failed undisturbed")
    longest_s = min(LONGEST_S, 1.2 * (time.monotonic() - started))
    expected = job.result(folder / "undisturbed")
    killed = different = rounds = stayed = 0
    while killed < kills:
        output, rounds = folder / f"disturbed-{rounds}", rounds + 1
        while True:
            process = start(job, output)
            try:
                process.wait(random.uniform(0, longest_s) if killed < kills else None)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                killed += 1
                stayed += stays(process.pid)
                continue
            break
        different += process.returncode != 0 or job.result(output) != expected
    return Tally(job.name, killed, rounds, "results", different, stayed)


def detection(slide: Path) -> Job:
    """A search in small tiles, with a probability map."""
    options = ("--model", "simulated", "--set", "tile_px=256", "--probability-map", "--device", "cpu")

    def result(output: Path) -> dict[str, Any]:
        folder = output / slide.stem
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        for name in ("seconds", "device", "slide"):
            summary.pop(name, None)
        names = ("detections.parquet", "candidates.parquet", "search.parquet")
        tables = {name: read_table(folder / name).to_dict("list") for name in names}
        return {"summary": summary, "map": (folder / "probability.tif").read_bytes(), **tables}

    return Job("detect", lambda output: command("detect", slide, "-o", output, *options), result)


def training(config: Path) -> Job:
    """The whole chain from slides to a tested student."""
    lines = []
    for name, values in TINY.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def result(output: Path) -> dict[str, Any]:
        weights = {path.stem: path.read_bytes() for path in output.glob("networks/*/*.safetensors")}
        results = json.loads((output / "results.json").read_text(encoding="utf-8"))
        return {"weights": weights, "results": _without_times(results)}

    return Job("run", lambda output: command("run", config, "-o", output, "--device", "cpu"), result)


def laboratory(folder: Path) -> Job:
    """From three pairs of slides to a packaged model and its results; the bundled PHH3 networks label."""
    dense = SimulationConfig(
        cases=3, centres=1, width=SIDE_PX, height=SIDE_PX, seed=13, mitoses_per_mm2=(900, 1000), workers=1
    )
    simulate_cohort(folder / "cohort", dense)
    (folder / "slides").mkdir()
    for slide in (folder / "cohort").glob("*/*.tif"):
        slide.rename(folder / "slides" / f"{slide.parent.name}_{slide.name}")
    begun = begin(folder / "begun", folder / "slides", start="", name="tiny").lab.root
    settings = (begun / "lab.toml").read_text(encoding="utf-8")
    for asked in ("round1 = 600", "round2 = 400", "review = 50", "answers = 100"):
        settings = settings.replace(asked, f"{asked.split()[0]} = 0")
    (begun / "lab.toml").write_text(settings + TINY_LAB, encoding="utf-8")

    def arguments(output: Path) -> list[str]:
        if not output.exists():
            shutil.copytree(begun, output)
        return command("lab", "--lab", output, "next", "--device", "cpu")

    def result(output: Path) -> dict[str, Any]:
        lab = Lab(output)
        found = read_table(lab.results / "candidates.parquet").to_dict("list")
        return {"weights": lab.model.read_bytes(), "candidates": found}

    return Job("lab next", arguments, result)


def _without_times(values: Any) -> Any:
    if isinstance(values, dict):
        return {key: _without_times(value) for key, value in values.items() if "second" not in key}
    return [_without_times(value) for value in values] if isinstance(values, list) else values


# ---- servers that take answers ----


def kill_page(page: Page, kills: int, random: Random) -> Tally:
    """Kill it so often while an observer answers, and count acknowledged answers that are not there."""
    acknowledged: dict[str, tuple[str, str]] = {}
    items: list[Any] = []
    for round_ in range(kills):
        process, url = served(page.arguments)
        if not items:
            items = page.items(url)
        killer = threading.Timer(random.uniform(0, SERVED_S), process.kill)
        killer.start()
        while process.poll() is None:
            chosen = [random.choice(items) for _ in range(BATCH)]
            sent = {str(uuid4()): (item, page.says(item, random)) for item in chosen}
            answers = [
                {"uuid": uuid, "item": item, "answer": answer, "seconds": 1.0}
                for uuid, (item, answer) in sent.items()
            ]
            try:
                body = {"observer": f"observer {round_ % OBSERVERS}", "answers": answers}
                saved = post(url, "api/answers", body)["saved"]
            except (OSError, ValueError, HTTPException):  # killed before it had answered
                continue
            acknowledged |= {uuid: (page.called(sent[uuid][0]), sent[uuid][1]) for uuid in saved}
        killer.join()
        if process.returncode != -signal.SIGKILL:
            raise RuntimeError(f"the server ended with {process.returncode} by itself")
        if process.stdout is not None:
            process.stdout.close()
    with page.log() as log:
        rows = log._rows("SELECT uuid, item, answer FROM log")
    there = {uuid: (item, answer) for uuid, item, answer in rows}
    lost = sum(there.get(uuid) != said for uuid, said in acknowledged.items())
    return Tally(page.name, kills, len(acknowledged), "acknowledged answers", lost)


# ---- all of it ----


def tallies(chosen: Sequence[str], folder: Path, kills: int, random: Random) -> Iterator[Tally]:
    """Kill one after the other."""
    config = SimulationConfig(cases=1, centres=1, width=SIDE_PX, height=SIDE_PX, seed=5)
    simulate_cohort(folder / "cohort", config)
    slide = Path(read_manifest(folder / "cohort" / "manifest.csv")["he"].iloc[0])
    kinds: dict[str, Callable[[Path], Tally]] = {
        "detect": lambda here: kill_job(detection(slide), here, kills, random),
        "run": lambda here: kill_job(training(here / "run.toml"), here, kills, random),
        "lab": lambda here: kill_job(laboratory(here), here, kills, random),
        "label": lambda here: kill_page(labelling(here, slide), kills, random),
        "view": lambda here: kill_page(viewing(here), kills, random),
    }
    for name in chosen:
        (folder / name).mkdir()
        yield kinds[name](folder / name)


def main() -> None:
    """Kill, compare, and say what was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=KINDS, help="by default all")
    parser.add_argument("--kills", type=int, default=25, help="of each kind")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    given = parser.parse_args()
    failed = False
    print("| killed | SIGKILLs | compared | lost or different |\n|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        for tally in tallies(given.only or KINDS, Path(name), given.kills, Random(given.seed)):
            print(tally, flush=True)
            failed |= bool(tally.lost or tally.stayed)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
