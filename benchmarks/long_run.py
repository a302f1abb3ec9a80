"""Memory and descriptors while one process searches many slides: both must stay flat.

python benchmarks/long_run.py [--slides 500] [--side-px 256]

Writes tiny slides (links to one file), searches them as `metaphase detect` does, and prints both after every
tenth of them. Ends with 1 where the second half needed more of either than the first.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import psutil

from metaphase.analysis.cohort import named_slides
from metaphase.analysis.config import DetectionConfig
from metaphase.analysis.run import detect_cohort
from metaphase.base.sharing.batch import BatchWatch, Progress
from metaphase.networks.cards import bundled_model
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine.settings import EngineConfig
from metaphase.simulation.config import SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region
from metaphase.slides.writer import PyramidFormat, write_pyramid

ALLOWED_GROWTH_MB = 30.0
"""Allocators keep some of what they got; a leak of 100 kB a slide would be 25 MB over 250."""


class Meter(BatchWatch):
    """Memory in MB and open descriptors after every slide."""

    def __init__(self, slides: int) -> None:
        self._process, self._every = psutil.Process(), max(1, slides // 10)
        self.seen: list[tuple[float, int]] = []

    def started(self, name: str, number: int, total: int) -> Progress:
        """Measure before each."""
        memory = self._process.memory_info().rss / 1e6
        self.seen.append((memory, self._process.num_fds()))
        if number % self._every == 0:
            print(f"{number:5d} of {total}  {memory:7.1f} MB  {self.seen[-1][1]:3d} descriptors", flush=True)
        return super().started(name, number, total)


def write_slides(folder: Path, slides: int, side_px: int) -> list[Path]:
    """One small simulated slide under many names."""
    (case,) = cohort_cases(SimulationConfig(cases=1, centres=1, width=2048, height=2048, seed=5))
    pixels = render_region(case, "he", 500, 600, side_px, side_px)
    first = folder / "slide.tif"
    write_pyramid(first, [pixels], side_px, side_px, PyramidFormat(mpp=0.25, tile_px=side_px))
    names = [folder / f"slide{number:04d}.tif" for number in range(slides)]
    for name in names:
        os.link(first, name)
    return names


def main() -> None:
    """Search them all and compare the halves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slides", type=int, default=500)
    parser.add_argument("--side-px", type=int, default=256, help="a multiple of 16")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="long-run-") as name:
        folder = Path(name)
        slides = named_slides(write_slides(folder, given.slides, given.side_px), tissue="whole")
        ready = ReadyDetector(load_detector([bundled_model("simulated")]), EngineConfig(device="cpu"))
        meter = Meter(given.slides)
        config = DetectionConfig(any_stain=True)
        batch = detect_cohort(list(slides.values()), folder / "out", ready, config, watch=meter)
    half = len(meter.seen) // 2
    early, late = meter.seen[half // 5 : half], meter.seen[half:]
    growth = max(memory for memory, _ in late) - max(memory for memory, _ in early)
    more = max(files for _, files in late) - max(files for _, files in early)
    print(f"{len(batch.results)} slides: {growth:+.1f} MB and {more:+d} descriptors in the second half")
    sys.exit(int(growth > ALLOWED_GROWTH_MB or more > 0 or bool(batch.failures)))


if __name__ == "__main__":
    main()
