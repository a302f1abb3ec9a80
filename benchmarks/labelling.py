"""How fast the labelling page is with thousands of items, in a real browser; optionally its pictures.

python benchmarks/labelling.py [--items 5000] [--answers 200] [--pictures docs/images]

Simulates two PHH3 slides, writes a project, serves it, and drives Chromium (needs playwright and a `chromium`
on the PATH). Time from key to picture is measured inside the page.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from metaphase.base.tables import read_manifest, read_table, write_table
from metaphase.labels.observers.project import Project, load_project
from metaphase.labels.observers.store import AnswerStore, Entry
from metaphase.learn.calibration import merge_project
from metaphase.simulation.cohort import simulate_cohort
from metaphase.simulation.config import SimulationConfig
from metaphase.web.labelling import serve_project
from metaphase.web.serving import Running

SLIDE_PX, MARGIN_PX = 3072, 512
KEYS = {"mitosis": "m", "brown_nucleus": "n", "artefact": "a"}
"""What is brown in the simulated slides, and the key of the right answer."""
KEY_TO_PICTURE = """async (key) => {
    const figure = document.getElementById('close'), before = figure.dataset.item, start = performance.now();
    document.dispatchEvent(new KeyboardEvent('keydown', { key }));
    while (figure.dataset.item === before || !figure.dataset.ready)
        await new Promise((resolve) => requestAnimationFrame(resolve));
    return performance.now() - start;
}"""


def make_project(folder: Path, filler: int) -> Project:
    """The brown objects of two simulated slides, far from the edges, and as many positions at random."""
    config = SimulationConfig(cases=2, centres=2, width=SLIDE_PX, height=SLIDE_PX, seed=5)
    simulate_cohort(folder / "cohort", config)
    rng, tables = np.random.default_rng(0), []
    for row in read_manifest(folder / "cohort" / "manifest.csv").to_dict("records"):
        truth = pd.read_parquet(folder / "cohort" / row["case"] / "truth.parquet")
        inside = truth[["x_phh3", "y_phh3"]].clip(MARGIN_PX, SLIDE_PX - MARGIN_PX)
        brown = truth[truth["category"].isin(KEYS) & (inside == truth[inside.columns]).all(axis=1)]
        table = brown[["x_phh3", "y_phh3", "category"]].set_axis(["x", "y", "category"], axis=1)
        positions = rng.uniform(MARGIN_PX, SLIDE_PX - MARGIN_PX, (filler // 2, 2))
        table = pd.concat([table, pd.DataFrame(positions, columns=["x", "y"])])
        tables.append(table.assign(slide=row["phh3"], case=row["case"]))
    items = pd.concat(tables, ignore_index=True)
    project = folder / f"project-{filler}"
    write_table(project / "items.csv", items.assign(item=[str(number) for number in items.index]))
    question = '{"title": "PHH3", "question": "Is the brown object in the middle a mitosis?"}'
    (project / "project.json").write_text(question, encoding="utf-8")
    return load_project(project)


def serve(folder: Path, link: Any) -> None:
    """Entry of the server's process."""

    def ready(running: Running) -> None:
        link.send(running.url)

    serve_project(folder, port=0, ready=ready)


def enter(browser: Browser, url: str, name: str, width: int, height: int) -> Page:
    """A new visitor at the page, with the first picture on show."""
    page = browser.new_context(viewport={"width": width, "height": height}, bypass_csp=True).new_page()
    page.goto(url)
    page.fill("#name", name)
    page.keyboard.press("Enter")
    page.wait_for_selector("#close[data-ready] img")
    return page


def measure(page: Page, answers: int) -> list[float]:
    """Milliseconds from each key to the next picture, at no more than five answers a second."""
    times = []
    for number in range(answers):
        times.append(float(page.evaluate(KEY_TO_PICTURE, "mn"[number % 2])))
        page.wait_for_timeout(200)
    page.wait_for_selector("#state[data-state=saved]")
    return times


def take_pictures(browser: Browser, url: str, project: Project, folder: Path) -> None:
    """The page with one item, as a grid, and on an upright tablet; the answers are those of the truth."""
    truth = read_table(project.folder / "items.csv").set_index("item")["category"]
    for name, width, height, answers in (
        ("one", 1280, 800, 5),
        ("grid", 1280, 800, 7),
        ("tablet", 820, 1180, 5),
    ):
        page = enter(browser, url, f"Dr {name}", width, height)
        shown = "#close"
        if name == "grid":
            page.keyboard.press("g")
            shown = "#cells .selected figure"
        for _ in range(answers):
            page.wait_for_selector(f"{shown}[data-ready]")
            number = int((page.get_attribute(shown, "data-item") or "").partition("/")[0])
            page.keyboard.press(KEYS[truth[project.by_number[number].name]])
        page.wait_for_timeout(1500)
        with Image.open(io.BytesIO(page.screenshot())) as picture:
            picture.convert("RGB").save(folder / f"labelling_{name}.jpg", quality=82)


def browse(project: Project, work: Any) -> None:
    """Serve a project in a process of its own while `work(browser, url)` is done."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(project.folder, theirs), daemon=True)
    server.start()
    url = ours.recv()
    try:
        with sync_playwright() as driver:
            path = shutil.which("chromium") or shutil.which("google-chrome")
            browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
            work(browser, url)
            browser.close()
    finally:
        server.terminate()
        server.join()


def report_store(project: Project) -> None:
    """Durable answers a second, and the time of a merge of four observers."""
    with AnswerStore(project) as store:
        start = time.perf_counter()
        for item in list(project.by_name)[:200]:
            store.record("single", item, "not", 1.0)
        print(f"one durable answer  {5 * (time.perf_counter() - start):.2f} ms")
        for observer in ("A", "B", "C", "D"):
            store.record_many(Entry(observer, item, "not", 1.0) for item in project.by_name)
    start = time.perf_counter()
    merge_project(project.folder, observers=["A", "B", "C", "D"])
    print(f"merge 4 observers   {time.perf_counter() - start:.2f} s")


def main() -> None:
    """Print the figures; with --pictures, also save screenshots."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=5000)
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--pictures", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        project = make_project(Path(folder), options.items)

        def work(browser: Browser, url: str) -> None:
            start = time.perf_counter()
            page = enter(browser, url, "Anna", 1280, 800)
            print(f"name to first picture, {len(project.items)} items  {time.perf_counter() - start:.2f} s")
            times = np.array(measure(page, options.answers))
            print(
                f"key to next picture  median {np.median(times):.0f} ms, 95 % within "
                f"{np.quantile(times, 0.95):.0f} ms, longest {times.max():.0f} ms"
            )

        browse(project, work)
        report_store(project)
        if options.pictures:
            pictures: Path = options.pictures
            small = make_project(Path(folder), 0)
            browse(small, lambda browser, url: take_pictures(browser, url, small, pictures))


if __name__ == "__main__":
    main()
