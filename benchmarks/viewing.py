"""How fast the viewer is on a slide of 100,000 px, in a real browser.

python -m benchmarks.viewing [--width 100000] [--height 40000] [--drags 60] [--figures 40]
python -m benchmarks.viewing --results demo/results --pictures docs/images

Writes a slide and a result of it, serves them, and drives Chromium (needs playwright and a `chromium` on the
PATH): tile latency and frames while dragging across the slide at several zooms, and the time from a key until
all of the next figure is there, as the page itself measures it. With `--results` it takes the pictures of
docs/viewing.md instead, of results that lie there already; the review of one figure in them is left undone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, sync_playwright
from tests.web.results import spread_positions, write_result, write_sparse_slide

from metaphase.web.serving import Running
from metaphase.web.viewing import serve_view

WINDOW = {"width": 1200, "height": 760}
FIGURES = 400
TILES = """() => performance.getEntriesByType('resource')
    .filter((entry) => entry.name.includes('/tile/') && entry.responseStatus === 200)
    .map((entry) => entry.responseEnd - entry.startTime)"""
WATCH_FRAMES = """() => {
    window.frames = [];
    let last = performance.now();
    const note = (now) => { window.frames.push(now - last); last = now; requestAnimationFrame(note); };
    requestAnimationFrame(note);
}"""


def serve(folder: Path, addresses: multiprocessing.Queue[str]) -> None:
    """The viewer, in a process of its own."""

    def ready(running: Running) -> None:
        addresses.put(running.url)

    serve_view([folder], port=0, ready=ready)


def described(name: str, values_ms: Sequence[float]) -> str:
    """Median and 95th percentile in a line."""
    middle, high = np.percentile(np.asarray(values_ms, float), [50, 95])
    return f"{name:<34} {len(values_ms):5d} {middle:8.1f} {high:8.1f}"


def drag_about(page: Page, drags: int) -> None:
    """Drag across the slide, at three zooms."""
    random = np.random.default_rng(0)
    for zoom in range(3):
        for _ in range(drags // 3):
            x, y = random.uniform(300, 600, 2)
            page.mouse.move(x, y)
            page.mouse.down()
            page.mouse.move(x + random.uniform(-280, 280), y + random.uniform(-280, 280), steps=12)
            page.mouse.up()
        for _ in range(3 if zoom < 2 else 0):
            page.keyboard.press("-")


def measure(page: Page, url: str, drags: int, figures: int) -> list[str]:
    """Open the slide, drag about, review."""
    page.goto(url)
    page.evaluate("() => performance.setResourceTimingBufferSize(100000)")
    page.wait_for_selector("#numbers[data-count]")
    page.fill("#observer", "Anna")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.getElementById('figure').dataset.ready")
    page.evaluate("() => performance.clearResourceTimings()")
    page.evaluate(WATCH_FRAMES)
    drag_about(page, drags)
    frames: list[float] = page.evaluate("() => window.frames")
    tiles: list[float] = page.evaluate(TILES)
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.getElementById('figure').dataset.ready")
    page.evaluate("() => performance.clearMeasures()")
    for number in range(figures):
        page.wait_for_function("() => document.getElementById('figure').dataset.ready")
        page.keyboard.press("mn"[number % 2])
        time.sleep(0.4)  # nobody decides faster; the next figures come meanwhile
    page.wait_for_function("() => document.getElementById('figure').dataset.ready")
    keys: list[float] = page.evaluate(
        "() => performance.getEntriesByName('figure').map((one) => one.duration)"
    )
    return [
        described("tile while dragging", tiles),
        described("frame while dragging", frames),
        described("key to next figure", keys),
    ]


def take_pictures(page: Page, url: str, folder: Path) -> list[str]:
    """The whole slide with its layers, and one figure under review."""
    page.goto(url)
    page.wait_for_selector("#numbers[data-count]:not([data-waiting])")
    taken = [folder / "view.jpg", folder / "review.jpg"]
    page.keyboard.press("6")
    page.wait_for_timeout(2000)
    page.screenshot(path=taken[0], type="jpeg", quality=72)
    page.fill("#observer", "Anna")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.getElementById('figure').dataset.ready")
    page.wait_for_timeout(2000)
    page.screenshot(path=taken[1], type="jpeg", quality=72)
    return list(map(str, taken))


def with_page(results: Path, act: Callable[[Page, str], list[str]]) -> list[str]:
    """What `act` tells of a page of the viewer."""
    addresses: multiprocessing.Queue[str] = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(results, addresses), daemon=True)
    server.start()
    url = addresses.get(timeout=120)
    time.sleep(1)
    try:
        with sync_playwright() as driver:
            path = shutil.which("chromium") or shutil.which("google-chrome")
            browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
            page = browser.new_context(viewport=WINDOW).new_page()  # type: ignore[arg-type]
            page.set_default_timeout(120_000)
            lines = act(page, url)
            browser.close()
    finally:
        server.terminate()
        server.join()
    return lines


def main() -> None:
    """Write, serve, measure, print."""
    parser = argparse.ArgumentParser(description="How fast the viewer is on a large slide.")
    parser.add_argument("--width", type=int, default=100_000)
    parser.add_argument("--height", type=int, default=40_000)
    parser.add_argument("--drags", type=int, default=60)
    parser.add_argument("--figures", type=int, default=40)
    parser.add_argument("--results", type=Path, help="results to take pictures of, instead of measuring")
    parser.add_argument("--pictures", type=Path, default=Path("docs/images"))
    asked = parser.parse_args()
    if asked.results is not None:
        print("\n".join(with_page(asked.results, lambda page, url: take_pictures(page, url, asked.pictures))))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        positions = spread_positions(FIGURES, asked.width, asked.height)
        slide = write_sparse_slide(folder / "large.tif", asked.width, asked.height, positions)
        write_result(folder / "results" / "large", slide, asked.width, asked.height, positions)
        lines = with_page(
            folder / "results", lambda page, url: measure(page, url, asked.drags, asked.figures)
        )
    print(f"{asked.width:,} x {asked.height:,} px{'':<18} number   median     95 %   (ms)")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
