"""Pictures of mitotic figures: chromosome arms heaped up in the shape of each phase, in a cleared cell."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np

from metaphase.base.arrays import Floats, Floats32
from metaphase.simulation.nuclei import (
    BLACK,
    COVER,
    DAB,
    EOSIN,
    HAEMATOXYLIN,
    blank,
    blurred,
    outline,
    softstep,
    speckle,
)
from metaphase.simulation.placement import Kind

_FINE = 2
"""Arms are drawn this many times finer than the slide."""
Arms = Floats
"""Chromosome arms (n, 5): centre x, centre y, heading in radians, length, thickness; in pixels."""


def mitosis_sprite(rng: np.random.Generator, kind: Kind, atypical: bool, radius: float) -> Floats32:
    """One mitotic figure; `radius` is that of the cell's nucleus before it divided, in pixels."""
    side = 2 * int(np.ceil(3.0 * radius)) + 48
    arms = _SHAPES[kind](rng, radius * rng.uniform(0.72, 0.95), atypical)
    chromatin = _painted(rng, arms, side)
    sprite = _cell_body(rng, side, radius, kind)
    shown = np.clip(chromatin, 0, 1)
    strength = rng.uniform(1.9, 2.7) if kind != Kind.PROPHASE else rng.uniform(1.2, 1.7)
    for channel, value in ((HAEMATOXYLIN, strength), (EOSIN, 0.45), (BLACK, 0.09)):
        sprite[..., channel] = sprite[..., channel] * (1 - shown) + value * chromatin
    sprite[..., COVER] = np.maximum(sprite[..., COVER], shown)
    sprite[..., DAB] = _antibody(rng, chromatin, kind)
    return sprite


def _antibody(rng: np.random.Generator, chromatin: Floats32, kind: Kind) -> Floats32:
    """DAB lies on the chromatin and bleeds a little; prophases are granular and weaker."""
    spread = blurred(chromatin, rng.uniform(1.0, 2.0))
    strength = rng.uniform(0.9, 1.3) if kind == Kind.PROPHASE else rng.uniform(1.0, 1.8)
    bleeding = 0.12 * blurred(spread, 5.0)
    return np.asarray(strength * np.clip(1.25 * spread, 0, 1.2) + bleeding, np.float32)


def _cell_body(rng: np.random.Generator, side: int, radius: float, kind: Kind) -> Floats32:
    """The rounded, paler cell around the chromatin, sometimes drawn back from its neighbours."""
    sprite = blank(side)
    stretch = {Kind.ANAPHASE: 1.35, Kind.TELOPHASE: 1.7}.get(kind, 1.0)
    body_radius = radius * rng.uniform(1.3, 1.8)
    depth = outline(rng, side, body_radius, 0.04, stretch)
    clear = softstep(depth, rng.uniform(4, 10))
    net = 0.11 * speckle(rng, side, 3) + 0.13 * speckle(rng, side, 6) + 0.12 * speckle(rng, side, 14)
    eosin = np.clip(rng.uniform(0.1, 0.55) * (1 + net / 0.35), 0.02, 1.2)
    cover = clear * rng.uniform(0.45, 1.0)
    membrane = np.exp(-((depth / 1.6) ** 2)) * rng.uniform(0.0, 0.12)
    halo = np.exp(-(((depth + 4) / 3.5) ** 2)) * (rng.random() < 0.2) * rng.uniform(0.3, 0.9)
    halo = halo * np.clip(0.6 + 0.5 * speckle(rng, side, 30), 0, 1)
    sprite[..., COVER] = np.clip(np.maximum(cover, halo), 0, 1)
    sprite[..., EOSIN] = eosin * cover + membrane
    sprite[..., HAEMATOXYLIN] = 0.45 * eosin * cover + 0.5 * membrane
    return sprite


def _painted(rng: np.random.Generator, arms: Arms, side: int) -> Floats32:
    """Coverage by chromatin, about 1 where arms pile up, with a rough edge."""
    canvas = np.zeros((side * _FINE, side * _FINE), np.float32)
    layer = np.zeros_like(canvas, np.uint8)
    shift = 3
    for x, y, heading, length, thickness in arms:
        dx, dy = np.cos(heading) * length / 2, np.sin(heading) * length / 2
        ends = [
            ((np.array([x + s * dx, y + s * dy]) + side / 2) * _FINE * 2**shift).astype(int) for s in (-1, 1)
        ]
        layer[:] = 0
        cv2.line(
            layer, tuple(map(int, ends[0])), tuple(map(int, ends[1])), 255, max(1, round(thickness * _FINE)),
            cv2.LINE_AA, shift,
        )  # fmt: skip
        canvas += layer * np.float32(0.75 / 255)
    arms_apart = 1 - np.exp(-1.4 * blurred(canvas, 0.5 * _FINE))
    massed = blurred(canvas, rng.uniform(0.9, 1.9) * _FINE) - rng.uniform(0.3, 0.5)
    heap = np.clip(1.15 * softstep(massed, 0.6) - 0.15, 0, 1)
    together = np.maximum(rng.uniform(0.25, 0.9) * arms_apart, heap)
    small = cv2.resize(together, (side, side), interpolation=cv2.INTER_AREA)
    uneven = 1 + 0.07 * speckle(rng, side, 3) + 0.08 * speckle(rng, side, 7)
    return blurred(np.clip(small * uneven, 0, 1.15), max(0.0, rng.normal(0.3, 0.5)))


def _along_plate(rng: np.random.Generator, n: int, length: float, width: float, bend: float) -> Arms:
    """Arms standing across a bar of the given length and width."""
    t = np.clip(rng.normal(0, 0.36, n), -0.62, 0.62) if rng.random() < 0.3 else rng.uniform(-0.5, 0.5, n)
    x = t * length
    y = bend * length * (4 * t**2 - 0.33) + rng.normal(0, width * 0.24, n)
    heading = np.pi / 2 + rng.normal(0, 0.55, n)
    return np.stack([x, y, heading, rng.uniform(0.45, 0.95, n) * width, rng.uniform(1.6, 3.0, n)], axis=1)


def _prophase(rng: np.random.Generator, radius: float, _atypical: bool) -> Arms:
    n = int(rng.integers(34, 52))
    distance = radius * 0.88 * np.sqrt(rng.random(n))
    angle = rng.uniform(0, 2 * np.pi, n)
    heading = rng.uniform(0, np.pi, n)
    length, thickness = rng.uniform(3, 9, n), rng.uniform(1.0, 2.0, n)
    return np.stack([distance * np.cos(angle), distance * np.sin(angle), heading, length, thickness], axis=1)


def _prometaphase(rng: np.random.Generator, radius: float, atypical: bool) -> Arms:
    n = int(rng.integers(38, 62))
    blobs = rng.normal(0, 0.33 * radius, (int(rng.integers(3, 7)), 2))
    centre = blobs[rng.integers(0, len(blobs), n)] + rng.normal(0, 0.20 * radius, (n, 2))
    heading, length = rng.uniform(0, np.pi, n), rng.uniform(4, 10, n)
    arms = np.column_stack([centre, heading, length, rng.uniform(1.6, 3.0, n)])
    return np.vstack([arms, _strays(rng, radius, 3 if atypical else 0)])


def _metaphase_side(rng: np.random.Generator, radius: float, atypical: bool) -> Arms:
    length, width = radius * rng.uniform(1.5, 2.3), radius * rng.uniform(0.5, 0.9)
    plate = _along_plate(rng, int(rng.integers(44, 66)), length, width, rng.normal(0, 0.05))
    if not atypical:
        return np.vstack([plate, _strays(rng, radius, int(rng.random() < 0.25))])
    if rng.random() < 0.5:
        return np.vstack([plate, _strays(rng, radius * 1.3, int(rng.integers(3, 6)))])
    third = _along_plate(rng, 26, length * 0.6, width, 0.0)
    return np.vstack([plate, _moved(third, np.pi / 2 + rng.normal(0, 0.3), 0.0, length * 0.3)])


def _metaphase_polar(rng: np.random.Generator, radius: float, atypical: bool) -> Arms:
    n = int(rng.integers(44, 66))
    angle = rng.uniform(0, 2 * np.pi, n)
    hollow = rng.uniform(0.0, 0.45)
    distance = (
        radius * np.sqrt(rng.uniform(hollow**2, 0.68, n)) * (1 + 0.14 * np.cos(3 * angle + rng.uniform(0, 6)))
    )
    heading = angle + rng.normal(0, 0.45, n)
    length, thickness = rng.uniform(4, 9, n), rng.uniform(1.6, 2.8, n)
    arms = np.stack([distance * np.cos(angle), distance * np.sin(angle), heading, length, thickness], axis=1)
    return np.vstack([arms, _strays(rng, radius * 1.3, 4 if atypical else 0)])


def _anaphase(rng: np.random.Generator, radius: float, atypical: bool) -> Arms:
    gap, length = radius * rng.uniform(0.65, 1.35), radius * rng.uniform(1.2, 1.8)
    return _separated(rng, gap, length, radius * rng.uniform(0.38, 0.6), atypical)


def _telophase(rng: np.random.Generator, radius: float, atypical: bool) -> Arms:
    gap, length = radius * rng.uniform(1.7, 2.4), radius * rng.uniform(0.85, 1.25)
    return _separated(rng, gap, length, radius * rng.uniform(0.45, 0.7), atypical)


def _separated(rng: np.random.Generator, gap: float, length: float, width: float, atypical: bool) -> Arms:
    """Two plates `gap` apart, arms trailing towards the middle; bridges and laggards when atypical."""
    groups = []
    for side in (-1, 1):
        size = 1 if not atypical else rng.uniform(0.7, 1.2)
        half = _along_plate(rng, 30, length * size, width, side * rng.uniform(0.02, 0.16))
        half[:, 1] -= side * 0.15 * half[:, 3]
        groups.append(_moved(half, rng.normal(0, 0.08), 0.0, side * gap / 2))
    if atypical:
        x, y = rng.uniform(-length / 3, length / 3, 3), rng.uniform(-gap / 4, gap / 4, 3)
        groups.append(np.column_stack([x, y, np.full(3, np.pi / 2), rng.uniform(4, gap, 3), np.full(3, 1.4)]))
    return np.vstack(groups)


def _moved(arms: Arms, angle: float, x: float, y: float) -> Arms:
    cosine, sine = np.cos(angle), np.sin(angle)
    turned = arms.copy()
    turned[:, 0] = cosine * arms[:, 0] - sine * arms[:, 1] + x
    turned[:, 1] = sine * arms[:, 0] + cosine * arms[:, 1] + y
    turned[:, 2] += angle
    return turned


def _strays(rng: np.random.Generator, radius: float, n: int) -> Arms:
    """Single chromosomes away from the rest."""
    angle, distance = rng.uniform(0, 2 * np.pi, n), radius * rng.uniform(0.75, 1.05, n)
    heading, length, thickness = rng.uniform(0, np.pi, n), rng.uniform(2, 5, n), rng.uniform(1.8, 3, n)
    return np.stack([distance * np.cos(angle), distance * np.sin(angle), heading, length, thickness], axis=1)


_SHAPES: dict[Kind, Callable[[np.random.Generator, float, bool], Arms]] = {
    Kind.PROPHASE: _prophase,
    Kind.PROMETAPHASE: _prometaphase,
    Kind.METAPHASE_SIDE: _metaphase_side,
    Kind.METAPHASE_POLAR: _metaphase_polar,
    Kind.ANAPHASE: _anaphase,
    Kind.TELOPHASE: _telophase,
}
