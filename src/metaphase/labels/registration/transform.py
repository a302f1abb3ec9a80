"""The map between the two slides of a pair, in level-0 pixels, and its file."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from metaphase.base.arrays import Points
from metaphase.base.errors import MetaphaseError
from metaphase.base.files import write_text
from metaphase.base.foreign import parsing, read_json
from metaphase.labels.registration.coarse import Similarity
from metaphase.labels.registration.field import LocalField

FORMAT = "metaphase-transform"
VERSION = 1
EXACT_UM = 1e-6
"""The inverse is iterated until it moves by no more than this."""
MAX_STEPS = 200
STEEPEST = 0.9
"""A field that changes faster than this per unit of length may fold; its inverse is not tried."""


class TransformError(MetaphaseError):
    """A transform cannot be read, or makes no sense."""


@dataclass(frozen=True, eq=False)
class Transform:
    """PHH3 to H&E: similarity plus local field, he_um = similarity(phh3_um) + field(phh3_um)."""

    he_mpp: float
    phh3_mpp: float
    similarity: Similarity
    field: LocalField | None = None

    def __post_init__(self) -> None:
        numbers = (self.he_mpp, self.phh3_mpp, self.similarity.scale)
        if not all(math.isfinite(v) and v > 0 for v in numbers) or not np.isfinite(self.matrix).all():
            raise TransformError(
                f"resolutions and scale {numbers} make no transform", next_step="give finite numbers above 0"
            )
        if self.field is not None and not self.field.stretch <= STEEPEST * self.similarity.scale:
            raise TransformError(
                f"the local field changes by {self.field.stretch:.2g} per unit of length, so it may fold",
                next_step="register the pair again",
            )

    @property
    def matrix(self) -> Points:
        """The linear part (2, 2) of the similarity."""
        return self.similarity.matrix

    def apply(self, points: npt.ArrayLike) -> Points:
        """H&E micrometres (n, 2) of PHH3 micrometres (n, 2)."""
        points = np.asarray(points, np.float64).reshape(-1, 2)
        moved = self.similarity.apply(points)
        return moved if self.field is None else moved + self.field.at(points)

    def invert(self, points: npt.ArrayLike) -> Points:
        """PHH3 micrometres (n, 2) of H&E micrometres (n, 2), by fixed-point iteration."""
        points = np.asarray(points, np.float64).reshape(-1, 2)
        guess = self.similarity.invert(points)
        if self.field is None:
            return guess
        for _ in range(MAX_STEPS):
            better = self.similarity.invert(points - self.field.at(guess))
            moved = float(np.abs(better - guess).max(initial=0))
            guess = better
            if moved < EXACT_UM:
                break
        return guess

    def phh3_to_he(self, points: npt.ArrayLike) -> Points:
        """H&E level-0 pixels (n, 2) of PHH3 level-0 pixels (n, 2)."""
        return self.apply(np.asarray(points, np.float64).reshape(-1, 2) * self.phh3_mpp) / self.he_mpp

    def he_to_phh3(self, points: npt.ArrayLike) -> Points:
        """PHH3 level-0 pixels (n, 2) of H&E level-0 pixels (n, 2)."""
        return self.invert(np.asarray(points, np.float64).reshape(-1, 2) * self.he_mpp) / self.phh3_mpp

    def to_json(self) -> dict[str, Any]:
        """Everything that evaluating the map needs."""
        field = self.field
        return {
            "format": FORMAT,
            "version": VERSION,
            "he_mpp": self.he_mpp,
            "phh3_mpp": self.phh3_mpp,
            "similarity": asdict(self.similarity),
            "field": field
            and {
                "x_um": field.x_um,
                "y_um": field.y_um,
                "spacing_um": field.spacing_um,
                "coefficients": field.coefficients.tolist(),
            },
        }

    @classmethod
    def from_json(cls, record: Any) -> Transform:
        """The inverse of `to_json`; other keys are ignored."""
        try:
            if (record["format"], record["version"]) != (FORMAT, VERSION):
                raise TransformError(
                    f"format {record['format']} {record['version']} is not known",
                    next_step=f"this version reads {FORMAT} {VERSION}",
                )
            similarity = Similarity(**record["similarity"])
            return cls(
                float(record["he_mpp"]), float(record["phh3_mpp"]), similarity, _field(record["field"])
            )
        except (KeyError, TypeError, ValueError) as error:
            raise TransformError(
                f"not a transform of metaphase ({type(error).__name__}: {error})",
                next_step="make it with metaphase register",
            ) from error


def _field(record: Any) -> LocalField | None:
    if record is None:
        return None
    coefficients = np.array(record["coefficients"], np.float64)
    if coefficients.ndim != 3 or min(coefficients.shape[:2]) < 4 or coefficients.shape[2] != 2:
        raise ValueError(f"coefficients of shape {coefficients.shape}")
    x, y, spacing = (float(record[name]) for name in ("x_um", "y_um", "spacing_um"))
    if not all(map(math.isfinite, (x, y, spacing))) or spacing <= 0 or not np.isfinite(coefficients).all():
        raise ValueError("a field with numbers that are not finite")
    return LocalField(x, y, spacing, coefficients)


def save_transform(path: str | Path, transform: Transform, **remarks: Any) -> None:
    """Write a transform as JSON, with further keys for people and programs that look at it."""
    write_text(path, json.dumps({**transform.to_json(), **remarks}, allow_nan=False) + "\n")


def load_transform(path: str | Path) -> Transform:
    """Read what `save_transform` wrote."""
    what, again = "cannot be read as JSON", "make it with metaphase register"
    record = read_json(path, what, next_step=again, error=TransformError)
    try:
        with parsing(path, "is no transform", next_step=again, error=TransformError):
            return Transform.from_json(record)
    except TransformError as error:
        raise TransformError(error.problem, path=path, next_step=error.next_step) from error
