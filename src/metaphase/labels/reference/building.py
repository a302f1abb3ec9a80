"""From a pair of slides and the mitoses of its PHH3 slide to the reference standard of its H&E slide.

The measure is a contrast: the darkest spot of the size of a chromosome plate close to the place, in nuclear
density, relative to how dark the darkest nuclei around it are. An ordinary nucleus has a contrast of about
0.8, a metaphase of 2. Only the tissue around decides what is dark, so stain and scanner matter little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.base.arrays import RGB, Floats, Points
from metaphase.base.errors import UsageError
from metaphase.base.parallel import available_cores, ordered_map
from metaphase.detections import DetectionSet
from metaphase.labels.reference.table import FAILED, PLACED_COLUMNS, REJECTED
from metaphase.labels.registration import (
    Registration,
    RegistrationConfig,
    nuclear_density,
    register_pair,
    register_points,
)
from metaphase.slides import Slide, cut_square

# ---- does the H&E slide show a dark figure where PHH3 says that a mitosis is? ----

FLOOR = 0.02
"""Density that is added to that of the surroundings: on empty glass nothing stands out."""


@dataclass(frozen=True, slots=True)
class VisibilityConfig:
    """Sizes of the measurement, in micrometres."""

    mpp: float = 0.5
    """Resolution at which the crop is read, in um/px."""
    spot_radius_um: float = 1.5
    """Density is averaged over a disc of this radius: 7 um2, half of a small plate."""
    reach_um: float = 4.0
    """The figure is looked for this far from its place: the plates of a late anaphase lie apart."""
    gap_um: float = 8.0
    """The surroundings begin at this distance ..."""
    window_um: float = 64.0
    """... and fill a square of this side."""
    dark_percent: float = 95.0
    """Percentile of the surroundings that stands for dark nuclei."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value > 0):
                raise UsageError(f"visibility setting {field.name} is {value}", next_step="give more than 0")
        order = (self.mpp, self.spot_radius_um, self.reach_um, self.gap_um, self.window_um / 2)
        if list(order) != sorted(set(order)) or self.dark_percent > 100:
            raise UsageError(
                "the sizes of the visibility measurement contradict each other",
                next_step="pixel < spot radius < reach < gap < half the window, and a percentile up to 100",
            )

    @property
    def side_px(self) -> int:
        """Side of the crop in pixels."""
        return round(self.window_um / self.mpp)


def contrast(crop: RGB, config: VisibilityConfig | None = None) -> float:
    """Contrast of what lies in the middle of an H&E crop of `config.side_px` pixels at `config.mpp`."""
    config = config or VisibilityConfig()
    spots = cv2.filter2D(nuclear_density(crop, "H&E"), -1, _disc(config.spot_radius_um / config.mpp))
    distance = _distances(crop.shape[:2]) * config.mpp
    around = float(np.percentile(spots[distance > config.gap_um], config.dark_percent))
    return float(spots[distance <= config.reach_um].max()) / (around + FLOOR)


def measure_contrast(slide: Slide, points: npt.ArrayLike, config: VisibilityConfig | None = None) -> Floats:
    """Contrast of each level-0 place (n, 2) of an H&E slide; NaN where there is no place or no slide."""
    config = config or VisibilityConfig()
    places = np.asarray(points, np.float64).reshape(-1, 2)
    inside = ((places >= 0) & (places < (slide.width, slide.height))).all(axis=1)

    def measured(place: Points) -> float:
        return contrast(
            cut_square(slide, float(place[0]), float(place[1]), config.side_px, config.mpp), config
        )

    found = np.full(len(places), np.nan)
    threads = available_cores()
    found[inside] = list(ordered_map(measured, places[inside], threads=threads, ahead=2 * threads))
    return found


def _disc(radius_px: float) -> npt.NDArray[np.float32]:
    """A disc that sums to 1."""
    reach = math.ceil(radius_px)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disc = (x**2 + y**2 <= radius_px**2).astype(np.float32)
    return np.asarray(disc / disc.sum(), np.float32)


def _distances(shape: tuple[int, int]) -> Floats:
    """Distance of each pixel's centre from the middle of the picture, in pixels."""
    y, x = (np.arange(side) + 0.5 - side / 2 for side in shape)
    return np.asarray(np.hypot(x[None, :], y[:, None]), np.float64)


# ---- from a pair of slides and the mitoses of its PHH3 slide to the reference standard of its H&E ----


@dataclass(frozen=True)
class Placement:
    """Points in H&E coordinates with all that the decision about them needs, and the registration."""

    table: pd.DataFrame
    """`PLACED_COLUMNS` and `problem`, one row a point in the given order."""
    registration: Registration
    points: pd.DataFrame
    """What `register_points` said about each."""


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
