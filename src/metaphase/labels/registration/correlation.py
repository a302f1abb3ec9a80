"""Where a tile of one slide lies on the other, and where several agree."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt
from scipy import fft
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


def correlate(template: Image, window: Image, floor: float = MIN_CONTRAST) -> Image:
    """Correlation coefficients of `template` with every part of `window` that it fits into.

    Pixel (0, 0) of the result has the template in the window's top-left corner. Where a part has less
    contrast than `floor` it is counted as having that much, so that blank areas correlate with nothing.
    """
    rows, columns = template.shape
    shape = [fft.next_fast_len(side, real=True) for side in window.shape]
    centred = template - template.mean()
    product = fft.rfft2(window, shape) * np.conj(fft.rfft2(centred, shape))
    valid = window.shape[0] - rows + 1, window.shape[1] - columns + 1
    shared = fft.irfft2(product, shape)[: valid[0], : valid[1]] / template.size
    scale = np.maximum(_local_contrast(window, rows, columns), floor) * max(float(template.std()), floor)
    return np.asarray(shared / scale, np.float32)


def _local_contrast(window: Image, rows: int, columns: int) -> Image:
    """Standard deviation within every box of `rows` x `columns` that lies inside the window."""
    centred = window - window.mean()
    sums, squares = cv2.integral2(centred, sdepth=cv2.CV_64F, sqdepth=cv2.CV_64F)
    boxes = (
        table[rows:, columns:] - table[:-rows, columns:] - table[rows:, :-columns] + table[:-rows, :-columns]
        for table in (sums, squares)
    )
    mean, square = (box / (rows * columns) for box in boxes)
    return np.asarray(np.sqrt(np.maximum(square - mean**2, 0)), np.float32)


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


class MaskedImage:
    """An image with its mask (1 where it counts), ready to be correlated with others at every offset.

    Padfield 2012: all sums over the common part of two masked images are themselves correlations, so a few
    Fourier transforms give the correlation coefficient for every offset at once.
    """

    def __init__(self, image: Image, mask: Image, room: tuple[int, int]) -> None:
        """`room` is the size (rows, columns) of the largest image to be correlated with."""
        self.shape, self.area = image.shape, float(mask.sum())
        self._padded = [
            fft.next_fast_len(a + b - 1, real=True) for a, b in zip(image.shape, room, strict=True)
        ]
        self._parts = self._spectra(image, mask)

    def _spectra(self, image: Image, mask: Image) -> list[npt.NDArray[np.complex64]]:
        return [fft.rfft2(part, self._padded) for part in (mask, image * mask, image**2 * mask)]

    def correlate(self, moving: Image, mask: Image, min_overlap: float) -> Image:
        """Coefficients with `moving` at every offset, (rows + moving rows - 1, columns + moving columns - 1).

        Pixel (moving rows - 1 + dy, moving columns - 1 + dx) stands for `moving` moved by (dx, dy). Offsets
        at which the masks share less than `min_overlap` of the smaller one get -1.
        """
        size = self.shape[0] + moving.shape[0] - 1, self.shape[1] + moving.shape[1] - 1

        def lagged(spectrum: npt.NDArray[np.complex64]) -> Image:
            full = fft.irfft2(spectrum, self._padded)
            rolled = np.roll(full, (moving.shape[0] - 1, moving.shape[1] - 1), (0, 1))
            return np.asarray(rolled[: size[0], : size[1]], np.float32)

        ones, total, squares = self._parts
        m_ones, m_total, m_squares = (np.conj(part) for part in self._spectra(moving, mask))
        count = np.maximum(lagged(ones * m_ones), 1)
        mean, m_mean = lagged(total * m_ones) / count, lagged(ones * m_total) / count
        shared = lagged(total * m_total) / count - mean * m_mean
        variance = np.maximum(lagged(squares * m_ones) / count - mean**2, MIN_CONTRAST**2)
        m_variance = np.maximum(lagged(ones * m_squares) / count - m_mean**2, MIN_CONTRAST**2)
        enough = count >= min_overlap * min(self.area, float(mask.sum()))
        return np.where(enough, shared / np.sqrt(variance * m_variance), np.float32(-1))


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
    if not len(voters) or not len(positions):
        nothing = np.full(len(positions), np.inf)
        return Consensus(np.zeros((len(positions), 2)), nothing, np.zeros(len(positions), np.int64), nothing)
    distance, index = cKDTree(voters).query(positions, k=min(neighbours + 1, len(voters)))
    distance, index = distance.reshape(len(positions), -1), index.reshape(len(positions), -1)
    counted = index != own[:, None]
    counted &= np.cumsum(counted, axis=1) <= neighbours
    votes = np.where(counted[..., None], shifts[index], np.nan)
    counts = counted.sum(axis=1)
    median = np.zeros((len(index), 2))
    spread = np.full(len(index), np.inf)
    some, several = counts > 0, counts > 1
    median[some] = np.nanmedian(votes[some], axis=1)
    miss = np.linalg.norm(votes[several] - median[several, None], axis=2)
    spread[several] = 1.4826 * np.nanmedian(miss, axis=1)
    farthest = np.where(counted, distance, -np.inf).max(axis=1, initial=-np.inf)
    return Consensus(median, spread, counts.astype(np.int64), np.where(some, farthest, np.inf))
