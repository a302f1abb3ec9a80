"""Small pictures of stain on transparent ground, and drawing them into concentration maps.

A sprite is float32 (side, side, 5): how much of the ground it covers, then the concentrations of
haematoxylin, eosin, DAB and black pigment that it brings along; nuclei have the first three only.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from metaphase.geometry import Box
from metaphase.simulation.randomness import Floats

Array = npt.NDArray[Any]
COVER, HAEMATOXYLIN, EOSIN, DAB, BLACK = range(5)


def blank(side: int) -> Floats:
    """An empty sprite."""
    return np.zeros((side, side, 5), np.float32)


def plane(side: int) -> tuple[Floats, Floats]:
    """Pixel-centre coordinates x (1, side) and y (side, 1) from the sprite's centre."""
    axis = np.arange(side, dtype=np.float32) - np.float32((side - 1) / 2)
    return axis[None, :], axis[:, None]


def softstep(values: Array, width: float) -> Floats:
    """0 below, 1 above, a smooth ramp of about `width` around zero."""
    return np.asarray(1 / (1 + np.exp(np.clip(-4 * values / width, -30, 30))), np.float32)


def blurred(picture: Array, sigma: float) -> Floats:
    """Gaussian blur; nothing for a sigma too small to see."""
    if sigma < 0.2:
        return np.asarray(picture, np.float32)
    return np.asarray(cv2.GaussianBlur(picture, (0, 0), sigma, borderType=cv2.BORDER_REFLECT), np.float32)


def outline(
    rng: np.random.Generator, side: int, radius: float, roughness: float, aspect: float = 1.0
) -> Floats:
    """Depth below a wobbly closed outline, in pixels, positive inside (side, side)."""
    x, y = plane(side)
    x = x * np.float32(np.sqrt(aspect)) if aspect != 1 else x
    y = y / np.float32(np.sqrt(aspect)) if aspect != 1 else y
    angle, distance = np.arctan2(y, x), np.hypot(x, y)
    edge = np.full_like(angle, radius)
    for order in range(2, 7):
        swing = radius * roughness * rng.normal() / (order - 1)
        edge += np.float32(swing) * np.cos(order * angle + np.float32(rng.uniform(0, 2 * np.pi)))
    return edge - distance


def speckle(rng: np.random.Generator, side: int, grain_px: float) -> Floats:
    """Smooth noise of the given grain, mean 0 and standard deviation 1."""
    noise = blurred(rng.standard_normal((side, side), dtype=np.float32), grain_px / 2.4)
    return np.asarray((noise - noise.mean()) / (noise.std() + 1e-6), np.float32)


def paste(maps: Floats, box: Box, sprite: Floats, x: float, y: float) -> None:
    """Draw `sprite` centred at (x, y) of the plane into `maps` (4, height, width), which show `box`."""
    side = sprite.shape[0]
    left, top = round(x - side / 2) - box.x, round(y - side / 2) - box.y
    x0, y0 = max(left, 0), max(top, 0)
    x1, y1 = min(left + side, box.width), min(top + side, box.height)
    if x0 >= x1 or y0 >= y1:
        return
    cut = sprite[y0 - top : y1 - top, x0 - left : x1 - left]
    spared = 1 - cut[..., COVER]
    for channel in range(1, cut.shape[2]):
        ground = maps[channel - 1, y0:y1, x0:x1]
        ground *= spared
        ground += cut[..., channel]


def turned(sprite: Floats, angle: float, scale: float, aspect: float, x: float, y: float) -> Floats:
    """`sprite` scaled, stretched and rotated, shifted so that `paste` at (x, y) is exact below a pixel."""
    side = int(np.ceil(sprite.shape[0] * scale * max(aspect, 1 / aspect) ** 0.5)) + 2
    shift_x, shift_y = (v - side / 2 - round(v - side / 2) for v in (x, y))
    cosine, sine = np.cos(angle), np.sin(angle)
    along, across = scale * aspect**0.5, scale * aspect**-0.5
    matrix = np.array([[cosine * along, -sine * across], [sine * along, cosine * across]])
    centre = np.array([(side - 1) / 2 + shift_x, (side - 1) / 2 + shift_y])
    offset = centre - matrix @ np.full(2, (sprite.shape[0] - 1) / 2)
    affine = np.hstack([matrix, offset[:, None]])
    return np.asarray(cv2.warpAffine(sprite, affine, (side, side), flags=cv2.INTER_LINEAR), np.float32)
