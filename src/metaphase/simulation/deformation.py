"""How restaining moved the tissue: a shift, a small rotation and a smooth local deformation.

The map is given in closed form from the PHH3 frame to the H&E frame (that is the direction in which
pictures are resampled); the other direction is its numerical inverse, exact to far below a
thousandth of a pixel.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from metaphase.base.arrays import Floats, Floats32
from metaphase.base.errors import UsageError
from metaphase.base.geometry import Box
from metaphase.simulation.randomness import generator

_INVERSION_STEPS = 30


@dataclass(frozen=True, slots=True)
class Wave:
    """One plane wave of the local deformation: pixels moved, and radians per pixel."""

    amplitude_x: float
    amplitude_y: float
    frequency_x: float
    frequency_y: float
    phase: float


@dataclass(frozen=True, slots=True)
class Displacement:
    """The exact map between the two frames of a case, in level-0 pixels."""

    shift_x: float
    shift_y: float
    rotation_rad: float
    centre_x: float
    centre_y: float
    waves: tuple[Wave, ...] = ()

    def phh3_to_he(self, points: npt.ArrayLike) -> Floats:
        """H&E coordinates (n, 2) of points (n, 2) given in the PHH3 frame."""
        points = np.asarray(points, np.float64)
        matrix, offset = self._rigid()
        moved = points @ matrix.T + offset
        for wave in self.waves:
            angle = points[..., 0] * wave.frequency_x + points[..., 1] * wave.frequency_y + wave.phase
            moved = moved + np.sin(angle)[..., None] * (wave.amplitude_x, wave.amplitude_y)
        return moved

    def he_to_phh3(self, points: npt.ArrayLike) -> Floats:
        """PHH3 coordinates (n, 2) of points (n, 2) given in the H&E frame."""
        points = np.asarray(points, np.float64)
        matrix, offset = self._rigid()
        guess = (points - offset) @ matrix
        for _ in range(_INVERSION_STEPS):
            guess = guess + (points - self.phh3_to_he(guess)) @ matrix
        return guess

    def pull_maps(self, box: Box) -> tuple[Floats, Floats]:
        """H&E x and y, each (height, width), of the pixels of `box` in the PHH3 frame.

        Each plane wave is a product of functions of x and of y, so the maps are two small matrix
        products and exact at every pixel.
        """
        x, y = box.x + 0.5 + np.arange(box.width), box.y + 0.5 + np.arange(box.height)
        matrix, offset = self._rigid()
        rows, columns = [np.ones_like(y), y], [np.ones_like(x), x]
        weights: list[list[tuple[float, int, int]]] = [
            [(float(offset[i]), 0, 0), (float(matrix[i, 0]), 0, 1), (float(matrix[i, 1]), 1, 0)]
            for i in (0, 1)
        ]
        for wave in self.waves:
            rows += [np.sin(wave.frequency_y * y + wave.phase), np.cos(wave.frequency_y * y + wave.phase)]
            columns += [np.cos(wave.frequency_x * x), np.sin(wave.frequency_x * x)]
            last = len(rows) - 2
            for i, amplitude in enumerate((wave.amplitude_x, wave.amplitude_y)):
                weights[i] += [(amplitude, last, last), (amplitude, last + 1, last + 1)]
        return self._combined(rows, columns, weights[0]), self._combined(rows, columns, weights[1])

    @staticmethod
    def _combined(rows: list[Floats], columns: list[Floats], weights: list[tuple[float, int, int]]) -> Floats:
        mixing = np.zeros((len(rows), len(columns)))
        for weight, row, column in weights:
            mixing[row, column] += weight
        product: Floats = np.stack(rows, axis=1) @ mixing @ np.stack(columns)
        return product

    def _rigid(self) -> tuple[Floats, Floats]:
        cosine, sine = np.cos(self.rotation_rad), np.sin(self.rotation_rad)
        matrix = np.array([[cosine, -sine], [sine, cosine]])
        centre = np.array([self.centre_x, self.centre_y])
        return matrix, centre - matrix @ (centre + np.array([self.shift_x, self.shift_y]))

    def to_json(self) -> dict[str, Any]:
        """Everything that evaluating the map needs, for a JSON file."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Displacement:
        """The inverse of `to_json`."""
        try:
            waves = tuple(Wave(**wave) for wave in record["waves"])
            return cls(**{**record, "waves": waves})
        except (KeyError, TypeError) as error:
            raise UsageError(f"not a displacement record ({error})") from error

    def sampled(self, width: int, height: int, step: int) -> Floats32:
        """PHH3 minus H&E coordinates (rows, columns, 2) at H&E points `step` pixels apart, from (0, 0) on."""
        x, y = np.meshgrid(np.arange(0, width + step, step), np.arange(0, height + step, step))
        points = np.stack([x, y], axis=-1).astype(np.float64)
        return (self.he_to_phh3(points) - points).astype(np.float32)


def random_displacement(
    seed: int, width: int, height: int, *, shift_px: float, rotation_deg: float, local_px: float
) -> Displacement:
    """A displacement; `shift_px` and `rotation_deg` are upper limits, `local_px` a standard deviation."""
    rng = generator(seed)
    direction, length = rng.uniform(0, 2 * np.pi), shift_px * rng.uniform(0.3, 1)
    wavelengths = np.exp(rng.uniform(np.log(1600), np.log(12000), _WAVES))
    headings, phases = rng.uniform(0, 2 * np.pi, (2, _WAVES))
    amplitudes = rng.standard_normal((_WAVES, 2)) * np.sqrt(wavelengths)[:, None]
    amplitudes *= local_px / np.sqrt((amplitudes**2).sum() / 4 + 1e-12)
    frequencies = 2 * np.pi / wavelengths
    waves = tuple(
        Wave(*(float(v) for v in (ax, ay, f * np.cos(h), f * np.sin(h), p)))
        for (ax, ay), f, h, p in zip(amplitudes, frequencies, headings, phases, strict=True)
    )
    return Displacement(
        shift_x=float(length * np.cos(direction)),
        shift_y=float(length * np.sin(direction)),
        rotation_rad=float(np.deg2rad(rng.uniform(-rotation_deg, rotation_deg))),
        centre_x=width / 2,
        centre_y=height / 2,
        waves=waves,
    )


_WAVES = 10
