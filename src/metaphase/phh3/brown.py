"""How brown a pixel is: DAB by colour deconvolution, without what the slide's own haematoxylin leaks into it.

The textbook vector of haematoxylin fits no laboratory exactly, so that dark blue nuclei seem to hold some
DAB, in proportion to their blue. That proportion, the leak, is measured on each slide and taken off.

Amounts are whole numbers of `UNIT`: their sums do not depend on the order of adding, so that a slide gives
the same candidates however it is cut into tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from metaphase.slides import RGB
from metaphase.stain.deconvolution import H_DAB_RESIDUAL

Levels = npt.NDArray[np.int16]

UNIT = 1e-3
"""Density (natural logarithm) of one level."""
_DENSITY = -np.log(np.maximum(np.arange(256), 1) / 255)


@dataclass(frozen=True, eq=False)
class BrownScale:
    """Tables from 8-bit intensities to levels, one row a channel; the channels' levels add up."""

    dab: Levels
    """(3, 256), DAB without the leak."""
    haematoxylin: Levels
    """(3, 256)."""

    @classmethod
    def of(cls, leak: float = 0.0) -> Self:
        """The scale of a slide on which blue holds `leak` times as much seeming DAB as haematoxylin."""
        haematoxylin, dab, _ = H_DAB_RESIDUAL.inverse.T
        tables = (
            np.rint(weights[:, None] * _DENSITY / UNIT)
            for weights in (dab - leak * haematoxylin, haematoxylin)
        )
        return cls(*(table.astype(np.int16) for table in tables))


def amounts(table: Levels, rgb: RGB) -> Levels:
    """Levels (...) of 8-bit pixels (..., 3) by a table of `BrownScale`."""
    red, green, blue = (np.take(table[channel], rgb[..., channel]) for channel in range(3))
    red += green
    red += blue
    return red
