"""The global part of a registration: shift, rotation and scale between two slides, in micrometres.

Points (x, y) are handled as complex numbers x + iy: a similarity is z -> a z + b, or a conj(z) + b for a
slide that was scanned upside down.
"""

from __future__ import annotations

import cmath
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]
"""Shape (n, 2), columns x and y."""
Weights = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Similarity:
    """PHH3 to H&E micrometres: mirror x if so, turn and scale about (0, 0), then shift."""

    scale: float = 1.0
    rotation_rad: float = 0.0
    shift_x_um: float = 0.0
    shift_y_um: float = 0.0
    mirrored: bool = False

    @property
    def matrix(self) -> Points:
        """The linear part (2, 2)."""
        turn = self.scale * np.array(
            [
                [np.cos(self.rotation_rad), -np.sin(self.rotation_rad)],
                [np.sin(self.rotation_rad), np.cos(self.rotation_rad)],
            ]
        )
        return turn @ np.diag([-1.0 if self.mirrored else 1.0, 1.0])

    @property
    def shift_um(self) -> Points:
        """The shift (2,)."""
        return np.array([self.shift_x_um, self.shift_y_um])

    def apply(self, points: npt.ArrayLike) -> Points:
        """H&E micrometres (n, 2) of PHH3 micrometres (n, 2)."""
        return np.asarray(points, np.float64) @ self.matrix.T + self.shift_um

    def invert(self, points: npt.ArrayLike) -> Points:
        """PHH3 micrometres (n, 2) of H&E micrometres (n, 2)."""
        return (np.asarray(points, np.float64) - self.shift_um) @ np.linalg.inv(self.matrix).T

    def after(self, first: Similarity) -> Similarity:
        """The similarity that applies `first` (not mirrored) and then this one."""
        turn = -first.rotation_rad if self.mirrored else first.rotation_rad
        shift = self.apply(first.shift_um[None])[0]
        angle = self.rotation_rad + turn
        return Similarity(self.scale * first.scale, angle, float(shift[0]), float(shift[1]), self.mirrored)


def about(centre: Points, scale: float, rotation_rad: float, shift_um: npt.ArrayLike) -> Similarity:
    """Turn and scale about `centre` (2,), then shift."""
    turned = Similarity(scale, rotation_rad).apply(centre[None])[0]
    x, y = centre + np.asarray(shift_um, np.float64) - turned
    return Similarity(scale, rotation_rad, float(x), float(y))


def fit_similarity(source: Points, target: Points, weights: Weights, *, mirrored: bool = False) -> Similarity:
    """The weighted least-squares similarity from `source` to `target`; one point gives a shift alone."""
    z = (source * (-1.0 if mirrored else 1.0, 1.0)) @ (1, 1j)
    w = target @ (1, 1j)
    share = weights / weights.sum()
    z0, w0 = complex(share @ z), complex(share @ w)
    spread = float(share @ np.abs(z - z0) ** 2)
    a = complex(share @ (np.conj(z - z0) * (w - w0))) / spread if spread > 0 else 1 + 0j
    b = w0 - a * z0
    return Similarity(abs(a), cmath.phase(a), b.real, b.imag, mirrored)


def fit_robustly(
    source: Points, target: Points, weights: Weights, tolerance: float, *, mirrored: bool = False
) -> Similarity:
    """Like `fit_similarity`, with points that miss by more than about `tolerance` losing their say."""
    fitted = fit_similarity(source, target, weights, mirrored=mirrored)
    for _ in range(ROUNDS):
        miss = np.linalg.norm(target - fitted.apply(source), axis=1)
        reach = max(tolerance, 3 * float(np.median(miss)))
        trust = weights * np.clip(1 - (miss / reach) ** 2, 0, 1) ** 2
        fitted = fit_similarity(source, target, trust + 1e-9, mirrored=mirrored)
    return fitted


ROUNDS = 10
"""Reweighting rounds; the weights settle within a few."""
