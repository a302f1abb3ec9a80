"""Reinhard et al. 2001: match mean and standard deviation in a colour space of perception."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import cv2
import numpy as np

from metaphase.stain.deconvolution import Vector
from metaphase.stain.pixels import RGB
from metaphase.stain.standardisation.contract import SlideColours
from metaphase.stain.standardisation.density import (
    Floats,
    from_density,
    stained,
    tissue_weight,
    to_density,
    vector,
)

MIN_DEVIATION = 0.5
"""Least standard deviation, in units of CIELAB, that is taken for variation and not for noise."""


@dataclass(frozen=True)
class ReinhardColours(SlideColours):
    """Density of the glass, mean and standard deviation of the tissue in CIELAB."""

    method: ClassVar[str] = "reinhard"
    glass: Vector
    mean: Vector
    deviation: Vector

    def __post_init__(self) -> None:
        if min(self.deviation) <= 0:
            raise ValueError(f"a deviation of {self.deviation} cannot be scaled")

    @classmethod
    def describe(cls, pixels: RGB) -> Self:
        """Fit on the tissue among `pixels`."""
        sample = stained(pixels)
        lab = _to_lab(from_density(sample.tissue + sample.glass))
        deviation = np.maximum(lab.std(axis=0), MIN_DEVIATION)
        return cls(vector(sample.glass), vector(lab.mean(axis=0)), vector(deviation))

    def towards(self, template: Self, colours: Floats) -> Floats:
        """Shift and stretch each axis of CIELAB; glass, which would be tinted, becomes the template's."""
        scale = np.array(template.deviation) / np.array(self.deviation)
        lab = (_to_lab(colours) - self.mean) * scale + template.mean
        density = to_density(colours) - np.array(self.glass, dtype=np.float32)
        weight = tissue_weight(density)
        return weight * _from_lab(lab) + (1 - weight) * from_density(density + template.glass)


def _to_lab(colours: Floats) -> Floats:
    unit = (np.ascontiguousarray(colours, dtype=np.float32) / 255)[None]
    return np.asarray(cv2.cvtColor(unit, cv2.COLOR_RGB2LAB)[0])


def _from_lab(lab: Floats) -> Floats:
    rgb = cv2.cvtColor(lab.astype(np.float32)[None], cv2.COLOR_LAB2RGB)[0]
    return np.asarray(np.clip(rgb * 255, 0, 255))
