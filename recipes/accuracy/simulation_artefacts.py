"""The share of trivial artefacts among the brown components of simulated PHH3 slides.

    python recipes/accuracy/simulation_artefacts.py [--cases 8] [--seed 1]

Brown is the DAB channel of a plain colour deconvolution above 0.35 (optical density); components of at
least 5 um2 count. A component belongs to the truth object nearest to it within 7.5 um (mitosis before
brown nucleus); whatever belongs to neither is a trivial artefact. Also printed: how many PHH3-positive
mitoses have brown of such a component within 7.5 um.
"""

from __future__ import annotations

import argparse
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.spatial import cKDTree

from metaphase.simulation import Case, CaseRenderer, SimulationConfig, case_truth, cohort_cases

VECTORS = np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]])
"""Haematoxylin, eosin and DAB after Ruifrok and Johnston."""
THRESHOLD, SMALLEST_UM2, RADIUS_PX = 0.35, 5.0, 30.0


def brown_components(picture: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Centroids (n, 2) of brown components, and the mask of their pixels."""
    light = np.maximum(picture.astype(np.float32), 1) / 245
    inverse = np.linalg.inv(VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True))
    dab = -np.log(light) @ inverse[:, 2].astype(np.float32)
    count, labels, stats, centroids = cv2.connectedComponentsWithStats((dab > THRESHOLD).astype(np.uint8))
    large = stats[1:count, cv2.CC_STAT_AREA] * 0.25**2 >= SMALLEST_UM2
    return np.asarray(centroids[1:count][large]), np.concatenate([[False], large])[labels]


def counted(case: Case) -> dict[str, Any]:
    """Components of a case by what they belong to."""
    picture = CaseRenderer(case).region("phh3", 0, 0, case.width, case.height)
    centres, brown = brown_components(picture)
    truth = case_truth(case)
    truth = truth[truth["in_phh3"] & truth["phh3_positive"]]
    near = {
        category: cKDTree(group[["x_phh3", "y_phh3"]].to_numpy())
        for category, group in truth.groupby("category")
        if category in ("mitosis", "brown_nucleus")
    }
    owned = np.full(len(centres), "artefact", dtype=object)
    for category in ("brown_nucleus", "mitosis"):
        if category in near:
            owned[near[category].query(centres)[0] < RADIUS_PX] = category
    positive = truth.loc[truth["category"] == "mitosis", ["x_phh3", "y_phh3"]].to_numpy()
    away = cv2.distanceTransform(1 - brown.astype(np.uint8), cv2.DIST_L2, 5)
    column, row = positive.astype(int).T
    found = away[row, column] < RADIUS_PX
    counts = pd.Series(owned).value_counts()
    return {
        "case": case.name,
        "laboratory": case.laboratory.name,
        **{name: int(counts.get(name, 0)) for name in ("mitosis", "brown_nucleus", "artefact")},
        "share of artefacts": counts.get("artefact", 0) / max(1, len(owned)),
        "positive mitoses": len(positive),
        "of them marked": int(found.sum()),
    }


def main() -> None:
    """Print the counts per case and in all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=8)
    parser.add_argument("--centres", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    config = SimulationConfig(cases=options.cases, centres=options.centres, seed=options.seed)
    table = pd.DataFrame([counted(case) for case in cohort_cases(config)])
    print(table.round(3).to_string(index=False))
    components = table[["mitosis", "brown_nucleus", "artefact"]].to_numpy().sum()
    print(f"share of artefacts over all cases: {table['artefact'].sum() / components:.3f}")
    print(f"positive mitoses marked: {table['of them marked'].sum()} of {table['positive mitoses'].sum()}")


if __name__ == "__main__":
    main()
