"""How a slide is stained, in a few numbers, and the map of its colours onto another's.

Hue-saturation-density space (Bejnordi et al. 2016). Density is what the amount of stain changes, chroma what
its kind changes (van der Laak et al. 2000), so each can be aligned by itself. Pixels are weighed as glass,
haematoxylin and eosin; haematoxylin and eosin each get the chroma distribution and the density distribution
that they have in the template, and a pixel gets the weighted mean. Densities are taken above that of the
slide's own glass and put upon the template's, which aligns the background.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, ClassVar, Self

import cv2
import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from metaphase.base.arrays import RGB
from metaphase.base.errors import MetaphaseError
from metaphase.base.files import write_text
from metaphase.base.foreign import parsing, read_json
from metaphase.images.stain.deconvolution import Vector


class TooLittleTissueError(MetaphaseError):
    """An image or slide has too few stained pixels to tell how it is stained."""


class StainFileError(MetaphaseError):
    """A saved transform or template cannot be understood."""


# ---- optical density of 8-bit colours ----

Floats = npt.NDArray[np.floating[Any]]

GLASS_DENSITY = 0.12
"""Natural-log density below which a pixel is glass: 226 of 255."""
TISSUE_DENSITY = 0.18
"""Natural-log density, above that of the glass, from which a pixel is tissue."""
FADE = 0.02
"""Width, in density, of the soft border between glass and tissue."""
BLACK_DENSITY = 3.0
"""Above this a pixel is pen, fold or the edge of the scan."""
TISSUE_CHROMA = 0.06
"""Least difference between the densities of a tissue pixel's channels; dust and shadows are grey."""
MIN_TISSUE_PIXELS = 2_000
"""With fewer, no method has anything to fit: at 1 um/px this is a twentieth of a square millimetre."""
MIN_VARIATION = 0.02
"""Least standard deviation of the density of tissue."""


def to_density(colours: Floats) -> Floats:
    """Natural-log density of colours in [0, 255]; 0 for white, 5.5 for black."""
    return np.asarray(-np.log((colours + 1) / 256))


def plain(values: Floats) -> Any:
    """An array as plain floats in tuples."""
    return tuple(map(plain, values)) if values.ndim else float(values)


def is_tissue(density: Floats) -> npt.NDArray[np.bool_]:
    """Which densities (..., 3), taken above the glass, belong to stained tissue."""
    mean = density.mean(axis=-1)
    coloured = np.ptp(density, axis=-1) > TISSUE_CHROMA
    return np.asarray((mean > TISSUE_DENSITY) & (mean < BLACK_DENSITY) & coloured)


def odds(logit: Floats) -> Floats:
    """Probability (n, 1) of log odds (n,)."""
    return np.asarray(1 / (1 + np.exp(-np.clip(logit, -50, 50))))[:, None]


def stained(pixels: RGB) -> tuple[Floats, Floats]:
    """Densities of a sample of pixels (..., 3): of its glass (3,), and of its tissue (n, 3) above the glass.

    Too little tissue is an error.
    """
    density = to_density(pixels.reshape(-1, 3).astype(np.float32))
    bright = density[density.mean(axis=1) < GLASS_DENSITY]
    glass = np.median(bright, axis=0) if len(bright) >= MIN_TISSUE_PIXELS else np.zeros(3, np.float32)
    above = density - glass
    tissue = above[is_tissue(above)]
    if len(tissue) < MIN_TISSUE_PIXELS:
        raise TooLittleTissueError(
            f"only {len(tissue)} of {len(density)} sampled pixels are stained tissue, "
            f"{MIN_TISSUE_PIXELS} are needed to fit the stain",
            next_step="check that this is a stained slide and in focus, or use a saved transform",
        )
    if tissue.mean(axis=1).std() < MIN_VARIATION:
        raise TooLittleTissueError(
            "all stained pixels have the same colour",
            next_step="check that this is a scan of stained tissue",
        )
    return glass, tissue


# ---- what is saved, as JSON files ----

METHOD = "hsd"
"""What files call hue-saturation-density space."""
TRANSFORM_FORMAT = "metaphase-stain-transform-1"
TEMPLATE_FORMAT = "metaphase-stain-template-1"


def write_colours(path: str | Path, form: str, content: dict[str, Any]) -> None:
    """Write `content` under the name of its format."""
    write_text(path, json.dumps({"format": form, **content}, indent=1) + "\n")


def read_colours(
    path: str | Path, form: str, stated: Callable[[dict[str, Any]], list[Any]]
) -> list[HsdColours]:
    """The colours that are `stated` in a file of the given format."""
    what, again = f"is not a {form} file", "save it again with metaphase stain"
    data = read_json(path, what, next_step=again, error=StainFileError)
    with parsing(path, what, next_step=again, error=StainFileError):
        if data["format"] != form:
            raise ValueError(f"its format is {data['format']!r}")
        return TypeAdapter(list[HsdColours]).validate_python(stated(data))


# ---- colours in hue-saturation-density space ----

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

    __pydantic_config__: ClassVar = {"allow_inf_nan": False}
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
        return cls(
            weight,
            plain(chroma.mean(axis=0)),
            plain(np.cov(chroma.T) + np.eye(2) * RIDGE),
            plain(np.quantile(features[:, 2], QUANTILES)),
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
        covariance, wanted = np.array(self.covariance), np.array(template.covariance)
        root, inverse = _power(covariance, 0.5), _power(covariance, -0.5)
        least = inverse @ _power(root @ wanted @ root, 0.5) @ inverse  # movement
        stretch = _power(least, 1, 1 / MAX_STRETCH, MAX_STRETCH)
        chroma = (features[:, :2] - self.mean) @ stretch + template.mean
        density, own, other = features[:, 2], self.quantiles, template.quantiles
        between = np.interp(density, own, other)  # in proportion below the first and beyond the last
        upper = np.where(density > own[-1], density * (other[-1] / own[-1]), between)
        return np.column_stack([chroma, np.where(density < own[0], density * (other[0] / own[0]), upper)])


@dataclass(frozen=True)
class HsdColours:
    """Density of a slide's glass, and the distributions of haematoxylin and eosin above it."""

    __pydantic_config__: ClassVar = {"allow_inf_nan": False}

    glass: Vector
    haematoxylin: StainClass
    eosin: StainClass

    @classmethod
    def of(cls, pixels: RGB) -> Self:
        """Fit on the tissue and the glass among `pixels` (..., 3)."""
        glass, tissue = stained(pixels)
        features, red = _features(tissue), tissue[:, 0]
        step = BLACK_DENSITY / 255
        levels = np.clip(red / step, 0, 255).astype(np.uint8)
        otsu, _ = cv2.threshold(levels[None], 0, 255, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
        blue = red > float((otsu + 1) * step)  # which eosin hardly absorbs
        fewest = min(blue.sum(), (~blue).sum())
        if fewest < MIN_CLASS_PIXELS:
            raise TooLittleTissueError(
                f"only {fewest} of {len(blue)} tissue pixels have the second stain",
                next_step="check that this is an H&E slide",
            )
        share = float(np.clip(blue.mean(), 0.05, 0.95))
        return cls(
            plain(glass),
            StainClass.of(features[blue], share),
            StainClass.of(features[~blue], 1 - share),
        )

    @classmethod
    def default(cls) -> HsdColours:
        """Human breast cancer, H&E, UMC Utrecht on an Aperio CS2 (from MIDOG++, CC BY 4.0)."""
        with as_file(files("metaphase.images.stain") / "breast_he.json") as path:
            return cls.load(path)

    @classmethod
    def load(cls, path: str | Path) -> HsdColours:
        """Read a template, what other slides are made to look like, as `save` wrote it."""
        (colours,) = read_colours(path, TEMPLATE_FORMAT, lambda data: [data["colours"][METHOD]])
        return colours

    def save(self, path: str | Path) -> None:
        """Write as a template."""
        write_colours(path, TEMPLATE_FORMAT, {"colours": {METHOD: asdict(self)}})

    def towards(self, template: Self, colours: Floats) -> Floats:
        """Map each class to the template's and blend by how likely a pixel belongs to it."""
        density = to_density(colours) - np.array(self.glass, dtype=np.float32)
        features = _features(density)
        blue = odds(self.haematoxylin.log_likelihood(features) - self.eosin.log_likelihood(features))
        thick = odds((density.mean(axis=1) - TISSUE_DENSITY / 2) / FADE)  # from 0 for glass to 1 for tissue
        haematoxylin = _from_features(self.haematoxylin.towards(template.haematoxylin, features))
        eosin = _from_features(self.eosin.towards(template.eosin, features))
        tissue = blue * haematoxylin + (1 - blue) * eosin
        mixed = thick * tissue + (1 - thick) * density + template.glass
        return np.asarray(np.clip(np.exp(-mixed) * 256 - 1, 0, 255))


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


def _power(matrix: Floats, exponent: float, least: float = 1e-9, most: float | None = None) -> Floats:
    """A power of a symmetric matrix whose eigenvalues are brought into a range first."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.clip(values, least, most) ** exponent) @ vectors.T)
