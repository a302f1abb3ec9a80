"""What is taken for a mitosis in H&E, and what is brown in PHH3 without being one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from metaphase.simulation.nuclei import (
    Pair,
    add_chromatin,
    ball,
    blur,
    make_sprite,
    outline,
    plane,
    ridge,
    softstep,
    speckle,
)
from metaphase.simulation.placement import Kind
from metaphase.simulation.randomness import Array, Random


class Look(NamedTuple):
    """How objects of a kind are drawn: the outline that random numbers give, and what is painted in it."""

    paint: Callable[[Random, Array, float], Array]
    """From the depth below the outline and its radius in pixels."""
    room: float
    """Half the side of the picture, in radii."""
    roughness: float = 0.0
    """Of the outline; where it is 0 there is none, and depth only tells how large the picture is."""
    aspects: Pair | None = None
    radii: Pair | None = None
    """Shares of the radius of the nucleus that it replaces; None is that nucleus' own."""
    radius_px: float | None = None
    """Radius of that nucleus, where it does not matter."""


def lookalike_sprite(rng: Random, kind: Kind, radius: float) -> Array:
    """One object of a look-alike or artefact kind; `radius` in pixels is that of the nucleus it replaces."""
    look = _LOOKS[kind]
    radius = look.radius_px or radius
    if look.radii is not None:
        radius *= rng.uniform(*look.radii)
    side = 2 * int(np.ceil(radius * look.room)) + 8
    if not look.roughness:
        return look.paint(rng, np.zeros((side, side), np.float32), radius)
    aspect = 1.0 if look.aspects is None else rng.uniform(*look.aspects)
    return look.paint(rng, outline(rng, side, radius, look.roughness, aspect), radius)


def _darken(rng: Random, sprite: Array, where: Array, strengths: Pair) -> Array:
    """With smooth dark chromatin over whatever the sprite shows so far."""
    return add_chromatin(sprite, where, rng.uniform(*strengths), 0.5, 0.08, hides=where)


def _balls(rng: Random, like: Array, most: int, scale: float, radii: Pair, reach: float) -> Array:
    """Up to so many discs."""
    balls = np.zeros_like(like)
    for _ in range(rng.integers(1, most + 1)):
        balls = np.maximum(balls, ball(rng, like, scale * rng.uniform(*radii), reach))
    return balls


def _smudge(rng: Random, like: Array, contrast: float) -> Array:
    """Uneven chromatin: a factor around 1 with fine and coarse grain."""
    mottle = 0.5 * speckle(rng, like, 3) + 0.7 * speckle(rng, like, 6) + 0.7 * speckle(rng, like, 12)
    return np.clip(1 + contrast * mottle, 0.3, 1.7)


def _granules(rng: Random, like: Array, fewest: int, reach: float) -> Array:
    """Grains of all sizes in a few heaps."""
    heap, (x, y) = np.zeros_like(like), plane(len(like))
    count = int(rng.integers(fewest, 40))
    centres = rng.normal(0, 0.35 * reach, (3, 2))
    for _ in range(count):
        position = centres[rng.integers(0, 3)] + rng.normal(0, 0.25 * reach, 2)
        size = np.exp(rng.normal(0.45, 0.35))
        grain = softstep(size - np.hypot(x - position[0], y - position[1]), 1.8)
        heap = np.maximum(heap, grain * rng.uniform(0.5, 1))
    return blur(heap, rng.uniform(0, 0.9))


def _apoptotic(rng: Random, depth: Array, radius: float) -> Array:
    """Shrunken pink cytoplasm in a clear halo, with one to five smooth, very dark balls."""
    body, halo = softstep(depth, 3), softstep(depth + radius * rng.uniform(0.05, 0.5), 4)
    halo = halo * np.clip(rng.uniform(0.2, 1.0) + 0.3 * speckle(rng, depth, 24), 0, 1)
    pink = np.clip(1 + 0.15 * speckle(rng, depth, 5), 0.4, 2)
    sprite = make_sprite(
        cover=np.maximum(body, 0.9 * halo),
        eosin=body * rng.uniform(0.4, 0.8) * pink + 0.06 * halo,
        haematoxylin=body * rng.uniform(0.1, 0.35),
    )
    balls = _balls(rng, depth, 5, radius, (0.18, 0.5), 0.55 * radius)
    return _darken(rng, sprite, balls, (1.7, 2.5))


def _pyknotic(rng: Random, depth: Array, radius: float) -> Array:
    """A shrunken, smooth, evenly dark nucleus, often in a clear ring."""
    ring = softstep(depth + radius * rng.uniform(0.2, 0.8), 5) * rng.uniform(0.2, 0.95)
    ring = ring * np.clip(0.7 + 0.5 * speckle(rng, depth, 20), 0, 1)
    nucleus = softstep(depth, 2.2) * _smudge(rng, depth, 0.10)
    return _darken(rng, make_sprite(cover=ring, eosin=0.1 * ring), nucleus, (1.5, 2.3))


def _hyperchromatic(rng: Random, depth: Array, radius: float) -> Array:
    """A full-sized nucleus, angular, dark and smudged, in dense cytoplasm, a slit at its side."""
    inside = softstep(depth, rng.uniform(1.8, 4))
    cytoplasm = softstep(depth + radius * rng.uniform(0.1, 0.5), 6) * rng.uniform(0, 0.8)
    x, y = plane(len(depth))
    slit = ridge(depth + rng.uniform(3, 7), 3) * softstep(x + 0.3 * y - 0.4 * radius, radius)
    slit = slit * rng.uniform(0, 1) * (1 - inside)
    return make_sprite(
        cover=np.clip(inside + cytoplasm * (1 - inside) + slit, 0, 1),
        haematoxylin=inside * rng.uniform(1.0, 1.9) * _smudge(rng, depth, 0.22) + 0.25 * cytoplasm,
        eosin=(inside * rng.uniform(0.35, 0.6) + cytoplasm * (1 - inside) * 0.8) * (1 - slit),
    )


def _tangential_lymphocyte(rng: Random, depth: Array, _radius: float) -> Array:
    """A lymphocyte cut near its pole: small, dark, without a visible membrane."""
    halo = softstep(depth + 5, 5) * rng.uniform(0.3, 0.9)
    clumps = np.clip(1 + 0.25 * speckle(rng, depth, 7), 0.5, 1.6)
    nucleus = np.clip(softstep(depth, 3.5) * clumps, 0, 1.1)
    return _darken(rng, make_sprite(cover=halo, eosin=0.12 * halo), nucleus, (1.3, 1.9))


def _crushed_nuclei(rng: Random, depth: Array, _radius: float) -> Array:
    streaks = _smudge(rng, depth, 0.25)
    inside = blur(softstep(depth, 3), rng.uniform(0, 1.5))
    return make_sprite(
        cover=inside, haematoxylin=inside * streaks * rng.uniform(1.3, 2.0), eosin=0.5 * inside
    )


def _debris(rng: Random, depth: Array, _radius: float) -> Array:
    """A dark crumb above the plane of focus."""
    soft = blur(softstep(depth, 2), rng.uniform(1.5, 3.5))
    black = rng.uniform(0.1, 0.5) * soft
    return make_sprite(cover=0.5 * soft, haematoxylin=1.2 * soft, eosin=0.5 * soft, black=black)


def _heap_of_pigment(rng: Random, depth: Array, radius: float) -> Array:
    """Brown granules in a loose heap; as dark in PHH3 as in H&E."""
    granules = _granules(rng, depth, 6, 0.9 * radius)
    return make_sprite(
        cover=0.2 * granules,
        haematoxylin=0.3 * granules,
        black=rng.uniform(0.2, 0.6) * granules,
        dab=rng.uniform(0.8, 1.4) * granules,
    )


def _ink(rng: Random, depth: Array, _radius: float) -> Array:
    """A blot of marking ink: blue-black, uneven, hard-edged."""
    black = rng.uniform(0.5, 1.6) * softstep(depth, 3) * _smudge(rng, depth, 0.2)
    return make_sprite(black=black, haematoxylin=0.8 * softstep(depth + 2, 6))


def _karyorrhexis(rng: Random, depth: Array, radius: float) -> Array:
    """Nuclear dust of necrosis: few faint fragments."""
    dust = _balls(rng, depth, 4, 1.0, (1.5, 4.0), 0.7 * radius)
    return make_sprite(cover=0.5 * dust, haematoxylin=dust * rng.uniform(0.5, 1.5), eosin=0.5 * dust)


def _vacuole(rng: Random, depth: Array, _radius: float) -> Array:
    """An empty round hole with a thin wall."""
    wall = ridge(depth + 1.5, 1.6)
    hole = softstep(depth, 2.5) * rng.uniform(0.8, 1.0)
    return make_sprite(cover=hole, haematoxylin=0.10 * wall, eosin=0.22 * wall)


def _red_cells(rng: Random, depth: Array, radius: float) -> Array:
    """A capillary: a lumen with a wall and some red cells."""
    lumen = softstep(depth, 2.5)
    cells = _balls(rng, depth, 5, 1.0, (9, 13), max(radius - 6, 3))
    wall = ridge(depth + 2, 2.5)
    return make_sprite(cover=lumen, haematoxylin=0.12 * cells * lumen, eosin=cells * lumen + 0.3 * wall)


def _brown_nucleus(rng: Random, depth: Array, _radius: float) -> Array:
    """A nucleus in G2: its membrane still there, brown only as a few grains."""
    inside = softstep(depth, 1.8)
    clumps = np.clip(speckle(rng, depth, 6), -1, 2)
    chromatin = 0.35 + 0.25 * clumps + 0.9 * ridge(depth - 1.3, 1.6)
    grains = np.clip(speckle(rng, depth, 5) - 0.8, 0, 1.5)
    return make_sprite(
        cover=inside,
        haematoxylin=inside * np.clip(chromatin, 0.1, 2),
        eosin=0.2 * inside,
        dab=inside * (rng.uniform(0.05, 0.4) + grains * rng.uniform(0.3, 1.0)),
    )


def _brown_speck(rng: Random, depth: Array, _radius: float) -> Array:
    """A precipitate: a hard brown-black crumb of any shape."""
    crumb = blur(softstep(depth, 1.8), rng.choice([0.0, 0.0, 1.2, 2.2]))
    return make_sprite(dab=crumb * rng.uniform(1.0, 2.6), black=crumb * rng.uniform(0.0, 1.0))


def _brown_grain(rng: Random, depth: Array, radius: float) -> Array:
    """Scattered granules of pigment that only the PHH3 scan shows as brown."""
    granules = _granules(rng, depth, 8, 1.1 * radius)
    return make_sprite(dab=granules * rng.uniform(0.8, 1.6), black=granules * rng.uniform(0.1, 0.6))


def _brown_haze(rng: Random, depth: Array, radius: float) -> Array:
    """A cloud of background staining with a patchy edge."""
    edge = np.clip(1.1 * softstep(depth - 0.2 * radius, radius) - 0.1, 0, 1)
    cloud = edge * np.clip(0.75 + 0.35 * speckle(rng, depth, 9), 0, 2)
    return make_sprite(dab=cloud * rng.uniform(0.45, 0.95))


def _brown_fibre(rng: Random, depth: Array, _radius: float) -> Array:
    """A stained strand; placed along the collagen."""
    strand = softstep(depth, 3) * np.clip(0.9 + 0.3 * speckle(rng, depth, 6), 0, 2)
    return make_sprite(dab=strand * rng.uniform(0.6, 1.3))


_HAZE = Look(_brown_haze, 2.0, 0.2, aspects=(1, 2), radii=(1.5, 3.5))
_LOOKS = {
    Kind.APOPTOTIC: Look(_apoptotic, 1.7, 0.08, radii=(0.8, 1.15)),
    Kind.PYKNOTIC: Look(_pyknotic, 2.4, 0.11, aspects=(1, 1.9), radii=(0.42, 0.75)),
    Kind.HYPERCHROMATIC: Look(_hyperchromatic, 2.2, 0.15, aspects=(1, 2.2), radii=(0.7, 1.1)),
    Kind.TANGENTIAL_LYMPHOCYTE: Look(_tangential_lymphocyte, 2.2, 0.07, radii=(1.9, 2.9), radius_px=4.0),
    Kind.CRUSHED: Look(_crushed_nuclei, 2.8, 0.2, aspects=(2.2, 5), radii=(0.6, 1.0)),
    Kind.DEBRIS: Look(_debris, 3.0, 0.25, aspects=(1, 2.5), radii=(0.4, 0.9)),
    Kind.PIGMENT: Look(_heap_of_pigment, 1.6),
    Kind.INK: Look(_ink, 2.2, 0.3, aspects=(1, 2), radii=(0.3, 1.0)),
    Kind.KARYORRHEXIS: Look(_karyorrhexis, 1.3),
    Kind.VACUOLE: Look(_vacuole, 1.9, 0.12, aspects=(1, 1.8)),
    Kind.RED_CELL: Look(_red_cells, 2.2, 0.15, aspects=(1.2, 2.2)),
    Kind.BROWN_NUCLEUS: Look(_brown_nucleus, 1.6, 0.07, aspects=(1, 1.5)),
    Kind.BROWN_SPECK: Look(_brown_speck, 2.2, 0.28, aspects=(1, 3), radii=(0.3, 0.8)),
    Kind.BROWN_GRAIN: Look(_brown_grain, 2.2),
    Kind.BROWN_EDGE: _HAZE,
    Kind.BROWN_HAZE: _HAZE,
    Kind.BROWN_FIBRE: Look(_brown_fibre, 2.4, 0.12, aspects=(0.06, 0.2), radii=(1.0, 2.2)),
}
