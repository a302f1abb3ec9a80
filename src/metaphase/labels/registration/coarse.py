"""The start of a registration: two overviews, and the similarity between them.

Points (x, y) are handled as complex numbers x + iy: a similarity is z -> a z + b, or a conj(z) + b for a
slide that was scanned upside down.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from metaphase.base.arrays import Points
from metaphase.labels.registration.correlation import Image, MaskedImage

# ---- the global part of a registration ----

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


# ---- where to begin ----

MIN_OVERLAP = 0.3
"""At least this share of the smaller slide lies on the other one."""
SHRINK = 4
"""How much smaller the overviews are in the first round."""
EXPECTED_DEG = np.arange(-6.0, 6.1, 2.0)
"""Rotations of slides that were put into the scanner alike ..."""
ALL_DEG = np.arange(-180.0, 180.0, 4.0)
"""... and of slides that were not."""
REFINING_DEG = (2.0, 1.0)
"""Steps of the angle in the second round; the alignment that follows bears a degree or two."""
SCALES = np.geomspace(0.4, 2.5, 38)
"""Where stated resolutions contradict each other."""


@dataclass(frozen=True)
class Candidate:
    """A guess of the global similarity, right to a few pixels of the overview."""

    similarity: Similarity
    score: float
    """Correlation, as Fisher's z, weighted with the root of the overlap."""


class Start(NamedTuple):
    """An orientation and scale to try."""

    angle_deg: float
    scale: float
    mirrored: bool


def starts_for(angles_deg: Iterable[float], scales: Iterable[float], *, mirrored: bool) -> list[Start]:
    """All combinations of angle and scale."""
    return [Start(float(angle), float(scale), mirrored) for angle, scale in product(angles_deg, scales)]


class Overviews:
    """Both overviews of a pair at one resolution, the H&E one transformed once for all comparisons."""

    def __init__(self, he: Image, phh3: Image, mpp: float, largest_scale: float) -> None:
        self.phh3, self.mpp = phh3, mpp
        diagonal = math.ceil(math.hypot(*phh3.shape) * largest_scale) + 1
        self._he = MaskedImage(he, np.ones_like(he), (diagonal, diagonal))

    def compare(self, start: Start) -> Candidate:
        """The best shift for one orientation and scale."""
        turn, size = self._canvas(start)
        image, mask = (_warped(part, turn, self.mpp, size) for part in (self.phh3, np.ones_like(self.phh3)))
        heat = self._he.correlate(image, mask, MIN_OVERLAP)
        score = _significance(heat, self._he.shape, image.shape)
        row, column = np.unravel_index(int(score.argmax()), heat.shape)
        offset = np.array([column - image.shape[1] + 1, row - image.shape[0] + 1])
        x, y = turn.shift_um + offset * self.mpp
        return Candidate(replace(turn, shift_x_um=float(x), shift_y_um=float(y)), float(score[row, column]))

    def _canvas(self, start: Start) -> tuple[Similarity, tuple[int, int]]:
        """The turn that brings the PHH3 overview onto a canvas that just holds it, and the canvas's size."""
        turn = Similarity(start.scale, math.radians(start.angle_deg), 0.0, 0.0, start.mirrored)
        height, width = self.phh3.shape
        corners = np.array([[0, 0], [width, 0], [0, height], [width, height]], float) * self.mpp
        low, high = (edge(turn.apply(corners), axis=0) for edge in (np.min, np.max))
        columns, rows = (max(1, math.ceil(side / self.mpp - 1e-6)) for side in high - low)
        return replace(turn, shift_x_um=float(-low[0]), shift_y_um=float(-low[1])), (columns, rows)


def search(he: Image, phh3: Image, mpp: float, starts: Sequence[Start], keep: int) -> list[Candidate]:
    """The best `keep` different starts, refined at the overviews' resolution, best first."""
    largest = max(start.scale for start in starts)
    small = Overviews(_shrunk(he), _shrunk(phh3), mpp * SHRINK, largest)
    chosen: list[Start] = []
    for start in sorted(starts, key=lambda start: -small.compare(start).score):
        if len(chosen) < keep and all(_different(start, other) for other in chosen):
            chosen.append(start)
    whole = Overviews(he, phh3, mpp, max(start.scale for start in chosen))
    return sorted((_refined(whole, start) for start in chosen), key=lambda candidate: -candidate.score)


def _different(one: Start, other: Start) -> bool:
    turn = abs((one.angle_deg - other.angle_deg + 180) % 360 - 180)
    return turn > 5 or abs(math.log(one.scale / other.scale)) > 0.06 or one.mirrored != other.mirrored


def _refined(overviews: Overviews, start: Start) -> Candidate:
    """Try angles around the best so far, in ever smaller steps."""
    best = overviews.compare(start)
    for step in REFINING_DEG:
        around = [start._replace(angle_deg=start.angle_deg + turn) for turn in (-step, step)]
        for other in around:
            found = overviews.compare(other)
            best, start = (found, other) if found.score > best.score else (best, start)
    return best


def _significance(heat: Image, fixed: tuple[int, ...], moving: tuple[int, ...]) -> Image:
    """Fisher's z of the coefficients times the root of the overlapping share."""
    overlaps = []
    for a, b in zip(fixed, moving, strict=True):
        lag = np.arange(-(b - 1), a, dtype=np.float32)
        overlaps.append(np.sqrt(np.clip(np.minimum(a, lag + b) - np.maximum(0, lag), 0, None) / min(a, b)))
    score = np.arctanh(np.clip(heat, -0.99, 0.99))
    return np.asarray(score * overlaps[0][:, None] * overlaps[1], np.float32)


def _warped(image: Image, turn: Similarity, mpp: float, size: tuple[int, int]) -> Image:
    """The image in the frame that `turn` leads to, `size` (width, height) pixels."""
    shift = turn.shift_um / mpp + turn.matrix @ (0.5, 0.5) - 0.5
    affine = np.column_stack([turn.matrix, shift])
    return np.asarray(cv2.warpAffine(image, affine, size, flags=cv2.INTER_LINEAR), np.float32)


def _shrunk(image: Image) -> Image:
    height, width = (max(8, side // SHRINK) for side in image.shape)
    whole = image[: height * SHRINK, : width * SHRINK]
    return np.asarray(cv2.resize(whole, (width, height), interpolation=cv2.INTER_AREA), np.float32)
