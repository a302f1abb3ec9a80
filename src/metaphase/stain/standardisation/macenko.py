"""Macenko et al. 2009: swap the slide's two stain vectors and their strengths for the template's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from metaphase.stain.deconvolution import HE_RESIDUAL, StainMatrix, Vector
from metaphase.stain.estimation import stains_of_density
from metaphase.stain.pixels import RGB
from metaphase.stain.standardisation.contract import SlideColours
from metaphase.stain.standardisation.density import Floats, from_density, stained, to_density

STRONG_PERCENT = 99.0
"""Percentile of a stain's amount that stands for its full strength."""
MIN_STRENGTH = 0.05


@dataclass(frozen=True)
class MacenkoColours(SlideColours):
    """The two stains' vectors and the amount of each in its strongest pixels."""

    method: ClassVar[str] = "macenko"
    haematoxylin: Vector
    eosin: Vector
    strength: tuple[float, float]

    def __post_init__(self) -> None:
        if min(self.strength) <= 0:
            raise ValueError(f"stains of strength {self.strength} stain nothing")

    @classmethod
    def describe(cls, pixels: RGB) -> Self:
        """Fit on the tissue among `pixels`."""
        sample = stained(pixels)
        density = sample.tissue + sample.glass
        matrix = stains_of_density(density) or HE_RESIDUAL
        amounts = density @ matrix.inverse
        strength = np.maximum(np.percentile(amounts[:, :2], STRONG_PERCENT, axis=0), MIN_STRENGTH)
        return cls(matrix.vectors[0], matrix.vectors[1], (float(strength[0]), float(strength[1])))

    @property
    def matrix(self) -> StainMatrix:
        """The stains as a matrix, its third row perpendicular to both."""
        return StainMatrix.of(self.haematoxylin, self.eosin, names=HE_RESIDUAL.names)

    def towards(self, template: Self, colours: Floats) -> Floats:
        """Read the amounts with this slide's vectors, write them with the template's; drop the residual."""
        scale = [*(t / s for t, s in zip(template.strength, self.strength, strict=True)), 0.0]
        mixing = self.matrix.inverse @ np.diag(scale) @ template.matrix.array
        return from_density(to_density(colours) @ mixing.astype(np.float32))
