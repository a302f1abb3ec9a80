"""Colour and texture of real and simulated slides, side by side.

    python recipes/accuracy/simulation_statistics.py --data ../shared/data [--markdown]

For each real source and the virtual laboratory fitted to it: mean and spread of the haematoxylin and
eosin concentrations (same stain vectors for both), size and density of nuclei from the same simple
segmentation, and the contrast of the luminance in octave bands (the gradient spectrum). The last
column is the relative gap.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import Image

from metaphase.simulation import (
    LABORATORIES,
    CaseRenderer,
    Laboratory,
    SimulationConfig,
    case_truth,
    cohort_cases,
)

RGB = npt.NDArray[np.uint8]
SIDE = 512
SOURCES = {
    "aldgate": "icpr2012-aperio/*.jpg",
    "birch": "midesec/**/*.jpg",
    "elm": "icpr2012-hamamatsu-painted/*.jpg",
}
BANDS_PX = (2, 4, 8, 16, 32, 64)


def real_tiles(pattern: str, data: Path, most: int) -> Iterator[RGB]:
    """Tiles of real tissue without painted pixels."""
    files = sorted(data.glob(pattern))
    for path in files[:: max(1, len(files) // most)][:most]:
        image = np.asarray(Image.open(path).convert("RGB"))
        for x in (0, SIDE):
            tile = np.ascontiguousarray(image[SIDE : 2 * SIDE, x : x + SIDE])
            painted = (tile[..., 0] > 220) & (tile[..., 1] > 220) & (tile[..., 2] < 80)
            if tile.shape == (SIDE, SIDE, 3) and painted.mean() < 0.001:
                yield tile


def simulated_tiles(laboratory: Laboratory, cases: int) -> Iterator[RGB]:
    """Tiles of simulated tumour from several cases of one laboratory."""
    for case in cohort_cases(SimulationConfig(cases=cases, centres=1, seed=77)):
        case = dataclasses.replace(case, laboratory=laboratory)
        renderer, truth = CaseRenderer(case), case_truth(case)
        inner = truth[truth["x_he"].between(600, 3500) & truth["y_he"].between(600, 3500)]
        for _, place in inner[inner["category"] == "lookalike"].sample(2, random_state=1).iterrows():
            yield renderer.region("he", int(place["x_he"]) - 100, int(place["y_he"]) - 100, SIDE, SIDE)


def concentrations(tile: RGB, laboratory: Laboratory) -> npt.NDArray[Any]:
    """Haematoxylin and eosin (pixels, 2) by least squares on the laboratory's vectors."""
    white = np.array(laboratory.scanner.white)
    density = -np.log((tile.reshape(-1, 3).astype(float) + 1) / (white + 1))
    vectors = np.array([laboratory.haematoxylin, laboratory.eosin])
    return np.asarray(density @ np.linalg.pinv(vectors))


def nuclei(haematoxylin: npt.NDArray[Any]) -> tuple[float, float]:
    """Number per mm2 and mean equivalent diameter in um of dark blobs after smoothing."""
    smooth = cv2.GaussianBlur(haematoxylin.astype(np.float32), (0, 0), 4)
    level = np.clip(255 * smooth / 2.0, 0, 255).astype(np.uint8)
    cut, _ = cv2.threshold(level, 0, 255, cv2.THRESH_BINARY + cv2.THRESH_OTSU)
    _, _, stats, _ = cv2.connectedComponentsWithStats((level > cut).astype(np.uint8))
    areas = stats[1:, cv2.CC_STAT_AREA] * 0.25**2
    areas = areas[(areas > 10) & (areas < 250)]
    mm2 = (SIDE * 0.25 / 1000) ** 2
    return len(areas) / mm2, float(2 * np.sqrt(areas.mean() / np.pi)) if len(areas) else float("nan")


def band_contrasts(tile: RGB) -> list[float]:
    """Standard deviation of the luminance between neighbouring octaves, in grey levels."""
    grey = cv2.cvtColor(tile, cv2.COLOR_RGB2GRAY).astype(np.float32)
    levels = [grey, *(cv2.GaussianBlur(grey, (0, 0), band / 4) for band in BANDS_PX)]
    return [float((a - b).std()) for a, b in pairwise(levels)]


def statistics(tiles: Iterator[RGB], laboratory: Laboratory) -> pd.Series:
    """The mean over tiles of every statistic."""
    rows = []
    for tile in tiles:
        stain = concentrations(tile, laboratory)
        density, diameter = nuclei(stain[:, 0].reshape(SIDE, SIDE))
        row = {f"mean {c}": float(tile[..., i].mean()) for i, c in enumerate(("red", "green", "blue"))}
        for i, name in enumerate(("haematoxylin", "eosin")):
            row |= {f"{name} mean": stain[:, i].mean(), f"{name} spread": stain[:, i].std()}
            row |= {f"{name} {p}th percentile": np.percentile(stain[:, i], p) for p in (5, 50, 95, 99)}
        row |= {"nuclei per mm2": density, "nuclear diameter um": diameter}
        row |= {f"contrast to {b} px": c for b, c in zip(BANDS_PX, band_contrasts(tile), strict=True)}
        rows.append(row)
    return pd.DataFrame(rows).mean()


def main() -> None:
    """Print one table per source."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data")
    parser.add_argument("--tiles", type=int, default=16, help="real pictures and simulated cases per source")
    parser.add_argument("--only", help="one laboratory")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    for laboratory in LABORATORIES:
        if laboratory.name not in SOURCES or (options.only and options.only != laboratory.name):
            continue
        real = statistics(real_tiles(SOURCES[laboratory.name], options.data, options.tiles), laboratory)
        made = statistics(simulated_tiles(laboratory, options.tiles), laboratory)
        table = pd.DataFrame({"real": real, "simulated": made})
        table["gap"] = ((made - real) / real.abs()).map("{:+.0%}".format)
        print(f"\n{laboratory.name}: {SOURCES[laboratory.name]}\n")
        if options.markdown:
            print("| statistic | real | simulated | gap |\n|---|---:|---:|---:|")
            for name, row in table.iterrows():
                print(f"| {name} | {row['real']:.2f} | {row['simulated']:.2f} | {row['gap']} |")
        else:
            print(table.round(2).to_string())


if __name__ == "__main__":
    main()
