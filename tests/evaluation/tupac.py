"""The folders of TUPAC16 as they are downloaded, with tiny simulated slides and regions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from metaphase.simulation.cohort import case_truth
from metaphase.simulation.config import SimulationConfig, cohort_cases
from metaphase.simulation.rendering import render_region
from metaphase.slides.writer import PyramidFormat, write_pyramid

SIDE, WORLD = 240, 1440
SLIDES, TESTED, REGIONS, TEST_REGIONS = 10, (1, 3), 5, 1
"""Training slides, numbers of the test slides (one is missing), and regions of both auxiliary sets."""
BUSY_PER_MM2 = 2000.0


def write_tupac(folder: Path) -> None:
    """Slides, regions and truths; scores and grades follow the figures of the slides."""
    config = SimulationConfig(
        cases=1, centres=1, width=WORLD, height=WORLD, seed=5, mitoses_per_mm2=(BUSY_PER_MM2, BUSY_PER_MM2)
    )
    (case,) = cohort_cases(config)
    pixels, truth = render_region(case, "he", 0, 0, WORLD, WORLD), case_truth(case)
    mitoses = truth.loc[truth["category"] == "mitosis", ["x_he", "y_he"]].to_numpy(float)
    fields = [
        (x, y, mitoses[((mitoses >= (x, y)) & (mitoses < (x + SIDE, y + SIDE))).all(axis=1)] - (x, y))
        for y in range(0, WORLD, SIDE)
        for x in range(0, WORLD, SIDE)
    ]
    fields.sort(key=lambda field: len(field[2]))
    numbers = np.random.default_rng(1).permutation(len(fields))
    chosen = (fields[number] for number in numbers)
    tiles = iter([(pixels[y : y + SIDE, x : x + SIDE], points) for x, y, points in chosen])
    lines = []
    for number in range(1, SLIDES + 1):
        square, points = next(tiles)
        _slide(folder / "training_image_data" / f"TUPAC-TR-{number:03}.svs", square)
        lines.append(f"{1 + (len(points) > 2) + (len(points) > 5)},{len(points) / 10 - 0.5}")
    (folder / "training_ground_truth.csv").write_text("\n".join(lines) + "\n")
    for number in TESTED:
        _slide(folder / "testing_image_data" / f"TUPAC-TE-{number:03}.svs", next(tiles)[0])
    for number in range(24, 24 + REGIONS):
        square, points = next(tiles)
        _region(folder / f"mitoses_image_data_part_{2 + number % 2}/{number}/01.tif", square)
        table = folder / f"mitoses_ground_truth/{number}/01.csv"
        table.parent.mkdir(parents=True)
        if len(points):
            pd.DataFrame(points[:, ::-1].round().astype(int)).to_csv(table, index=False, header=False)
    for number in range(24, 24 + TEST_REGIONS):  # the same numbers as of training
        _region(folder / f"mitoses-test-image-data/{number}/01.tif", next(tiles)[0])


def _slide(path: Path, square: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_pyramid(path, iter([square]), SIDE, SIDE, PyramidFormat(mpp=0.25, tile_px=SIDE, quality=95))


def _region(path: Path, square: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(square).save(path)
