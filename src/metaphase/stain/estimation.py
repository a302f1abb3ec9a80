"""A slide's own stain vectors (Macenko et al. 2009)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from metaphase.errors import UsageError
from metaphase.stain.deconvolution import HE_RESIDUAL, StainMatrix, optical_density

EPSILON = 1 / 255
"""One grey level: black must not outweigh everything else."""


@dataclass(frozen=True)
class MacenkoConfig:
    """How the plane of the two stains is found."""

    min_density: float = 0.15
    """Pixels below this natural-log density in any channel count as glass."""
    extreme_percent: float = 1.0
    """Percentile of the angle, from either end, where the pure stains are taken to lie."""
    min_pixels: int = 100
    """With fewer stained pixels there is nothing to estimate."""
    min_angle_degrees: float = 5.0
    """A smaller angle between the extremes is one stain, not two."""

    def __post_init__(self) -> None:
        if not 0 <= self.extreme_percent < 50 or self.min_density <= 0 or self.min_pixels < 3:
            raise UsageError(
                f"{self} cannot find two stains",
                next_step="give extreme_percent in [0, 50), min_density above 0 and min_pixels of 3 or more",
            )


MACENKO = MacenkoConfig()


@dataclass(frozen=True)
class StainEstimate:
    """The matrix, and whether it was estimated or is the fallback."""

    matrix: StainMatrix
    estimated: bool


def estimate_stains(
    image: npt.NDArray[Any], config: MacenkoConfig = MACENKO, *, fallback: StainMatrix = HE_RESIDUAL
) -> StainEstimate:
    """Estimate haematoxylin and eosin of an image.

    Blank, one-colour and black input cannot tell its stains and gives the fallback.
    """
    density = optical_density(image, EPSILON).reshape(-1, 3)
    matrix = stains_of_density(density, config)
    return StainEstimate(matrix or fallback, estimated=matrix is not None)


def stains_of_density(
    density: npt.NDArray[np.floating[Any]], config: MacenkoConfig = MACENKO
) -> StainMatrix | None:
    """Haematoxylin and eosin of densities (n, 3); None where these cannot tell two stains apart."""
    stained = density[(density > config.min_density).all(axis=1)].astype(np.float64)
    if len(stained) < config.min_pixels:
        return None
    plane = _principal_plane(stained)
    angles = np.arctan2(*(stained @ plane).T[::-1])
    low, high = np.percentile(angles, [config.extreme_percent, 100 - config.extreme_percent])
    if np.degrees(high - low) < config.min_angle_degrees:
        return None
    extremes = [plane @ np.array([np.cos(angle), np.sin(angle)]) for angle in (low, high)]
    eosin, haematoxylin = sorted(extremes, key=lambda vector: float(vector[0]))
    return StainMatrix.of(haematoxylin.tolist(), eosin.tolist(), names=HE_RESIDUAL.names)


def _principal_plane(density: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The two directions (3, 2) in which density varies most, the first pointing to denser."""
    _, vectors = np.linalg.eigh(np.cov(density.T))
    plane = vectors[:, [2, 1]]
    return plane * np.where(plane.sum(axis=0) < 0, -1, 1)
