"""Many small squares of one slide: neighbours are cut from one read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from metaphase.parallel import available_cores, ordered_map
from metaphase.slides.contract import RGB, Slide

Rows = npt.NDArray[np.int64]


def cut_squares(
    slide: Slide,
    corners: Rows,
    side_px: int,
    mpp: float,
    *,
    origin: tuple[float, float] = (0.0, 0.0),
    block_px: int = 1024,
    threads: int | None = None,
) -> Iterator[tuple[Rows, RGB]]:
    """Squares (n, side, side, 3) with their rows in `corners`, a block of the slide at a time.

    `corners` (n, 2) count pixels of the grid at `mpp` that begins at level-0 place `origin`. Squares do not
    depend on their block (but for the last rounding, where the slide has another resolution).
    """
    workers = threads or available_cores()
    scale, start = mpp / slide.mpp, np.array(origin)

    def cut(rows: Rows) -> tuple[Rows, RGB]:
        first = corners[rows].min(axis=0)
        width, height = corners[rows].max(axis=0) - first + side_px
        x, y = start + first * scale
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
