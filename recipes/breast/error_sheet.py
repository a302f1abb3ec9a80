"""A sheet of a detector's errors on complete fields left out: its surest false detections, then its misses.

python recipes/breast/error_sheet.py --data FOLDER [--source midesec] [--model breast] -o SHEET.png

Squares of 32 um; in each its probability, for a miss the highest one within 7.5 um.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from arithmetic import found_by
from dense_accuracy import RADIUS_UM
from pictures import MITOSIS, MPP, TRAIN, Picture, Pixels, read_pictures
from PIL import Image, ImageDraw

from metaphase.detections import match
from metaphase.networks.detector import ReadyDetector, load_detector
from metaphase.networks.engine import EngineConfig

SIDE_PX, A_ROW, MOST = 128, 12, 60


@dataclass(frozen=True)
class Error:
    """A place where detector and labels differ."""

    probability: float
    missed: bool
    picture: Pixels


def errors_of(field: Picture, found: npt.NDArray[np.float64], threshold: float) -> Iterator[Error]:
    """False detections and misses of one field; `found` holds x, y and probability."""
    counted, real = found[found[:, 2] >= threshold], field.of(MITOSIS)
    pairs = match(counted[:, :2] * MPP, counted[:, 2].copy(), real * MPP, RADIUS_UM)
    for x, y, probability in counted[pairs < 0]:
        yield Error(float(probability), False, _square(field.pixels, np.array([x, y])))
    for number in np.setdiff1d(np.arange(len(real)), pairs):
        near = np.hypot(*(found[:, :2] - real[number]).T) * MPP <= RADIUS_UM
        best = float(found[near, 2].max(initial=0.0))
        yield Error(best, True, _square(field.pixels, real[number]))


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
    said = f"{error.probability:.3f}" if error.probability else "nothing"
    ImageDraw.Draw(square).text((3, 2), ("missed, " if error.missed else "") + said, fill="black")
    return square


def main() -> None:
    """Search, compare, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--source", default="midesec")
    parser.add_argument("--model", default="breast")
    parser.add_argument("--device")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    ready = ReadyDetector(load_detector([options.model]), EngineConfig(device=options.device))
    fields = [
        one for one in read_pictures(options.data) if one.folder == options.source and one.role != TRAIN
    ]
    found, threshold = found_by(ready, fields), ready.detector.points.mitoses.delta
    every = [
        error for one in fields for error in errors_of(one, found[f"{one.folder}|{one.name}"], threshold)
    ]
    false = sorted((error for error in every if not error.missed), key=lambda error: -error.probability)
    missed = [error for error in every if error.missed]
    print(f"{len(false)} false detections, {len(missed)} misses")
    sheet(false[:MOST], missed[:MOST]).save(options.output)


if __name__ == "__main__":
    main()
