"""Many patches of one slide: neighbours are cut from one read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from metaphase.learning.patches import Patches
from metaphase.parallel import available_cores, ordered_map
from metaphase.slides import WORKING_MPP, Slide

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

    The pixel that holds a point comes to lie at `side_px // 2`. Pixels are those of the grid at `mpp` that
    candidates are found on, so a patch does not depend on the block it is cut from (but for the last
    rounding, where the slide has another resolution).
    """
    workers = threads or available_cores()
    scale = mpp / slide.mpp
    origin = np.array([slide.bounds.x, slide.bounds.y])
    corners = np.floor((points - origin) / scale + 1e-6).astype(np.int64) - side_px // 2

    def cut(rows: Rows) -> tuple[Rows, Patches]:
        first = corners[rows].min(axis=0)
        width, height = corners[rows].max(axis=0) - first + side_px
        x, y = origin + first * scale
        pixels = slide.read(float(x), float(y), int(width), int(height), mpp)
        views = np.lib.stride_tricks.sliding_window_view(pixels, (side_px, side_px), axis=(0, 1))
        places = corners[rows] - first
        return rows, np.ascontiguousarray(views[places[:, 1], places[:, 0]].transpose(0, 2, 3, 1))

    return ordered_map(cut, _grouped(corners, block_px), threads=workers, ahead=workers)


def _grouped(corners: Rows, block_px: int) -> list[Rows]:
    """Rows of the corners that fall into each block, blocks row by row."""
    if not len(corners):
        return []
    blocks = corners // block_px
    order = np.lexsort((blocks[:, 0], blocks[:, 1]))
    changes = np.flatnonzero((np.diff(blocks[order], axis=0) != 0).any(axis=1)) + 1
    return np.split(order, changes)
