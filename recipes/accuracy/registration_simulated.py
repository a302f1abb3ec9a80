"""Accuracy of registration on a simulated cohort, against exact truth, and how mismatched pairs fare.

    python recipes/accuracy/registration_simulated.py --cohort FOLDER [--mismatched 20]
    python recipes/accuracy/registration_simulated.py --cohort FOLDER --picture docs/images/registration.jpg

The cohort (8 cases from 8 laboratories, 5120 x 5120, shifts up to 500 um, up to 1 degree) is made if FOLDER
is empty. Points are all PHH3-positive mitoses whose true place lies on the H&E slide.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from metaphase.base.files import atomic_path
from metaphase.labels.registration.files import draw_registration
from metaphase.labels.registration.pair import Registration, register_pair
from metaphase.labels.registration.points import register_points
from metaphase.simulation.cohort import simulate_cohort
from metaphase.simulation.config import Displacement, SimulationConfig
from metaphase.slides import open_slide

MPP = 0.25
COHORT = SimulationConfig(
    cases=8,
    centres=8,
    width=5120,
    height=5120,
    seed=901,
    max_shift_um=500.0,
    max_shift_fraction=0.45,
    max_rotation_deg=1.0,
    mitoses_per_mm2=(30.0, 100.0),
)
RECOVERED_UM = 15.0
"""A global similarity this close to the truth everywhere on the tissue counts as recovered."""


def registered(he: Path, phh3: Path) -> Registration:
    """Register two files."""
    return register_pair(open_slide(he), open_slide(phh3))


def mitoses(folder: Path) -> pd.DataFrame:
    """The truth of the points; those off the H&E slide are left out."""
    truth = pd.read_parquet(folder / "truth.parquet")
    inside = (truth[["x_he", "y_he"]].ge(0) & truth[["x_he", "y_he"]].lt(COHORT.width)).all(axis=1)
    return truth[(truth["category"] == "mitosis") & truth["phh3_positive"] & truth["in_phh3"] & inside]


def assess(folder: Path) -> dict[str, Any]:
    """One row of the table, with the errors of all points."""
    truth = mitoses(folder)
    exact = Displacement.from_json(json.loads((folder / "displacement.json").read_text()))
    registration = registered(folder / "he.tif", folder / "phh3.tif")
    table = register_points(registration, truth[["x_phh3", "y_phh3"]].to_numpy())
    miss = table[["x_he", "y_he"]].to_numpy() - truth[["x_he", "y_he"]].to_numpy()
    places = registration.controls.places / MPP
    rigid = registration.transform.similarity.apply(places * MPP) - exact.phh3_to_he(places) * MPP
    return {
        "case": folder.name,
        "verdict": registration.verdict.status,
        "shift_um": float(np.hypot(exact.shift_x, exact.shift_y)) * MPP,
        "rotation_deg": float(np.degrees(exact.rotation_rad)),
        "global_um": float(np.linalg.norm(rigid, axis=1).max(initial=np.inf if not len(rigid) else 0)),
        "accepted": table["accepted"].to_numpy(),
        "error_um": np.linalg.norm(miss, axis=1) * MPP,
    }


def print_accuracy(cases: list[Path]) -> None:
    """The table, case by case and for all."""
    print("| case | true shift um | degrees | verdict | points | rejected | median um | 95 % | worst |")
    print("|---|---:|---:|---|---:|---:|---:|---:|---:|")
    rows = []
    for folder in cases:
        row = assess(folder)
        rows.append(row)
        place = f"{row['shift_um']:.0f} | {row['rotation_deg']:.2f} | {row['verdict']}"
        print(f"| {row['case']} | {place} | {_errors(row['error_um'], row['accepted'])} |", flush=True)
    errors = np.concatenate([row["error_um"] for row in rows])
    accepted = np.concatenate([row["accepted"] for row in rows])
    found = sum(row["global_um"] <= RECOVERED_UM for row in rows)
    print(f"| all | | | {found} of {len(rows)} recovered | {_errors(errors, accepted)} |")


def _errors(errors: np.ndarray, accepted: np.ndarray) -> str:
    kept = errors[accepted]
    numbers = (
        " | ".join(f"{value:.2f}" for value in np.percentile(kept, [50, 95, 100])) if len(kept) else "| |"
    )
    return f"{len(errors)} | {int((~accepted).sum())} | {numbers}"


def print_mismatched(cases: list[Path], count: int) -> None:
    """Register slides of different cases and count the verdicts."""
    pairs = list(itertools.permutations(cases, 2))
    chosen = np.random.default_rng(0).permutation(len(pairs))[:count]
    verdicts = []
    for index in chosen:
        he, phh3 = pairs[int(index)]
        verdicts.append(registered(he / "he.tif", phh3 / "phh3.tif").verdict.status)
        print(f"{he.name} with {phh3.name}: {verdicts[-1]}", flush=True)
    flagged = sum(verdict != "reliable" for verdict in verdicts)
    print(f"mismatched pairs flagged: {flagged} of {len(verdicts)}, failed {verdicts.count('failed')}")


def save_picture(folder: Path, path: Path) -> None:
    """The picture of one case's registration with its points, as JPEG."""
    registration = registered(folder / "he.tif", folder / "phh3.tif")
    truth = mitoses(folder)
    table = register_points(registration, truth[["x_phh3", "y_phh3"]].to_numpy())
    with Image.open(io.BytesIO(draw_registration(registration, table))) as picture, atomic_path(path) as out:
        picture.convert("RGB").save(out, "JPEG", quality=82)


def main() -> None:
    """Make the cohort if need be, then print both tables or draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cohort", type=Path, required=True)
    parser.add_argument("--mismatched", type=int, default=20)
    parser.add_argument("--picture", type=Path, help="draw the second case and do nothing else")
    options = parser.parse_args()
    if not any(options.cohort.glob("case*")):
        simulate_cohort(options.cohort, COHORT)
    cases = sorted(options.cohort.glob("case*"))
    if options.picture:
        save_picture(cases[1], options.picture)
        return
    print_accuracy(cases)
    print_mismatched(cases, options.mismatched)


if __name__ == "__main__":
    main()
