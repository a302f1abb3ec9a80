"""Pictures as data URIs, and drawings in units that fit any slide."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from metaphase.geometry import Box
from metaphase.slides import RGB

Floats = npt.NDArray[np.float64]

LONG_SIDE = 1000.0
"""Units along the longer side of a drawing, whatever the slide's size."""
QUALITIES = (84, 74, 62, 48, 34)
"""JPEG qualities to try, best first, until pictures fit their budget."""


@dataclass(frozen=True)
class Circle:
    """A circle in units of a drawing."""

    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Frame:
    """A drawing over `box` (level-0 pixels) whose longer side is `LONG_SIDE` units."""

    box: Box

    @property
    def units_per_px(self) -> float:
        """Units of the drawing per level-0 pixel."""
        return LONG_SIDE / max(self.box.width, self.box.height)

    @property
    def width(self) -> float:
        """Width in units."""
        return self.box.width * self.units_per_px

    @property
    def height(self) -> float:
        """Height in units."""
        return self.box.height * self.units_per_px

    def place(self, x: npt.ArrayLike, y: npt.ArrayLike) -> Floats:
        """Level-0 positions in units of the drawing, (..., 2)."""
        corner = (self.box.x, self.box.y)
        return (np.stack([np.asarray(x, float), np.asarray(y, float)], axis=-1) - corner) * self.units_per_px

    def within(self, circle: Circle) -> bool:
        """Whether the whole drawing lies inside the circle, so that its line is nowhere to be seen."""
        width = max(circle.x, self.width - circle.x)
        height = max(circle.y, self.height - circle.y)
        return math.hypot(width, height) <= circle.radius


@dataclass(frozen=True)
class ScaleBar:
    """A line of a round physical length."""

    units: float
    label: str


def scale_bar(frame: Frame, mpp: float) -> ScaleBar:
    """The longest bar of 1, 2 or 5 times a power of ten that fits a quarter of the width."""
    longest_um = frame.box.width * mpp / 4
    decade = 10.0 ** math.floor(math.log10(longest_um))
    length_um = max(step * decade for step in (1, 2, 5) if step * decade <= longest_um * (1 + 1e-9))
    label = f"{length_um / 1000:g} mm" if length_um >= 100 else f"{length_um:g} µm"
    return ScaleBar(length_um / mpp * frame.units_per_px, label)


def dots_path(places: Floats) -> str:
    """SVG path data with a zero-length stroke at each place (n, 2), places that coincide once."""
    cells = np.unique(np.rint(places).astype(int), axis=0)
    return "".join(f"M{x} {y}h0" for x, y in cells)


def jpeg_uris(pictures: Sequence[RGB], budget_bytes: int) -> list[str]:
    """The pictures as JPEG data URIs, at the best quality whose sum stays within the budget."""
    encoded: list[bytes] = []
    for quality in QUALITIES:
        encoded = [_jpeg(picture, quality) for picture in pictures]
        if sum(map(len, encoded)) <= budget_bytes:
            break
    return [_uri("image/jpeg", data) for data in encoded]


def png_uri(pixels: npt.NDArray[np.uint8]) -> str:
    """RGB or RGBA pixels as a PNG data URI."""
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG", optimize=True)
    return _uri("image/png", data.getvalue())


def _jpeg(pixels: RGB, quality: int) -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "JPEG", quality=quality, optimize=True)
    return data.getvalue()


def _uri(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
