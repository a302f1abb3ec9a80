"""The map between the two slides of a pair: a similarity and a smooth field of small displacements.

The field is a sum of uniform cubic B-splines on a square grid, so it and its slope are continuous. Beyond the
grid it keeps the value of the nearest edge. Coefficients come from scattered measurements by robust
least squares, with a penalty on bending that bridges positions without any.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, PlainSerializer, PlainValidator, TypeAdapter
from scipy.interpolate import NdBSpline
from scipy.sparse import csc_array, csr_array, diags_array, eye_array, kron, vstack
from scipy.sparse.linalg import spsolve

from metaphase.base.arrays import Floats, Points
from metaphase.base.errors import MetaphaseError
from metaphase.base.files import write_text
from metaphase.base.foreign import parsing, read_json
from metaphase.base.tables import TableError
from metaphase.labels.registration.similarity import Similarity

BENDING = 0.003
"""Weight of the squared second differences of the coefficients, per measurement of weight 1."""
RIDGE = 1e-4
"""Pulls coefficients that no measurement reaches towards 0."""
MAX_STRETCH = 0.3
"""The field changes by at most this much per unit of length: it neither folds nor tears."""
MAX_CELLS = 64
"""Cells along the longer side of the grid, at most."""
ROUNDS = 6


def _grid(values: Any) -> Floats:
    grid = np.array(values, np.float64)
    if grid.ndim != 3 or min(grid.shape[:2]) < 4 or grid.shape[2] != 2 or not np.isfinite(grid).all():
        raise ValueError(f"coefficients of shape {grid.shape}, or not finite")
    return grid


@dataclass(frozen=True, eq=False)
class LocalField:
    """Displacements in micrometres over the PHH3 slide."""

    __pydantic_config__: ClassVar = {"allow_inf_nan": False}

    x_um: float
    """Left edge of the first cell ..."""
    y_um: float
    """... and its top edge."""
    spacing_um: Annotated[float, Field(gt=0)]
    """Side of a cell."""
    coefficients: Annotated[Floats, PlainValidator(_grid), PlainSerializer(lambda grid: grid.tolist())]
    """(rows + 3, columns + 3, 2) for rows x columns cells: x and y in um."""

    def at(self, points_um: Points) -> Points:
        """Displacements (n, 2) at points (n, 2)."""
        rows, columns, _ = self.coefficients.shape
        units = (np.asarray(points_um, np.float64) - (self.x_um, self.y_um)) / self.spacing_um
        inside = np.clip(units, 0, (columns - 3, rows - 3))
        return np.asarray(NdBSpline(_knots(rows, columns), self.coefficients, 3)(inside[:, ::-1]), np.float64)

    @property
    def stretch(self) -> float:
        """An upper bound of how much the displacement changes per unit of length."""
        steps = [np.diff(self.coefficients, axis=axis) for axis in (0, 1)]
        down, across = (float(np.linalg.norm(step, axis=2).max(initial=0)) for step in steps)
        return math.hypot(down, across) / self.spacing_um


def fit_field(
    positions_um: Points, displacements_um: Points, weights: Floats, spacing_um: float, tolerance_um: float
) -> LocalField:
    """The smooth field nearest to the measurements; those far from it (see `tolerance_um`) lose their say.

    Bending is punished harder until the field is nowhere steeper than `MAX_STRETCH`, so it can be inverted.
    """
    low, size = positions_um.min(axis=0), np.ptp(positions_um, axis=0)
    spacing = max(spacing_um, float(size.max()) / MAX_CELLS)
    columns, rows = (max(1, int(np.ceil(side / spacing))) + 3 for side in size)
    units = np.ascontiguousarray((positions_um - low)[:, ::-1] / spacing)
    basis = NdBSpline.design_matrix(units, _knots(rows, columns), 3)
    basis.resize(len(units), rows * columns)  # the last splines may be 0 everywhere
    roughness = _bending(rows, columns)
    bending = BENDING
    while True:
        penalty = bending * roughness + RIDGE * eye_array(rows * columns)
        grid = _reweighted(basis, penalty, displacements_um, weights, tolerance_um)
        field = LocalField(float(low[0]), float(low[1]), spacing, grid.reshape(rows, columns, 2))
        if field.stretch <= MAX_STRETCH:
            return field
        bending *= 4


def _reweighted(
    basis: csr_array, penalty: csr_array, displacements: Points, weights: Floats, tolerance: float
) -> Floats:
    """Coefficients by iteratively reweighted least squares (Tukey's biweight)."""
    trust = weights
    for _ in range(ROUNDS):
        weighted = basis.T @ diags_array(trust)
        grid = np.asarray(spsolve(csc_array(weighted @ basis + penalty), weighted @ displacements))
        miss = np.linalg.norm(displacements - basis @ grid, axis=1)
        trust = weights * np.clip(1 - (miss / tolerance) ** 2, 0, 1) ** 2
    return grid


def _bending(rows: int, columns: int) -> csr_array:
    """The quadratic form of second differences along rows, along columns and across both."""

    def differences(n: int, order: int) -> csr_array:
        return csr_array(np.diff(np.eye(n), order, axis=0))

    stacked = vstack(
        [
            kron(differences(rows, 2), eye_array(columns)),
            kron(eye_array(rows), differences(columns, 2)),
            np.sqrt(2) * kron(differences(rows, 1), differences(columns, 1)),
        ]
    )
    return stacked.T @ stacked


def _knots(rows: int, columns: int) -> tuple[Floats, Floats]:
    """Of so many splines along y and x, in cells of side 1."""
    return np.arange(-3.0, rows + 1), np.arange(-3.0, columns + 1)


# ---- the map between the two slides of a pair, in level-0 pixels, and its file ----

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
        if not (
            np.isfinite(numbers).all() and min(numbers) > 0 and np.isfinite(self.similarity.matrix).all()
        ):
            raise TransformError(
                f"resolutions and scale are {numbers}", next_step="give finite numbers above 0"
            )
        if self.field is not None and not self.field.stretch <= STEEPEST * self.similarity.scale:
            raise TransformError(
                f"the local field changes by {self.field.stretch:.2g} per unit of length, so it may fold",
                next_step="register the pair again",
            )

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
        return self.apply(np.asarray(points, np.float64) * self.phh3_mpp) / self.he_mpp

    def he_to_phh3(self, points: npt.ArrayLike) -> Points:
        """PHH3 level-0 pixels (n, 2) of H&E level-0 pixels (n, 2)."""
        return self.invert(np.asarray(points, np.float64) * self.he_mpp) / self.phh3_mpp

    def to_json(self) -> dict[str, Any]:
        """Everything that evaluating the map needs."""
        return {"format": FORMAT, "version": VERSION, **_FILE.dump_python(self)}


_FILE = TypeAdapter(Transform)


def save_transform(path: Path, transform: Transform, **remarks: Any) -> None:
    """Write a transform as JSON, with further keys for people and programs that look at it."""
    write_text(path, json.dumps({**transform.to_json(), **remarks}, allow_nan=False) + "\n")


def load_transform(path: Path) -> Transform:
    """Read what `save_transform` wrote; other keys are ignored."""
    again = "make it with metaphase register"
    record = read_json(path, "cannot be read as JSON", next_step=again, error=TransformError)
    try:
        with parsing(path, "is not a transform", next_step=again, error=TransformError):
            found = record["format"], record["version"]
            if found != (FORMAT, VERSION):
                raise ValueError(f"this version reads {FORMAT} {VERSION}, not {found[0]} {found[1]}")
            return _FILE.validate_python(record)
    except TransformError as error:
        raise TransformError(error.problem, path=path, next_step=error.next_step) from error


# ---- annotations of other tools on the other slide ----

Frame = Literal["he", "phh3"]
Position = list[float]

SHAPES = ("geometry", "nucleusGeometry")
"""Members of a feature that hold shapes; QuPath keeps a cell's nucleus apart."""


def map_geojson(content: Any, transform: Transform, *, to: Frame = "he", source: Path | None = None) -> Any:
    """The same GeoJSON (collection, feature, bare list or shape) in the frame of the other slide.

    Every corner is mapped exactly; lines between corners stay straight. Identifiers and properties are
    kept, bounding boxes are dropped. `source` is the file that errors name.
    """
    content = copy.deepcopy(content)
    try:
        corners = list(_corners(content))
        points = np.array([corner[:2] for corner in corners], np.float64).reshape(-1, 2)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise TableError(f"is not GeoJSON ({error})", path=source, next_step="export it again") from error
    there = transform.phh3_to_he(points) if to == "he" else transform.he_to_phh3(points)
    for corner, moved in zip(corners, there.tolist(), strict=True):
        corner[:2] = moved
    return content


def _corners(node: Any) -> Iterator[Position]:
    """All positions of any part of a GeoJSON document, whose bounding boxes are dropped."""
    if isinstance(node, list):
        for item in node:
            yield from _corners(item)
        return
    node.pop("bbox", None)
    part = next((name for name in ("features", "geometries", "coordinates") if name in node), None)
    if part == "coordinates":
        yield from _positions(node[part])
    elif part is not None:
        yield from _corners(node[part])
    else:
        shapes = [node[name] for name in SHAPES if node.get(name) is not None]
        if not shapes and "geometry" not in node:
            raise ValueError(f"an object of type {node.get('type')!r} without a shape")
        yield from _corners(shapes)


def _positions(node: Any) -> Iterator[Position]:
    if node and not isinstance(node[0], list):
        yield node
    else:
        for item in node:
            yield from _positions(item)
