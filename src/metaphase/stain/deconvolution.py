"""Colour deconvolution: how much of each stain a pixel holds, and back.

A pixel P in [0, 1] has the stain amounts S = -log(P + epsilon) M^-1, where each row of M is the
optical density of one stain per channel, divided by its length (Ruifrok and Johnston 2001).
`metaphase.stain.torch_deconvolution` holds the torch twins of `separate` and `combine`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from metaphase.errors import UsageError
from metaphase.stain.pixels import RGB, Floats, rgb_unit, to_uint8

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


def optical_density(image: npt.NDArray[Any], epsilon: float = EPSILON) -> Floats:
    """-log(P + epsilon) of an image of any ordinary type, as float32 (..., 3)."""
    density: Floats = -np.log(rgb_unit(image) + np.float32(epsilon))
    return density


def separate(
    image: npt.NDArray[Any], matrix: StainMatrix = HE_RESIDUAL, *, epsilon: float = EPSILON
) -> Floats:
    """Stain amounts (..., 3) of an RGB image, in the order of `matrix.names`; noise may be below 0."""
    return optical_density(image, epsilon) @ matrix.inverse.astype(np.float32)


def combine(
    stains: npt.NDArray[np.floating[Any]], matrix: StainMatrix = HE_RESIDUAL, *, epsilon: float = EPSILON
) -> Floats:
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
