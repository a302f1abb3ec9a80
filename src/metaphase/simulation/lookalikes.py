"""Pictures of what is taken for a mitosis in H&E, and of what is brown in PHH3 without being one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from metaphase.base.arrays import Floats32
from metaphase.simulation.nuclei import (
    BLACK,
    COVER,
    DAB,
    EOSIN,
    HAEMATOXYLIN,
    blank,
    blurred,
    outline,
    plane,
    softstep,
    speckle,
)
from metaphase.simulation.placement import Kind


def lookalike_sprite(rng: np.random.Generator, kind: Kind, radius: float) -> Floats32:
    """One object of a look-alike or artefact kind; `radius` in pixels is that of the nucleus it replaces."""
    return _DRAWN[kind](rng, radius)


def _side(radius: float) -> int:
    return 2 * int(np.ceil(radius)) + 8


def _apoptotic(rng: np.random.Generator, radius: float) -> Floats32:
    """Shrunken pink cytoplasm in a clear halo, with one to five smooth, very dark balls."""
    cell = radius * rng.uniform(0.8, 1.15)
    side = _side(cell * 1.7)
    sprite = blank(side)
    depth = outline(rng, side, cell, 0.08)
    body, halo = softstep(depth, 3), softstep(depth + cell * rng.uniform(0.05, 0.5), 4)
    halo = halo * np.clip(rng.uniform(0.2, 1.0) + 0.3 * speckle(rng, side, 24), 0, 1)
    sprite[..., COVER] = np.maximum(body, 0.9 * halo)
    pink = np.clip(1 + 0.15 * speckle(rng, side, 5), 0.4, 2)
    sprite[..., EOSIN] = body * rng.uniform(0.4, 0.8) * pink + 0.06 * halo
    sprite[..., HAEMATOXYLIN] = body * rng.uniform(0.1, 0.35)
    balls = np.zeros((side, side), np.float32)
    for _ in range(rng.integers(1, 6)):
        balls = np.maximum(balls, _ball(rng, side, cell * rng.uniform(0.18, 0.5), 0.55 * cell))
    _add_chromatin(sprite, balls, rng.uniform(1.7, 2.5))
    return sprite


def _ball(rng: np.random.Generator, side: int, radius: float, reach: float) -> Floats32:
    x, y = plane(side)
    angle, distance = rng.uniform(0, 2 * np.pi), reach * np.sqrt(rng.random())
    away = np.hypot(x - distance * np.cos(angle), y - distance * np.sin(angle))
    return softstep(max(radius, 2.0) - away, 2.0)


def _add_chromatin(sprite: Floats32, where: Floats32, strength: float) -> None:
    """Smooth dark chromatin over whatever the sprite shows so far."""
    for channel, value in ((HAEMATOXYLIN, strength), (EOSIN, 0.5), (BLACK, 0.08)):
        sprite[..., channel] = sprite[..., channel] * (1 - where) + value * where
    sprite[..., COVER] = np.maximum(sprite[..., COVER], where)


def _pyknotic(rng: np.random.Generator, radius: float) -> Floats32:
    """A shrunken, smooth, evenly dark nucleus, often in a clear ring."""
    small = radius * rng.uniform(0.42, 0.75)
    side = _side(small * 2.4)
    sprite = blank(side)
    depth = outline(rng, side, small, 0.11, rng.uniform(1, 1.9))
    ring = softstep(depth + small * rng.uniform(0.2, 0.8), 5) * rng.uniform(0.2, 0.95)
    ring = ring * np.clip(0.7 + 0.5 * speckle(rng, side, 20), 0, 1)
    sprite[..., COVER], sprite[..., EOSIN] = ring, 0.1 * ring
    _add_chromatin(sprite, softstep(depth, 2.2) * _smudge(rng, side, 0.10), rng.uniform(1.5, 2.3))
    return sprite


def _smudge(rng: np.random.Generator, side: int, contrast: float) -> Floats32:
    """Uneven chromatin: a factor around 1 with fine and coarse grain."""
    mottle = 0.5 * speckle(rng, side, 3) + 0.7 * speckle(rng, side, 6) + 0.7 * speckle(rng, side, 12)
    return np.asarray(np.clip(1 + contrast * mottle, 0.3, 1.7), np.float32)


def _hyperchromatic(rng: np.random.Generator, radius: float) -> Floats32:
    """A full-sized nucleus, angular, dark and smudged, in dense cytoplasm, a slit at its side."""
    large = radius * rng.uniform(0.7, 1.1)
    side = _side(large * 2.2)
    sprite = blank(side)
    depth = outline(rng, side, large, 0.15, rng.uniform(1, 2.2))
    inside = softstep(depth, rng.uniform(1.8, 4))
    cytoplasm = softstep(depth + large * rng.uniform(0.1, 0.5), 6) * rng.uniform(0, 0.8)
    x, y = plane(side)
    slit = np.exp(-(((depth + rng.uniform(3, 7)) / 3) ** 2)) * softstep(x + 0.3 * y - 0.4 * large, large)
    slit = slit * rng.uniform(0, 1) * (1 - inside)
    sprite[..., COVER] = np.clip(inside + cytoplasm * (1 - inside) + slit, 0, 1)
    sprite[..., HAEMATOXYLIN] = inside * rng.uniform(1.0, 1.9) * _smudge(rng, side, 0.22) + 0.25 * cytoplasm
    sprite[..., EOSIN] = (inside * rng.uniform(0.35, 0.6) + cytoplasm * (1 - inside) * 0.8) * (1 - slit)
    return sprite


def _tangential_lymphocyte(rng: np.random.Generator, _radius: float) -> Floats32:
    """A lymphocyte cut near its pole: small, dark, without a visible membrane."""
    small = rng.uniform(1.9, 2.9) * 4
    side = _side(small * 2.2)
    sprite = blank(side)
    depth = outline(rng, side, small, 0.07)
    halo = softstep(depth + 5, 5) * rng.uniform(0.3, 0.9)
    sprite[..., COVER], sprite[..., EOSIN] = halo, 0.12 * halo
    clumps = np.clip(1 + 0.25 * speckle(rng, side, 7), 0.5, 1.6)
    _add_chromatin(sprite, np.clip(softstep(depth, 3.5) * clumps, 0, 1.1), rng.uniform(1.3, 1.9))
    return sprite


def _crushed(rng: np.random.Generator, radius: float) -> Floats32:
    """Smeared, streaky, dark nuclei."""
    long = radius * rng.uniform(0.6, 1.0)
    side = _side(long * 2.8)
    sprite = blank(side)
    depth = outline(rng, side, long, 0.2, rng.uniform(2.2, 5))
    streaks = _smudge(rng, side, 0.25)
    inside = blurred(softstep(depth, 3), rng.uniform(0, 1.5))
    sprite[..., COVER] = inside
    sprite[..., HAEMATOXYLIN] = inside * streaks * rng.uniform(1.3, 2.0)
    sprite[..., EOSIN] = 0.5 * inside
    return sprite


def _debris(rng: np.random.Generator, radius: float) -> Floats32:
    """A dark crumb above the plane of focus."""
    size = radius * rng.uniform(0.4, 0.9)
    side = _side(size * 3)
    sprite = blank(side)
    depth = outline(rng, side, size, 0.25, rng.uniform(1, 2.5))
    soft = blurred(softstep(depth, 2), rng.uniform(1.5, 3.5))
    sprite[..., COVER] = 0.5 * soft
    sprite[..., HAEMATOXYLIN], sprite[..., EOSIN] = 1.2 * soft, 0.5 * soft
    sprite[..., BLACK] = rng.uniform(0.1, 0.5) * soft
    return sprite


def _pigment(rng: np.random.Generator, radius: float) -> Floats32:
    """Brown granules in a loose heap; as dark in PHH3 as in H&E."""
    side = _side(radius * 1.6)
    granules = _granules(rng, side, int(rng.integers(6, 40)), 0.9 * radius)
    sprite = blank(side)
    sprite[..., COVER], sprite[..., HAEMATOXYLIN] = 0.2 * granules, 0.3 * granules
    sprite[..., BLACK], sprite[..., DAB] = rng.uniform(0.2, 0.6) * granules, rng.uniform(0.8, 1.4) * granules
    return sprite


def _granules(rng: np.random.Generator, side: int, n: int, reach: float) -> Floats32:
    """Grains of all sizes in a few heaps."""
    heap = np.zeros((side, side), np.float32)
    x, y = plane(side)
    centres = rng.normal(0, 0.35 * reach, (3, 2))
    for _ in range(n):
        position = centres[rng.integers(0, 3)] + rng.normal(0, 0.25 * reach, 2)
        size = np.exp(rng.normal(0.45, 0.35))
        heap = np.maximum(
            heap, softstep(size - np.hypot(x - position[0], y - position[1]), 1.8) * rng.uniform(0.5, 1)
        )
    return blurred(heap, rng.uniform(0, 0.9))


def _ink(rng: np.random.Generator, radius: float) -> Floats32:
    """A blot of marking ink: blue-black, uneven, hard-edged."""
    large = radius * rng.uniform(0.3, 1.0)
    side = _side(large * 2.2)
    depth = outline(rng, side, large, 0.3, rng.uniform(1, 2))
    sprite = blank(side)
    sprite[..., BLACK] = rng.uniform(0.5, 1.6) * softstep(depth, 3) * _smudge(rng, side, 0.2)
    sprite[..., HAEMATOXYLIN] = 0.8 * softstep(depth + 2, 6)
    return sprite


def _karyorrhexis(rng: np.random.Generator, radius: float) -> Floats32:
    """Nuclear dust of necrosis: few faint fragments."""
    side = _side(radius * 1.3)
    sprite = blank(side)
    dust = np.zeros((side, side), np.float32)
    for _ in range(rng.integers(1, 5)):
        dust = np.maximum(dust, _ball(rng, side, rng.uniform(1.5, 4.0), 0.7 * radius))
    sprite[..., HAEMATOXYLIN] = dust * rng.uniform(0.5, 1.5)
    sprite[..., COVER] = 0.5 * dust
    sprite[..., EOSIN] = 0.5 * dust
    return sprite


def _vacuole(rng: np.random.Generator, radius: float) -> Floats32:
    """An empty round hole with a thin wall."""
    side = _side(radius * 1.9)
    sprite = blank(side)
    depth = outline(rng, side, radius, 0.12, rng.uniform(1, 1.8))
    sprite[..., COVER] = softstep(depth, 2.5) * rng.uniform(0.8, 1.0)
    wall = np.exp(-(((depth + 1.5) / 1.6) ** 2))
    sprite[..., EOSIN], sprite[..., HAEMATOXYLIN] = 0.22 * wall, 0.10 * wall
    return sprite


def _red_cells(rng: np.random.Generator, radius: float) -> Floats32:
    """A capillary: a lumen with a wall and some red cells."""
    side = _side(radius * 2.2)
    sprite = blank(side)
    depth = outline(rng, side, radius, 0.15, rng.uniform(1.2, 2.2))
    lumen = softstep(depth, 2.5)
    cells = np.zeros((side, side), np.float32)
    for _ in range(rng.integers(1, 6)):
        cells = np.maximum(cells, _ball(rng, side, rng.uniform(9, 13), max(radius - 6, 3)))
    sprite[..., COVER] = lumen
    sprite[..., EOSIN] = 1.0 * cells * lumen + 0.3 * np.exp(-(((depth + 2) / 2.5) ** 2))
    sprite[..., HAEMATOXYLIN] = 0.12 * cells * lumen
    return sprite


def _brown_nucleus(rng: np.random.Generator, radius: float) -> Floats32:
    """A nucleus in G2: its membrane still there, brown only as a few grains."""
    side = _side(radius * 1.6)
    sprite = blank(side)
    depth = outline(rng, side, radius, 0.07, rng.uniform(1, 1.5))
    inside = softstep(depth, 1.8)
    chromatin = (
        0.35 + 0.25 * np.clip(speckle(rng, side, 6), -1, 2) + 0.9 * np.exp(-(((depth - 1.3) / 1.6) ** 2))
    )
    grains = np.clip(speckle(rng, side, 5) - 0.8, 0, 1.5)
    sprite[..., COVER], sprite[..., EOSIN] = inside, 0.2 * inside
    sprite[..., HAEMATOXYLIN] = inside * np.clip(chromatin, 0.1, 2)
    sprite[..., DAB] = inside * (rng.uniform(0.05, 0.4) + grains * rng.uniform(0.3, 1.0))
    return sprite


def _brown_speck(rng: np.random.Generator, radius: float) -> Floats32:
    """A precipitate: a hard brown-black crumb of any shape."""
    size = radius * rng.uniform(0.3, 0.8)
    side = _side(size * 2.2)
    sprite = blank(side)
    depth = outline(rng, side, size, 0.28, rng.uniform(1, 3))
    crumb = blurred(softstep(depth, 1.8), rng.choice([0.0, 0.0, 1.2, 2.2]))
    sprite[..., DAB] = crumb * rng.uniform(1.0, 2.6)
    sprite[..., BLACK] = crumb * rng.uniform(0.0, 1.0)
    return sprite


def _brown_grain(rng: np.random.Generator, radius: float) -> Floats32:
    """Scattered granules of pigment that only the PHH3 scan shows as brown."""
    side = _side(radius * 2.2)
    granules = _granules(rng, side, int(rng.integers(8, 40)), 1.1 * radius)
    sprite = blank(side)
    sprite[..., DAB], sprite[..., BLACK] = granules * rng.uniform(0.8, 1.6), granules * rng.uniform(0.1, 0.6)
    return sprite


def _brown_haze(rng: np.random.Generator, radius: float) -> Floats32:
    """A cloud of background staining with a patchy edge."""
    large = radius * rng.uniform(1.5, 3.5)
    side = _side(large * 2)
    depth = outline(rng, side, large, 0.2, rng.uniform(1, 2))
    edge = np.clip(1.1 * softstep(depth - 0.2 * large, large) - 0.1, 0, 1)
    cloud = edge * np.clip(0.75 + 0.35 * speckle(rng, side, 9), 0, 2)
    sprite = blank(side)
    sprite[..., DAB] = cloud * rng.uniform(0.45, 0.95)
    return sprite


def _brown_fibre(rng: np.random.Generator, radius: float) -> Floats32:
    """A stained strand; placed along the collagen."""
    long = radius * rng.uniform(1.0, 2.2)
    side = _side(long * 2.4)
    depth = outline(rng, side, long, 0.12, rng.uniform(0.06, 0.2))
    strand = softstep(depth, 3) * np.clip(0.9 + 0.3 * speckle(rng, side, 6), 0, 2)
    sprite = blank(side)
    sprite[..., DAB] = strand * rng.uniform(0.6, 1.3)
    return sprite


_DRAWN: dict[Kind, Callable[[np.random.Generator, float], Floats32]] = {
    Kind.APOPTOTIC: _apoptotic,
    Kind.PYKNOTIC: _pyknotic,
    Kind.HYPERCHROMATIC: _hyperchromatic,
    Kind.TANGENTIAL_LYMPHOCYTE: _tangential_lymphocyte,
    Kind.CRUSHED: _crushed,
    Kind.DEBRIS: _debris,
    Kind.PIGMENT: _pigment,
    Kind.INK: _ink,
    Kind.KARYORRHEXIS: _karyorrhexis,
    Kind.VACUOLE: _vacuole,
    Kind.RED_CELL: _red_cells,
    Kind.BROWN_NUCLEUS: _brown_nucleus,
    Kind.BROWN_SPECK: _brown_speck,
    Kind.BROWN_GRAIN: _brown_grain,
    Kind.BROWN_EDGE: _brown_haze,
    Kind.BROWN_HAZE: _brown_haze,
    Kind.BROWN_FIBRE: _brown_fibre,
}
