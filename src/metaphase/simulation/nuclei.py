"""Libraries of interphase nuclei: a few hundred pictures per case, placed turned and stretched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from metaphase.simulation.architecture import Tumour
from metaphase.simulation.randomness import Floats, generator
from metaphase.simulation.sprites import (
    COVER,
    EOSIN,
    HAEMATOXYLIN,
    blank,
    blurred,
    outline,
    plane,
    softstep,
    speckle,
)

Array = npt.NDArray[Any]
MASTER_RADIUS_PX = 20.0
"""Radius at which every library picture is drawn; placing scales it."""
_SIDE = 52
_FOCUS_LEVELS = (1.0, 0.8, 0.6, 0.4, 0.2)


@dataclass(frozen=True)
class NucleusLibrary:
    """Pictures (side, side, 3) of one case by cell type: for each plane of focus its variants."""

    tumour: tuple[tuple[Floats, ...], ...]
    fibroblast: tuple[tuple[Floats, ...], ...]
    lymphocyte: tuple[tuple[Floats, ...], ...]


def nucleus_library(seed: int, tumour: Tumour) -> NucleusLibrary:
    """Draw the libraries of a case."""
    return NucleusLibrary(
        tumour=_planes([tumour_nucleus(generator(seed, 1, i), tumour) for i in range(128)]),
        fibroblast=_planes([fibroblast_nucleus(generator(seed, 2, i)) for i in range(24)]),
        lymphocyte=_planes([lymphocyte_nucleus(generator(seed, 3, i)) for i in range(24)]),
    )


def picked(variants: tuple[tuple[Floats, ...], ...], seed: int, focus: float) -> Floats:
    """The picture that stands for a cell: any variant, in the plane of focus nearest to `focus`."""
    plane_index = int(np.argmin([abs(focus - level) for level in _FOCUS_LEVELS]))
    return variants[plane_index][seed % len(variants[plane_index])]


def _planes(sharp: list[Floats]) -> tuple[tuple[Floats, ...], ...]:
    return tuple(tuple(_defocused(picture[..., :3], focus) for picture in sharp) for focus in _FOCUS_LEVELS)


def _defocused(sprite: Floats, focus: float) -> Floats:
    """The same nucleus above or below the plane of focus: softer and fainter."""
    if focus == 1:
        return np.ascontiguousarray(sprite)
    return blurred(sprite, 1.6 * (1 - focus)) * np.float32(0.55 + 0.45 * focus)


def tumour_nucleus(rng: np.random.Generator, tumour: Tumour) -> Floats:
    """A vesicular or a dark nucleus of a tumour cell, in one of many planes of cutting."""
    depth = outline(rng, _SIDE, MASTER_RADIUS_PX, 0.02 + 0.26 * tumour.pleomorphism)
    vesicular = rng.random() < tumour.openness
    chromatin = _vesicular(rng, depth) if vesicular else _dense(rng, depth)
    return _assembled(
        depth, chromatin, eosin=rng.uniform(0.18, 0.45) if vesicular else rng.uniform(0.42, 0.62)
    )


def fibroblast_nucleus(rng: np.random.Generator) -> Floats:
    """A slender, evenly dark nucleus (drawn round; placing stretches it)."""
    depth = outline(rng, _SIDE, MASTER_RADIUS_PX, 0.05)
    texture = 0.8 + 0.2 * _mottle(rng, (4, 9)) + 0.35 * _rim(rng, depth, 2.4)
    return _assembled(depth, texture * rng.uniform(0.7, 1.25), eosin=0.4)


def lymphocyte_nucleus(rng: np.random.Generator) -> Floats:
    """A round dark nucleus with coarse clumps."""
    depth = outline(rng, _SIDE, MASTER_RADIUS_PX, 0.03)
    clumps = np.clip(_mottle(rng, (5, 11)), -1.3, 1.5)
    return _assembled(depth, (1.25 + 0.3 * clumps) * rng.uniform(0.75, 1.15), eosin=0.35)


def _vesicular(rng: np.random.Generator, depth: Floats) -> Floats:
    """Pale, with threads and grains of chromatin hanging on a crisp, uneven membrane."""
    threads = np.exp(-((_mottle(rng, (3.5, 7)) / 0.35) ** 2))
    clumps = softstep(_mottle(rng, (2.6, 4, 8)) - rng.uniform(0.5, 1.2), 0.8)
    body = 0.02 + 0.25 * rng.random() ** 2 + 0.06 * speckle(rng, _SIDE, 3)
    body = body + rng.uniform(0.15, 0.45) * threads + rng.uniform(0.6, 1.2) * clumps
    body = body + rng.uniform(1.0, 1.8) * _rim(rng, depth, 1.7)
    for _ in range(rng.integers(0, 3)):
        body = np.maximum(body, rng.uniform(1.0, 1.8) * _spot(rng, depth, rng.uniform(2.0, 4.4)))
    return np.asarray(body, np.float32)


def _dense(rng: np.random.Generator, depth: Floats) -> Floats:
    """Dark, coarsely granular throughout."""
    grains = softstep(_mottle(rng, (2.6, 3.6, 7)) - rng.uniform(-0.3, 0.6), 0.9)
    body = rng.uniform(0.4, 0.8) + rng.uniform(0.6, 1.1) * grains
    body = body + rng.uniform(0.5, 1.1) * _rim(rng, depth, 1.7)
    if rng.random() < 0.4:
        body = np.maximum(body, 1.7 * _spot(rng, depth, rng.uniform(2, 4)))
    return np.asarray(body, np.float32)


def _mottle(rng: np.random.Generator, grains_px: tuple[float, ...]) -> Floats:
    """Noise with several grains at once, standard deviation about 1."""
    total = np.zeros((_SIDE, _SIDE), np.float32)
    for grain in grains_px:
        total += speckle(rng, _SIDE, grain)
    return total / np.float32(np.sqrt(len(grains_px)))


def _rim(rng: np.random.Generator, depth: Floats, width: float) -> Floats:
    """A membrane of uneven thickness just inside the outline."""
    uneven = np.clip(0.75 + 0.28 * _mottle(rng, (4, 12)), 0.1, 1.4)
    wander = depth - 1.5 + 0.5 * speckle(rng, _SIDE, 6)
    rim: Floats = uneven * np.exp(-((wander / width) ** 2))
    return rim


def _spot(rng: np.random.Generator, depth: Floats, radius: float) -> Floats:
    """A nucleolus somewhere well inside."""
    reach = max(1.0, MASTER_RADIUS_PX - 8)
    angle, distance = rng.uniform(0, 2 * np.pi), reach * np.sqrt(rng.random())
    x, y = plane(_SIDE)
    away = np.hypot(x - distance * np.cos(angle), y - distance * np.sin(angle))
    return softstep(radius - away, 1.6) * softstep(depth - 3, 3)


def _assembled(depth: Floats, chromatin: Array, eosin: float) -> Floats:
    sprite = blank(_SIDE)
    inside = softstep(depth, 1.8)
    sprite[..., COVER] = inside
    sprite[..., HAEMATOXYLIN] = inside * np.clip(chromatin, 0.03, 3)
    sprite[..., EOSIN] = inside * eosin * (1 + 0.5 * np.clip(chromatin - 0.8, 0, 1))
    return sprite
