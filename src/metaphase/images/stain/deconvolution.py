"""Stains apart and together again, by matrices that are stated.

A pixel P in [0, 1] has the stain amounts S = -log(P + epsilon) M^-1, where each row of M is the
optical density of one stain per channel, divided by its length (Ruifrok and Johnston 2001).
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

# ---- any ordinary image as RGB ----

WHITE = 255


def rgb_unit(image: npt.NDArray[Any]) -> Floats32:
    """Return `image` as float32 (..., 3) in [0, 1]: grey is repeated, alpha laid over white.

    Accepts (h, w), (h, w, 1), (..., 3) and (..., 4) of bool, of unsigned integers (whose whole range
    is taken) and of floats in [0, 1].
    """
    if image.ndim < 2 or 0 in image.shape:
        raise UsageError(
            f"an image of shape {image.shape} has no pixels", next_step="give (height, width, 3)"
        )
    image = image if image.ndim > 2 else image[..., None]
    unit: Floats32
    if image.dtype.kind in "bu":
        full = 1 if image.dtype == np.bool_ else np.iinfo(image.dtype).max
        unit = image.astype(np.float32) / np.float32(full)
    elif image.dtype.kind == "f" and image.min() >= 0 and image.max() <= 1:  # false for NaN
        unit = image.astype(np.float32)
    else:
        raise UsageError(
            f"cannot tell the range of these {image.dtype} pixels",
            next_step="give uint8, uint16 or floats in [0, 1] without NaN",
        )
    channels = unit.shape[-1]
    if channels == 1:
        return np.repeat(unit, 3, axis=-1)
    if channels == 4:
        return unit[..., :3] * unit[..., 3:] + (1 - unit[..., 3:])
    if channels == 3:
        return unit
    raise UsageError(
        f"an image of shape {image.shape} is not grey, RGB or RGBA", next_step="put channels last"
    )


def rgb_uint8(image: npt.NDArray[Any]) -> RGB:
    """Like `rgb_unit`, as uint8 (..., 3); 8-bit RGB comes back as it is."""
    if image.dtype == np.uint8 and image.ndim > 2 and image.shape[-1] == 3 and image.size:
        return image
    return to_uint8(rgb_unit(image))


def to_uint8(unit: npt.NDArray[Any]) -> RGB:
    """Floats in [0, 1] to the nearest of 256 levels."""
    return (unit * np.float32(WHITE) + np.float32(0.5)).astype(np.uint8)


# ---- how much light stained pixels absorb ----

STAINED_OD = 0.08
"""Mean optical density (base 10) of a pixel that holds stain and not glass."""


def optical_density(image: RGB) -> Floats32:
    """Optical density (base 10) of each channel, float32 of the image's shape."""
    levels = -np.log10((np.arange(WHITE + 1, dtype=np.float32) + 1) / (WHITE + 1))
    density: Floats32 = levels[image]
    return density


def channel_mean(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Mean of three channels (..., 3); along so short an axis NumPy's own takes many times as long."""
    red, green, blue = np.moveaxis(values, -1, 0)
    kind = values.dtype if values.dtype.kind == "f" else np.dtype(np.float64)
    mean: npt.NDArray[Any] = (np.add(red, green, dtype=kind) + blue) / kind.type(3)
    return mean


def stained_density(images: RGB) -> npt.NDArray[np.float64]:
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
                f"the stains {', '.join(self.names)} cannot be distinguished: their vectors lie in one plane",
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
