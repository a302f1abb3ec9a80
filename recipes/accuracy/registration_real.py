"""Registration of real pairs: two scanners (ICPR 2012 fields) and consecutive sections (rat kidney).

    python recipes/accuracy/registration_real.py [--fields 35]

Real images are read from the folder named in METAPHASE_DATA, or from ../shared/data. For the fields, labelled
mitoses of both scanners are the truth; a mitosis of one belongs to the nearest of the other. For the kidney,
landmarks are given pair by pair; scikit-image's phase correlation and SIFT run on the same images.
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.spatial import cKDTree
from skimage.color import rgb2gray
from skimage.feature import SIFT, match_descriptors
from skimage.measure import ransac
from skimage.registration import phase_cross_correlation
from skimage.transform import SimilarityTransform

from metaphase.labels.registration.pair import register_pair, register_points
from metaphase.labels.registration.similarity import RegistrationConfig
from metaphase.labels.registration.tiles import nuclear_density
from metaphase.slides.opening import open_slide

ROOT = Path(__file__).resolve().parents[2]
APERIO_MPP, HAMAMATSU_MPP = 0.2456, 0.2275
KIDNEY_MPP = 10.0
"""Not stated; at this scale glomeruli and tubules have the size they have in rats."""
PAIRED_UM = 10.0
"""Labels farther apart than this after registration do not mean the same mitosis."""


def field_errors(data: Path, name: str, labels: pd.DataFrame, painted: pd.DataFrame) -> dict[str, Any]:
    """Distances in um between the two scanners' labels of one field, before and after."""
    other = name.replace("A", "H", 1)
    he = open_slide(data / "icpr2012-aperio" / name, mpp=APERIO_MPP)
    phh3 = open_slide(data / "icpr2012-hamamatsu-painted" / other, mpp=HAMAMATSU_MPP)
    registration = register_pair(he, phh3, RegistrationConfig(any_stains=True))
    true = labels.loc[labels["image"] == name, ["x", "y"]].to_numpy() * APERIO_MPP
    given = painted.loc[painted["image"] == other, ["x", "y"]].to_numpy()
    table = register_points(registration, given)
    there = table.loc[table["accepted"], ["x_he", "y_he"]].to_numpy() * APERIO_MPP
    return {
        "verdict": registration.verdict.status,
        "before": nearest(true, given * HAMAMATSU_MPP),
        "after": nearest(true, there),
        "rejected": int((~table["accepted"]).sum()),
        "points": len(table),
    }


def nearest(positions: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Distance from each position to the nearest of the others; none without others."""
    return cKDTree(others).query(positions)[0] if len(others) and len(positions) else np.zeros(0)


def print_fields(data: Path, count: int) -> None:
    """The two-scanner fields, summed up."""
    labels = pd.read_csv(data / "icpr2012-aperio" / "mitoses.csv")
    painted = pd.read_csv(data / "icpr2012-hamamatsu-painted" / "painted.csv")
    names = sorted(path.name for path in (data / "icpr2012-aperio").glob("*.jpg"))[:count]
    rows = [field_errors(data, name, labels, painted) for name in names]
    before, after = (np.concatenate([row[key] for row in rows]) for key in ("before", "after"))
    paired = after[after <= PAIRED_UM]
    reliable = sum(row["verdict"] == "reliable" for row in rows)
    medians = [float(np.median(row["after"])) for row in rows if len(row["after"])]
    print(f"{len(rows)} fields, {reliable} reliable; {sum(row['points'] for row in rows)} points,", end=" ")
    print(f"{sum(row['rejected'] for row in rows)} rejected")
    print(f"{len(after)} labelled mitoses, median {np.median(before):.2f} um before", end=", ")
    print(f"{np.median(after):.2f} um after")
    print(f"  median of the fields' medians {np.median(medians):.2f} um, worst field {max(medians):.2f} um")
    print(f"  {len(paired)} have a partner within {PAIRED_UM:g} um", end=", ")
    print(f"95 % of these within {np.percentile(paired, 95):.2f} um")


def print_kidney(data: Path) -> None:
    """Landmark errors in pixels of the 5 % images, before and after, for three methods."""
    folder = data / "pair-rat-kidney"
    names = ("Rat-Kidney_HE", "Rat-Kidney_PanCytokeratin")
    marks = [pd.read_csv(folder / f"{name}.csv", index_col=0) for name in names]
    both = marks[0].join(marks[1].rename(columns={"X": "U", "Y": "V"}), how="inner")
    he_marks, other_marks = both[["X", "Y"]].to_numpy(float), both[["U", "V"]].to_numpy(float)
    he, other = (open_slide(folder / f"{name}.jpg", mpp=KIDNEY_MPP) for name in names)
    registration = register_pair(he, other)
    pixels = [slide.read(0, 0, slide.width, slide.height, KIDNEY_MPP) for slide in (he, other)]
    grey = [1 - rgb2gray(picture) for picture in pixels]
    nuclei = [nuclear_density(pixels[0], "H&E"), nuclear_density(pixels[1], "DAB")]
    similarity = registration.transform.similarity
    methods = {
        "before": other_marks,
        "scikit-image phase correlation, grey": other_marks + phase_shift(*grey),
        "scikit-image phase correlation, nuclear density": other_marks + phase_shift(*nuclei),
        "scikit-image SIFT and RANSAC, grey": sift_similarity(*grey)(other_marks),
        "scikit-image SIFT and RANSAC, nuclear density": sift_similarity(*nuclei)(other_marks),
        "metaphase, similarity": similarity.apply(other_marks * KIDNEY_MPP) / KIDNEY_MPP,
        "metaphase, transform": registration.transform.phh3_to_he(other_marks),
    }
    print(f"{len(both)} landmarks; verdict {registration.verdict.status}: {registration.verdict.reasons}")
    print("| method | median px | 90 % |\n|---|---:|---:|")
    for name, positions in methods.items():
        miss = np.percentile(np.linalg.norm(positions - he_marks, axis=1), [50, 90])
        print(f"| {name} | {miss[0]:.1f} | {miss[1]:.1f} |")


def phase_shift(he: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The shift (x, y) that scikit-image finds after padding both images to one size."""
    rows, columns = np.maximum(he.shape, other.shape)
    padded = [np.pad(i, ((0, rows - i.shape[0]), (0, columns - i.shape[1]))) for i in (he, other)]
    shift, _, _ = phase_cross_correlation(*padded, upsample_factor=10)
    return np.asarray(shift[::-1])


def sift_similarity(he: np.ndarray, other: np.ndarray) -> SimilarityTransform:
    """The similarity from `other` to `he` that SIFT matches and RANSAC give."""
    keys = []
    for image in (other, he):
        sift = SIFT()
        sift.detect_and_extract(image / image.max())
        keys.append((np.asarray(sift.keypoints)[:, ::-1], sift.descriptors))
    matches = match_descriptors(keys[0][1], keys[1][1], max_ratio=0.9, cross_check=True)
    pairs = keys[0][0][matches[:, 0]], keys[1][0][matches[:, 1]]
    with warnings.catch_warnings(action="ignore"):
        model, kept = ransac(
            pairs, SimilarityTransform, min_samples=3, residual_threshold=15, max_trials=20_000, rng=0
        )
    print(f"SIFT: {len(matches)} matches, {0 if kept is None else int(kept.sum())} consistent")
    return model if kept is not None else SimilarityTransform()


def main() -> None:
    """Both kinds of pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--fields", type=int, default=35)
    options = parser.parse_args()
    data = Path(os.environ.get("METAPHASE_DATA", ROOT.parent / "shared" / "data"))
    print_kidney(data)
    if options.fields:
        print_fields(data, options.fields)


if __name__ == "__main__":
    main()
