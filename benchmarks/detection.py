"""Does `metaphase detect` stay small on large slides, and do tiles and scanners leave its answers alone?

Memory: slides 10,000 and 100,000 px wide, with a little tissue on glass, and full of tissue. Invariance: one
simulated slide searched with several tile sizes, and copies of it at 0.23 and 0.5 um/px that OpenCV made,
matched within 7.5 um.

    python benchmarks/detection.py --folder WORK [--model FILE] [--skip memory|invariance]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.detections.matching import match
from metaphase.simulation.config import SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region
from metaphase.slides.writer import PyramidFormat, write_pyramid

RGB = npt.NDArray[np.uint8]
TILE_PX = 512
SIDE_PX = 3072
MATCH_UM = 7.5
COPIES_MPP = (0.23, 0.5)


def tissue(side: int, seed: int = 3) -> RGB:
    """A square of simulated tissue at 0.25 um/px."""
    config = SimulationConfig(
        cases=1, centres=1, width=side, height=side, seed=seed, mitoses_per_mm2=(80.0, 80.0)
    )
    (case,) = cohort_cases(config)
    return render_region(case, "he", 0, 0, side, side)


def tiles_of(pixels: RGB) -> Iterator[RGB]:
    """Tiles of an image, row by row."""
    for y in range(0, pixels.shape[0], TILE_PX):
        for x in range(0, pixels.shape[1], TILE_PX):
            yield pixels[y : y + TILE_PX, x : x + TILE_PX]


def write_large(path: Path, width: int, height: int, piece: RGB, *, filled: bool) -> None:
    """A slide of any size from one piece of tissue: once in the middle of glass, or again and again."""
    glass = np.full((TILE_PX, TILE_PX, 3), 244, np.uint8)
    rows, columns = (side // TILE_PX for side in piece.shape[:2])
    first_row, first_column = (0, 0) if filled else (height // TILE_PX // 2, width // TILE_PX // 2)

    def tile(row: int, column: int) -> RGB:
        y, x = row - first_row, column - first_column
        if filled:
            y, x = y % rows, x % columns
        if not (0 <= y < rows and 0 <= x < columns):
            return glass
        return piece[y * TILE_PX : (y + 1) * TILE_PX, x * TILE_PX : (x + 1) * TILE_PX]

    grid = ((row, column) for row in range(height // TILE_PX) for column in range(width // TILE_PX))
    size = (width // TILE_PX * TILE_PX, height // TILE_PX * TILE_PX)
    write_pyramid(
        path, (tile(*position) for position in grid), *size, PyramidFormat(mpp=0.25, tile_px=TILE_PX)
    )


def detect(slide: Path, folder: Path, *options: str) -> float:
    """Run the command; returns its peak memory in MB."""
    command = [sys.executable, "-m", "metaphase", "detect", str(slide), "-o", str(folder), *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return usage.ru_maxrss / 1024


def memory(folder: Path, options: list[str]) -> None:
    """Peak memory by width, for little and for much tissue."""
    piece = tissue(2048)
    for filled in (False, True):
        for width in (10_000, 100_000):
            height = 2048 if filled else width * 6 // 10
            slide = folder / f"{'filled' if filled else 'sparse'}{width}.tif"
            if not slide.exists():
                write_large(slide, width, height, piece, filled=filled)
            peak = detect(slide, folder / "memory", *options)
            kind = "full of tissue" if filled else "1 mm2 of tissue on glass"
            print(f"{width:7,} x {height:6,} px, {kind:24}: peak {peak:6,.0f} MB", flush=True)


def invariance(folder: Path, options: list[str]) -> None:
    """Detections of the same tissue in other tiles and at other resolutions."""
    pixels = tissue(SIDE_PX)
    form = PyramidFormat(mpp=0.25, tile_px=TILE_PX, quality=95)
    write_pyramid(folder / "whole.tif", tiles_of(pixels), SIDE_PX, SIDE_PX, form)
    expected = _detected(folder, "whole", 0.25, options)
    print(f"{len(expected)} detections at 0.25 um/px in tiles of the default size")
    for tile in ("256", "1500"):
        found = _detected(folder, "whole", 0.25, [*options, "--set", f"tile_px={tile}"], f"tile{tile}")
        _compare(f"tiles of {tile} px", expected, found)
    for mpp in COPIES_MPP:
        side = round(SIDE_PX * 0.25 / mpp)
        method = cv2.INTER_CUBIC if mpp < 0.25 else cv2.INTER_AREA
        copy = np.asarray(cv2.resize(pixels, (side, side), interpolation=method), np.uint8)
        form = PyramidFormat(mpp=SIDE_PX * 0.25 / side, tile_px=TILE_PX, quality=95)
        write_pyramid(folder / f"copy{mpp}.tif", tiles_of(copy), side, side, form)
        _compare(f"copy at {mpp} um/px", expected, _detected(folder, f"copy{mpp}", form.mpp, options))


def _detected(
    folder: Path, name: str, mpp: float, options: list[str], out: str = "invariance"
) -> pd.DataFrame:
    """Detections of a slide, in um."""
    detect(folder / f"{name}.tif", folder / out, *options)
    table = pd.read_parquet(folder / out / name / "detections.parquet")
    return table.assign(x=table["x"] * mpp, y=table["y"] * mpp)


def _compare(what: str, expected: pd.DataFrame, found: pd.DataFrame) -> None:
    positions, others = (table[["x", "y"]].to_numpy() for table in (expected, found))
    partner = match(others, found["probability"].to_numpy(), positions, MATCH_UM)
    paired = np.flatnonzero(partner >= 0)
    distance = np.linalg.norm(others[paired] - positions[partner[paired]], axis=1)
    change = np.abs(
        found["probability"].to_numpy()[paired] - expected["probability"].to_numpy()[partner[paired]]
    )
    print(
        f"{what:22}: {len(found)} detections, {len(paired)} the same, "
        f"moved by {np.median(distance):.2f} um (most {distance.max():.2f}), "
        f"probability changed by {np.median(change):.4f} (most {change.max():.3f})",
        flush=True,
    )


def main() -> None:
    """Both, unless one is skipped."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--skip", choices=("memory", "invariance"), default="")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    options = ["--model", str(arguments.model)] if arguments.model else []
    options += ["--device", arguments.device] if arguments.device else []
    if arguments.skip != "invariance":
        invariance(arguments.folder, options)
    if arguments.skip != "memory":
        memory(arguments.folder, options)
    print(f"this program itself: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB")


if __name__ == "__main__":
    main()
