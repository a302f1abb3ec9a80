"""From opening the viewer to a reviewed report, in a real browser: the seconds of each part, and pictures.

    make demo
    python -m recipes.desks.reviewing demo/results --folder build/reviewing

Outlines a tumour with the mouse, excludes a follicle freehand, reviews what is asked by pictures, accepts,
and opens the report, on a copy of the first slide's results. The answers are a stand-in's: what the model
counts is a mitotic figure, after `--pause` seconds for each picture. Times are by the clock of the page, and
pictures are taken outside of them. Counts are compared with those by shapely alone. Needs playwright and
chromium.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import shapely
from playwright.sync_api import Page, sync_playwright

from metaphase.analysis.record import SlideResult, load_results
from metaphase.analysis.review import log_of

SIZES = {1280: 800, 1920: 1080, 420: 860}
PATIENCE_MS = 120_000
STEPS = 24
"""Corners of what is drawn by hand."""
FOLLICLE_UM = 60.0


@contextmanager
def viewer(results: Path, slides: Path) -> Iterator[str]:
    """The address of a viewer that ends with the `with` statement."""
    command = [
        sys.executable,
        "-m",
        "metaphase",
        "view",
        str(results),
        "--slides",
        str(slides),
        "--port",
        "0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield next(line for line in server.stdout if "http" in line).strip()
        finally:
            server.terminate()


@dataclass
class Desk:
    """A page, its slide, and what was measured."""

    page: Page
    result: SlideResult
    folder: Path
    pause_s: float
    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """What the page counts, and shapely."""

    def part(self, name: str, work: Callable[[], None]) -> None:
        """Do a part of the way, and take pictures of its end at each size."""
        start = self._now()
        work()
        self.seconds[name] = round((self._now() - start) / 1000, 2)
        for width, height in SIZES.items():
            self.page.set_viewport_size({"width": width, "height": height})
            self.page.wait_for_timeout(900)
            path = self.folder / f"{len(self.seconds)}-{name.replace(' ', '-')}-{width}.png"
            self.page.screenshot(path=path, full_page=name == "report")
        self.page.set_viewport_size({"width": 1280, "height": SIZES[1280]})
        self.page.wait_for_timeout(400)

    def _now(self) -> float:
        """The page's clock, which also runs while it loads another page."""
        return float(self.page.evaluate("() => Date.now()"))

    def counted(self, name: str) -> None:
        """Wait for the count, and compare it with that of the regions by shapely."""
        self.page.wait_for_selector("#state[data-state=saved]")
        self.page.wait_for_timeout(300)
        self.page.wait_for_selector("#numbers[data-count]:not([data-waiting])")
        with log_of(self.result) as log:
            regions = log.scope().regions
        shapes: dict[str, list[Any]] = {"include": [], "exclude": []}
        for one in regions:
            shapes[one.kind] += [shapely.Polygon(rings[0], rings[1:]) for rings in one.polygons]
        table = self.result.candidates
        points = shapely.points(table["x"], table["y"])
        inside = shapely.intersects(shapely.union_all(shapes["include"]), points)
        if shapes["exclude"]:
            inside &= ~shapely.intersects(shapely.union_all(shapes["exclude"]), points)
        counts = inside & (table["probability"] >= self.result.counting.threshold).to_numpy()
        page = int(self.page.inner_text("#counted").split(", ")[1].split()[0])
        self.counts[name] = (page, int(counts.sum()))

    def corner(self, x: float, y: float) -> tuple[float, float]:
        """Where a level-0 position is on the screen, with the whole slide in view."""
        box = self.page.locator("#stage").bounding_box()
        assert box is not None
        record = self.result.record
        scale = min(box["width"] / record.width, box["height"] / record.height)
        left, top = (box["width"] - record.width * scale) / 2, (box["height"] - record.height * scale) / 2
        return box["x"] + left + x * scale, box["y"] + top + y * scale

    # -- the parts

    def whole(self) -> None:
        """Have all of the slide in view."""
        self.page.keyboard.press("0")
        self.page.wait_for_timeout(900)

    def name(self) -> None:
        """Give a name."""
        self.page.fill("#observer", "Anna")
        self.page.keyboard.press("Enter")
        self.page.wait_for_selector("#work:not([hidden])")

    def tumour(self) -> None:
        """Click an outline that leaves a corner of the slide out."""
        record = self.result.record
        self.whole()
        self.page.get_by_role("button", name="Polygon").click()
        shares = ((0.08, 0.08), (0.8, 0.08), (0.98, 0.22), (0.98, 0.5), (0.55, 0.97), (0.16, 0.94))
        corners = [self.corner(x * record.width, y * record.height) for x, y in shares]
        for corner in (*corners, corners[0]):
            self.page.mouse.click(*corner)
            self.page.wait_for_timeout(150)
        self.counted("tumour")

    def follicle(self) -> None:
        """Draw around the first counted figure that lies in the tumour, with the mouse held down."""
        self.whole()
        record, table = self.result.record, self.result.candidates
        upper = table[
            (table["probability"] >= self.result.counting.threshold) & (table["y"] < record.height / 3)
        ]
        first = upper.iloc[0] if len(upper) else table.iloc[0]
        self.page.get_by_label("Outlines").select_option("other")
        self.page.get_by_label("Name of the region").fill("follicle")
        self.page.get_by_role("button", name="Freehand").click()
        reach = FOLLICLE_UM / record.mpp
        for step in range(STEPS + 1):
            angle = 2 * math.pi * step / STEPS
            self.page.mouse.move(
                *self.corner(first["x"] + reach * math.cos(angle), first["y"] + reach * math.sin(angle))
            )
            if step == 0:
                self.page.mouse.down()
        self.page.mouse.up()
        self.counted("follicle")

    def review(self) -> None:
        """Answer by pictures: the sure ones together, the others one by one."""
        self.page.keyboard.press("g")
        self.page.wait_for_selector("#cells li")
        self.page.wait_for_function(
            "() => [...document.querySelectorAll('#cells img')].every((one) => one.complete)"
        )
        self.page.keyboard.press("a")
        self.page.wait_for_timeout(1000 * self.pause_s)
        if self.page.locator("#cells [aria-pressed=true].picture").count():
            self.page.keyboard.press("m")
        threshold, table = self.result.counting.threshold, self.result.candidates
        known = {
            f"{x:.1f}_{y:.1f}": value for x, y, value in table[["x", "y", "probability"]].to_numpy(float)
        }
        while not self.page.locator("#end:not([hidden])").count():
            source = self.page.get_attribute("#cells [aria-current=true] img", "src") or ""
            x, _, y = source.rpartition("/")[2].removesuffix(".jpg").partition("_")
            self.page.wait_for_timeout(1000 * self.pause_s)
            self.page.keyboard.press("m" if known[f"{float(x):.1f}_{float(y):.1f}"] >= threshold else "n")
        self.page.wait_for_selector("#state[data-state=saved]")

    def accept(self) -> None:
        """Apply the review."""
        self.page.locator("#end #apply").click()
        self.page.wait_for_function("() => document.getElementById('hint').textContent.includes('Applied')")

    def report(self) -> None:
        """Open the report."""
        self.page.click("#report")
        self.page.wait_for_selector("#links")


def record_way(results: Path, folder: Path, pause_s: float) -> dict[str, Any]:
    """Go the whole way and return its seconds, counts and answers."""
    source = load_results([results])[0]
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source.folder, folder / "results" / source.name)
    result = load_results([folder / "results"])[0]
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with viewer(folder / "results", results.resolve().parent) as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": SIZES[1280]})
        page.set_default_timeout(PATIENCE_MS)
        desk = Desk(page, result, folder, pause_s)

        def open_() -> None:
            page.goto(address)
            page.wait_for_selector("#numbers[data-count]:not([data-waiting])")

        parts = {
            "open": open_, "name": desk.name, "outline the tumour": desk.tumour,
            "exclude a follicle": desk.follicle, "review by pictures": desk.review, "accept": desk.accept,
        }  # fmt: skip
        for name, work in parts.items():
            desk.part(name, work)
        told = {name: page.inner_text(f"#{name}") for name in ("tally", "time", "outcome")}
        desk.part("report", desk.report)
        browser.close()
    with log_of(result) as log:
        spent, answers = log.seconds_spent("Anna"), len(log.current("Anna"))
    return {
        "seconds": desk.seconds, "total": round(sum(desk.seconds.values()), 2), "counts": desk.counts,
        "answers": answers, "seconds of the log": round(spent, 1), "pause": pause_s, "told": told,
    }  # fmt: skip


def main() -> None:
    """Print and keep what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("build/reviewing"))
    parser.add_argument(
        "--pause", type=float, default=1.0, help="seconds that the stand-in looks at a picture"
    )
    given = parser.parse_args()
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    made = record_way(given.results, given.folder, given.pause)
    (given.folder / "reviewing.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    for name, seconds in (*made["seconds"].items(), ("in all", made["total"])):
        print(f"{seconds:8.2f} s  {name}")
    for name, (page, alone) in made["counts"].items():
        print(f"{page} counted on the page after {name}, {alone} by shapely")
        if page != alone:
            sys.exit("the counts differ")
    print(f"{made['answers']} answers, {made['seconds of the log']} s by the log of answers.")
    print(made["told"]["outcome"])


if __name__ == "__main__":
    main()
