"""Which objects lie where. The plane is cut into chunks; each makes its own objects from its own seed.

A chunk always makes all its objects at once, so a picture of any part and the table of the truth
agree on every object to the last bit.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from scipy.spatial import cKDTree

from metaphase.base.arrays import Box, Floats, Integers
from metaphase.simulation.architecture import Architecture, Fields
from metaphase.simulation.config import PX_PER_UM, Case
from metaphase.simulation.randomness import Array, Random, generator

CHUNK_PX = 1024


class Kind(IntEnum):
    """What an object is. The order is the order of painting: later kinds lie on top."""

    TUMOUR = 0
    FIBROBLAST = 1
    LYMPHOCYTE = 2
    VACUOLE = 3
    RED_CELL = 4
    KARYORRHEXIS = 5
    PROPHASE = 10
    PROMETAPHASE = 11
    METAPHASE_SIDE = 12
    METAPHASE_POLAR = 13
    ANAPHASE = 14
    TELOPHASE = 15
    APOPTOTIC = 20
    PYKNOTIC = 21
    HYPERCHROMATIC = 22
    TANGENTIAL_LYMPHOCYTE = 23
    CRUSHED = 24
    DEBRIS = 25
    PIGMENT = 26
    INK = 27
    BROWN_NUCLEUS = 30
    BROWN_SPECK = 40
    BROWN_GRAIN = 41
    BROWN_EDGE = 42
    BROWN_HAZE = 43
    BROWN_FIBRE = 44


MITOSES = tuple(kind for kind in Kind if 10 <= kind < 20)
LOOKALIKES = tuple(kind for kind in Kind if 20 <= kind < 30)
ARTEFACTS = tuple(kind for kind in Kind if kind >= 40)
_PHASE_SHARES = (0.13, 0.20, 0.27, 0.14, 0.11, 0.15)
_LOOKALIKE_SHARES = (0.26, 0.2, 0.22, 0.1, 0.1, 0.06, 0.05, 0.01)
_ARTEFACT_SHARES = (0.38, 0.24, 0.16, 0.1, 0.12)


class Thing(NamedTuple):
    """One object; lengths in pixels, `focus` 1 sharp to 0 faint."""

    kind: int
    atypical: bool
    positive: bool
    x: float
    y: float
    radius: float
    aspect: float
    angle: float
    focus: float
    seed: int


_TYPES = ("i2", "?", "?", "f8", "f8", "f4", "f4", "f4", "f4", "u8")
OBJECT = np.dtype(list(zip(Thing._fields, _TYPES, strict=True)))
"""Things as rows of an array."""
LARGEST_REACH_PX = 160
"""No object's picture reaches further from its centre."""


def centres_of(objects: Array) -> Floats:
    """Positions (n, 2) of objects."""
    return np.stack([objects["x"], objects["y"]], axis=1)


def reach_px(objects: Array) -> Array:
    """How far from its centre each object's picture may reach; nuclei fit closely, others amply."""
    radius, kind = objects["radius"], objects["kind"]
    nucleus = 1.3 * radius * np.sqrt(objects["aspect"]) + 3
    return np.where(
        kind <= Kind.LYMPHOCYTE, nucleus, np.where(kind < Kind.BROWN_SPECK, 3 * radius + 30, 7 * radius + 6)
    )


class Placement:
    """Makes the objects of a case chunk by chunk."""

    def __init__(self, case: Case, architecture: Architecture) -> None:
        self.case, self.architecture = case, architecture
        self.chunk = lru_cache(_KEPT_CHUNKS)(self._chunk)

    def within(self, box: Box) -> Array:
        """Objects whose centres lie in `box`, in painting order."""
        left, top = box.x // CHUNK_PX, box.y // CHUNK_PX
        right, bottom = (box.right - 1) // CHUNK_PX, (box.bottom - 1) // CHUNK_PX
        chunks = [self.chunk(cx, cy) for cy in range(top, bottom + 1) for cx in range(left, right + 1)]
        objects = np.concatenate(chunks)
        inside = (objects["x"] >= box.x) & (objects["x"] < box.right)
        inside &= (objects["y"] >= box.y) & (objects["y"] < box.bottom)
        objects = objects[inside]
        return objects[np.lexsort((objects["seed"], objects["kind"]))]

    def _chunk(self, cx: int, cy: int) -> Array:
        """All objects of one chunk."""
        rng = generator(self.case.seed, 30, cx, cy)
        chunk = Box(cx * CHUNK_PX, cy * CHUNK_PX, CHUNK_PX, CHUNK_PX)
        layers = (
            (self._tumour_cells, self.architecture.tumour.cell_spacing_um, 0.30),
            (self._stroma_cells, 17.0, 0.48),
            (self._lymphocytes, 8.2, 0.42),
            (self._holes, 30.0, 0.48),
        )
        grids = [_jittered_grid(rng, chunk, spacing_um, jitter) for _, spacing_um, jitter in layers]
        _spread_apart(grids[0], chunk, 1.1 * self.architecture.tumour.nuclear_radius_um * PX_PER_UM)
        sites = np.concatenate(grids)
        fields = self.architecture.at(chunk, sites["x"], sites["y"])
        usable = (fields.tissue > 0) & (fields.cleft < 0.01) & (fields.fat < 0)
        ends = np.cumsum([len(grid) for grid in grids])
        parts = [self._brown_artefacts(rng, chunk)]
        for (make, _, _), start, end in zip(layers, (0, *ends), ends, strict=False):
            keep = start + np.flatnonzero(usable[start:end])
            parts.append(make(rng, chunk, sites[keep], fields.each(itemgetter(keep))))
        return np.concatenate(parts)

    def _tumour_cells(self, rng: Random, chunk: Box, cells: Array, fields: Fields) -> Array:
        tumour = self.architecture.tumour
        n = len(cells)
        size = np.exp(rng.normal(0, 0.6 * tumour.pleomorphism + 0.05, n))
        giant = np.where(rng.random(n) < 0.03 * tumour.grade, 1.4, 1)
        cells["radius"] = np.clip(tumour.nuclear_radius_um * size * giant, 2.8, 8) * PX_PER_UM
        cells["aspect"] = 1 + np.abs(rng.normal(0.18, 0.25, n))
        keep = (fields.tumour > 0.03) & (rng.random(n) > 0.05) & ~_hidden_cells(cells)
        dying = keep & (fields.necrosis > 0)
        cells["kind"][dying] = Kind.KARYORRHEXIS
        keep &= ~dying | (rng.random(n) < 0.45)
        self._choose_special(rng, chunk, cells, fields, keep & ~dying)
        return cells[keep]

    def _choose_special(self, rng: Random, chunk: Box, cells: Array, fields: Fields, eligible: Array) -> None:
        """Turn some tumour cells into mitoses, brown nuclei and look-alikes."""
        config = self.case.config
        sites = _sites_per_side(self.architecture.tumour.cell_spacing_um)
        cell_mm2 = (CHUNK_PX / PX_PER_UM / 1000 / sites) ** 2
        cell_mm2 *= int((fields.tumour > 0).sum()) / max(1, int(eligible.sum()))
        per_cell = self.case.mitoses_per_mm2 * cell_mm2
        mitotic = per_cell * self.architecture.hotspot_at(chunk, cells["x"], cells["y"])
        brown = config.brown_nuclei_per_mitosis * per_cell
        alike = config.lookalikes_per_mm2 * cell_mm2 * np.where(fields.necrosis > -0.5, 2.0, 1.0)
        draw = rng.random(len(cells))
        phases = rng.choice(MITOSES, len(cells), p=_PHASE_SHARES)
        likes = rng.choice(LOOKALIKES, len(cells), p=_LOOKALIKE_SHARES)
        chance, late = rng.random((2, len(cells)))
        is_mitosis = eligible & (draw < mitotic)
        is_brown = eligible & ~is_mitosis & (draw < mitotic + brown)
        is_alike = eligible & ~is_mitosis & ~is_brown & (draw < mitotic + brown + alike)
        cells["kind"] = np.select(
            [is_mitosis, is_brown, is_alike], [phases, Kind.BROWN_NUCLEUS, likes], cells["kind"]
        )
        cells["atypical"] = is_mitosis & (chance < config.atypical_share) & (phases != Kind.PROPHASE)
        missed = config.missed_telophases  # late phases, and prophases still too early, stay unstained
        stages = [phases == Kind.TELOPHASE, phases == Kind.ANAPHASE, phases == Kind.PROPHASE]
        unstained = np.select(stages, [missed, missed / 5, 0.25], 0.01)
        cells["positive"] = is_brown | (is_mitosis & (late >= unstained))

    def _stroma_cells(self, rng: Random, chunk: Box, cells: Array, fields: Fields) -> Array:
        n = len(cells)
        cells["kind"] = Kind.FIBROBLAST
        cells["radius"] = np.clip(rng.normal(2.9, 0.5, n), 1.6, 4.5) * PX_PER_UM
        cells["aspect"] = np.clip(rng.normal(2.8, 0.8, n), 1.3, 5)
        fibres = self.architecture.fibre_angle_at(chunk, cells["x"], cells["y"])
        cells["angle"] = fibres + rng.normal(0, 0.22, n)
        keep = (fields.tumour < -0.02) & (rng.random(n) < 0.62)
        return cells[keep]

    def _lymphocytes(self, rng: Random, chunk: Box, cells: Array, fields: Fields) -> Array:
        n = len(cells)
        cells["kind"] = Kind.LYMPHOCYTE
        cells["radius"] = np.clip(rng.normal(2.75, 0.3, n), 2.1, 3.8) * PX_PER_UM
        cells["aspect"] = 1 + np.abs(rng.normal(0, 0.12, n))
        clustered = self.architecture.lymphocytes_at(chunk, cells["x"], cells["y"])
        dense = np.clip(0.9 * clustered, 0, 0.8) * (fields.tumour < 0)
        sparse = np.where(fields.tumour < 0, 0.03, 0.008)
        keep = (rng.random(n) < dense + sparse) & (fields.necrosis < 0.2)
        return cells[keep]

    def _holes(self, rng: Random, chunk: Box, cells: Array, fields: Fields) -> Array:
        """Vacuoles and small lumens in tumour, capillaries with red cells in stroma."""
        n = len(cells)
        cells["kind"] = np.where(fields.tumour > 0, Kind.VACUOLE, Kind.RED_CELL)
        usual_um = np.where(fields.tumour > 0, 2.6, 5.0)
        cells["radius"] = np.minimum(usual_um * np.exp(rng.normal(0, 0.45, n)), 10.7) * PX_PER_UM
        flow = self.architecture.fibre_angle_at(chunk, cells["x"], cells["y"]) - np.pi / 2
        cells["angle"] = np.where(fields.tumour > 0, cells["angle"], flow)
        often = 0.22 * self.architecture.tumour.clefts
        keep = rng.random(n) < np.where(fields.tumour > 0, often, 0.10)
        return cells[keep]

    def _brown_artefacts(self, rng: Random, chunk: Box) -> Array:
        """Brown artefacts of the PHH3 slide: anywhere in tissue, but those of the edge at the edge."""
        area_mm2 = (CHUNK_PX / PX_PER_UM / 1000) ** 2
        mitoses = self.case.mitoses_per_mm2 * area_mm2 * self.architecture.tumour_fraction
        expected = self.case.config.artefacts_per_mitosis * mitoses
        n = int(rng.poisson(2 * expected))  # twice as many as wanted, so that the edge can have more
        spots = np.zeros(n, OBJECT)
        spots["kind"] = rng.choice(ARTEFACTS, n, p=_ARTEFACT_SHARES)
        spots["x"], spots["y"] = _within(chunk, rng.random((n, 2)) * CHUNK_PX).T
        spots["seed"] = rng.integers(0, 2**63, n)
        spots["angle"] = self.architecture.fibre_angle_at(chunk, spots["x"], spots["y"])
        spots["radius"] = np.minimum(np.exp(rng.normal(np.log(3.0), 0.4, n)) * PX_PER_UM, 22)
        spots["aspect"], spots["focus"], spots["positive"] = 1, 1, True
        fields = self.architecture.at(chunk, spots["x"], spots["y"])
        tissue = np.where(fields.fat < 0, fields.tissue, -1)
        keep = (tissue > 0) & (rng.random(n) < 0.5)
        at_edge = (tissue > 0) & (tissue < 0.6)
        spots["kind"][at_edge & (rng.random(n) < 0.5)] = Kind.BROWN_EDGE
        stray = (spots["kind"] == Kind.BROWN_EDGE) & ~at_edge
        spots["kind"][stray] = Kind.BROWN_HAZE
        return spots[keep | (at_edge & (rng.random(n) < 0.7))]


_KEPT_CHUNKS = 64


def _sites_per_side(spacing_um: float) -> int:
    """Columns, and rows, of the grid of a chunk; even, so that hexagonal rows fit those of the next chunk."""
    return max(2, round(CHUNK_PX / (spacing_um * PX_PER_UM)) // 2 * 2)


def _jittered_grid(rng: Random, chunk: Box, spacing_um: float, jitter: float) -> Array:
    """Blank objects near the nodes of a hexagonal grid that tiles the chunk."""
    n = _sites_per_side(spacing_um)
    column, row = (grid.ravel() for grid in np.meshgrid(np.arange(n), np.arange(n)))
    offset = rng.uniform(-jitter, jitter, (2, n * n))
    spots = np.zeros(n * n, OBJECT)
    x, y = (column + 0.5 * (row % 2) + 0.25 + offset[0]) / n, (row + 0.5 + offset[1]) / n
    spots["x"], spots["y"] = _within(chunk, np.stack([x, y], axis=1) * CHUNK_PX).T
    spots["seed"] = rng.integers(0, 2**63, n * n)
    spots["angle"] = rng.uniform(0, 2 * np.pi, n * n)
    spots["focus"] = np.clip(rng.normal(0.95, 0.22, n * n), 0.2, 1)
    spots["aspect"] = 1
    return spots


def _within(chunk: Box, position: Array) -> Array:
    """Points (n, 2) given from the chunk's corner, moved inside the chunk, in the plane."""
    return np.asarray(np.clip(position, 0, CHUNK_PX - 1e-3) + np.array([chunk.x, chunk.y]))


def _pairs(position: Floats, reach: float) -> tuple[Integers, Integers, Floats, Floats]:
    """Points within `reach` of each other: both numbers, the way between them, and how far it is."""
    first, second = cKDTree(position).query_pairs(reach, output_type="ndarray").T
    between = position[second] - position[first]
    return first, second, between, np.hypot(between[:, 0], between[:, 1])


def _hidden_cells(cells: Array) -> Array:
    """Cells that would lie mostly on top of another one."""
    lost = np.zeros(len(cells), bool)
    if len(cells) >= 2:
        first, second, _, distance = _pairs(centres_of(cells), 2 * float(cells["radius"].max()))
        near = distance < 0.78 * (cells["radius"][first] + cells["radius"][second])
        lost[second[near]] = True
    return lost


def _spread_apart(cells: Array, chunk: Box, reach: float) -> None:
    """Push the cells of a chunk that are closer than twice `reach` away from each other, as crowding does."""
    position = centres_of(cells)
    for _ in range(4):
        first, second, between, distance = _pairs(position, 2 * reach)
        distance = np.maximum(distance, 1e-3)
        push = (0.25 * np.clip(2 * reach - distance, 0, 12) / distance)[:, None] * between
        np.add.at(position, first, -push)
        np.add.at(position, second, push)
        position = _within(chunk, position - (chunk.x, chunk.y))
    cells["x"], cells["y"] = position.T
