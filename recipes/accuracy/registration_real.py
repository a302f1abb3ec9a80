"""Registration of real pairs: two scanners (ICPR 2012 fields) and consecutive sections (rat kidney).

    python recipes/accuracy/registration_real.py [--fields 35] [--turned 10]

`--turned`: of so many fields 800 x 800 px of both scanners, the second turned by 4 degrees, shifted by 10 um,
and without eosin, as if restained: whole, with patches of other tissue, bent, and of another field. Where 36
points should lie is known from the whole fields.

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

import cv2
import numpy as np
import pandas as pd
from scipy.spatial import cKDTree
from skimage.color import rgb2gray
from skimage.feature import SIFT, match_descriptors
from skimage.measure import ransac
from skimage.registration import phase_cross_correlation
from skimage.transform import SimilarityTransform

from metaphase.base.arrays import RGB, Box, Floats
from metaphase.detections.table import DetectionSet
from metaphase.images.stain.deconvolution import HE_RESIDUAL, separate
from metaphase.labels.registration.outputs import mapped_points
from metaphase.labels.registration.pair import register_pair, register_points
from metaphase.labels.registration.similarity import RegistrationConfig
from metaphase.labels.registration.tiles import nuclear_density
from metaphase.slides.arrays import ArraySlide
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


TURNED_PX, TURN_DEG, SHIFT_UM, PATCH_PX, BENT_UM, SIDE_POINTS = 800, 4.0, 10.0, 110, 24.0, 6
KINDS = {"whole": 0, "2 patches of other tissue": 2, "5 patches": 5, "bent by 24 um": 0, "another section": 0}


def restained(picture: RGB) -> RGB:
    """Without eosin, the haematoxylin as blue as beside DAB."""
    haematoxylin = separate(picture, HE_RESIDUAL)[..., :1].clip(0)
    return np.asarray(255 * np.exp(-haematoxylin * [0.75, 0.6, 0.3] - 0.04), np.uint8)


def turned_rows(data: Path, name: str, stranger: str) -> list[dict[str, Any]]:
    """Verdict and points of the small pairs of one field."""
    folder = data / "icpr2012-hamamatsu-painted"
    other, foreign = (one.replace("A", "H", 1) for one in (name, stranger))
    he = open_slide(data / "icpr2012-aperio" / name, mpp=APERIO_MPP)
    phh3, strange = (open_slide(folder / one, mpp=HAMAMATSU_MPP) for one in (other, foreign))
    known = register_pair(he, phh3, RegistrationConfig(any_stains=True)).transform
    middle = np.array([he.width, he.height]) / 2
    corner = (middle - TURNED_PX / 2).astype(int)
    first = ArraySlide(
        he.read_level(0, Box(int(corner[0]), int(corner[1]), TURNED_PX, TURNED_PX)), APERIO_MPP
    )
    turn = cv2.getRotationMatrix2D((0, 0), -TURN_DEG, 1.0)[:, :2]
    grid = np.stack(np.meshgrid(*[np.arange(TURNED_PX, dtype=np.float64)] * 2), axis=-1)
    rows = []
    for seed, (kind, patches) in enumerate(KINDS.items()):
        bend = BENT_UM / HAMAMATSU_MPP * kind.startswith("bent")

        def source(there: Floats, bend: float = bend) -> Floats:
            """Of positions on the small slide, those on the whole one."""
            waves = bend * np.sin(2 * np.pi * there[..., ::-1] / TURNED_PX) / np.sqrt(2)
            away = there - TURNED_PX / 2 - SHIFT_UM / HAMAMATSU_MPP / np.sqrt(2)
            return np.asarray((away + waves) @ turn.T + known.he_to_phh3(middle)[0])

        whole, patch = (one.read_level(0, Box(0, 0, one.width, one.height)) for one in (phh3, strange))
        pixels = patch if kind == "another section" else whole
        across, down = np.moveaxis(source(grid).astype(np.float32), -1, 0)
        moved = cv2.remap(pixels, across, down, cv2.INTER_LINEAR, borderValue=(255, 255, 255))
        small = np.asarray(moved, np.uint8)
        spots = np.random.default_rng(seed).integers(0, TURNED_PX - PATCH_PX, (patches, 2))
        for x, y in spots:
            small[y : y + PATCH_PX, x : x + PATCH_PX] = patch[y : y + PATCH_PX, x : x + PATCH_PX]
        registration = register_pair(first, ArraySlide(restained(small), HAMAMATSU_MPP))
        edge = np.linspace(0.15, 0.85, SIDE_POINTS) * TURNED_PX
        points = np.stack(np.meshgrid(edge, edge), axis=-1).reshape(-1, 2)
        clean = [not (np.abs(one - spots - PATCH_PX / 2) < PATCH_PX / 2).all(axis=1).any() for one in points]
        points = points[clean]
        table = pd.DataFrame(points, columns=["x", "y"]).assign(slide="a", probability=1.0, label="mitosis")
        trusted = registration.verdict.status == "reliable"
        placed = mapped_points(registration, DetectionSet(table, ("a",)), "a", trusted=trusted)
        truth = (known.phh3_to_he(source(points)) - corner) * APERIO_MPP
        error = np.linalg.norm(placed[["x_he", "y_he"]].to_numpy() * APERIO_MPP - truth, axis=1)
        carried = placed["accepted"].to_numpy(bool)
        evidence = registration.evidence
        row = {
            "kind": kind, "verdict": registration.verdict.status, "tiles": evidence.tiles,
            "agreeing": evidence.agreeing, "error_um": evidence.error_um, "points": len(points),
            "right to 2 um": int((error <= 2).sum()), "carried over": int(carried.sum()),
            "of them to 2 um": int((error[carried] <= 2).sum()), "to 5 um": int((error[carried] <= 5).sum()),
        }  # fmt: skip
        print(name, *row.values(), *registration.verdict.reasons, sep="; ", flush=True)
        rows.append(row)
    return rows


def print_turned(data: Path, count: int) -> None:
    """Small turned pairs: verdicts, and what is carried over."""
    names = sorted(path.name for path in (data / "icpr2012-aperio").glob("*.jpg"))
    chosen = names[:: max(1, len(names) // count)][:count]
    table = pd.DataFrame(
        [row for index, name in enumerate(chosen) for row in turned_rows(data, name, chosen[index - 1])]
    )
    verdicts = pd.crosstab(table["kind"], table["verdict"])
    print(verdicts.join(table.groupby("kind", sort=False).sum(numeric_only=True).drop(columns="error_um")))


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
    parser.add_argument("--turned", type=int, default=0)
    parser.add_argument("--kidney", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    data = Path(os.environ.get("METAPHASE_DATA", ROOT.parent / "shared" / "data"))
    if options.kidney:
        print_kidney(data)
    if options.turned:
        print_turned(data, options.turned)
    if options.fields:
        print_fields(data, options.fields)


if __name__ == "__main__":
    main()
