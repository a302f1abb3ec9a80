"""Pairs of tiles that should show the same tissue: where to take them, how to read and compare them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import cv2
import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from metaphase.parallel import available_cores, ordered_map
from metaphase.registration.correlation import Image, correlate
from metaphase.registration.imaging import View, detail
from metaphase.registration.similarity import Points

MIN_TISSUE = 0.5
"""Random tiles lie where at least this share of the tile is tissue, on both slides."""
MARGIN_PX = 3
"""Read beyond the window, for the resampling kernel."""


class Mapping(Protocol):
    """What takes a place of the PHH3 slide to the H&E slide, both in micrometres."""

    @property
    def matrix(self) -> Points:
        """The linear part (2, 2)."""

    def apply(self, points: Points) -> Points:
        """H&E micrometres (n, 2) of PHH3 micrometres (n, 2)."""


@dataclass(frozen=True)
class SlidePair:
    """The two slides of one section."""

    he: View
    phh3: View


@dataclass(frozen=True)
class TileShape:
    """How large a tile is, how far it is looked for, and at which resolution."""

    tile_px: int
    search_px: int
    mpp: float

    @property
    def window_px(self) -> int:
        """Side of the searched window."""
        return self.tile_px + 2 * self.search_px

    @property
    def tile_um(self) -> float:
        """Side of the tile."""
        return self.tile_px * self.mpp

    @property
    def search_um(self) -> float:
        """How far the tile is looked for."""
        return self.search_px * self.mpp


def read_template(pair: SlidePair, place_um: Points, shape: TileShape) -> Image:
    """The PHH3 tile around `place_um` (2,)."""
    x, y = place_um - shape.tile_um / 2
    return detail(pair.phh3.density(float(x), float(y), shape.tile_px, shape.tile_px, shape.mpp))


def read_window(pair: SlidePair, mapping: Mapping, place_um: Points, shape: TileShape) -> Image:
    """The H&E tissue where `mapping` takes the tile, turned into the PHH3 frame, with room to search."""
    matrix, mpp, side = mapping.matrix, shape.mpp, shape.window_px
    centre = mapping.apply(place_um[None])[0]
    reach = np.abs(matrix).sum(axis=1) * side * mpp / 2 + MARGIN_PX * mpp
    x, y = centre - reach
    width, height = (int(v) for v in np.ceil(2 * reach / mpp))
    density = pair.he.density(float(x), float(y), width, height, mpp)
    offset = reach / mpp - 0.5 - matrix @ np.full(2, (side - 1) / 2)
    affine = np.column_stack([matrix, offset])
    flags = cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP
    return detail(np.asarray(cv2.warpAffine(density, affine, (side, side), flags=flags), np.float32))


def heat_maps(pair: SlidePair, mapping: Mapping, places_um: Points, shape: TileShape) -> Iterator[Image]:
    """The correlation of each place's tile with its window, as (2 search + 1, 2 search + 1), in order.

    Tiles are read and compared in threads; only a few wait in memory.
    """

    def compare(place: Points) -> Image:
        return correlate(read_template(pair, place, shape), read_window(pair, mapping, place, shape))

    threads = available_cores()
    yield from ordered_map(compare, places_um, threads=threads, ahead=2 * threads)


def shuffled_heat_maps(
    pair: SlidePair, mapping: Mapping, places_um: Points, shape: TileShape, rounds: int
) -> Iterator[Image]:
    """Tiles correlated with windows of other places: what heat maps look like where nothing corresponds."""
    threads = available_cores()
    read = partial(_both, pair, mapping, shape)
    pairs = list(ordered_map(read, places_um, threads=threads, ahead=2 * threads))
    for step in range(1, min(rounds, len(pairs) - 1) + 1):
        for index, (template, _) in enumerate(pairs):
            yield correlate(template, pairs[(index + step) % len(pairs)][1])


def _both(pair: SlidePair, mapping: Mapping, shape: TileShape, place: Points) -> tuple[Image, Image]:
    return read_template(pair, place, shape), read_window(pair, mapping, place, shape)


def tissue_places(
    pair: SlidePair,
    mapping: Mapping,
    tile_um: float,
    count: int,
    rng: np.random.Generator,
    min_spacing_um: float = 0.0,
) -> Points:
    """At most `count` PHH3 places (n, 2), um, well apart, with tissue around them on both slides."""
    found = _candidates(pair, mapping, tile_um)
    if not len(found) or not count:
        return np.zeros((0, 2))
    found = found[rng.permutation(len(found))[:MAX_CANDIDATES]]
    found = found + rng.uniform(-0.5, 0.5, found.shape) * pair.phh3.tissue.mpp
    found = np.clip(found, 0, pair.phh3.size_um)
    spacing = max(min_spacing_um, float(np.ptp(found, axis=0).max()) / np.sqrt(count))
    chosen = _apart(found, spacing, count)
    while len(chosen) < min(count, len(found)) and spacing > max(min_spacing_um, SMALLEST_SPACING * tile_um):
        spacing = max(spacing * 0.8, min_spacing_um)
        chosen = _apart(found, spacing, count)
    return found[chosen]


MAX_CANDIDATES = 20_000
SMALLEST_SPACING = 0.25
"""Tiles whose centres are closer than this share of their side show the same."""


def _candidates(pair: SlidePair, mapping: Mapping, tile_um: float) -> Points:
    """Centres of PHH3 mask pixels around which both slides have tissue."""
    tissue = pair.phh3.tissue
    cells = np.argwhere(_share(pair.phh3, tile_um) >= MIN_TISSUE)[:, ::-1].astype(np.float64)
    corner = np.array([tissue.x, tissue.y])
    places: Points = ((cells + 0.5) * tissue.scale + corner) * pair.phh3.slide.mpp
    other = pair.he.tissue
    mapped = mapping.apply(places) / pair.he.slide.mpp
    there = np.floor((mapped - (other.x, other.y)) / other.scale).astype(int)
    inside = ((there >= 0) & (there < other.mask.shape[::-1])).all(axis=1)
    places, there = places[inside], there[inside]
    enough = _share(pair.he, tile_um)[there[:, 1], there[:, 0]] >= MIN_TISSUE
    return np.asarray(places[enough], np.float64)


def _share(view: View, tile_um: float) -> npt.NDArray[np.float32]:
    """Share of tissue in the tile around each pixel of the mask; beyond the mask there is none."""
    side = max(1, round(tile_um / view.tissue.mpp))
    mask = view.tissue.mask.astype(np.float32)
    return np.asarray(cv2.blur(mask, (side, side), borderType=cv2.BORDER_CONSTANT), np.float32)


def _apart(points: Points, spacing: float, count: int) -> list[int]:
    """Indices of the first points, in order, that keep `spacing` from those taken before."""
    near = cKDTree(points)
    free = np.ones(len(points), bool)
    chosen: list[int] = []
    for index in range(len(points)):
        if free[index]:
            chosen.append(index)
            if len(chosen) == count:
                break
            free[near.query_ball_point(points[index], spacing)] = False
    return chosen
