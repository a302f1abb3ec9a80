"""Pixels of any part of either slide of a case: the ground, the objects on it, and the scanner's view."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

import cv2
import numpy as np
import pandas as pd

from metaphase.base.arrays import RGB, Box
from metaphase.base.errors import RegionError
from metaphase.simulation.architecture import Architecture, Fields, reach, territories
from metaphase.simulation.config import PX_PER_UM, Case, Scanner, VirtualLaboratory
from metaphase.simulation.lookalikes import lookalike_sprite
from metaphase.simulation.nuclei import (
    DAB,
    HAEMATOXYLIN,
    MASTER_RADIUS_PX,
    blur,
    mitosis_sprite,
    nucleus_library,
    paste,
    pick_variant,
    turn_sprite,
)
from metaphase.simulation.placement import LARGEST_REACH_PX, MITOSES, Kind, Placement, Thing, reach_px
from metaphase.simulation.randomness import Array, Noise, Texture, derived_seed, generator

# ---- the ground on which nuclei lie: cytoplasm, collagen, fat, necrosis, gaps and glass ----

_CELL_HALO = 112
"""Pixels around a box in which nuclei can own territory inside it."""
_FAT_HALO = 480
_OWNERS = (Kind.TUMOUR, Kind.BROWN_NUCLEUS, Kind.HYPERCHROMATIC, *MITOSES)
"""Kinds that fill a position of their own in a nest."""


class Ground:
    """Paints the ground of a case."""

    def __init__(self, architecture: Architecture, placement: Placement) -> None:
        seed = architecture.case.seed
        self.architecture = architecture
        self.placement = placement
        self._net = Texture(derived_seed(seed, 41), coarse=150, fine=4.0, slope=1.0)
        self._granules = Texture(derived_seed(seed, 42), coarse=40, fine=3.2, slope=0.8)
        self._slits = Noise(derived_seed(seed, 46), 16 * PX_PER_UM, 3, 0.6)
        self._strands = Texture(derived_seed(seed, 43), coarse=90, fine=7)
        self._clouds = Noise(derived_seed(seed, 44), 45 * PX_PER_UM, 2)
        self._thickness = Noise(derived_seed(seed, 45), 400 * PX_PER_UM, 2)
        self._fading = Noise(derived_seed(seed, 50), 1500 * PX_PER_UM, 2)
        self._waviness = (Noise(derived_seed(seed, 47), 26, 2), Noise(derived_seed(seed, 48), 26, 2))

    def paint(self, box: Box, fields: Fields) -> Array:
        """Concentrations (4, height, width) of haematoxylin, eosin, DAB and black over `box`."""
        net, granules, clouds = self._net.over(box), self._granules.over(box), self._clouds.smoothly_over(box)
        in_tumour = _ramp(fields.tumour, 0.09)
        in_necrosis = _ramp(fields.necrosis, 0.3)
        cell_stain, cell_gap = self._cells(box, net, clouds, fields.gaps)
        stroma_eosin, stroma_gap = self._stroma(box, fields)
        eosin = stroma_eosin + in_tumour * (cell_stain * (1 + 0.06 * granules) - stroma_eosin)
        eosin += in_necrosis * (0.75 + 0.16 * granules + 0.12 * clouds + 0.08 * net - eosin)
        gap = stroma_gap + in_tumour * (cell_gap - stroma_gap)
        present = 1 - np.maximum(gap * (1 - 0.7 * in_necrosis), 0.97 * _ramp(fields.cleft, 0.02))
        haematoxylin = 0.08 + 0.03 * granules
        haematoxylin += in_tumour * (0.66 * cell_stain * (1 + 0.36 * granules) - haematoxylin)
        maps = np.zeros((4, box.height, box.width), np.float32)
        maps[0], maps[1] = np.maximum(haematoxylin, 0.02) * present, np.maximum(eosin, 0) * present
        self._apply_fat(maps, box, fields)
        return maps

    def apply_unevenness(self, maps: Array, box: Box, edge: Array) -> Array:
        """Concentrations up to the tissue's edge, by the section's thickness and how evenly it took stain.

        Chromatin and cytoplasm share a fine grain; eosin was washed out here more than there.
        """
        maps *= edge * np.exp(0.09 * self._thickness.smoothly_over(box))
        maps[0] *= np.maximum(1 + 0.15 * self._granules.over(box.moved(389, 211)), 0.3)
        maps[1] *= np.exp(0.08 * self._fading.smoothly_over(box))
        return maps

    def _stroma(self, box: Box, fields: Fields) -> tuple[Array, Array]:
        """Wavy collagen: a noise picture looked up along and across the fibres, at two scales."""
        across, along = self.architecture.fibres_over(box)
        fibre = self._strand_picture(along * np.float32(0.16), across)
        bundle = self._strand_picture(along * np.float32(0.08), across * np.float32(0.25))
        eosin = 0.60 + 0.10 * fibre + 0.13 * bundle + 0.05 * self._granules.over(box)
        split = np.clip((-bundle - 0.6 * fibre - 1.9 + 0.5 * fields.gaps) * 1.4, 0, 0.9)
        return np.clip(eosin, 0.08, 2), split * self.architecture.tumour.clefts

    def _strand_picture(self, x: Array, y: Array) -> Array:
        """The strand texture at the given coordinates; it repeats, so they may be brought near zero."""
        side = self._strands.picture.shape[0]
        x, y = (axis - np.float32(side * np.floor(axis.min() / side)) for axis in (x, y))
        return cv2.remap(self._strands.picture, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)

    def _cells(self, box: Box, net: Array, clouds: Array, gaps: Array) -> tuple[Array, Array]:
        """Stain of the cytoplasm and the gaps between cells, from each cell's own territory."""
        tumour = self.architecture.tumour
        tint, border, near = self._territories(box)
        stain = tumour.cytoplasm * (0.54 + 0.16 * tint) * (1 + 0.12 * clouds + tumour.foaminess * net)
        stain = stain * (1 - 0.5 * near) + 0.10 * border
        opened = 0.75 * self._slits.smoothly_over(box) + 0.4 * gaps + 0.8 * tumour.clefts + 0.2 * net
        gap = np.clip(1.5 * (2.2 * border + 0.9 * near + opened - 2.1), 0, 1)
        return np.clip(stain, 0.05, 2), gap

    def _territories(self, box: Box) -> tuple[Array, Array, Array]:
        """Per pixel: tint of its cell (-1 to 1), closeness to a border, clearing around the nucleus."""
        wide = reach(box, _CELL_HALO, 2)
        cells = self.placement.within(wide)
        cells = cells[np.isin(cells["kind"], _OWNERS)]
        if not len(cells):
            empty = np.zeros((box.height, box.width), np.float32)
            return empty, empty, empty
        owned = territories(cells["x"], cells["y"], wide, 2)
        tint = _fraction_of_bits(cells["seed"], 20)[owned.owner] * 2 - 1
        clearing = np.clip(1.6 * _fraction_of_bits(cells["seed"], 34) - 0.6, 0, 1)[owned.owner]
        from_membrane = owned.distance - cells["radius"][owned.owner] - 4
        ring = clearing * np.exp(-((from_membrane / 7) ** 2))
        pictures = cv2.merge([cv2.blur(tint, (3, 3)), owned.borders(1.3), ring])
        shifts = (np.float32(1.3) * noise.smoothly_over(box) for noise in self._waviness)
        found = owned.at_pixels(pictures, box, *shifts)
        return found[..., 0], found[..., 1], found[..., 2]

    def _apply_fat(self, maps: Array, box: Box, fields: Fields) -> None:
        """Fat cells: thin pink walls around empty drops."""
        if float(fields.fat.max()) < -0.2:
            return
        wide = reach(box, _FAT_HALO, 4)
        owned = territories(*fat_centres(self.architecture.case.seed, wide), wide, 4)
        shifts = (np.float32(1.2) * noise.smoothly_over(box) for noise in self._waviness)
        walls = owned.at_pixels(np.minimum(1.6 * owned.borders(0.9), 1), box, *shifts)
        maps[:2] *= 1 - _ramp(fields.fat, 0.12) * (1 - 0.9 * walls)


def fat_centres(seed: int, box: Box) -> tuple[Array, Array]:
    """Centres of fat drops in `box`: one in each square of 70 um, anywhere in it."""
    pitch = 280
    columns = range(box.x // pitch, (box.right - 1) // pitch + 1)
    rows = range(box.y // pitch, (box.bottom - 1) // pitch + 1)
    spots = [
        (np.array([column, row]) + generator(seed, 49, column, row).uniform(0.1, 0.9, 2)) * pitch
        for row in rows
        for column in columns
    ]
    points = np.array(spots)
    inside = (points >= (box.x, box.y)).all(1) & (points < (box.right, box.bottom)).all(1)
    return points[inside, 0], points[inside, 1]


def _fraction_of_bits(seeds: Array, bit: int) -> Array:
    """Some bits of seeds as numbers from 0 to 1."""
    bits = (seeds >> np.uint64(bit)) & np.uint64(1023)
    return bits.astype(np.float32) / np.float32(1024)


def _ramp(values: Array, width: float) -> Array:
    """0 to 1 over `width` around zero."""
    return np.clip(values / np.float32(width) + np.float32(0.5), 0, 1)


# ---- from stain concentrations to the pixels of a scanner ----

HALO_PX = 16
"""How far optics carry light: pixels that must be known around what is scanned."""
_NOISE_SHIFTS = ((0, 0), (331, 517), (743, 199))
"""Red, green and blue see the same noise picture at unrelated positions."""
_BATCH_SPREAD = 0.07
_BLACK = (0.58, 0.58, 0.57)


def he_matrix(lab: VirtualLaboratory, batch_seed: int) -> Array:
    """Optical density (4, 3) per unit of haematoxylin, eosin, brown (here only of pigment) and black.

    Within a laboratory each slide takes a little more or less of each stain, by its batch.
    """
    first, second = np.exp(generator(batch_seed).normal(0, _BATCH_SPREAD, 2))
    stains = np.array([lab.haematoxylin, lab.eosin, lab.dab, _BLACK])
    gains = np.array([lab.haematoxylin_gain, lab.eosin_gain, 1, 2.2])
    return np.asarray(stains * gains[:, None] * np.array([first, second, 1, 1])[:, None], np.float32)


def phh3_matrix(lab: VirtualLaboratory) -> Array:
    """Optical density (4, 3) of the restained slide: weak counterstain, grey ground, brown DAB."""
    stains = np.array([lab.counterstain, lab.ground, lab.dab, _BLACK])
    gains = np.array([lab.counterstain_gain, lab.ground_gain, lab.dab_gain, 2.2])
    return np.asarray(stains * gains[:, None], np.float32)


class Camera:
    """A scanner looking at one slide; noise and focus depend on the place only."""

    def __init__(self, seed: int, scanner: Scanner) -> None:
        self.scanner = scanner
        self._noise = Texture(derived_seed(seed, 4), coarse=40, fine=1.0)
        self._focus = Noise(derived_seed(seed, 5), 350 * PX_PER_UM, 2)

    def scan(self, density: Array, box: Box) -> RGB:
        """Pixels of `box` from optical densities of the box grown by `HALO_PX`."""
        wide = box.grown(HALO_PX)
        scanner = self.scanner
        light = blur(cv2.exp(-density), scanner.blur_px)
        lost = np.clip(1.4 * (self._focus.smoothly_over(wide) - 1.7), 0, 1)[..., None]
        if lost.any():  # where the slide lies out of focus
            light = light + lost * (blur(light, 2.4) - light)
        light *= np.array(scanner.white, np.float32)
        if scanner.gamma != 1:
            light = 255 * cv2.pow(light / 255, scanner.gamma)
        light += scanner.sharpening * (light - blur(light, 1.6))
        light = light[HALO_PX:-HALO_PX, HALO_PX:-HALO_PX]
        if scanner.noise:
            light += cv2.merge(
                [scanner.noise * self._noise.over(box.moved(*shift)) for shift in _NOISE_SHIFTS]
            )
        return np.clip(np.rint(light), 0, 255).astype(np.uint8)


# ---- any part of either slide of a case, as pixels ----

Frame = Literal["he", "phh3"]
BLOCK_WIDTH, BLOCK_HEIGHT = 1024, 512
"""Slides are made of blocks on this grid, so a region alone equals the same part of the slide exactly."""
_COUNTERSTAIN_UNDER_DAB = 0.4
"""Share of the blue counterstain that still enters chromatin covered by brown."""


class CaseRenderer:
    """Renders one case; keeps its libraries and recent chunks of objects."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.architecture = Architecture(case)
        self.placement = Placement(case, self.architecture)
        self.ground = Ground(self.architecture, self.placement)
        self.library = nucleus_library(derived_seed(case.seed, 50), self.architecture.tumour)
        seeds = {"he": derived_seed(case.seed, 51), "phh3": derived_seed(case.seed, 52)}
        self._cameras = {frame: Camera(seed, case.laboratory.scanner) for frame, seed in seeds.items()}

    def region(self, frame: Frame, x: int, y: int, width: int, height: int) -> RGB:
        """Pixels (height, width, 3) of a rectangle in the frame of either slide; glass lies all around."""
        if width < 1 or height < 1:
            raise RegionError(f"a region of {width} x {height} pixels is empty")
        tops = range(y // BLOCK_HEIGHT * BLOCK_HEIGHT, y + height, BLOCK_HEIGHT)
        lefts = range(x // BLOCK_WIDTH * BLOCK_WIDTH, x + width, BLOCK_WIDTH)
        rows = [
            np.hstack([self.box(frame, Box(left, top, BLOCK_WIDTH, BLOCK_HEIGHT)) for left in lefts])
            for top in tops
        ]
        blocks = np.vstack(rows)[y - tops.start :, x - lefts.start :]
        return np.ascontiguousarray(blocks[:height, :width])

    def box(self, frame: Frame, box: Box) -> RGB:
        """Pixels of exactly `box`, computed in one piece."""
        wide = box.grown(HALO_PX)
        with single_threaded_opencv():
            if frame == "he":
                matrix = he_matrix(self.case.laboratory, derived_seed(self.case.seed, 53))
                density = _density(self.concentrations(wide, "he"), matrix)
            else:
                density = self._phh3_density(wide)
            return self._cameras[frame].scan(density, box)

    def _phh3_density(self, box: Box) -> Array:
        """Densities of the tissue under `box` of the PHH3 frame, pulled through the displacement."""
        map_x, map_y = self.case.displacement.pull_maps(box)
        left, top = int(np.floor(map_x.min())) - 3, int(np.floor(map_y.min())) - 3
        tissue = Box(left, top, int(np.ceil(map_x.max())) + 3 - left, int(np.ceil(map_y.max())) + 3 - top)
        maps = self.concentrations(tissue, "phh3")
        maps[1] = cv2.sqrt(maps[1])
        density = _density(maps, phh3_matrix(self.case.laboratory))
        x, y = (map_x - left - 0.5).astype(np.float32), (map_y - top - 0.5).astype(np.float32)
        return cv2.remap(density, x, y, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)

    def concentrations(self, box: Box, stain: Frame) -> Array:
        """Haematoxylin, eosin, DAB and black (4, height, width) over `box` of the tissue (H&E) frame."""
        fields = self.architecture.over(box)
        if float(fields.tissue.max()) < -0.2:
            return np.zeros((4, box.height, box.width), np.float32)
        maps = self.ground.paint(box, fields)
        for thing in self.visible(box, stain):
            paste(maps, box, self.sprite(thing, stain), thing.x, thing.y)
        return self.ground.apply_unevenness(maps, box, np.clip(fields.tissue * 30 + 0.5, 0, 1))

    def visible(self, box: Box, stain: Frame) -> Iterator[Thing]:
        """The objects that show in `box` of the tissue, in painting order."""
        objects = self.placement.within(box.grown(LARGEST_REACH_PX))
        if stain == "he":
            objects = objects[objects["kind"] < Kind.BROWN_SPECK]
        x, y, reach = objects["x"], objects["y"], reach_px(objects)
        near = (x + reach > box.x) & (x - reach < box.right) & (y + reach > box.y) & (y - reach < box.bottom)
        return map(Thing._make, objects[near].tolist())

    def sprite(self, thing: Thing, stain: Frame) -> Array:
        """The picture of one object as it lies in the tissue."""
        kind, x, y = Kind(thing.kind), thing.x, thing.y
        if kind in self.library:
            picture = pick_variant(self.library[kind], thing.seed, thing.focus)
            return turn_sprite(picture, thing.angle, thing.radius / MASTER_RADIUS_PX, thing.aspect, x, y)
        rng = generator(thing.seed)
        if kind in MITOSES:
            picture = mitosis_sprite(rng, kind, thing.atypical, thing.radius)
        else:
            picture = lookalike_sprite(rng, kind, thing.radius)
        picture = turn_sprite(picture, thing.angle, 1.0, 1.0, x, y)
        if kind in MITOSES or kind == Kind.BROWN_NUCLEUS:
            shown = thing.positive and stain == "phh3"
            picture[..., DAB] *= float(shown)
            picture[..., HAEMATOXYLIN] *= _COUNTERSTAIN_UNDER_DAB if shown and kind in MITOSES else 1.0
        return picture


@contextlib.contextmanager
def single_threaded_opencv() -> Iterator[None]:
    """One OpenCV thread while inside: its filters' last bits depend on how threads split a picture."""
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(threads)


def _density(maps: Array, matrix: Array) -> Array:
    """Optical densities (height, width, 3) of concentrations (4, height, width)."""
    return cv2.transform(cv2.merge(list(maps)), matrix.T)


@lru_cache(maxsize=2)
def case_renderer(case: Case) -> CaseRenderer:
    """The renderer of a case; the last two are kept."""
    return CaseRenderer(case)


def render_region(case: Case, frame: Frame, x: int, y: int, width: int, height: int) -> RGB:
    """Pixels (height, width, 3) of a rectangle of one slide, without making the rest of it."""
    return case_renderer(case).region(frame, x, y, width, height)


# ---- pictures of chosen objects, without making the slide around them ----


def object_patches(case: Case, objects: pd.DataFrame, frame: Frame, side_px: int) -> RGB:
    """Pictures (n, side, side, 3) centred on rows of the case's truth table, in that order.

    They show what the slide shows, before JPEG; a pixel may differ by one grey level from the slide,
    whose blocks are computed on a fixed grid.
    """
    renderer = case_renderer(case)
    positions = objects[[f"x_{frame}", f"y_{frame}"]].to_numpy() - side_px / 2
    boxes = [Box(round(x), round(y), side_px, side_px) for x, y in positions]
    pictures = [renderer.box(frame, box) for box in boxes]
    return np.array(pictures, np.uint8).reshape(-1, side_px, side_px, 3)
