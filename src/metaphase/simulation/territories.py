"""Which of many scattered points owns each place: cells in a nest, drops of fat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from metaphase.geometry import Box
from metaphase.simulation.randomness import Floats

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Territories:
    """The owner of every place on a grid of `scale` pixels that starts at (x, y) of the plane."""

    x: int
    y: int
    scale: int
    owner: npt.NDArray[np.int64]
    """Index of the nearest point (rows, columns)."""
    distance: Floats
    """Distance to it, in pixels."""

    def borders(self, softness: float) -> Floats:
        """About 1 where the owner changes, fading over `softness` grid steps."""
        edge = np.zeros(self.owner.shape, np.float32)
        edge[:, 1:] = self.owner[:, 1:] != self.owner[:, :-1]
        edge[1:] = np.maximum(edge[1:], self.owner[1:] != self.owner[:-1])
        return np.asarray(cv2.GaussianBlur(edge, (0, 0), softness), np.float32)

    def at_pixels(self, pictures: Floats, box: Box, shift_x: Floats, shift_y: Floats) -> Floats:
        """Pictures on the grid, read off at the pixels of `box` moved by the shifts (in grid steps)."""
        x = (box.x - self.x + np.arange(box.width, dtype=np.float32))[None, :] / self.scale
        y = (box.y - self.y + np.arange(box.height, dtype=np.float32))[:, None] / self.scale
        found = cv2.remap(
            pictures, x + shift_x, y + shift_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
        )
        return np.asarray(found, np.float32)


def reach(box: Box, halo: int, scale: int) -> Box:
    """`box` with `halo` around it, widened so that it starts on the plane's grid of `scale` pixels."""
    wide = box.grown(halo)
    x, y = wide.x // scale * scale, wide.y // scale * scale
    return Box(x, y, wide.right - x, wide.bottom - y)


def territories(x: Array, y: Array, wide: Box, scale: int) -> Territories:
    """The territories of at least one point inside `wide`, which starts on the grid of `scale`."""
    shape = (wide.height // scale + 1, wide.width // scale + 1)
    column = np.clip(((x - wide.x) / scale).astype(int), 0, shape[1] - 1)
    row = np.clip(((y - wide.y) / scale).astype(int), 0, shape[0] - 1)
    free = np.ones(shape, np.uint8)
    free[row, column] = 0
    distance, label = cv2.distanceTransformWithLabels(
        free, cv2.DIST_L2, cv2.DIST_MASK_5, labelType=cv2.DIST_LABEL_PIXEL
    )
    owner = np.zeros(int(label.max()) + 1, np.int64)
    owner[label[row, column]] = np.arange(len(x))
    return Territories(wide.x, wide.y, scale, owner[label], np.asarray(scale * distance, np.float32))
