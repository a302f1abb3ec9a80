"""Nuclei and the small drawings that all objects are made of.

A sprite is float32 (side, side, 5): how much of the ground it covers, then the concentrations of
haematoxylin, eosin, DAB and black pigment that it brings along; nuclei have the first three only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from metaphase.base.arrays import Floats32
from metaphase.base.geometry import Box
from metaphase.simulation.architecture import Tumour
from metaphase.simulation.randomness import generator

# ---- small pictures of stain on transparent ground ----

Array = npt.NDArray[Any]
COVER, HAEMATOXYLIN, EOSIN, DAB, BLACK = range(5)


def blank(side: int) -> Floats32:
    """An empty sprite."""
    return np.zeros((side, side, 5), np.float32)


def plane(side: int) -> tuple[Floats32, Floats32]:
    """Pixel-centre coordinates x (1, side) and y (side, 1) from the sprite's centre."""
    axis = np.arange(side, dtype=np.float32) - np.float32((side - 1) / 2)
    return axis[None, :], axis[:, None]


def softstep(values: Array, width: float) -> Floats32:
    """0 below, 1 above, a smooth ramp of about `width` around zero."""
    return np.asarray(1 / (1 + np.exp(np.clip(-4 * values / width, -30, 30))), np.float32)


def blurred(picture: Array, sigma: float) -> Floats32:
    """Gaussian blur; nothing for a sigma too small to see."""
    if sigma < 0.2:
        return np.asarray(picture, np.float32)
    return np.asarray(cv2.GaussianBlur(picture, (0, 0), sigma, borderType=cv2.BORDER_REFLECT), np.float32)


def outline(
    rng: np.random.Generator, side: int, radius: float, roughness: float, aspect: float = 1.0
) -> Floats32:
    """Depth below a wobbly closed outline, in pixels, positive inside (side, side)."""
    x, y = plane(side)
    x = x * np.float32(np.sqrt(aspect)) if aspect != 1 else x
    y = y / np.float32(np.sqrt(aspect)) if aspect != 1 else y
    angle, distance = np.arctan2(y, x), np.hypot(x, y)
    edge = np.full_like(angle, radius)
    for order in range(2, 7):
        swing = radius * roughness * rng.normal() / (order - 1)
        edge += np.float32(swing) * np.cos(order * angle + np.float32(rng.uniform(0, 2 * np.pi)))
    return edge - distance


def speckle(rng: np.random.Generator, side: int, grain_px: float) -> Floats32:
    """Smooth noise of the given grain, mean 0 and standard deviation 1."""
    noise = blurred(rng.standard_normal((side, side), dtype=np.float32), grain_px / 2.4)
    return np.asarray((noise - noise.mean()) / (noise.std() + 1e-6), np.float32)


def paste(maps: Floats32, box: Box, sprite: Floats32, x: float, y: float) -> None:
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


def turned(sprite: Floats32, angle: float, scale: float, aspect: float, x: float, y: float) -> Floats32:
    """`sprite` scaled, stretched and rotated, shifted so that `paste` at (x, y) is exact below a pixel."""
    side = int(np.ceil(sprite.shape[0] * scale * max(aspect, 1 / aspect) ** 0.5)) + 2
    shift_x, shift_y = (v - side / 2 - round(v - side / 2) for v in (x, y))
    cosine, sine = np.cos(angle), np.sin(angle)
    along, across = scale * aspect**0.5, scale * aspect**-0.5
    matrix = np.array([[cosine * along, -sine * across], [sine * along, cosine * across]])
    centre = np.array([(side - 1) / 2 + shift_x, (side - 1) / 2 + shift_y])
    offset = centre - matrix @ np.full(2, (sprite.shape[0] - 1) / 2)
    affine = np.hstack([matrix, offset[:, None]])
    return np.asarray(cv2.warpAffine(sprite, affine, (side, side), flags=cv2.INTER_LINEAR), np.float32)


# ---- libraries of interphase nuclei ----

MASTER_RADIUS_PX = 20.0
"""Radius at which every library picture is drawn; placing scales it."""
_SIDE = 52
_FOCUS_LEVELS = (1.0, 0.8, 0.6, 0.4, 0.2)


@dataclass(frozen=True)
class NucleusLibrary:
    """Pictures (side, side, 3) of one case by cell type: for each plane of focus its variants."""

    tumour: tuple[tuple[Floats32, ...], ...]
    fibroblast: tuple[tuple[Floats32, ...], ...]
    lymphocyte: tuple[tuple[Floats32, ...], ...]


def nucleus_library(seed: int, tumour: Tumour) -> NucleusLibrary:
    """Draw the libraries of a case."""
    return NucleusLibrary(
        tumour=_planes([tumour_nucleus(generator(seed, 1, i), tumour) for i in range(128)]),
        fibroblast=_planes([fibroblast_nucleus(generator(seed, 2, i)) for i in range(24)]),
        lymphocyte=_planes([lymphocyte_nucleus(generator(seed, 3, i)) for i in range(24)]),
    )


def picked(variants: tuple[tuple[Floats32, ...], ...], seed: int, focus: float) -> Floats32:
    """The picture that stands for a cell: any variant, in the plane of focus nearest to `focus`."""
    plane_index = int(np.argmin([abs(focus - level) for level in _FOCUS_LEVELS]))
    return variants[plane_index][seed % len(variants[plane_index])]


def _planes(sharp: list[Floats32]) -> tuple[tuple[Floats32, ...], ...]:
    return tuple(tuple(_defocused(picture[..., :3], focus) for picture in sharp) for focus in _FOCUS_LEVELS)


def _defocused(sprite: Floats32, focus: float) -> Floats32:
    """The same nucleus above or below the plane of focus: softer and fainter."""
    if focus == 1:
        return np.ascontiguousarray(sprite)
    return blurred(sprite, 1.6 * (1 - focus)) * np.float32(0.55 + 0.45 * focus)


def tumour_nucleus(rng: np.random.Generator, tumour: Tumour) -> Floats32:
    """A vesicular or a dark nucleus of a tumour cell, in one of many planes of cutting."""
    depth = outline(rng, _SIDE, MASTER_RADIUS_PX, 0.02 + 0.26 * tumour.pleomorphism)
    vesicular = rng.random() < tumour.openness
    chromatin = _vesicular(rng, depth) if vesicular else _dense(rng, depth)
    return _assembled(
        depth, chromatin, eosin=rng.uniform(0.18, 0.45) if vesicular else rng.uniform(0.42, 0.62)
    )


def fibroblast_nucleus(rng: np.random.Generator) -> Floats32:
    """A slender, evenly dark nucleus (drawn round; placing stretches it)."""
    depth = outline(rng, _SIDE, MASTER_RADIUS_PX, 0.05)
    texture = 0.8 + 0.2 * _mottle(rng, (4, 9)) + 0.35 * _rim(rng, depth, 2.4)
    return _assembled(depth, texture * rng.uniform(0.7, 1.25), eosin=0.4)


def lymphocyte_nucleus(rng: np.random.Generator) -> Floats32:
    """A round dark nucleus with coarse clumps."""
    depth = outline(rng, _SIDE, MASTER_RADIUS_PX, 0.03)
    clumps = np.clip(_mottle(rng, (5, 11)), -1.3, 1.5)
    return _assembled(depth, (1.25 + 0.3 * clumps) * rng.uniform(0.75, 1.15), eosin=0.35)


def _vesicular(rng: np.random.Generator, depth: Floats32) -> Floats32:
    """Pale, with threads and grains of chromatin hanging on a crisp, uneven membrane."""
    threads = np.exp(-((_mottle(rng, (3.5, 7)) / 0.35) ** 2))
    clumps = softstep(_mottle(rng, (2.6, 4, 8)) - rng.uniform(0.5, 1.2), 0.8)
    body = 0.02 + 0.25 * rng.random() ** 2 + 0.06 * speckle(rng, _SIDE, 3)
    body = body + rng.uniform(0.15, 0.45) * threads + rng.uniform(0.6, 1.2) * clumps
    body = body + rng.uniform(1.0, 1.8) * _rim(rng, depth, 1.7)
    for _ in range(rng.integers(0, 3)):
        body = np.maximum(body, rng.uniform(1.0, 1.8) * _spot(rng, depth, rng.uniform(2.0, 4.4)))
    return np.asarray(body, np.float32)


def _dense(rng: np.random.Generator, depth: Floats32) -> Floats32:
    """Dark, coarsely granular throughout."""
    grains = softstep(_mottle(rng, (2.6, 3.6, 7)) - rng.uniform(-0.3, 0.6), 0.9)
    body = rng.uniform(0.4, 0.8) + rng.uniform(0.6, 1.1) * grains
    body = body + rng.uniform(0.5, 1.1) * _rim(rng, depth, 1.7)
    if rng.random() < 0.4:
        body = np.maximum(body, 1.7 * _spot(rng, depth, rng.uniform(2, 4)))
    return np.asarray(body, np.float32)


def _mottle(rng: np.random.Generator, grains_px: tuple[float, ...]) -> Floats32:
    """Noise with several grains at once, standard deviation about 1."""
    total = np.zeros((_SIDE, _SIDE), np.float32)
    for grain in grains_px:
        total += speckle(rng, _SIDE, grain)
    return total / np.float32(np.sqrt(len(grains_px)))


def _rim(rng: np.random.Generator, depth: Floats32, width: float) -> Floats32:
    """A membrane of uneven thickness just inside the outline."""
    uneven = np.clip(0.75 + 0.28 * _mottle(rng, (4, 12)), 0.1, 1.4)
    wander = depth - 1.5 + 0.5 * speckle(rng, _SIDE, 6)
    rim: Floats32 = uneven * np.exp(-((wander / width) ** 2))
    return rim


def _spot(rng: np.random.Generator, depth: Floats32, radius: float) -> Floats32:
    """A nucleolus somewhere well inside."""
    reach = max(1.0, MASTER_RADIUS_PX - 8)
    angle, distance = rng.uniform(0, 2 * np.pi), reach * np.sqrt(rng.random())
    x, y = plane(_SIDE)
    away = np.hypot(x - distance * np.cos(angle), y - distance * np.sin(angle))
    return softstep(radius - away, 1.6) * softstep(depth - 3, 3)


def _assembled(depth: Floats32, chromatin: Array, eosin: float) -> Floats32:
    sprite = blank(_SIDE)
    inside = softstep(depth, 1.8)
    sprite[..., COVER] = inside
    sprite[..., HAEMATOXYLIN] = inside * np.clip(chromatin, 0.03, 3)
    sprite[..., EOSIN] = inside * eosin * (1 + 0.5 * np.clip(chromatin - 0.8, 0, 1))
    return sprite
