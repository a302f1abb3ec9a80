"""Stains apart and together again, by matrices that are stated or estimated.

A pixel P in [0, 1] has the stain amounts S = -log(P + epsilon) M^-1, where each row of M is the
optical density of one stain per channel, divided by its length (Ruifrok and Johnston 2001).
`metaphase.images.stain.augmentation.letters` holds the torch twins of `separate` and `combine`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from metaphase.base.arrays import RGB, Floats32
from metaphase.base.errors import UsageError
from metaphase.images.stain.pixels import rgb_unit, to_uint8

# ---- colour deconvolution ----

EPSILON = 1e-6
"""Added to intensities, so that black has a finite density."""
Vector = tuple[float, float, float]

HAEMATOXYLIN: Vector = (0.65, 0.70, 0.29)
EOSIN: Vector = (0.07, 0.99, 0.11)
DAB: Vector = (0.27, 0.57, 0.78)
MIN_DETERMINANT = 1e-3


@dataclass(frozen=True)
class StainMatrix:
    """Three named stains and their unit vectors of optical density in red, green and blue."""

    names: tuple[str, str, str]
    vectors: tuple[Vector, Vector, Vector]

    def __post_init__(self) -> None:
        lengths = np.linalg.norm(self.array, axis=1)
        if not np.allclose(lengths, 1, atol=1e-6):
            raise UsageError(
                f"stain vectors of length {lengths.tolist()} are not normalised",
                next_step="make the matrix with StainMatrix.of",
            )
        if abs(np.linalg.det(self.array)) < MIN_DETERMINANT:
            raise UsageError(
                f"the stains {', '.join(self.names)} cannot be told apart: their vectors lie in one plane",
                next_step="give three stains of clearly different colour",
            )

    @classmethod
    def of(
        cls,
        first: Sequence[float],
        second: Sequence[float],
        third: Sequence[float] | None = None,
        *,
        names: tuple[str, str, str],
    ) -> Self:
        """Normalise the vectors; without a third, the residual is what is perpendicular to both."""
        residual = np.cross(_unit_vector(first), _unit_vector(second)) if third is None else third
        rows = [_unit_vector(vector) for vector in (first, second, residual)]
        red, green, blue = ((float(a), float(b), float(c)) for a, b, c in rows)
        return cls(names, (red, green, blue))

    @property
    def array(self) -> npt.NDArray[np.float64]:
        """M (3, 3): one row a stain."""
        return np.array(self.vectors, dtype=np.float64)

    @property
    def inverse(self) -> npt.NDArray[np.float64]:
        """M^-1, from densities to stain amounts."""
        inverse: npt.NDArray[np.float64] = np.linalg.inv(self.array).astype(np.float64)
        return inverse


def _unit_vector(vector: Sequence[float] | npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    array = np.asarray(vector, dtype=np.float64)
    length = float(np.sqrt(array @ array))
    if array.shape != (3,) or not math.isfinite(length) or length == 0:
        raise UsageError(f"{vector} is not a stain vector", next_step="give three densities, not all 0")
    return array / length


HE_RESIDUAL = StainMatrix.of(HAEMATOXYLIN, EOSIN, names=("haematoxylin", "eosin", "residual"))
H_DAB_RESIDUAL = StainMatrix.of(HAEMATOXYLIN, DAB, names=("haematoxylin", "dab", "residual"))
HED = StainMatrix.of(HAEMATOXYLIN, EOSIN, DAB, names=("haematoxylin", "eosin", "dab"))


def separate(
    image: npt.NDArray[Any], matrix: StainMatrix = HE_RESIDUAL, *, epsilon: float = EPSILON
) -> Floats32:
    """Stain amounts (..., 3) of an RGB image, in the order of `matrix.names`; noise may be below 0."""
    absorbed: Floats32 = -np.log(rgb_unit(image) + np.float32(epsilon))
    stains: Floats32 = absorbed @ matrix.inverse.astype(np.float32)
    return stains


def combine(
    stains: npt.NDArray[np.floating[Any]], matrix: StainMatrix = HE_RESIDUAL, *, epsilon: float = EPSILON
) -> Floats32:
    """RGB in [0, 1], float32 (..., 3), of stain amounts: the inverse of `separate`."""
    density = stains.astype(np.float32, copy=False) @ matrix.array.astype(np.float32)
    return np.clip(np.exp(-density) - np.float32(epsilon), 0, 1)


def stain_pictures(image: npt.NDArray[Any], matrix: StainMatrix = HE_RESIDUAL) -> dict[str, RGB]:
    """What the image would look like with each stain alone, as uint8, by the stain's name.

    The residual may have negative parts, which no picture can show; they stay white.
    """
    amounts = separate(image, matrix)
    alone = ((name, amounts * np.eye(3, dtype=np.float32)[i]) for i, name in enumerate(matrix.names))
    return {name: to_uint8(combine(stains, matrix)) for name, stains in alone}


# ---- a slide's own stain vectors (Macenko et al. 2009) ----


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
