"""The exact truth of a case: every object worth knowing, in both frames, and the clinical numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.spatial import cKDTree

from metaphase.base.geometry import Box
from metaphase.simulation.architecture import Architecture
from metaphase.simulation.config import MPP, Case
from metaphase.simulation.placement import ARTEFACTS, CHUNK_PX, LOOKALIKES, MITOSES, OBJECT, Kind, Placement
from metaphase.simulation.randomness import generator

HOTSPOT_MM2 = 2.0
GRADE_LIMITS = (6, 20)
"""Counts up to the first limit are grade 1, up to the second grade 2, above it grade 3."""
_NOTED = (*MITOSES, *LOOKALIKES, Kind.BROWN_NUCLEUS, *ARTEFACTS)


def case_truth(case: Case) -> pd.DataFrame:
    """Every mitosis, look-alike, brown nucleus and artefact of a case, one row each.

    `x_he, y_he` and `x_phh3, y_phh3` are level-0 pixels of the two slides, joined exactly by the case's
    displacement; `in_phh3` tells whether the PHH3 slide reaches that far.
    """
    rows = range(-(-case.height // CHUNK_PX))
    return truth_table(case, np.concatenate([noted_objects(case, row) for row in rows]))


def noted_objects(case: Case, chunk_row: int) -> npt.NDArray[Any]:
    """The objects worth a row of truth in one row of chunks, inside the slide."""
    placement = Placement(case, Architecture(case))
    columns = range(-(-case.width // CHUNK_PX))
    objects = np.concatenate(
        [np.zeros(0, OBJECT), *(placement.chunk(column, chunk_row) for column in columns)]
    )
    inside = (objects["x"] < case.width) & (objects["y"] < case.height)
    return objects[inside & np.isin(objects["kind"], _NOTED)]


def truth_table(case: Case, objects: npt.NDArray[Any]) -> pd.DataFrame:
    """The table of the given objects."""
    he = np.stack([objects["x"], objects["y"]], axis=1)
    phh3 = case.displacement.he_to_phh3(he)
    inside = ((phh3 >= 0) & (phh3 < (case.width, case.height))).all(axis=1)
    kinds = [Kind(int(kind)) for kind in objects["kind"]]
    table = pd.DataFrame(
        {
            "case": case.name,
            "category": [_category(kind) for kind in kinds],
            "kind": [kind.name.lower() for kind in kinds],
            "atypical": objects["atypical"],
            "phh3_positive": objects["positive"] | np.isin(objects["kind"], (Kind.PIGMENT,)),
            "x_he": he[:, 0],
            "y_he": he[:, 1],
            "x_phh3": phh3[:, 0],
            "y_phh3": phh3[:, 1],
            "in_phh3": inside,
            "radius_um": objects["radius"] * np.float32(MPP),
        }
    )
    table = table.sort_values(["y_he", "x_he"], kind="stable", ignore_index=True)
    table.insert(1, "id", np.arange(len(table)))
    return table


def _category(kind: Kind) -> str:
    if kind in MITOSES:
        return "mitosis"
    if kind in LOOKALIKES:
        return "lookalike"
    return "brown_nucleus" if kind == Kind.BROWN_NUCLEUS else "artefact"


def hotspot_count(truth: pd.DataFrame) -> int:
    """The most mitoses within a circle of 2 mm2 around any mitosis of the H&E slide."""
    points = truth.loc[truth["category"] == "mitosis", ["x_he", "y_he"]].to_numpy() * (MPP / 1000)
    if not len(points):
        return 0
    tree = cKDTree(points)
    near = tree.query_ball_point(points, np.sqrt(HOTSPOT_MM2 / np.pi), return_length=True)
    return int(near.max())


def proliferation_score(case: Case, count: int) -> float:
    """A stand-in for a gene-expression score: it follows the logarithm of the count, noisily."""
    noise = generator(case.seed, 60).normal(0, 0.35)
    return round(float(np.log2(1 + count) / 3 - 1 + noise), 4)


def tissue_truth(case: Case, mpp: float = 4.0) -> npt.NDArray[np.bool_]:
    """Where the H&E slide shows tissue, as a mask at `mpp` micrometres per pixel."""
    return Architecture(case).tissue_over(Box(0, 0, case.width, case.height), mpp / MPP) > 0
