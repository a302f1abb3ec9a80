"""Patches of one slide on the grid that its candidates are found on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from metaphase.learning.patches import Patches
from metaphase.slides import WORKING_MPP, Slide, cut_squares

Rows = npt.NDArray[np.int64]


def cut_by_block(
    slide: Slide,
    points: npt.NDArray[np.float64],
    *,
    side_px: int = 128,
    mpp: float = WORKING_MPP,
    block_px: int = 1024,
    threads: int | None = None,
) -> Iterator[tuple[Rows, Patches]]:
    """Patches (n, side, side, 3) around level-0 `points`, with their rows, a block of the slide at a time.

    The pixel that holds a point comes to lie at `side_px // 2`.
    """
    origin = (slide.bounds.x, slide.bounds.y)
    pixels = np.floor((points - origin) / (mpp / slide.mpp) + 1e-6).astype(np.int64)
    corners = pixels - side_px // 2
    return cut_squares(slide, corners, side_px, mpp, origin=origin, block_px=block_px, threads=threads)
