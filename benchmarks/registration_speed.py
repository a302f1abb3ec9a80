"""Time and memory of registering a pair of 40,000 x 40,000 slides with 2,000 points.

    python benchmarks/registration_speed.py --folder FOLDER

The pair is put together from a few simulated blocks, turned and flipped at random, so that it takes minutes
and not hours to make; the PHH3 slide is cut out 1,200 and -700 pixels off. It is made if FOLDER has none.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from metaphase.base.arrays import RGB
from metaphase.labels.registration.pair import register_pair, register_points
from metaphase.simulation.cohort import case_truth
from metaphase.simulation.config import Case, SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region
from metaphase.slides.opening import open_slide
from metaphase.slides.writer import PyramidFormat, write_pyramid

MPP = 0.25
BLOCK_PX = 2500
TILE_PX = 512
OFFSET = np.array([1200, -700])
"""PHH3 pixel p shows what lies at p + OFFSET of the tissue."""
BLOCKS = SimulationConfig(
    cases=3,
    centres=3,
    width=BLOCK_PX,
    height=BLOCK_PX,
    seed=31,
    max_shift_um=0.0,
    max_rotation_deg=0.0,
    mitoses_per_mm2=(60.0, 100.0),
)


def turned(picture: RGB, variant: int) -> RGB:
    """One of the eight ways to lay a square."""
    picture = picture.transpose(1, 0, 2) if variant & 4 else picture
    return picture[:: -1 if variant & 2 else 1, :: -1 if variant & 1 else 1]


def turned_points(points: np.ndarray, variant: int) -> np.ndarray:
    """Where `turned` takes points of the block."""
    points = points[:, ::-1] if variant & 4 else points
    flip = np.array([bool(variant & 1), bool(variant & 2)])
    return np.where(flip, BLOCK_PX - points, points)


def layout(blocks: int) -> np.ndarray:
    """The block (case * 8 + way of laying) of each cell (blocks, blocks)."""
    return np.random.default_rng(5).integers(0, BLOCKS.cases * 8, (blocks, blocks))


def bands(pictures: list[RGB], cells: np.ndarray, offset: np.ndarray) -> Iterator[RGB]:
    """Tiles of the whole slide, row by row, from one band of rows at a time."""
    side = len(cells) * BLOCK_PX
    for top in range(0, side, TILE_PX):
        rows = np.arange(top, min(top + TILE_PX, side)) + offset[1]
        band = np.full((len(rows), side, 3), 244, np.uint8)
        inside = (rows >= 0) & (rows < side)
        for column in range(len(cells)):
            left, right = column * BLOCK_PX - offset[0], (column + 1) * BLOCK_PX - offset[0]
            x0, x1 = max(left, 0), min(right, side)
            for row in np.unique(rows[inside] // BLOCK_PX) if x1 > x0 else ():
                here = inside & (rows // BLOCK_PX == row)
                block = turned(pictures[cells[row, column] // 8], cells[row, column] % 8)
                band[here, x0:x1] = block[rows[here] - row * BLOCK_PX, x0 - left : x1 - left]
        for x in range(0, side, TILE_PX):
            yield np.ascontiguousarray(band[:, x : x + TILE_PX])


def make_pair(folder: Path, cells: np.ndarray, cases: tuple[Case, ...]) -> None:
    """Write both slides and the mitoses with their true positions."""
    side = len(cells) * BLOCK_PX
    frames: tuple[tuple[Literal["he", "phh3"], np.ndarray], ...] = (
        ("he", np.zeros(2, int)),
        ("phh3", OFFSET),
    )
    for frame, offset in frames:
        pictures = [render_region(case, frame, 0, 0, BLOCK_PX, BLOCK_PX) for case in cases]
        write_pyramid(
            folder / f"{frame}.tif", bands(pictures, cells, offset), side, side, PyramidFormat(MPP, TILE_PX)
        )
    true_points(cells, cases).to_parquet(folder / "points.parquet")


def true_points(cells: np.ndarray, cases: tuple[Case, ...]) -> pd.DataFrame:
    """Mitoses of all blocks in both frames, whose tissue lies well inside both slides."""
    parts = []
    for case in cases:
        truth = case_truth(case)
        parts.append(truth[(truth["category"] == "mitosis") & truth["in_phh3"] & truth["phh3_positive"]])
    rows = []
    for (row, column), kind in np.ndenumerate(cells):
        truth, corner = parts[kind // 8], np.array([column, row]) * BLOCK_PX
        he = turned_points(truth[["x_he", "y_he"]].to_numpy(), kind % 8) + corner
        phh3 = turned_points(truth[["x_phh3", "y_phh3"]].to_numpy(), kind % 8) + corner - OFFSET
        rows.append(np.concatenate([he, phh3], axis=1))
    points = np.concatenate(rows)
    kept = points[((points > 0) & (points < len(cells) * BLOCK_PX)).all(axis=1)]
    return pd.DataFrame(kept, columns=["x_he", "y_he", "x_phh3", "y_phh3"])


def main() -> None:
    """Make the pair if need be, register it, print time, memory and error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--blocks", type=int, default=16, help="blocks of 2,500 px along each side")
    parser.add_argument("--points", type=int, default=2000)
    options = parser.parse_args()
    if not (options.folder / "points.parquet").exists():
        options.folder.mkdir(parents=True, exist_ok=True)
        make_pair(options.folder, layout(options.blocks), cohort_cases(BLOCKS))
        print("made; run again to measure")
        return
    truth = pd.read_parquet(options.folder / "points.parquet")
    truth = truth.sample(min(options.points, len(truth)), random_state=0)
    started, worked = time.perf_counter(), time.process_time()
    he, phh3 = (open_slide(options.folder / f"{frame}.tif") for frame in ("he", "phh3"))
    registration = register_pair(he, phh3)
    middle, middle_worked = time.perf_counter(), time.process_time()
    table = register_points(registration, truth[["x_phh3", "y_phh3"]].to_numpy())
    done, done_worked = time.perf_counter(), time.process_time()
    miss = (table[["x_he", "y_he"]].to_numpy() - truth[["x_he", "y_he"]].to_numpy())[table["accepted"]] * MPP
    error = np.percentile(np.linalg.norm(miss, axis=1), [50, 95])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{he.width} x {he.height}, verdict {registration.verdict.status} {registration.verdict.reasons}")
    print(
        f"global and field ({len(registration.controls.heights)} control tiles): {middle - started:.0f} s,",
        end=" ",
    )
    print(f"{middle_worked - worked:.0f} s of processor time")
    print(
        f"{len(table)} points: {done - middle:.0f} s, {done_worked - middle_worked:.0f} s of processor time"
    )
    print(
        f"rejected {int((~table['accepted']).sum())}, error {error[0]:.2f} um median, {error[1]:.2f} um 95 %"
    )
    print(f"peak memory {memory:.2f} GB")


if __name__ == "__main__":
    main()
