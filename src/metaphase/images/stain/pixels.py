"""Any image as RGB, and how much light its pixels absorb."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from metaphase.base.arrays import RGB, Floats32
from metaphase.base.errors import MetaphaseError, UsageError

# ---- what can go wrong with stains through no fault of the options ----


class TooLittleTissueError(MetaphaseError):
    """An image or slide has too few stained pixels to tell how it is stained."""


class StainFileError(MetaphaseError):
    """A saved transform or template cannot be understood."""


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
    unit = _unit(image if image.ndim > 2 else image[..., None])
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


def _unit(image: npt.NDArray[Any]) -> Floats32:
    if image.dtype.kind in "bu":
        full = 1 if image.dtype == np.bool_ else np.iinfo(image.dtype).max
        return image.astype(np.float32) / np.float32(full)
    if image.dtype.kind == "f" and image.min() >= 0 and image.max() <= 1:  # false for NaN
        return image.astype(np.float32)
    raise UsageError(
        f"cannot tell the range of these {image.dtype} pixels",
        next_step="give uint8, uint16 or floats in [0, 1] without NaN",
    )


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
