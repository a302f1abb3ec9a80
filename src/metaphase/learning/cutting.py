"""Patches cut from slides around given points."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from metaphase.learning.patches import Patches
from metaphase.parallel import available_cores, ordered_map
from metaphase.slides import WORKING_MPP, Slide


def cut_patches(
    slide: Slide,
    points: npt.NDArray[np.float64],
    *,
    side_px: int = 128,
    mpp: float = WORKING_MPP,
    threads: int | None = None,
) -> Iterator[Patches]:
    """Patches (side, side, 3) centred on level-0 `points` (n, 2), in their order; white beyond the slide."""
    workers = threads or available_cores()
    reach = side_px / 2 * mpp / slide.mpp

    def cut(point: npt.NDArray[np.float64]) -> Patches:
        corner = np.round(point - reach) if mpp == slide.mpp else point - reach
        return slide.read(float(corner[0]), float(corner[1]), side_px, side_px, mpp)

    return ordered_map(cut, points, threads=workers, ahead=4 * workers)
