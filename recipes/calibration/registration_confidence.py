"""The confidence of registered points, fitted and checked on simulated pairs whose H&E slide was spoilt.

    python recipes/calibration/registration_confidence.py --seed 77 --cohort FOLDER         # prints weights
    python recipes/calibration/registration_confidence.py --seed 78 --cohort OTHER --check  # reliable?

The cohort is made if FOLDER is empty. On each H&E slide patches are blanked, blurred, drowned in noise or
replaced with other tissue until about half of it is spoilt. Points are random places on the PHH3 slide;
their true places follow from the simulator's displacement. A point is right when it is right to 2 um.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

from metaphase.base.arrays import RGB
from metaphase.labels.registration import register_pair, register_points
from metaphase.labels.registration.points import (
    CONSENSUS,
    MEASURED,
    RIGHT_UM,
    consensus_features,
    measured_features,
)
from metaphase.simulation import Displacement, SimulationConfig, simulate_cohort
from metaphase.slides import ArraySlide, open_slide

MPP = 0.25
PATCHES = 60
PATCH_PX = (200, 1000)
BINS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)


def spoilt(pixels: RGB, rng: np.random.Generator) -> RGB:
    """The slide with patches that no longer show what lies there."""
    out = pixels.copy()
    height, width = pixels.shape[:2]
    for _ in range(PATCHES):
        w, h = rng.integers(*PATCH_PX, 2)
        x, y = rng.integers(0, width - w), rng.integers(0, height - h)
        area = np.s_[y : y + h, x : x + w]
        out[area] = _spoilt_patch(out[area], pixels, int(rng.integers(4)), rng)
    return out


def _spoilt_patch(patch: RGB, whole: RGB, kind: int, rng: np.random.Generator) -> RGB:
    h, w = patch.shape[:2]
    if kind == 0:
        return np.full_like(patch, 244)
    if kind == 1:
        return np.asarray(cv2.GaussianBlur(patch, (0, 0), float(rng.uniform(5, 25))))
    if kind == 2:
        noise = rng.normal(0, rng.uniform(30, 90), patch.shape)
        return np.clip(patch + noise, 0, 255).astype(np.uint8)
    x, y = rng.integers(0, whole.shape[1] - w), rng.integers(0, whole.shape[0] - h)
    return whole[y : y + h, x : x + w]


def measured_cases(cohort: Path, seed: int, points: int) -> Iterator[pd.DataFrame]:
    """Registered random points of every case of the cohort, with their error in um."""
    for index, folder in enumerate(sorted(cohort.glob("case*"))):
        rng = np.random.default_rng([seed, index])
        truth = Displacement.from_json(json.loads((folder / "displacement.json").read_text()))
        with open_slide(folder / "he.tif") as he, open_slide(folder / "phh3.tif") as phh3:
            pixels = he.read(0, 0, he.width, he.height, MPP)
            registration = register_pair(ArraySlide(spoilt(pixels, rng), MPP), phh3)
            places = rng.uniform(0, 1, (points, 2)) * (phh3.width, phh3.height)
            table = register_points(registration, places)
        true = truth.phh3_to_he(places)
        table["error_um"] = np.linalg.norm(table[["x_he", "y_he"]].to_numpy() - true, axis=1) * MPP
        print(
            folder.name,
            registration.verdict.status,
            *registration.verdict.reasons,
            table["method"].value_counts().to_dict(),
            flush=True,
        )
        yield table[table["accepted"]]


def fit(table: pd.DataFrame) -> None:
    """Print the weights of both logistic models."""
    for method in (MEASURED, CONSENSUS):
        rows = table[table["method"] == method]
        right = (rows["error_um"] <= RIGHT_UM).to_numpy()
        model = LogisticRegression(C=10.0, fit_intercept=False, max_iter=1000).fit(
            features(rows, method), right
        )
        weights = tuple(round(float(w), 3) for w in model.coef_[0])
        print(f"{method}: {len(rows)} points, {right.mean():.3f} right, weights {weights}")


def features(rows: pd.DataFrame, method: str) -> np.ndarray:
    """What the model of `method` sees."""
    values = {name: rows[name].to_numpy(float) for name in rows.columns if rows[name].dtype.kind in "fi"}
    if method == MEASURED:
        names = ("peak_ratio", "deviation_um", "neighbour_spread_um")
        return measured_features(*(values[name] for name in names))
    return consensus_features(values["neighbour_spread_um"], values["neighbour_distance_um"])


def check(table: pd.DataFrame) -> None:
    """Print how often points of each confidence are right."""
    print("| confidence | points | mean confidence | right to 2 um |\n|---|---:|---:|---:|")
    for low, high in itertools.pairwise(BINS):
        rows = table[(table["confidence"] > low) & (table["confidence"] <= high)]
        if len(rows):
            right = (rows["error_um"] <= RIGHT_UM).mean()
            print(f"| {low:g} to {high:g} | {len(rows)} | {rows['confidence'].mean():.3f} | {right:.3f} |")
    miss = table["confidence"] - (table["error_um"] <= RIGHT_UM)
    print(f"Brier score {float((miss**2).mean()):.4f}, mean error {float(miss.mean()):+.4f}")


def main() -> None:
    """Make the cohort if need be, register, then fit or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cohort", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=77)
    parser.add_argument("--points", type=int, default=400)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if not any(options.cohort.glob("case*")):
        settings = SimulationConfig(
            cases=6,
            centres=6,
            seed=options.seed,
            max_shift_um=200.0,
            max_shift_fraction=0.3,
            max_rotation_deg=1.0,
            mitoses_per_mm2=(30.0, 100.0),
        )
        simulate_cohort(options.cohort, settings)
    table = pd.concat(measured_cases(options.cohort, options.seed, options.points), ignore_index=True)
    (check if options.check else fit)(table)


if __name__ == "__main__":
    main()
