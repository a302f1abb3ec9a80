"""Nuclei, mitotic figures, and the small drawings that all objects are made of.

A sprite is float32 (side, side, 5): how much of the ground it covers, then the concentrations of
haematoxylin, eosin, DAB and black pigment that it brings along; nuclei have the first three only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import tau

import cv2
import numpy as np

from metaphase.base.arrays import Box, Floats
from metaphase.simulation.architecture import Tumour
from metaphase.simulation.placement import Kind
from metaphase.simulation.randomness import Array, Random, generator

# ---- small pictures of stain on transparent ground ----

Layer = Array | float
Pair = tuple[float, float]
COVER, HAEMATOXYLIN, EOSIN, DAB, BLACK = range(5)


def make_sprite(
    cover: Layer = 0, haematoxylin: Layer = 0, eosin: Layer = 0, dab: Layer = 0, black: Layer = 0
) -> Array:
    """A sprite of its five layers."""
    layers = np.broadcast_arrays(cover, haematoxylin, eosin, dab, black)
    return np.stack(layers, axis=-1).astype(np.float32, order="C")


def plane(side: int) -> tuple[Array, Array]:
    """Pixel-centre coordinates x (1, side) and y (side, 1) from the sprite's centre."""
    axis = np.arange(side, dtype=np.float32) - np.float32((side - 1) / 2)
    return axis[None, :], axis[:, None]


def softstep(values: Array, width: float) -> Array:
    """0 below, 1 above, a smooth ramp of about `width` around zero."""
    step: Array = 1 / (1 + np.exp(np.clip(-4 * values / width, -30, 30)))
    return step.astype(np.float32, copy=False)


def ridge(values: Array, width: float) -> Array:
    """1 where the values are 0, falling to 1/e at `width` from there."""
    return np.exp(-((values / width) ** 2))


def blur(picture: Array, sigma: float) -> Array:
    """Gaussian blur; a sigma below 0.2 px changes nothing."""
    if sigma < 0.2:
        return picture
    return cv2.GaussianBlur(picture, (0, 0), sigma, borderType=cv2.BORDER_REFLECT)


def outline(rng: Random, side: int, radius: float, roughness: float, aspect: float = 1.0) -> Array:
    """Depth below a wobbly closed outline, in pixels, positive inside (side, side)."""
    x, y = plane(side)
    stretch = np.float32(np.sqrt(aspect))
    x, y = x * stretch, y / stretch
    angle, distance = np.arctan2(y, x), np.hypot(x, y)
    edge: Array = np.full_like(angle, radius)
    for order in range(2, 7):
        swing = radius * roughness * rng.normal() / (order - 1)
        edge += np.float32(swing) * np.cos(order * angle + np.float32(rng.uniform(0, tau)))
    depth: Array = edge - distance
    return depth


def speckle(rng: Random, like: Array, grain_px: float) -> Array:
    """Smooth noise of the given grain, mean 0 and standard deviation 1, as large as another picture."""
    noise = blur(rng.standard_normal(like.shape, dtype=np.float32), grain_px / 2.4)
    scaled: Array = (noise - noise.mean()) / (noise.std() + 1e-6)
    return scaled


def ball(rng: Random, like: Array, radius: float, reach: float, softness: float = 2.0) -> Array:
    """A disc of 2 px or more, anywhere up to `reach` from the middle of a picture."""
    x, y = plane(len(like))
    angle, distance = rng.uniform(0, tau), reach * np.sqrt(rng.random())
    away = np.hypot(x - distance * np.cos(angle), y - distance * np.sin(angle))
    return softstep(max(radius, 2.0) - away, softness)


def add_chromatin(
    sprite: Array, where: Array, strength: float, eosin: float, black: float, hides: Array
) -> Array:
    """Dark chromatin over whatever the sprite shows so far, as far as it `hides` that."""
    for channel, value in ((HAEMATOXYLIN, strength), (EOSIN, eosin), (BLACK, black)):
        sprite[..., channel] = sprite[..., channel] * (1 - hides) + value * where
    sprite[..., COVER] = np.maximum(sprite[..., COVER], hides)
    return sprite


def paste(maps: Array, box: Box, sprite: Array, x: float, y: float) -> None:
    """Draw `sprite` centred at (x, y) of the plane into `maps` (4, height, width), which show `box`."""
    side = sprite.shape[0]
    left, top = round(x - side / 2) - box.x, round(y - side / 2) - box.y
    x0, y0 = max(left, 0), max(top, 0)
    x1, y1 = min(left + side, box.width), min(top + side, box.height)
    if x0 >= x1 or y0 >= y1:
        return
    cut = sprite[y0 - top : y1 - top, x0 - left : x1 - left]
    spared = 1 - cut[..., COVER]
    for channel in range(1, cut.shape[2]):
        ground = maps[channel - 1, y0:y1, x0:x1]
        ground *= spared
        ground += cut[..., channel]


def turn_sprite(sprite: Array, angle: float, scale: float, aspect: float, x: float, y: float) -> Array:
    """`sprite` scaled, stretched and rotated, shifted so that `paste` at (x, y) is exact below a pixel."""
    side = int(np.ceil(sprite.shape[0] * scale * max(aspect, 1 / aspect) ** 0.5)) + 2
    shift_x, shift_y = (v - side / 2 - round(v - side / 2) for v in (x, y))
    cosine, sine = np.cos(angle), np.sin(angle)
    along, across = scale * aspect**0.5, scale * aspect**-0.5
    matrix = np.array([[cosine * along, -sine * across], [sine * along, cosine * across]])
    centre = np.array([(side - 1) / 2 + shift_x, (side - 1) / 2 + shift_y])
    offset = centre - matrix @ np.full(2, (sprite.shape[0] - 1) / 2)
    affine = np.hstack([matrix, offset[:, None]])
    return cv2.warpAffine(sprite, affine, (side, side), flags=cv2.INTER_LINEAR)


# ---- libraries of interphase nuclei ----

MASTER_RADIUS_PX = 20.0
"""Radius at which every library picture is drawn; placing scales it."""
_SIDE = 52
_FOCUS_LEVELS = (1.0, 0.8, 0.6, 0.4, 0.2)


NucleusLibrary = dict[Kind, list[list[Array]]]
"""Pictures (side, side, 3) of one case by cell type: for each plane of focus its variants."""


def nucleus_library(seed: int, tumour: Tumour) -> NucleusLibrary:
    """Draw the libraries of a case; above or below the plane of focus, nuclei are softer and fainter."""
    drawn = {
        Kind.TUMOUR: [tumour_nucleus(generator(seed, 1, i), tumour) for i in range(128)],
        Kind.FIBROBLAST: [fibroblast_nucleus(generator(seed, 2, i)) for i in range(24)],
        Kind.LYMPHOCYTE: [lymphocyte_nucleus(generator(seed, 3, i)) for i in range(24)],
    }
    return {
        kind: [[_out_of_focus(picture, focus) for picture in pictures] for focus in _FOCUS_LEVELS]
        for kind, pictures in drawn.items()
    }


def _out_of_focus(picture: Array, focus: float) -> Array:
    stains = np.ascontiguousarray(picture[..., :3])
    return blur(stains, 1.6 * (1 - focus)) * np.float32(0.55 + 0.45 * focus)


def pick_variant(variants: list[list[Array]], seed: int, focus: float) -> Array:
    """The picture that stands for a cell: any variant, in the plane of focus nearest to `focus`."""
    pictures = variants[np.abs(np.subtract(_FOCUS_LEVELS, focus)).argmin()]
    return pictures[seed % len(pictures)]


def tumour_nucleus(rng: Random, tumour: Tumour) -> Array:
    """A vesicular or a dark nucleus of a tumour cell, in one of many planes of cutting."""
    depth = outline(rng, _SIDE, MASTER_RADIUS_PX, 0.02 + 0.26 * tumour.pleomorphism)
    vesicular = rng.random() < tumour.openness
    chromatin = _vesicular(rng, depth) if vesicular else _dense(rng, depth)
    return _assemble(
        depth, chromatin, eosin=rng.uniform(0.18, 0.45) if vesicular else rng.uniform(0.42, 0.62)
    )


def fibroblast_nucleus(rng: Random) -> Array:
    """A slender, evenly dark nucleus (drawn round; placing stretches it)."""
    depth = outline(rng, _SIDE, MASTER_RADIUS_PX, 0.05)
    texture = 0.8 + 0.2 * _mottle(rng, depth, 4, 9) + 0.35 * _rim(rng, depth, 2.4)
    return _assemble(depth, texture * rng.uniform(0.7, 1.25), eosin=0.4)


def lymphocyte_nucleus(rng: Random) -> Array:
    """A round dark nucleus with coarse clumps."""
    depth = outline(rng, _SIDE, MASTER_RADIUS_PX, 0.03)
    clumps = np.clip(_mottle(rng, depth, 5, 11), -1.3, 1.5)
    return _assemble(depth, (1.25 + 0.3 * clumps) * rng.uniform(0.75, 1.15), eosin=0.35)


def _vesicular(rng: Random, depth: Array) -> Array:
    """Pale, with threads and grains of chromatin hanging on a crisp, uneven membrane."""
    threads = ridge(_mottle(rng, depth, 3.5, 7), 0.35)
    clumps = softstep(_mottle(rng, depth, 2.6, 4, 8) - rng.uniform(0.5, 1.2), 0.8)
    body = 0.02 + 0.25 * rng.random() ** 2 + 0.06 * speckle(rng, depth, 3)
    body = body + rng.uniform(0.15, 0.45) * threads + rng.uniform(0.6, 1.2) * clumps
    body = body + rng.uniform(1.0, 1.8) * _rim(rng, depth, 1.7)
    for _ in range(rng.integers(0, 3)):
        body = np.maximum(body, rng.uniform(1.0, 1.8) * _spot(rng, depth, rng.uniform(2.0, 4.4)))
    return body


def _dense(rng: Random, depth: Array) -> Array:
    grains = softstep(_mottle(rng, depth, 2.6, 3.6, 7) - rng.uniform(-0.3, 0.6), 0.9)
    body = rng.uniform(0.4, 0.8) + rng.uniform(0.6, 1.1) * grains
    body = body + rng.uniform(0.5, 1.1) * _rim(rng, depth, 1.7)
    if rng.random() < 0.4:
        body = np.maximum(body, 1.7 * _spot(rng, depth, rng.uniform(2, 4)))
    return body


def _mottle(rng: Random, depth: Array, *grains_px: float) -> Array:
    """Noise with several grains at once, standard deviation about 1."""
    layers = [speckle(rng, depth, grain) for grain in grains_px]
    mottle: Array = np.sum(layers, axis=0) / np.float32(np.sqrt(len(layers)))
    return mottle


def _rim(rng: Random, depth: Array, width: float) -> Array:
    """A membrane of uneven thickness just inside the outline."""
    uneven = np.clip(0.75 + 0.28 * _mottle(rng, depth, 4, 12), 0.1, 1.4)
    wander = depth - 1.5 + 0.5 * speckle(rng, depth, 6)
    return uneven * ridge(wander, width)


def _spot(rng: Random, depth: Array, radius: float) -> Array:
    """A nucleolus somewhere well inside."""
    return ball(rng, depth, radius, MASTER_RADIUS_PX - 8, 1.6) * softstep(depth - 3, 3)


def _assemble(depth: Array, chromatin: Array, eosin: float) -> Array:
    inside = softstep(depth, 1.8)
    return make_sprite(
        cover=inside,
        haematoxylin=inside * np.clip(chromatin, 0.03, 3),
        eosin=inside * eosin * (1 + 0.5 * np.clip(chromatin - 0.8, 0, 1)),
    )


# ---- mitotic figures: chromosome arms heaped up in the shape of each phase, in a cleared cell ----

_FINE = 2
"""Arms are drawn this many times finer than the slide."""
Arms = Floats
"""Chromosome arms (n, 5): centre x, centre y, heading in radians, length, thickness; in pixels."""


def mitosis_sprite(rng: Random, kind: Kind, atypical: bool, radius: float) -> Array:
    """One mitotic figure; `radius` is that of the cell's nucleus before it divided, in pixels."""
    side = 2 * int(np.ceil(3.0 * radius)) + 48
    arms = _SHAPES[kind](rng, radius * rng.uniform(0.72, 0.95), atypical)
    chromatin = _paint_arms(rng, arms, side)
    sprite = _cell_body(rng, side, radius, kind)
    strength = rng.uniform(1.9, 2.7) if kind != Kind.PROPHASE else rng.uniform(1.2, 1.7)
    add_chromatin(sprite, chromatin, strength, 0.45, 0.09, hides=np.clip(chromatin, 0, 1))
    # DAB lies on the chromatin and bleeds a little; prophases are granular and weaker.
    spread = blur(chromatin, rng.uniform(1.0, 2.0))
    brown = rng.uniform(0.9, 1.3) if kind == Kind.PROPHASE else rng.uniform(1.0, 1.8)
    sprite[..., DAB] = brown * np.clip(1.25 * spread, 0, 1.2) + 0.12 * blur(spread, 5.0)
    return sprite


def _cell_body(rng: Random, side: int, radius: float, kind: Kind) -> Array:
    """The rounded, paler cell around the chromatin, sometimes drawn back from its neighbours."""
    stretch = {Kind.ANAPHASE: 1.35, Kind.TELOPHASE: 1.7}.get(kind, 1.0)
    body_radius = radius * rng.uniform(1.3, 1.8)
    depth = outline(rng, side, body_radius, 0.04, stretch)
    clear = softstep(depth, rng.uniform(4, 10))
    net = 0.11 * speckle(rng, depth, 3) + 0.13 * speckle(rng, depth, 6) + 0.12 * speckle(rng, depth, 14)
    eosin = np.clip(rng.uniform(0.1, 0.55) * (1 + net / 0.35), 0.02, 1.2)
    cover = clear * rng.uniform(0.45, 1.0)
    membrane = ridge(depth, 1.6) * rng.uniform(0.0, 0.12)
    halo = ridge(depth + 4, 3.5) * (rng.random() < 0.2) * rng.uniform(0.3, 0.9)
    halo = halo * np.clip(0.6 + 0.5 * speckle(rng, depth, 30), 0, 1)
    return make_sprite(
        cover=np.clip(np.maximum(cover, halo), 0, 1),
        haematoxylin=0.45 * eosin * cover + 0.5 * membrane,
        eosin=eosin * cover + membrane,
    )


def _paint_arms(rng: Random, arms: Arms, side: int) -> Array:
    """Coverage by chromatin, about 1 where arms pile up, with a rough edge."""
    canvas = np.zeros((side * _FINE, side * _FINE), np.float32)
    layer = np.zeros_like(canvas, np.uint8)
    shift = 3
    for x, y, heading, length, thickness in arms:
        half = np.array([np.cos(heading), np.sin(heading)]) * length / 2
        middle = np.array([x, y]) + side / 2
        first, last = (((middle + end) * _FINE * 2**shift).astype(int).tolist() for end in (-half, half))
        layer[:] = 0
        cv2.line(layer, first, last, 255, max(1, round(thickness * _FINE)), cv2.LINE_AA, shift)
        canvas += layer * np.float32(0.75 / 255)
    arms_apart = 1 - np.exp(-1.4 * blur(canvas, 0.5 * _FINE))
    massed = blur(canvas, rng.uniform(0.9, 1.9) * _FINE) - rng.uniform(0.3, 0.5)
    heap = np.clip(1.15 * softstep(massed, 0.6) - 0.15, 0, 1)
    together = np.maximum(rng.uniform(0.25, 0.9) * arms_apart, heap)
    small = cv2.resize(together, (side, side), interpolation=cv2.INTER_AREA)
    uneven = 1 + 0.07 * speckle(rng, small, 3) + 0.08 * speckle(rng, small, 7)
    return blur(np.clip(small * uneven, 0, 1.15), max(0.0, rng.normal(0.3, 0.5)))


def _along_plate(rng: Random, n: int, length: float, width: float, bend: float) -> Arms:
    """Arms standing across a bar of the given length and width."""
    t = np.clip(rng.normal(0, 0.36, n), -0.62, 0.62) if rng.random() < 0.3 else rng.uniform(-0.5, 0.5, n)
    x = t * length
    y = bend * length * (4 * t**2 - 0.33) + rng.normal(0, width * 0.24, n)
    heading = np.pi / 2 + rng.normal(0, 0.55, n)
    return np.stack([x, y, heading, rng.uniform(0.45, 0.95, n) * width, rng.uniform(1.6, 3.0, n)], axis=1)


def _around(distance: Floats, angle: Floats, *others: Floats) -> Arms:
    """Arms at some distance from the middle, with their heading, length and thickness."""
    return np.column_stack([distance * np.cos(angle), distance * np.sin(angle), *others])


def _prophase(rng: Random, radius: float, _atypical: bool) -> Arms:
    n = int(rng.integers(34, 52))
    distance = radius * 0.88 * np.sqrt(rng.random(n))
    angle = rng.uniform(0, tau, n)
    heading = rng.uniform(0, np.pi, n)
    length, thickness = rng.uniform(3, 9, n), rng.uniform(1.0, 2.0, n)
    return _around(distance, angle, heading, length, thickness)


def _prometaphase(rng: Random, radius: float, atypical: bool) -> Arms:
    n = int(rng.integers(38, 62))
    blobs = rng.normal(0, 0.33 * radius, (int(rng.integers(3, 7)), 2))
    centre = blobs[rng.integers(0, len(blobs), n)] + rng.normal(0, 0.20 * radius, (n, 2))
    heading, length = rng.uniform(0, np.pi, n), rng.uniform(4, 10, n)
    arms = np.column_stack([centre, heading, length, rng.uniform(1.6, 3.0, n)])
    return np.vstack([arms, _strays(rng, radius, 3 if atypical else 0)])


def _metaphase_side(rng: Random, radius: float, atypical: bool) -> Arms:
    length, width = radius * rng.uniform(1.5, 2.3), radius * rng.uniform(0.5, 0.9)
    plate = _along_plate(rng, int(rng.integers(44, 66)), length, width, rng.normal(0, 0.05))
    if not atypical:
        return np.vstack([plate, _strays(rng, radius, int(rng.random() < 0.25))])
    if rng.random() < 0.5:
        return np.vstack([plate, _strays(rng, radius * 1.3, int(rng.integers(3, 6)))])
    third = _along_plate(rng, 26, length * 0.6, width, 0.0)
    return np.vstack([plate, _move(third, np.pi / 2 + rng.normal(0, 0.3), 0.0, length * 0.3)])


def _metaphase_polar(rng: Random, radius: float, atypical: bool) -> Arms:
    n = int(rng.integers(44, 66))
    angle = rng.uniform(0, tau, n)
    hollow = rng.uniform(0.0, 0.45)
    distance = (
        radius * np.sqrt(rng.uniform(hollow**2, 0.68, n)) * (1 + 0.14 * np.cos(3 * angle + rng.uniform(0, 6)))
    )
    heading = angle + rng.normal(0, 0.45, n)
    length, thickness = rng.uniform(4, 9, n), rng.uniform(1.6, 2.8, n)
    arms = _around(distance, angle, heading, length, thickness)
    return np.vstack([arms, _strays(rng, radius * 1.3, 4 if atypical else 0)])


def _separate_plates(
    rng: Random, radius: float, atypical: bool, *, gaps: Pair, lengths: Pair, widths: Pair
) -> Arms:
    """Two plates apart, arms trailing towards the middle; bridges and laggards when atypical."""
    gap, length, width = (radius * rng.uniform(*limits) for limits in (gaps, lengths, widths))
    groups = []
    for side in (-1, 1):
        size = 1 if not atypical else rng.uniform(0.7, 1.2)
        half = _along_plate(rng, 30, length * size, width, side * rng.uniform(0.02, 0.16))
        half[:, 1] -= side * 0.15 * half[:, 3]
        groups.append(_move(half, rng.normal(0, 0.08), 0.0, side * gap / 2))
    if atypical:
        x, y = rng.uniform(-length / 3, length / 3, 3), rng.uniform(-gap / 4, gap / 4, 3)
        groups.append(np.column_stack([x, y, np.full(3, np.pi / 2), rng.uniform(4, gap, 3), np.full(3, 1.4)]))
    return np.vstack(groups)


def _move(arms: Arms, angle: float, x: float, y: float) -> Arms:
    cosine, sine = np.cos(angle), np.sin(angle)
    turned = arms.copy()
    turned[:, 0] = cosine * arms[:, 0] - sine * arms[:, 1] + x
    turned[:, 1] = sine * arms[:, 0] + cosine * arms[:, 1] + y
    turned[:, 2] += angle
    return turned


def _strays(rng: Random, radius: float, n: int) -> Arms:
    """Single chromosomes away from the rest."""
    angle, distance = rng.uniform(0, tau, n), radius * rng.uniform(0.75, 1.05, n)
    heading, length, thickness = rng.uniform(0, np.pi, n), rng.uniform(2, 5, n), rng.uniform(1.8, 3, n)
    return _around(distance, angle, heading, length, thickness)


_SHAPES: dict[Kind, Callable[[Random, float, bool], Arms]] = {
    Kind.PROPHASE: _prophase,
    Kind.PROMETAPHASE: _prometaphase,
    Kind.METAPHASE_SIDE: _metaphase_side,
    Kind.METAPHASE_POLAR: _metaphase_polar,
    Kind.ANAPHASE: partial(_separate_plates, gaps=(0.65, 1.35), lengths=(1.2, 1.8), widths=(0.38, 0.6)),
    Kind.TELOPHASE: partial(_separate_plates, gaps=(1.7, 2.4), lengths=(0.85, 1.25), widths=(0.45, 0.7)),
}
