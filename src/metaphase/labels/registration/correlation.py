"""Where a tile of one slide lies on the other, and where several agree."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt
from scipy.signal import fftconvolve
from scipy.spatial import cKDTree

from metaphase.base.arrays import Floats, Integers, Points

# ---- normalised cross-correlation by Fourier transform ----

Image = npt.NDArray[np.float32]
"""(height, width)."""

MIN_CONTRAST = 0.02
"""Standard deviation (optical density) that counts as structure: glass and noise stay below it."""
MAX_RATIO = 100.0
"""Peak-to-second ratios are cut here: a second peak may be next to nothing."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest position of a heat map, in pixels from its centre, to a fraction of a pixel."""

    x: float
    y: float
    height: float
    ratio: float
    """Height over that of the second peak, at least 1."""


def correlate(template: Image, window: Image) -> Image:
    """Correlation coefficients of `template` with every part of `window` that it fits into.

    Pixel (0, 0) of the result has the template in the window's top-left corner. Where a part has less
    contrast than `MIN_CONTRAST` it counts as having that much, so that blank areas correlate with nothing.
    """
    rows, columns = template.shape
    shared = cv2.matchTemplate(window, template - template.mean(), cv2.TM_CCORR) / template.size
    centred = window - window.mean()
    mean, square = (
        box_mean(centred, cv2.CV_64F, (columns, rows), anchor=(0, 0))[: shared.shape[0], : shared.shape[1]]
        for box_mean in (cv2.boxFilter, cv2.sqrBoxFilter)
    )
    contrast = np.sqrt(np.maximum(square - mean**2, MIN_CONTRAST**2))
    return np.asarray(shared / (contrast * max(float(template.std()), MIN_CONTRAST)), np.float32)


def find_peak(heat: Image, exclusion_px: float) -> Peak:
    """The highest position; the second is the highest at least `exclusion_px` away from it."""
    row, column = np.unravel_index(int(heat.argmax()), heat.shape)
    height = float(heat[row, column])
    rows, columns = np.ogrid[: heat.shape[0], : heat.shape[1]]
    far = (rows - row) ** 2 + (columns - column) ** 2 > exclusion_px**2
    second = float(heat[far].max()) if far.any() else 0.0
    ratio = MAX_RATIO if second * MAX_RATIO <= height else height / second
    dx, dy = _subpixel(heat, int(row), int(column))
    centre_x, centre_y = (heat.shape[1] - 1) / 2, (heat.shape[0] - 1) / 2
    return Peak(column + dx - centre_x, row + dy - centre_y, height, max(ratio, 1.0))


def _subpixel(heat: Image, row: int, column: int) -> tuple[float, float]:
    """The top of the paraboloid through the 3 x 3 pixels around the peak; (0, 0) at the edge of the map."""
    if not (0 < row < heat.shape[0] - 1 and 0 < column < heat.shape[1] - 1):
        return 0.0, 0.0
    near = heat[row - 1 : row + 2, column - 1 : column + 2].astype(np.float64).ravel()
    _, slope_x, slope_y, xx, xy, yy = _PARABOLOID @ near
    bend = 4 * xx * yy - xy**2
    if bend <= 1e-12 or xx >= 0:
        return 0.0, 0.0
    x, y = (xy * slope_y - 2 * yy * slope_x) / bend, (xy * slope_x - 2 * xx * slope_y) / bend
    return float(np.clip(x, -1, 1)), float(np.clip(y, -1, 1))


_PARABOLOID = np.linalg.pinv(
    np.array([(1, x, y, x * x, x * y, y * y) for y in (-1, 0, 1) for x in (-1, 0, 1)], np.float64)
)
"""From 3 x 3 heights to the least-squares 1, x, y, x2, xy, y2."""


def correlate_masked(fixed: Image, moving: Image, mask: Image, min_overlap: float) -> Image:
    """Coefficients at every offset of `moving`, of which the pixels count where `mask` is 1, against `fixed`.

    Pixel (moving rows - 1 + dy, moving columns - 1 + dx) stands for `moving` moved by (dx, dy). Offsets at
    which less than `min_overlap` of the smaller area is shared get -1. All sums over what is shared are
    themselves correlations (Padfield 2012).
    """
    every, seen = np.ones_like(fixed), moving * mask
    multiplied = [(every, mask), (fixed, mask), (every, seen)]
    multiplied += [(fixed, seen), (fixed**2, mask), (every, seen * moving)]
    shared, total, moving_total, products, squares, moving_squares = (
        fftconvolve(still, turned[::-1, ::-1]) for still, turned in multiplied
    )
    count = np.maximum(shared, 1)
    mean, moving_mean = total / count, moving_total / count
    variance = np.maximum(squares / count - mean**2, MIN_CONTRAST**2)
    moving_variance = np.maximum(moving_squares / count - moving_mean**2, MIN_CONTRAST**2)
    heat = (products / count - mean * moving_mean) / np.sqrt(variance * moving_variance)
    enough = count >= min_overlap * min(fixed.size, float(mask.sum()))
    return np.where(enough, heat, np.float32(-1))


# ---- what the neighbours of a position say about its shift ----


@dataclass(frozen=True)
class Consensus:
    """The robust opinion of the neighbours of each position."""

    shifts: Points
    """Median shift of the neighbours; 0 without any."""
    spreads: Floats
    """Standard deviation of a neighbour about it, from the median deviation; infinite without two."""
    counts: Integers
    distances: Floats
    """To the farthest neighbour counted; infinite without any."""


def consensus(
    positions: Points, voters: Points, shifts: Points, neighbours: int, *, own: Integers
) -> Consensus:
    """Median over the `neighbours` nearest voters of each position, without the voter `own` (or -1)."""
    if not len(voters):
        nobody = np.full(len(positions), np.inf)
        return Consensus(np.zeros((len(positions), 2)), nobody, np.zeros(len(positions), np.int64), nobody)
    nearest = range(1, min(neighbours + 1, len(voters)) + 1)
    distance, index = cKDTree(voters).query(positions, k=nearest)
    counted = index != own[:, None]
    counted &= np.cumsum(counted, axis=1) <= neighbours
    counts = counted.sum(axis=1)
    votes, middle = np.where(counted[..., None], shifts[index], np.nan), np.zeros((len(positions), 2))
    spread, farthest = np.full((2, len(positions)), np.inf)
    some, several = counts > 0, counts > 1
    middle[some] = np.nanmedian(votes[some], axis=1)
    miss = np.linalg.norm(votes[several] - middle[several, None], axis=2)
    spread[several] = 1.4826 * np.nanmedian(miss, axis=1)
    farthest[some] = np.where(counted, distance, 0)[some].max(axis=1, initial=0)
    return Consensus(middle, spread, counts, farthest)
