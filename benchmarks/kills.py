"""Kill detection and the labelling server at random moments: the result is the same, and no answer is lost.

python benchmarks/kills.py [--kills 25] [--seed 1]

`detect` is killed (SIGKILL) again and again until a run comes through, and what it left is compared with the
result of a run that nobody disturbed. The labelling server is killed while observers answer; afterwards every
answer that was acknowledged must be in the database. Ends with 1 where anything was lost.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pandas as pd

from metaphase.base.tables import read_manifest, read_table, write_table
from metaphase.labels.observers.project import load_project
from metaphase.labels.observers.store import AnswerStore
from metaphase.simulation import SimulationConfig, simulate_cohort

COMPARED = ("detections.parquet", "candidates.parquet", "search.parquet")
SIDE_PX = 768
ITEMS, BATCH = 400, 5


def command(*arguments: str | Path) -> list[str]:
    """The program as a user starts it."""
    return [sys.executable, "-m", "metaphase", *map(str, arguments)]


# ---- detection ----


def detect(slide: Path, output: Path) -> subprocess.Popen[bytes]:
    """Begin to search a slide in small tiles, with a probability map."""
    options = ("--model", "simulated", "--tile", "256", "--probability-map", "--device", "cpu")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command("detect", slide, "-o", output, *options), **quiet)  # type: ignore[call-overload,no-any-return]


def result(folder: Path) -> dict[str, Any]:
    """What a finished search says, without its times."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    for name in ("seconds", "device", "slide"):
        summary.pop(name, None)
    tables = {name: read_table(folder / name).to_dict("list") for name in COMPARED}
    return {"summary": summary, "map": (folder / "probability.tif").read_bytes(), **tables}


def kill_detection(slide: Path, folder: Path, kills: int, random: Random) -> tuple[int, int]:
    """How often a search was killed, and how many of those that came through in the end differ."""
    started = time.monotonic()
    detect(slide, folder / "undisturbed").wait()
    seconds = time.monotonic() - started
    expected = result(folder / "undisturbed" / slide.stem)
    killed = different = rounds = 0
    while killed < kills:
        output, rounds = folder / f"disturbed-{rounds}", rounds + 1
        while True:
            process = detect(slide, output)
            try:
                process.wait(random.uniform(0, 1.2 * seconds) if killed < kills else None)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                killed += 1
                continue
            break
        different += process.returncode != 0 or result(output / slide.stem) != expected
    return killed, different


# ---- labelling ----


def write_items(folder: Path, slide: Path) -> None:
    """A project of many items on one slide."""
    rows = [(f"i{number}", str(slide.resolve()), 10 + number, 20, "c") for number in range(ITEMS)]
    write_table(folder / "items.csv", pd.DataFrame(rows, columns=["item", "slide", "x", "y", "case"]))


def served(folder: Path) -> tuple[subprocess.Popen[str], str]:
    """A server and its address, once it listens."""
    process = subprocess.Popen(
        command("label", "serve", folder, "--port", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def post(url: str, observer: str, answers: list[dict[str, Any]]) -> list[str]:
    """The answers that the server says are saved."""
    body = json.dumps({"observer": observer, "answers": answers}).encode()
    request = urllib.request.Request(f"{url}api/answers", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as reply:
        saved: list[str] = json.loads(reply.read())["saved"]
    return saved


def kill_server(folder: Path, slide: Path, kills: int, random: Random) -> tuple[int, int]:
    """How many answers were acknowledged over all kills, and how many of them are not there."""
    write_items(folder, slide)
    project = load_project(folder)
    numbers, names = [item.number for item in project.items], project.answer_names
    acknowledged: dict[str, tuple[str, str]] = {}
    for round_ in range(kills):
        process, url = served(folder)
        observer = f"observer {round_ % 8}"
        killer = threading.Timer(random.uniform(0, 1.5), process.kill)
        killer.start()
        while process.poll() is None:
            sent = {str(uuid4()): (random.choice(numbers), random.choice(names)) for _ in range(BATCH)}
            answers = [
                {"uuid": uuid, "item": item, "answer": answer, "seconds": 1.0}
                for uuid, (item, answer) in sent.items()
            ]
            try:
                saved = post(url, observer, answers)
            except (OSError, ValueError, urllib.error.URLError):
                continue
            acknowledged |= {uuid: (project.by_number[sent[uuid][0]].name, sent[uuid][1]) for uuid in saved}
        killer.join()
        if process.returncode != -signal.SIGKILL:
            raise RuntimeError(f"the server ended with {process.returncode} by itself")
        if process.stdout is not None:
            process.stdout.close()
    with AnswerStore(project) as store:
        rows = store._rows("SELECT uuid, item, answer FROM log")
    there = {uuid: (item, answer) for uuid, item, answer in rows}
    return len(acknowledged), sum(there.get(uuid) != said for uuid, said in acknowledged.items())


def main() -> None:
    """Kill, compare, and say what was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=25, help="of each kind")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    given = parser.parse_args()
    random = Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        folder = Path(name)
        config = SimulationConfig(cases=1, centres=1, width=SIDE_PX, height=SIDE_PX, seed=5)
        simulate_cohort(folder / "cohort", config)
        slide = Path(read_manifest(folder / "cohort" / "manifest.csv")["he"].iloc[0])
        answers, lost = kill_server(folder / "project", slide, given.kills, random)
        print(f"label serve: {given.kills} kills, {answers} acknowledged answers, {lost} lost", flush=True)
        killed, different = kill_detection(slide, folder, given.kills, random)
        print(f"detect: {killed} kills, {different} results that differ")
    sys.exit(int(bool(lost or different)))


if __name__ == "__main__":
    main()
