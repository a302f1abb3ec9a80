"""Fit stain vectors and whites of the virtual laboratories to real pictures.

    python recipes/calibration/laboratory_stains.py --data ../shared/data

Prints, for each real source: the white point (99.5th percentile), the two stain vectors (Macenko's
plane of the optical densities, extreme angles at the 3rd and 97th percentile) and percentiles of the
concentrations. The rounded numbers stand in `metaphase/simulation/laboratories.py`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import Image

Array = npt.NDArray[Any]
PIXELS = 20_000
PERCENTILES = (5, 50, 95, 99)


def sources(data: Path) -> dict[str, list[Path]]:
    """Picture files by source; MIDOG++ by scanner and origin."""
    found = {
        "ICPR 2012 Aperio": sorted(data.glob("icpr2012-aperio/*.jpg")),
        "ICPR 2012 Hamamatsu": sorted(data.glob("icpr2012-hamamatsu-painted/*.jpg")),
        "MiDeSeC": sorted(data.glob("midesec/**/*.jpg")),
        "TUPAC look-alikes": sorted(data.glob("tupac-lookalikes/*.*g")),
        "PHH3 tumour": sorted(data.glob("phh3-tiles/tumour/*")),
        "PHH3 artefacts": sorted(data.glob("phh3-tiles/artefact/*")),
    }
    patches = pd.read_csv(data / "midog-mitoses" / "patches.csv")
    for (tumour, scanner), group in patches.groupby(["tumor", "scanner"]):
        names = group.sample(min(150, len(group)), random_state=0)["image"]
        found[f"MIDOG++ {tumour}, {scanner}"] = [data / "midog-mitoses" / name for name in names]
    return {name: paths for name, paths in found.items() if paths}


def pixels(paths: list[Path], rng: np.random.Generator) -> Array:
    """Random pixels of all pictures, without painted yellow and black borders."""
    picked = []
    for path in paths:
        flat = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3)
        picked.append(flat[rng.integers(0, len(flat), min(len(flat), PIXELS))])
    found = np.concatenate(picked).astype(float)
    painted = (found[:, 0] > 220) & (found[:, 1] > 220) & (found[:, 2] < 80)
    return np.asarray(found[~painted & (found.max(axis=1) > 10)])


def stain_vectors(density: Array) -> Array:
    """Two unit vectors (2, 3), the one that absorbs more red first."""
    density = density[density.mean(axis=1) > 0.12]
    _, vectors = np.linalg.eigh(np.cov(density.T))
    basis = vectors[:, [2, 1]]
    basis[:, 0] *= np.sign(basis[:, 0].sum())
    angle = np.arctan2(*(density @ basis).T[::-1])
    extremes = [basis @ (np.cos(a), np.sin(a)) for a in np.percentile(angle, [3, 97])]
    ordered = np.array(sorted(extremes, key=lambda vector: -vector[0]))
    return np.asarray(ordered / np.linalg.norm(ordered, axis=1, keepdims=True))


def main() -> None:
    """Print the fits."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the real data")
    rng = np.random.default_rng(0)
    for name, paths in sources(parser.parse_args().data).items():
        sample = pixels(paths, rng)
        white = np.percentile(sample, 99.5, axis=0)
        density = -np.log((sample + 1) / (white + 1))
        vectors = stain_vectors(density)
        amounts = density @ np.linalg.pinv(vectors)
        print(f"{name}: white {white.round().astype(int)}, mean {sample.mean(axis=0).round().astype(int)}")
        for vector, amount in zip(vectors, amounts.T, strict=True):
            spread = np.percentile(amount, PERCENTILES).round(2)
            print(f"  {vector.round(2)}  percentiles {PERCENTILES}: {spread}")


if __name__ == "__main__":
    main()
