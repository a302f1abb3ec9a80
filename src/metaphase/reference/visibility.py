"""Does the H&E slide show a dark figure where PHH3 says that a mitosis is?

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

from metaphase.errors import UsageError
from metaphase.parallel import available_cores, ordered_map
from metaphase.registration import nuclear_density
from metaphase.slides import RGB, Slide

Floats = npt.NDArray[np.float64]
Points = npt.NDArray[np.float64]
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
    half = config.window_um / slide.mpp / 2

    def measured(place: Points) -> float:
        left, top = (place - half).tolist()
        return contrast(slide.read(left, top, config.side_px, config.side_px, config.mpp), config)

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
