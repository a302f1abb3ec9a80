"""Randomness that depends only on a seed and a position, so that any region can be made alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from scipy import fft

from metaphase.base.arrays import Box, Floats, Floats32, Integers

Random = np.random.Generator
Array = npt.NDArray[Any]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SPLINE_SD = 0.2768
"""Standard deviation of a cubic B-spline of independent uniform(-1, 1) lattice values."""


def _scramble(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser: neighbouring integers become unrelated ones."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def derived_seed(seed: int, *parts: int) -> int:
    """A 64-bit seed for the part of the world that `parts` name; any integers, also negative ones."""
    state = np.array([seed & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
    for part in parts:
        word = np.array([part & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64)
        state = _scramble(state * _GOLDEN + _scramble(word + _GOLDEN))
    return int(state[0])


def generator(seed: int, *parts: int) -> Random:
    """A counter-based generator for the part of the world that `parts` name."""
    return np.random.Generator(np.random.Philox(key=derived_seed(seed, *parts)))


def _lattice(seed: int, x: Integers, y: Integers) -> Floats:
    """Uniform(-1, 1) values at integer nodes; `x` and `y` broadcast."""
    word = np.uint64(derived_seed(seed))
    rows = _scramble(y.astype(np.uint64) * _GOLDEN + word)
    return (
        _scramble(rows + x.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)).astype(np.float64) * 2.0**-63
        - 1
    )


def _spline_weights(t: Floats) -> Floats:
    """The four cubic B-spline weights of fractional positions `t`, last axis of length 4."""
    s = 1 - t
    t2, s2 = t * t, s * s
    weights = np.empty((*t.shape, 4))
    weights[..., 0], weights[..., 3] = s2 * s / 6, t2 * t / 6
    weights[..., 1], weights[..., 2] = (3 * t - 6) * t2 / 6 + 2 / 3, (3 * s - 6) * s2 / 6 + 2 / 3
    return weights


@dataclass(frozen=True)
class Noise:
    """A smooth random field of mean 0 and standard deviation 1 over the whole plane.

    `wavelength` is the lattice spacing of the coarsest octave in pixels; each further octave halves
    the spacing and has `gain` times the amplitude.
    """

    seed: int
    wavelength: float
    octaves: int = 1
    gain: float = 0.5

    @cached_property
    def _layers(self) -> tuple[tuple[int, float, float], ...]:
        amplitudes = self.gain ** np.arange(self.octaves)
        amplitudes /= _SPLINE_SD * np.sqrt((amplitudes**2).sum())
        return tuple(
            (derived_seed(self.seed, octave), self.wavelength / 2**octave, float(amplitude))
            for octave, amplitude in enumerate(amplitudes)
        )

    def over(self, box: Box, step: float = 1) -> Floats32:
        """Values over `box`, float32, one for each square of `step` pixels, at its centre.

        Plain `einsum` rather than a matrix library, whose sums depend on its number of threads.
        """
        total: Floats32 = np.zeros((_steps(box.height, step), _steps(box.width, step)), np.float32)
        for seed, spacing, amplitude in self._layers:
            columns, first_x = _interpolation_matrix(box.x, total.shape[1], step, spacing)
            rows, first_y = _interpolation_matrix(box.y, total.shape[0], step, spacing)
            x = first_x + np.arange(columns.shape[1])
            y = first_y + np.arange(rows.shape[1])
            nodes = (amplitude * _lattice(seed, x[None, :], y[:, None])).astype(np.float32)
            total += np.einsum("yj,jx->yx", rows, np.einsum("ji,xi->jx", nodes, columns))
        return total

    def smoothly_over(self, box: Box) -> Array:
        """Values at the pixel centres of `box`, computed coarsely and interpolated: for long wavelengths."""
        return interpolate(box, self.over(coarse_grid(box), COARSE_STEP))

    def at(self, box: Box, x: Floats, y: Floats) -> Array:
        """Values at points inside `box`, computed and interpolated alike."""
        return sample_at(box, self.over(coarse_grid(box), COARSE_STEP), x, y)


@lru_cache(maxsize=2048)
def _interpolation_matrix(start: int, count: int, step: float, spacing: float) -> tuple[Floats32, int]:
    """The matrix (count, nodes) that turns lattice values into pixel values, and its first node."""
    position = (start + step * (0.5 + np.arange(count))) / spacing
    node = np.floor(position).astype(np.int64)
    first = int(node[0]) - 1
    matrix = np.zeros((count, int(node[-1]) + 3 - first), np.float32)
    columns = node[:, None] + np.arange(-1, 3) - first
    np.put_along_axis(matrix, columns, _spline_weights(position - node).astype(np.float32), axis=1)
    return matrix, first


COARSE_STEP = 4
"""Pixels between the samples of fields that change slowly."""


def coarse_grid(box: Box) -> Box:
    """The smallest box on the grid of `COARSE_STEP` that has a sample all around `box`."""
    x, y = box.x // COARSE_STEP - 1, box.y // COARSE_STEP - 1
    right, bottom = -(-box.right // COARSE_STEP) + 1, -(-box.bottom // COARSE_STEP) + 1
    return Box(x * COARSE_STEP, y * COARSE_STEP, (right - x) * COARSE_STEP, (bottom - y) * COARSE_STEP)


def interpolate(box: Box, coarse: Floats32) -> Array:
    """A field given on the coarse grid around `box`, at every pixel of `box`.

    The grid is fixed in the plane, so boxes that overlap agree.
    """
    grid = coarse_grid(box)
    fine = cv2.resize(coarse, (grid.width, grid.height), interpolation=cv2.INTER_LINEAR)
    left, top = box.x - grid.x, box.y - grid.y
    return fine[top : top + box.height, left : left + box.width]


def sample_at(box: Box, coarse: Floats32, x: Floats, y: Floats) -> Array:
    """A field given on the coarse grid around `box`, at points inside `box`."""
    grid = coarse_grid(box)
    column = ((x - grid.x) / COARSE_STEP - 0.5).astype(np.float32)
    row = ((y - grid.y) / COARSE_STEP - 0.5).astype(np.float32)
    if not len(column):
        return np.zeros(0, np.float32)
    return cv2.remap(coarse, column[:, None], row[:, None], cv2.INTER_LINEAR)[:, 0]


def centres(box: Box, step: float) -> tuple[Floats32, Floats32]:
    """x (1, columns) and y (rows, 1) of the centres of the squares of `step` pixels in `box`."""
    x = box.x + step * (0.5 + np.arange(_steps(box.width, step)))
    y = box.y + step * (0.5 + np.arange(_steps(box.height, step)))
    return x.astype(np.float32)[None, :], y.astype(np.float32)[:, None]


def _steps(length: int, step: float) -> int:
    return max(1, round(length / step))


class Texture:
    """A periodic random picture with mean 0 and standard deviation 1, cut at any position.

    `coarse` and `fine` are about the longest and shortest wavelengths in pixels; between them the
    amplitude falls with frequency to the power `slope`: 0 is one grain, 1 is grain at every scale.
    """

    def __init__(self, seed: int, coarse: float, fine: float, slope: float = 0.0, side: int = 1024) -> None:
        white = generator(seed).standard_normal((side, side), dtype=np.float32)
        frequency = np.hypot(fft.fftfreq(side)[:, None], fft.rfftfreq(side)[None, :]).astype(np.float32)
        band = np.exp(-((frequency * fine) ** 2)) - np.exp(-((frequency * coarse) ** 2))
        band *= np.maximum(frequency, 1 / side) ** -slope
        picture = fft.irfft2(fft.rfft2(white) * band, (side, side))
        self.picture: Floats32 = (picture / picture.std()).astype(np.float32)

    def over(self, box: Box) -> Floats32:
        """The part under `box`, the picture repeating in all directions."""
        rows = self.picture.take(range(box.y, box.bottom), axis=0, mode="wrap")
        cut: Floats32 = rows.take(range(box.x, box.right), axis=1, mode="wrap")
        return cut
