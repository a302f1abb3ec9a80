"""From a pair of slides and the mitoses of its PHH3 slide to the reference standard of its H&E slide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.detections import DetectionSet
from metaphase.reference.config import ReferenceConfig
from metaphase.reference.table import FAILED, PLACED_COLUMNS, REJECTED, decide
from metaphase.reference.visibility import VisibilityConfig, measure_contrast
from metaphase.registration import Registration, RegistrationConfig, register_pair, register_points
from metaphase.slides import Slide


@dataclass(frozen=True)
class Placement:
    """Points in H&E coordinates with all that the decision about them needs, and the registration."""

    table: pd.DataFrame
    """`PLACED_COLUMNS` and `problem`, one row a point in the given order."""
    registration: Registration
    points: pd.DataFrame
    """What `register_points` said about each."""


def build_reference(
    he: Slide, phh3: Slide, points: DetectionSet, case: str, config: ReferenceConfig | None = None
) -> pd.DataFrame:
    """Register a pair and return the reference standard that its PHH3 points make, with default settings."""
    return decide(place_points(he, phh3, points, case).table, he.mpp, config)


def place_points(
    he: Slide,
    phh3: Slide,
    points: DetectionSet,
    case: str,
    *,
    registration: RegistrationConfig | None = None,
    visibility: VisibilityConfig | None = None,
) -> Placement:
    """Register a pair, carry the PHH3 points over, and measure what H&E shows there. The slow part.

    A point that registration rejects keeps the place where the smooth transform puts it, so that nobody takes
    the spot for free of mitoses; after a failed registration points have no place.
    """
    registered = register_pair(he, phh3, registration)
    found = register_points(registered, points.table[["x", "y"]].to_numpy())
    places = _places(registered, found)
    verdict = registered.verdict
    problem = found["reason"].astype(object)
    if verdict.status == FAILED:
        problem[:] = f"the registration failed: {'; '.join(verdict.reasons)}"
    table = found.assign(
        case=case,
        x=places[:, 0],
        y=places[:, 1],
        contrast=measure_contrast(he, places, visibility),
        probability=points.table["probability"].to_numpy(float),
        registration=verdict.status,
        candidate=_names(points.table),
        problem=problem,
    )
    return Placement(table[[*PLACED_COLUMNS, "problem"]], registered, found)


def _places(registered: Registration, found: pd.DataFrame) -> npt.NDArray[np.float64]:
    """H&E level-0 pixels (n, 2); NaN where not even a guess can be made."""
    places = found[["x_he", "y_he"]].to_numpy(np.float64).copy()
    rejected = (found["method"] == REJECTED).to_numpy()
    if registered.verdict.status == FAILED or not rejected.any():
        return places
    guess = registered.transform.phh3_to_he(found[["x_phh3", "y_phh3"]].to_numpy())
    he = registered.pair.he.slide
    inside = ((guess >= 0) & (guess < (he.width, he.height))).all(axis=1)
    places[rejected & inside] = guess[rejected & inside]
    return places


def _names(points: pd.DataFrame) -> list[str]:
    """What the source calls each point: its candidate number, or else its row."""
    names = points["candidate"] if "candidate" in points.columns else range(len(points))
    return [str(name) for name in names]
