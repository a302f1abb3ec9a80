"""Time and memory of the search for candidates in an H&E slide; they must be the same whatever the tiling.

    python benchmarks/candidates_speed.py [--side 10000]

The slide is mirrored from a simulated one and written as a JPEG pyramid. Each search runs in a process of its
own, whose peak memory is printed.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd

from metaphase.base.arrays import RGB
from metaphase.images.tissue.finding import find_tissue
from metaphase.learn.mining.candidates import CandidateConfig, find_candidates
from metaphase.simulation.config import SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region
from metaphase.slides.opening import open_slide
from metaphase.slides.writer import PyramidFormat, write_pyramid

MPP, RENDERED_PX, TILE_PX = 0.25, 3072, 512
SEARCHES = ((0.25, 512), (0.25, 1024), (0.25, 777), (0.5, 512))
"""Resolution (um/px) and tile (px) of each search."""


@dataclass(frozen=True)
class Search:
    """What one search found, and what it took."""

    table: pd.DataFrame
    wall_s: float
    processor_s: float
    peak_gb: float


def rendered() -> RGB:
    """A simulated H&E slide, dense with mitoses."""
    config = SimulationConfig(
        cases=1, centres=1, width=RENDERED_PX, height=RENDERED_PX, seed=3, mitoses_per_mm2=(100.0, 100.0)
    )
    (case,) = cohort_cases(config)
    return render_region(case, "he", 0, 0, case.width, case.height)


def write_large(path: Path, pixels: RGB, side: int) -> None:
    """A slide of `side` x `side` px, mirrored from a smaller one."""
    more = ((0, max(0, side - len(pixels))), (0, max(0, side - pixels.shape[1])), (0, 0))
    large = np.pad(pixels, more, mode="symmetric")[:side, :side]
    starts = range(0, side, TILE_PX)
    tiles = (large[y : y + TILE_PX, x : x + TILE_PX] for y in starts for x in starts)
    write_pyramid(path, tiles, side, side, PyramidFormat(mpp=MPP, tile_px=TILE_PX, quality=90))


def searched(path: Path, mpp: float, tile_px: int) -> Search:
    """Search a slide on disk; run it in a process of its own for its peak memory."""
    with open_slide(path) as slide:
        tissue = find_tissue(slide)
        wall, processor = time.perf_counter(), time.process_time()
        found = find_candidates(slide, tissue, CandidateConfig(mpp=mpp), tile_px=tile_px)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return Search(found, wall, processor, _peak_gb())


def _peak_gb() -> float:
    """Largest memory of this process so far, from Linux; not a number elsewhere."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 / 1e9 for line in lines if line.startswith("VmHWM")), math.nan)


def main() -> None:
    """Print a row a search, as a table of a Markdown page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=10_000)
    side = parser.parse_args().side
    first: dict[float, pd.DataFrame] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.tif"
        write_large(path, rendered(), side)
        print(f"| {side:,} x {side:,} px | candidates | same | seconds | processor seconds | peak GB |")
        print("|---|---:|---:|---:|---:|---:|")
        for mpp, tile_px in SEARCHES:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                one = pool.submit(searched, path, mpp, tile_px).result()
            same = "yes" if one.table.equals(first.setdefault(mpp, one.table)) else "no"
            print(
                f"| {mpp} um/px, tiles of {tile_px} px | {len(one.table):,} | {same} | {one.wall_s:.1f} "
                f"| {one.processor_s:.1f} | {one.peak_gb:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
