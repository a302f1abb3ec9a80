"""Boxes in a named plane, and arrays by what they hold.

Coordinates are (x, y), origin top-left, x to the right, y down. Shapes stand in the functions' descriptions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

BELIEVABLE_MPP = (0.05, 20.0)
"""Bright-field scans lie between about 0.1 and 10 um/px; print resolutions (72 dpi = 353 um/px) do not."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of whole pixels: top-left corner (x, y), width and height."""

    x: int
    y: int
    width: int
    height: int

    @property
    def right(self) -> int:
        """First column beyond the box."""
        return self.x + self.width

    @property
    def bottom(self) -> int:
        """First row beyond the box."""
        return self.y + self.height

    @property
    def area(self) -> int:
        """Pixels inside; 0 for an empty box."""
        return max(0, self.width) * max(0, self.height)

    @property
    def slices(self) -> tuple[slice, slice]:
        """Its rows and columns, as an index of an array of pixels."""
        return slice(self.y, self.bottom), slice(self.x, self.right)

    def grown(self, margin: int) -> Box:
        """The box with `margin` more pixels on each side."""
        return Box(self.x - margin, self.y - margin, self.width + 2 * margin, self.height + 2 * margin)

    def intersection(self, other: Box) -> Box:
        """The common part; its width or height is 0 where there is none."""
        x, y = max(self.x, other.x), max(self.y, other.y)
        right, bottom = min(self.right, other.right), min(self.bottom, other.bottom)
        return Box(x, y, max(0, right - x), max(0, bottom - y))

    def tiles(self, side: int) -> Iterator[Box]:
        """Its parts of at most `side` pixels a side, row by row."""
        for y in range(self.y, self.bottom, side):
            for x in range(self.x, self.right, side):
                yield Box(x, y, min(side, self.right - x), min(side, self.bottom - y))

    def moved(self, dx: int, dy: int) -> Box:
        """The same box, `dx` to the right and `dy` down."""
        return Box(self.x + dx, self.y + dy, self.width, self.height)


RGB = npt.NDArray[np.uint8]
"""Pixels (..., 3), red, green, blue from 0 to 255."""
Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]
AnyFloats = npt.NDArray[np.floating[Any]]
"""Of either precision."""
Integers = npt.NDArray[np.int64]
Points = npt.NDArray[np.float64]
"""Positions (n, 2), columns x and y."""
