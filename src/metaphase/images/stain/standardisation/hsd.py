"""Whole-slide standardisation in hue-saturation-density space (Bejnordi et al. 2016).

Density is what the amount of stain changes, chroma what its kind changes (van der Laak et al. 2000),
so each can be aligned by itself. Pixels are weighed as glass, haematoxylin and eosin; haematoxylin
and eosin each get the chroma distribution and the density distribution that they have in the
template, and a pixel gets the weighted mean. Densities are taken above that of the slide's own glass
and put upon the template's, which aligns the background.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import cv2
import numpy as np

from metaphase.base.arrays import RGB
from metaphase.images.stain.deconvolution import Vector
from metaphase.images.stain.pixels import TooLittleTissueError
from metaphase.images.stain.standardisation.methods import (
    BLACK_DENSITY,
    Floats,
    SlideColours,
    from_density,
    odds,
    stained,
    tissue_weight,
    to_density,
    vector,
)

MIN_DENSITY = 0.02
"""Chroma of thinner pixels is noise; their density is taken as this."""
QUANTILES = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)
"""Where the density distributions are matched; linear in between and beyond."""
MAX_STRETCH = 2.0
"""Chroma is stretched or squeezed at most this much, so that noise and compression stay small."""

Pair = tuple[float, float]
RIDGE = 1e-3
"""Added to variances, so that the border between the classes is never a cliff."""
MIN_CLASS_PIXELS = 100


@dataclass(frozen=True)
class StainClass:
    """One stain's pixels: the distribution of their chroma, and quantiles of their density."""

    weight: float
    mean: Pair
    covariance: tuple[Pair, Pair]
    quantiles: tuple[float, ...]

    def __post_init__(self) -> None:
        increasing = (np.diff(self.quantiles) >= 0).all() and self.quantiles[0] > 0
        if not (0 < self.weight < 1 and increasing and np.linalg.det(self.covariance) > 0):
            raise ValueError(f"{self} is not a distribution")

    @classmethod
    def of(cls, features: Floats, weight: float) -> Self:
        """Describe the pixels (n, 3) of one class."""
        chroma = features[:, :2]
        first, second = (np.cov(chroma.T) + np.eye(2) * RIDGE).tolist()
        return cls(
            weight,
            _pair(chroma.mean(axis=0)),
            (_pair(first), _pair(second)),
            tuple(np.quantile(features[:, 2], QUANTILES).tolist()),
        )

    def log_likelihood(self, features: Floats) -> Floats:
        """Of the chroma under this class's Gaussian, with its weight, up to a constant; (n,).

        Density has no say: a pale nucleus is a nucleus.
        """
        centred = features[:, :2] - np.array(self.mean)
        distance = np.einsum("ni,ij,nj->n", centred, np.linalg.inv(self.covariance), centred)
        volume = np.linalg.slogdet(self.covariance)[1]
        return np.asarray(np.log(self.weight) - (distance + volume) / 2)

    def towards(self, template: StainClass, features: Floats) -> Floats:
        """Give features (n, 3) the chroma and the density that the template's class has."""
        chroma = (features[:, :2] - self.mean) @ self._stretch(template) + template.mean
        density = _match(features[:, 2], self.quantiles, template.quantiles)
        return np.column_stack([chroma, density])

    def _stretch(self, template: StainClass) -> Floats:
        """The linear map that turns this chroma covariance into the template's with the least movement."""
        own, other = np.array(self.covariance), np.array(template.covariance)
        root, inverse = _power(own, 0.5), _power(own, -0.5)
        return _limited(inverse @ _power(root @ other @ root, 0.5) @ inverse)


@dataclass(frozen=True)
class HsdColours(SlideColours):
    """Density of the glass, and the distributions of haematoxylin and eosin above it."""

    method: ClassVar[str] = "hsd"
    glass: Vector
    haematoxylin: StainClass
    eosin: StainClass

    @classmethod
    def describe(cls, pixels: RGB) -> Self:
        """Fit on the tissue and the glass among `pixels`."""
        sample = stained(pixels)
        features = _features(sample.tissue)
        red = sample.tissue[:, 0]
        blue = red > _nuclear_density(red)
        if min(blue.sum(), (~blue).sum()) < MIN_CLASS_PIXELS:
            raise TooLittleTissueError(
                f"only {min(blue.sum(), (~blue).sum())} of {len(blue)} tissue pixels have the second stain",
                next_step="check that this is an H&E slide",
            )
        share = float(np.clip(blue.mean(), 0.05, 0.95))
        return cls(
            vector(sample.glass),
            StainClass.of(features[blue], share),
            StainClass.of(features[~blue], 1 - share),
        )

    def towards(self, template: Self, colours: Floats) -> Floats:
        """Map each class to the template's and blend by how likely a pixel belongs to it."""
        density = to_density(colours) - np.array(self.glass, dtype=np.float32)
        features = _features(density)
        blue = odds(self.haematoxylin.log_likelihood(features) - self.eosin.log_likelihood(features))
        thick = tissue_weight(density)
        mapped = [
            _from_features(own.towards(other, features))
            for own, other in ((self.haematoxylin, template.haematoxylin), (self.eosin, template.eosin))
        ]
        tissue = blue * mapped[0] + (1 - blue) * mapped[1]
        return from_density(thick * tissue + (1 - thick) * density + template.glass)


def _pair(values: Sequence[float] | Floats) -> Pair:
    first, second = (float(value) for value in values)
    return first, second


def _features(density: Floats) -> Floats:
    """(chroma x, chroma y, density) of densities (n, 3) per channel."""
    mean = density.mean(axis=1)
    thick = np.maximum(mean, MIN_DENSITY)
    x = density[:, 0] / thick - 1
    y = (density[:, 1] - density[:, 2]) / (np.sqrt(3) * thick)
    return np.column_stack([x, y, mean])


def _from_features(features: Floats) -> Floats:
    """Densities (n, 3) per channel: the inverse of `_features`."""
    x, y, mean = features.T
    slope = np.sqrt(3) * y
    return np.column_stack([mean * (x + 1), mean * (2 - x + slope) / 2, mean * (2 - x - slope) / 2])


def _nuclear_density(red: Floats) -> float:
    """Density in red, which eosin hardly absorbs, from which on pixels count as haematoxylin (Otsu)."""
    step = BLACK_DENSITY / 255
    levels = np.clip(red / step, 0, 255).astype(np.uint8)
    threshold, _ = cv2.threshold(levels[None], 0, 255, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
    return float((threshold + 1) * step)


def _match(density: Floats, own: tuple[float, ...], other: tuple[float, ...]) -> Floats:
    """Move quantiles to quantiles; in proportion below the first and beyond the last."""
    low, high = other[0] / own[0], other[-1] / own[-1]
    between = np.interp(density, own, other)
    return np.where(density < own[0], density * low, np.where(density > own[-1], density * high, between))


def _power(matrix: Floats, exponent: float) -> Floats:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, 1e-9) ** exponent) @ vectors.T)


def _limited(matrix: Floats) -> Floats:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.clip(values, 1 / MAX_STRETCH, MAX_STRETCH)) @ vectors.T)
