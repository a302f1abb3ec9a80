"""How fast pixels come out of one tiled JPEG pyramid: this project's reader against the libraries alone.

Every way runs in its own process over the same 1024 px tiles of the same file, one after the other, and
reports megapixels a second of finished RGB and how far its memory grew above its start.

    python benchmarks/reading.py [--side 30000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue

import cv2
import numpy as np
import openslide
import psutil
import tifffile

from metaphase.base.arrays import RGB
from metaphase.slides.opening import open_slide
from metaphase.slides.tiles import plan_tiles, read_tiles
from metaphase.slides.writer import PyramidFormat, write_pyramid

TILE_PX = 1024


def textured_tiles(side: int, tile_px: int) -> Iterator[RGB]:
    """Tissue-like tiles (cell-sized blobs in H&E colours, sensor noise), cheap enough for gigapixels."""
    rng = np.random.default_rng(0)
    field = cv2.resize(rng.random((700, 700), np.float32), (2800, 2800), interpolation=cv2.INTER_CUBIC)
    field = cv2.GaussianBlur(field, (0, 0), 2) * 6 - 2.5
    blue, pink = np.array([120, 80, 160], np.float32), np.array([230, 180, 210], np.float32)
    mix = np.clip(field, 0, 1)[..., None]
    image = mix * blue + (1 - mix) * pink + rng.normal(0, 3, (*field.shape, 1))
    pixels = np.clip(image, 0, 255).astype(np.uint8)
    for y in range(0, side, tile_px):
        for x in range(0, side, tile_px):
            corner_x, corner_y = rng.integers(0, 2800 - tile_px, 2)
            yield pixels[corner_y:, corner_x:][: min(tile_px, side - y), : min(tile_px, side - x)]


def with_openslide(path: str) -> int:
    """OpenSlide's own read_region, one thread, as most tools call it."""
    pixels = 0
    with openslide.OpenSlide(path) as slide:
        width, height = slide.dimensions
        for y in range(0, height, TILE_PX):
            for x in range(0, width, TILE_PX):
                size = (min(TILE_PX, width - x), min(TILE_PX, height - y))
                pixels += np.asarray(slide.read_region((x, y), 0, size).convert("RGB")).size // 3
    return pixels


def with_tifffile(path: str) -> int:
    """tifffile's own segment iterator, with as many threads as it takes by itself."""
    pixels = 0
    with tifffile.TiffFile(path) as tiff:
        page = tiff.pages.first
        for data, _, shape in page.segments():
            if data is not None:
                pixels += shape[1] * shape[2]
    return min(pixels, page.imagewidth * page.imagelength)


def with_reader(path: str, threads: int) -> int:
    """This project's prefetching reader."""
    pixels = 0
    with open_slide(path) as slide:
        plan = plan_tiles(slide.bounds, slide.mpp, mpp=slide.mpp, tile_px=TILE_PX)
        for _, rgb in read_tiles(slide, plan, threads=threads):
            pixels += rgb.size // 3
    return pixels


def reader_on_one_core(path: str) -> int:
    """The reader held to one core."""
    psutil.Process().cpu_affinity([psutil.Process().cpu_affinity()[0]])
    return with_reader(path, 1)


def reader_on_two_threads(path: str) -> int:
    """The reader with two threads."""
    return with_reader(path, 2)


WAYS: dict[str, Callable[[str], int]] = {
    "OpenSlide, 1 thread": with_openslide,
    "tifffile segments": with_tifffile,
    "metaphase reader, 1 core": reader_on_one_core,
    "metaphase reader, 2 threads": reader_on_two_threads,
}


def _measure(way: Callable[[str], int], path: str, answer: Queue[tuple[float, float]]) -> None:
    process = psutil.Process()
    start_mb, peak_mb, done = process.memory_info().rss / 1e6, 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak_mb
        while not done.wait(0.01):
            peak_mb = max(peak_mb, process.memory_info().rss / 1e6)

    watcher = threading.Thread(target=watch)
    watcher.start()
    begin = time.perf_counter()
    pixels = way(path)
    seconds = time.perf_counter() - begin
    done.set()
    watcher.join()
    answer.put((pixels / seconds / 1e6, peak_mb - start_mb))


def measure(way: Callable[[str], int], path: str) -> tuple[float, float]:
    """(Mpx/s, MB above the start) of one way, in a fresh process."""
    context = mp.get_context("spawn")
    answer: Queue[tuple[float, float]] = context.Queue()  # type: ignore[assignment]
    process = context.Process(target=_measure, args=(way, path, answer))
    process.start()
    result = answer.get()
    process.join()
    return result


def main() -> None:
    """Write the slide, run every way, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=30_000, help="slide width and height in pixels")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "slide.tif")
        begin = time.perf_counter()
        write_pyramid(
            path, textured_tiles(options.side, 512), options.side, options.side, PyramidFormat(mpp=0.25)
        )
        written = options.side**2 / (time.perf_counter() - begin) / 1e6
        megabytes = Path(path).stat().st_size / 1e6
        print(f"slide {options.side} x {options.side}, {megabytes:.0f} MB, written at {written:.0f} Mpx/s")
        results = {name: measure(way, path) for name, way in WAYS.items()}
    base = results["OpenSlide, 1 thread"][0]
    print(f"{'way':30} {'Mpx/s':>8} {'ratio':>7} {'MB above start':>15}")
    for name, (speed, memory) in results.items():
        print(f"{name:30} {speed:8.1f} {speed / base:7.1f} {memory:15.0f}")
    if options.json:
        options.json.write_text(json.dumps({"write_mpx_s": written, "read": results}, indent=2))


if __name__ == "__main__":
    main()
