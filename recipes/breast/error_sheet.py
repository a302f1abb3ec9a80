"""A sheet of a detector's errors on MiDeSeC: its surest false detections, then its misses.

python recipes/breast/error_sheet.py --cohort OUT --folder WORK --threshold T -o SHEET.png

OUT is what breast_cohort.py wrote, WORK where breast_accuracy.py left its detections. Squares of 32 um; in
each its probability, for a miss the highest one within 7.5 um.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from breast_accuracy import OTHER, parts_of
from PIL import Image, ImageDraw

from metaphase.base.tables import read_table
from metaphase.detections import MITOSIS, match

RADIUS_UM, SIDE_PX, A_ROW, MOST = 7.5, 128, 12, 60
Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Error:
    """A place where detector and reference differ."""

    probability: float
    missed: bool
    picture: Pixels


def errors(cohort: Path, work: Path, threshold: float) -> Iterator[Error]:
    """All errors of the fields that tested."""
    slides, reference = parts_of(cohort), read_table(cohort / "reference.csv")
    for row in slides[slides["split"] == OTHER].to_dict("records"):
        found = read_table(work / "found" / f"{row['case']}.parquet")
        truth = reference[(reference["case"] == row["case"]) & (reference["label"] == MITOSIS)]
        with Image.open(row["he"]) as image:
            pixels = np.asarray(image.convert("RGB"))
        yield from _errors_of(pixels, found, truth, threshold, RADIUS_UM / row["mpp"])


def _errors_of(
    pixels: Pixels, found: pd.DataFrame, truth: pd.DataFrame, threshold: float, radius_px: float
) -> Iterator[Error]:
    counted = found[found["probability"] >= threshold]
    places, real = (table[["x", "y"]].to_numpy(np.float64) for table in (counted, truth))
    pairs = match(places, counted["probability"].to_numpy(np.float64), real, radius_px)
    probability = counted["probability"].to_numpy()
    for number in np.flatnonzero(pairs < 0):
        yield Error(float(probability[number]), False, _square(pixels, places[number]))
    for number in np.setdiff1d(np.arange(len(real)), pairs):
        away = np.hypot(found["x"] - real[number, 0], found["y"] - real[number, 1])
        best = float(found["probability"][away <= radius_px].max())
        yield Error(best, True, _square(pixels, real[number]))


def _square(pixels: Pixels, place: npt.NDArray[np.float64]) -> Pixels:
    half = SIDE_PX // 2
    padded = np.pad(pixels, ((half, half), (half, half), (0, 0)), constant_values=255)
    left, top = np.floor(place).astype(int)
    return padded[top : top + SIDE_PX, left : left + SIDE_PX]


def sheet(*groups: list[Error]) -> Image.Image:
    """Squares in rows, each with its probability; a group begins a new row."""
    rows = [group[start : start + A_ROW] for group in groups for start in range(0, len(group), A_ROW)]
    whole = Image.new("RGB", (A_ROW * SIDE_PX, max(1, len(rows)) * SIDE_PX), "white")
    for row, shown in enumerate(rows):
        for column, error in enumerate(shown):
            whole.paste(_labelled(error), (column * SIDE_PX, row * SIDE_PX))
    return whole


def _labelled(error: Error) -> Image.Image:
    square = Image.fromarray(error.picture)
    said = "nothing" if np.isnan(error.probability) else f"{error.probability:.3f}"
    ImageDraw.Draw(square).text((3, 2), ("missed, " if error.missed else "") + said, fill="black")
    return square


def main() -> None:
    """Read, compare, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cohort", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--threshold", type=float, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    every = list(errors(options.cohort, options.folder, options.threshold))
    false = sorted((error for error in every if not error.missed), key=lambda error: -error.probability)
    missed = [error for error in every if error.missed]
    print(f"{len(false)} false detections, {len(missed)} misses")
    sheet(false[:MOST], missed[:MOST]).save(options.output)


if __name__ == "__main__":
    main()
