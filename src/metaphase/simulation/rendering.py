"""Any part of either slide of a case, as pixels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

import cv2
import numpy as np

from metaphase.errors import RegionError
from metaphase.geometry import Box
from metaphase.simulation.architecture import Architecture
from metaphase.simulation.config import Case
from metaphase.simulation.ground import Ground
from metaphase.simulation.lookalikes import lookalike_sprite
from metaphase.simulation.mitoses import mitosis_sprite
from metaphase.simulation.nuclei import MASTER_RADIUS_PX, NucleusLibrary, nucleus_library, picked
from metaphase.simulation.placement import LARGEST_REACH_PX, MITOSES, Kind, Placement, Thing, reach_px
from metaphase.simulation.randomness import Floats, derived_seed, generator
from metaphase.simulation.scanner import HALO_PX, RGB, Camera, he_matrix, phh3_matrix
from metaphase.simulation.sprites import DAB, HAEMATOXYLIN, paste, turned

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
        self.library: NucleusLibrary = nucleus_library(derived_seed(case.seed, 50), self.architecture.tumour)
        self._cameras = {
            "he": Camera(derived_seed(case.seed, 51), case.laboratory.scanner),
            "phh3": Camera(derived_seed(case.seed, 52), case.laboratory.scanner),
        }

    def region(self, frame: Frame, x: int, y: int, width: int, height: int) -> RGB:
        """Pixels (height, width, 3) of a rectangle in the frame of either slide; glass lies all around."""
        if width < 1 or height < 1:
            raise RegionError(f"a region of {width} x {height} pixels is empty")
        wanted = Box(x, y, width, height)
        picture = np.empty((height, width, 3), np.uint8)
        for top in range(y // BLOCK_HEIGHT * BLOCK_HEIGHT, y + height, BLOCK_HEIGHT):
            for left in range(x // BLOCK_WIDTH * BLOCK_WIDTH, x + width, BLOCK_WIDTH):
                block = Box(left, top, BLOCK_WIDTH, BLOCK_HEIGHT)
                part = block.intersection(wanted)
                pixels = self.box(frame, block)
                picture[part.y - y : part.bottom - y, part.x - x : part.right - x] = pixels[
                    part.y - top : part.bottom - top, part.x - left : part.right - left
                ]
        return picture

    def box(self, frame: Frame, box: Box) -> RGB:
        """Pixels of exactly `box`, computed in one piece."""
        wide = box.grown(HALO_PX)
        with single_threaded_opencv():
            density = self._he_density(wide) if frame == "he" else self._phh3_density(wide)
            return self._cameras[frame].scan(density, box)

    def _he_density(self, box: Box) -> Floats:
        return _density(
            self.concentrations(box, "he"), he_matrix(self.case.laboratory, derived_seed(self.case.seed, 53))
        )

    def _phh3_density(self, box: Box) -> Floats:
        """Densities of the tissue under `box` of the PHH3 frame, pulled through the displacement."""
        map_x, map_y = self.case.displacement.pull_maps(box)
        left, top = int(np.floor(map_x.min())) - 3, int(np.floor(map_y.min())) - 3
        tissue = Box(left, top, int(np.ceil(map_x.max())) + 3 - left, int(np.ceil(map_y.max())) + 3 - top)
        maps = self.concentrations(tissue, "phh3")
        maps[1] = cv2.sqrt(maps[1])
        density = _density(maps, phh3_matrix(self.case.laboratory))
        x, y = (map_x - left - 0.5).astype(np.float32), (map_y - top - 0.5).astype(np.float32)
        return np.asarray(
            cv2.remap(density, x, y, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE), np.float32
        )

    def concentrations(self, box: Box, stain: Frame) -> Floats:
        """Haematoxylin, eosin, DAB and black (4, height, width) over `box` of the tissue (H&E) frame."""
        fields = self.architecture.over(box)
        if float(fields.tissue.max()) < -0.2:
            return np.zeros((4, box.height, box.width), np.float32)
        maps = self.ground.painted(box, fields)
        for thing in self.visible(box, stain):
            paste(maps, box, self.sprite(thing, stain), thing.x, thing.y)
        edge = np.clip(fields.tissue * 30 + 0.5, 0, 1) * self.ground.thickness(box)
        maps *= np.asarray(edge, np.float32)
        maps[0] *= self.ground.grain(box)
        maps[1] *= self.ground.fading(box)
        return maps

    def visible(self, box: Box, stain: Frame) -> Iterator[Thing]:
        """The objects that show in `box` of the tissue, in painting order."""
        objects = self.placement.within(box.grown(LARGEST_REACH_PX))
        if stain == "he":
            objects = objects[objects["kind"] < Kind.BROWN_SPECK]
        x, y, reach = objects["x"], objects["y"], reach_px(objects)
        near = (x + reach > box.x) & (x - reach < box.right) & (y + reach > box.y) & (y - reach < box.bottom)
        return map(Thing._make, objects[near].tolist())

    def sprite(self, thing: Thing, stain: Frame) -> Floats:
        """The picture of one object as it lies in the tissue."""
        kind, x, y = Kind(thing.kind), thing.x, thing.y
        if kind in _LIBRARY_NAMES:
            picture = picked(getattr(self.library, _LIBRARY_NAMES[kind]), thing.seed, thing.focus)
            return turned(picture, thing.angle, thing.radius / MASTER_RADIUS_PX, thing.aspect, x, y)
        rng = generator(thing.seed)
        if kind in MITOSES:
            picture = mitosis_sprite(rng, kind, thing.atypical, thing.radius)
        else:
            picture = lookalike_sprite(rng, kind, thing.radius)
        picture = turned(picture, thing.angle, 1.0, 1.0, x, y)
        if kind in MITOSES or kind == Kind.BROWN_NUCLEUS:
            shown = thing.positive and stain == "phh3"
            picture[..., DAB] *= float(shown)
            picture[..., HAEMATOXYLIN] *= _COUNTERSTAIN_UNDER_DAB if shown and kind in MITOSES else 1.0
        return picture


@contextlib.contextmanager
def single_threaded_opencv() -> Iterator[None]:
    """One OpenCV thread while inside: its filters' last bits depend on how threads split a picture."""
    threads = cv2.getNumThreads()
    if threads == 1:
        yield
        return
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(threads)


def _density(maps: Floats, matrix: Floats) -> Floats:
    """Optical densities (height, width, 3) of concentrations (4, height, width)."""
    return np.asarray(cv2.transform(cv2.merge(list(maps)), matrix.T), np.float32)


_LIBRARY_NAMES = {Kind.TUMOUR: "tumour", Kind.FIBROBLAST: "fibroblast", Kind.LYMPHOCYTE: "lymphocyte"}


@lru_cache(maxsize=2)
def case_renderer(case: Case) -> CaseRenderer:
    """The renderer of a case; the last two are kept."""
    return CaseRenderer(case)


def render_region(case: Case, frame: Frame, x: int, y: int, width: int, height: int) -> RGB:
    """Pixels (height, width, 3) of a rectangle of one slide, without making the rest of it."""
    return case_renderer(case).region(frame, x, y, width, height)
