"""Methods that describe a slide's stain in a few numbers and map it onto another's."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_args, get_type_hints

import cv2
import numpy as np
import numpy.typing as npt

from metaphase.base.arrays import RGB
from metaphase.base.files import write_text
from metaphase.base.foreign import parsing, read_json
from metaphase.images.stain.deconvolution import HE_RESIDUAL, StainMatrix, Vector, stains_of_density
from metaphase.images.stain.pixels import StainFileError, TooLittleTissueError

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


def from_density(density: Floats) -> Floats:
    """Colours in [0, 255] of densities; what would be brighter than white is white."""
    return np.asarray(np.clip(np.exp(-density) * 256 - 1, 0, 255))


def vector(values: Floats) -> Vector:
    """Three numbers of an array as plain floats."""
    first, second, third = (float(value) for value in values)
    return first, second, third


def is_tissue(density: Floats) -> npt.NDArray[np.bool_]:
    """Which densities (..., 3), taken above the glass, belong to stained tissue."""
    mean = density.mean(axis=-1)
    coloured = np.ptp(density, axis=-1) > TISSUE_CHROMA
    return np.asarray((mean > TISSUE_DENSITY) & (mean < BLACK_DENSITY) & coloured)


def tissue_weight(density: Floats) -> Floats:
    """(n, 1): from 0 for glass to 1 for tissue, of densities (n, 3) above the glass."""
    return odds((density.mean(axis=1) - TISSUE_DENSITY / 2) / FADE)


def odds(logit: Floats) -> Floats:
    """Probability (n, 1) of log odds (n,)."""
    return np.asarray(1 / (1 + np.exp(-np.clip(logit, -50, 50))))[:, None]


@dataclass(frozen=True)
class Stained:
    """Densities of a sample: of its glass (3,), and of its tissue pixels (n, 3) above the glass."""

    glass: Floats
    tissue: Floats


def stained(pixels: RGB) -> Stained:
    """Split a sample of pixels (..., 3) into glass and tissue, or say that there is too little tissue."""
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
    return Stained(glass, tissue)


# ---- what every method of standardisation offers ----


@dataclass(frozen=True)
class SlideColours(ABC):
    """How one slide is stained, in the few numbers that a method needs: floats, and tuples of them."""

    method: ClassVar[str]

    @classmethod
    @abstractmethod
    def describe(cls, pixels: RGB) -> Self:
        """Fit on pixels (..., 3) of the slide; too little tissue is an error."""

    @abstractmethod
    def towards(self, template: Self, colours: Floats) -> Floats:
        """Map colours (n, 3) in [0, 255] of this slide to those of the template's."""


# ---- Macenko et al. 2009 ----

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


# ---- Reinhard et al. 2001 ----

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


# ---- dataclasses of numbers as JSON files ----

Value = TypeVar("Value")


def write_plain(path: str | Path, form: str, content: dict[str, Any]) -> None:
    """Write `content` under the name of its format."""
    write_text(path, json.dumps({"format": form, **content}, indent=1) + "\n")


def read_plain(path: str | Path, form: str, parse: Callable[[dict[str, Any]], Value]) -> Value:
    """Read a file of the given format and let `parse` make a value of it."""
    what, again = f"is not a {form} file", "save it again with metaphase stain"
    data = read_json(path, what, next_step=again, error=StainFileError)
    with parsing(path, what, next_step=again, error=StainFileError):
        if data["format"] != form:
            raise ValueError(f"its format is {data['format']!r}")
        return parse(data)


def from_plain(kind: type[Value], data: Any) -> Value:
    """Make a float, a tuple or a dataclass of those from what `asdict` and JSON left of it.

    Raises KeyError, TypeError or ValueError where the data do not fit.
    """
    if kind is float:
        number = float(data)
        if not math.isfinite(number):
            raise ValueError(f"{number} is not a number")
        return number  # type: ignore[return-value]
    inner = get_args(kind)
    if inner:
        kinds = [inner[0]] * len(data) if inner[-1] is Ellipsis else inner
        return tuple(from_plain(k, item) for k, item in zip(kinds, data, strict=True))  # type: ignore[return-value]
    hints = get_type_hints(kind)
    return kind(**{f.name: from_plain(hints[f.name], data[f.name]) for f in fields(kind)})  # type: ignore[arg-type]
