"""Small drawn PHH3 slides: pale blue tissue with blue nuclei and brown objects at known positions."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from metaphase.base.arrays import RGB
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.writer import PyramidFormat, write_pyramid

GLASS, TISSUE, NUCLEUS, BROWN = (243, 243, 244), (205, 208, 226), (110, 125, 175), (96, 62, 40)
EOSIN, PURPLE = (226, 165, 200), (120, 80, 150)
Points = list[tuple[int, int]]


def draw_slide(side: int = 1200, brown: Points | None = None, *, seed: int = 0, he: bool = False) -> RGB:
    """A square of tissue (0.5 um/px) with a glass border; brown discs of radius 8 px (4 um) at `brown`."""
    rng = np.random.default_rng(seed)
    image = np.full((side, side, 3), GLASS, np.uint8)
    image[100:-100, 100:-100] = EOSIN if he else TISSUE
    for x, y in rng.integers(120, side - 120, (side // 4, 2)).tolist():
        axes = (int(rng.integers(6, 12)), int(rng.integers(5, 9)))
        cv2.ellipse(image, (x, y), axes, float(rng.uniform(0, 180)), 0, 360, PURPLE if he else NUCLEUS, -1)
    for x, y in brown or []:
        cv2.circle(image, (x, y), 8, BROWN, -1)
    noise = rng.normal(0, 3, image.shape)
    return np.clip(cv2.GaussianBlur(image, (0, 0), 0.8) + noise, 0, 255).astype(np.uint8)


def spread_points(count: int, side: int, seed: int = 0, apart: int = 60) -> Points:
    """Places inside the tissue, none within `apart` pixels of another."""
    rng = np.random.default_rng(seed)
    cells = [(x, y) for x in range(150, side - 150, apart) for y in range(150, side - 150, apart)]
    return [cells[i] for i in rng.permutation(len(cells))[:count]]


def array_slide(pixels: RGB, mpp: float = 0.5) -> ArraySlide:
    return ArraySlide(pixels, mpp)


def write_slide(path: Path, pixels: RGB, mpp: float = 0.5) -> Path:
    """The picture as a pyramid without loss."""
    side = pixels.shape[0]
    tiles = (pixels[j : j + 256, i : i + 256] for j in range(0, side, 256) for i in range(0, side, 256))
    write_pyramid(path, tiles, side, side, PyramidFormat(mpp, 256, quality=None))
    return path
