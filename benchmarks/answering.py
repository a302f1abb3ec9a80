"""Observers who answer at the same time: how long each waits for "saved", and whether an answer is lost.

python -m benchmarks.answering [--observers 8] [--items 300]

Serves a labelling project and the viewer, lets observers post one answer after the other over a connection of
their own, as fast as they are acknowledged, and compares the databases with what was acknowledged. Ends with
1 where an answer is lost.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import numpy as np
from tests.web.pages import ITEMS, Page, labelling, served, viewing

from metaphase.base.tables import read_manifest
from metaphase.simulation.cohort import simulate_cohort
from metaphase.simulation.config import SimulationConfig

Said = dict[str, tuple[str, str]]
"""Item and answer by uuid."""


def answer_all(page: Page, url: str, observer: str, items: list[Any]) -> tuple[Said, list[float]]:
    """What one observer heard to be saved, and the milliseconds of each answer."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    headers = {"content-type": "application/json", "authorization": f"Bearer {url.partition('?token=')[2]}"}
    saved: Said = {}
    times_ms = []
    for number, item in enumerate(items):
        uuid, answer = str(uuid4()), page.says(item, Random(number))
        one = {"uuid": uuid, "item": item, "answer": answer, "seconds": 1.0}
        body = json.dumps({"observer": observer, "answers": [one]})
        started = time.perf_counter()
        connection.request("POST", "/api/answers", body, headers)
        reply = json.loads(connection.getresponse().read())
        times_ms.append(1000 * (time.perf_counter() - started))
        saved |= {uuid: (page.called(item), answer) for uuid in reply["saved"]}
    connection.close()
    return saved, times_ms


def measure(page: Page, observers: int, count: int) -> tuple[str, int]:
    """A row of the table, and how many answers are lost."""
    process, url = served(page.arguments)
    try:
        items = page.items(url)[:count]
        started = time.perf_counter()
        with ThreadPoolExecutor(observers) as pool:
            names = [f"observer {number}" for number in range(observers)]
            done = list(pool.map(lambda name: answer_all(page, url, name, items), names))
        seconds = time.perf_counter() - started
    finally:
        process.terminate()
        process.wait()
    with page.log() as log:
        there = {
            uuid: (item, answer) for uuid, item, answer in log._rows("SELECT uuid, item, answer FROM log")
        }
    sent, saved = observers * len(items), {uuid: said for part, _ in done for uuid, said in part.items()}
    lost = sent - sum(there.get(uuid) == said for uuid, said in saved.items())
    middle, high = np.percentile([one for _, times in done for one in times], [50, 95])
    row = f"| {page.name} | {sent:,} | {lost} | {sent / seconds:,.0f} | {middle:.1f} ms | {high:.1f} ms |"
    return row, lost


def main() -> None:
    """Serve, answer, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--observers", type=int, default=8)
    parser.add_argument("--items", type=int, default=300, help=f"of each, up to {ITEMS}")
    given = parser.parse_args()
    print("| server | answers | lost | answers/s | median | 95 % within |\n|---|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory(prefix="answering-") as name:
        folder, lost = Path(name), 0
        simulate_cohort(folder, SimulationConfig(cases=1, centres=1, width=512, height=512, seed=5))
        slide = Path(read_manifest(folder / "manifest.csv")["he"].iloc[0])
        (folder / "view").mkdir()
        for page in (labelling(folder / "label", slide), viewing(folder / "view")):
            row, gone = measure(page, given.observers, given.items)
            print(row, flush=True)
            lost += gone
    sys.exit(int(lost > 0))


if __name__ == "__main__":
    main()
