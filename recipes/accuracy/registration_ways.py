"""The paper's registration beside ours, on simulated pairs with exact truth.

    python recipes/accuracy/registration_ways.py [--pairs 2] [--side 8192] [--moves shift ...]

Each pair is moved in several ways. Both ways of `RegistrationConfig.transform` carry the same objects over:
errors are of all of them, those that `smooth` would refuse included (they stay where its field puts them).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import cv2
import numpy as np
import pandas as pd

from metaphase.base.arrays import RGB, Floats
from metaphase.labels.registration.evidence import Verdict
from metaphase.labels.registration.pair import REJECTED, Registration, register_pair, register_points
from metaphase.labels.registration.similarity import RegistrationConfig
from metaphase.simulation.cohort import case_truth
from metaphase.simulation.config import MPP, Case, SimulationConfig, cohort_cases, random_displacement
from metaphase.simulation.rendering import Frame, render_region
from metaphase.slides.arrays import ArraySlide

WAYS: tuple[Literal["smooth", "shifts"], ...] = ("smooth", "shifts")
SHIFT_UM = 80.0
OTHER_MPP = 0.23
"""Of another scanner."""
MOVES: dict[str, dict[str, float]] = {
    "shift": {},
    "shift, turned by 1 degree": {"degrees": 1.0},
    "shift, turned by 4 degrees": {"degrees": 4.0},
    "shift, deformed by 2.5 um": {"local_um": 2.5},
    "shift, deformed by 5 um": {"local_um": 5.0},
    "shift, PHH3 at 0.23 um/px": {"mpp": OTHER_MPP, "stated": OTHER_MPP},
    "shift, PHH3 at 0.2525 um/px called 0.25": {"mpp": 0.2525},
}
"""How PHH3 lies on H&E; its pixels are `mpp` wide and the file says `stated`."""


def moved(case: Case, degrees: float = 0.0, local_um: float = 0.0) -> Case:
    """The case after a shift, a turn and a deformation of this standard deviation."""
    found = random_displacement(
        case.seed, case.width, case.height, shift_px=0, rotation_deg=0, local_px=local_um / MPP
    )
    angle = np.random.default_rng(case.seed % 2**32).uniform(0, 2 * np.pi)
    x, y = SHIFT_UM / MPP * np.array([np.cos(angle), np.sin(angle)])
    turned = replace(found, shift_x=float(x), shift_y=float(y), rotation_rad=float(np.deg2rad(degrees)))
    return replace(case, displacement=turned)


def pixels(case: Case, frame: Frame) -> RGB:
    """A whole slide."""
    return render_region(case, frame, 0, 0, case.width, case.height)


def positions_of(registration: Registration, points: Floats) -> tuple[Floats, float]:
    """H&E pixels of all PHH3 points, and the share that the verdict and `register_points` would refuse."""
    refused = float((~register_points(registration, points)["accepted"]).mean())
    trusted = replace(registration, verdict=Verdict("reliable"))
    table = register_points(trusted, points)
    own = table[["x_he", "y_he"]].to_numpy()
    return np.where(
        (table["method"] == REJECTED).to_numpy()[:, None], registration.transform.phh3_to_he(points), own
    ), refused


def compared(case: Case, he: ArraySlide, name: str) -> Iterator[dict[str, object]]:
    """One row a way: the errors in um of all objects of a pair."""
    move = dict(MOVES[name])
    mpp, stated = move.pop("mpp", MPP), move.pop("stated", MPP)
    pair = moved(case, **move)
    size = tuple(round(side * MPP / mpp) for side in (case.width, case.height))
    picture = pixels(pair, "phh3")
    if mpp != MPP:
        picture = np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_CUBIC), np.uint8)
    phh3 = ArraySlide(picture, stated)
    truth = case_truth(pair)
    truth = truth[truth["in_phh3"] & truth["category"].isin(("mitosis", "lookalike"))]
    points = truth[["x_phh3", "y_phh3"]].to_numpy() * MPP / mpp
    for way in WAYS:
        registration = register_pair(he, phh3, RegistrationConfig(transform=way))
        there, refused = positions_of(registration, points)
        miss = np.linalg.norm(there - truth[["x_he", "y_he"]].to_numpy(), axis=1) * MPP
        yield {"way": way, "verdict": registration.verdict.status, "refused": refused, "miss": miss}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--side", type=int, default=8192)
    parser.add_argument("--moves", nargs="+", choices=MOVES, default=list(MOVES))
    options = parser.parse_args()
    config = SimulationConfig(
        cases=options.pairs, centres=1, width=options.side, height=options.side, mitoses_per_mm2=(60.0, 60.0)
    )
    cases = cohort_cases(config)
    slides = [ArraySlide(pixels(case, "he"), MPP) for case in cases]
    print("| pairs | way | points | median um | 95 % within um | right to 2 um | refused | verdicts |")
    print("|---|---|---:|---:|---:|---:|---:|---|")
    for name in options.moves:
        rows = [row for case, he in zip(cases, slides, strict=True) for row in compared(case, he, name)]
        for way, group in pd.DataFrame(rows).groupby("way", sort=False):
            miss = np.concatenate(group["miss"].tolist())
            middle, high = np.percentile(miss, (50, 95))
            print(
                f"| {name} | {way} | {len(miss)} | {middle:.2f} | {high:.2f} | {(miss <= 2).mean():.0%} | "
                f"{group['refused'].mean():.0%} | {', '.join(group['verdict'])} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
