"""Stains apart and together again, by matrices that are stated.

A pixel P in [0, 1] has the stain amounts S = -log(P + epsilon) M^-1, where each row of M is the
optical density of one stain per channel, divided by its length (Ruifrok and Johnston 2001).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from metaphase.base.arrays import RGB, AnyFloats, Floats, Floats32

WHITE = 255


def to_uint8(unit: AnyFloats) -> RGB:
    """Floats in [0, 1] to the nearest of 256 levels."""
    return (unit * np.float32(WHITE) + np.float32(0.5)).astype(np.uint8)


# ---- how much light stained pixels absorb ----

STAINED_OD = 0.08
"""Mean optical density (base 10) of a pixel that holds stain and not glass."""


def optical_density(image: RGB) -> Floats32:
    """Optical density (base 10) of each channel, float32 of the image's shape."""
    levels = -np.log10((np.arange(WHITE + 1, dtype=np.float32) + 1) / (WHITE + 1))
    return np.asarray(levels[image], np.float32)


def channel_mean(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Mean of three channels (..., 3); along so short an axis NumPy's own takes many times as long."""
    red, green, blue = np.moveaxis(values, -1, 0)
    kind = values.dtype if values.dtype.kind == "f" else np.dtype(np.float64)
    return np.asarray((np.add(red, green, dtype=kind) + blue) / kind.type(3))


def stained_density(images: RGB) -> Floats:
    """Mean optical density of the stained pixels of RGB images (..., 3), one number a channel."""
    density = optical_density(images).reshape(-1, 3)
    stained = density[channel_mean(density) > STAINED_OD]
    return stained.mean(axis=0, dtype=float) if len(stained) else np.zeros(3)


GREY_LEVELS, GREY_SHARE = 4, 0.02
"""Channels of a grey picture differ by no more; least share of it that is darker than glass."""


def is_grey(picture: RGB) -> bool:
    """Whether a picture shows something, and none of it in colour."""
    dark = picture[channel_mean(optical_density(picture)) > STAINED_OD]
    shows = len(dark) > GREY_SHARE * picture[..., 0].size
    return shows and bool((np.ptp(dark, axis=-1) <= GREY_LEVELS).mean() > 0.999)


# ---- colour deconvolution ----

EPSILON = 1e-6
"""Added to intensities, so that black has a finite density."""
Vector = tuple[float, float, float]

HAEMATOXYLIN: Vector = (0.65, 0.70, 0.29)
EOSIN: Vector = (0.07, 0.99, 0.11)
DAB: Vector = (0.27, 0.57, 0.78)


@dataclass(frozen=True)
class StainMatrix:
    """Three named stains and their unit vectors of optical density in red, green and blue."""

    names: tuple[str, str, str]
    vectors: tuple[Vector, Vector, Vector]

    @classmethod
    def of(
        cls, names: tuple[str, str, str], first: Vector, second: Vector, third: Vector | None = None
    ) -> Self:
        """Normalise the vectors; without a third, the residual is what is perpendicular to both."""
        pair = _unit_vector(first), _unit_vector(second)
        rows = (*pair, _unit_vector(np.cross(*pair) if third is None else np.array(third)))
        red, green, blue = ((float(a), float(b), float(c)) for a, b, c in rows)
        return cls(names, (red, green, blue))

    @property
    def array(self) -> Floats:
        """M (3, 3): one row a stain."""
        return np.array(self.vectors, dtype=np.float64)

    @property
    def inverse(self) -> Floats:
        """M^-1, from densities to stain amounts."""
        return np.asarray(np.linalg.inv(self.array), np.float64)


def _unit_vector(vector: Vector | Floats) -> Floats:
    array = np.asarray(vector, dtype=np.float64)
    return np.asarray(array / np.sqrt(array @ array))


HE_RESIDUAL = StainMatrix.of(("haematoxylin", "eosin", "residual"), HAEMATOXYLIN, EOSIN)
H_DAB_RESIDUAL = StainMatrix.of(("haematoxylin", "dab", "residual"), HAEMATOXYLIN, DAB)
HED = StainMatrix.of(("haematoxylin", "eosin", "dab"), HAEMATOXYLIN, EOSIN, DAB)


def separate(image: RGB, matrix: StainMatrix = HE_RESIDUAL, *, epsilon: float = EPSILON) -> Floats32:
    """Stain amounts (..., 3) of an RGB image, in the order of `matrix.names`; noise may be below 0."""
    absorbed = -np.log(image.astype(np.float32) / np.float32(WHITE) + np.float32(epsilon))
    return np.asarray(absorbed @ matrix.inverse.astype(np.float32), np.float32)


def combine(stains: AnyFloats, matrix: StainMatrix = HE_RESIDUAL, *, epsilon: float = EPSILON) -> Floats32:
    """RGB in [0, 1], float32 (..., 3), of stain amounts: the inverse of `separate`."""
    density = stains.astype(np.float32, copy=False) @ matrix.array.astype(np.float32)
    return np.clip(np.exp(-density) - np.float32(epsilon), 0, 1)


def stain_pictures(image: RGB, matrix: StainMatrix = HE_RESIDUAL) -> dict[str, RGB]:
    """What the image would look like with each stain alone, as uint8, by the stain's name.

    The residual may have negative parts, which no picture can show; they stay white.
    """
    amounts = separate(image, matrix)
    alone = np.eye(3, dtype=np.float32)
    return {
        name: to_uint8(combine(amounts * only, matrix))
        for name, only in zip(matrix.names, alone, strict=True)
    }
