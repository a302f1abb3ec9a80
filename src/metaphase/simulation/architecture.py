"""Where the tissue is and what kind it is: smooth fields that rule everything else of a case.

Each field is computed on a coarse grid fixed in the plane, and read off between its nodes: at points
to position objects, at every pixel to paint the ground. Both see the same field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
from scipy.special import ndtri

from metaphase.base.arrays import Box, Integers
from metaphase.simulation.config import PX_PER_UM, Case
from metaphase.simulation.randomness import (
    COARSE_STEP,
    Array,
    Noise,
    centres,
    coarse_grid,
    derived_seed,
    generator,
    interpolate,
    sample_at,
)

# ---- which of many scattered points owns each position ----


@dataclass(frozen=True)
class Territories:
    """The owner of every position on a grid of `scale` pixels that starts at (x, y) of the plane."""

    x: int
    y: int
    scale: int
    owner: Integers
    """Index of the nearest point (rows, columns)."""
    distance: Array
    """Distance to it, in pixels."""

    def borders(self, softness: float) -> Array:
        """About 1 where the owner changes, fading over `softness` grid steps."""
        edge = np.zeros(self.owner.shape, np.float32)
        edge[:, 1:] = self.owner[:, 1:] != self.owner[:, :-1]
        edge[1:] = np.maximum(edge[1:], self.owner[1:] != self.owner[:-1])
        return cv2.GaussianBlur(edge, (0, 0), softness)

    def at_pixels(self, pictures: Array, box: Box, shift_x: Array, shift_y: Array) -> Array:
        """Pictures on the grid, read off at the pixels of `box` moved by the shifts (in grid steps)."""
        x = (box.x - self.x + np.arange(box.width, dtype=np.float32))[None, :] / self.scale
        y = (box.y - self.y + np.arange(box.height, dtype=np.float32))[:, None] / self.scale
        place = x + shift_x, y + shift_y
        return cv2.remap(pictures, *place, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


def reach(box: Box, halo: int, scale: int) -> Box:
    """`box` with `halo` around it, widened so that it starts on the plane's grid of `scale` pixels."""
    wide = box.grown(halo)
    x, y = wide.x // scale * scale, wide.y // scale * scale
    return Box(x, y, wide.right - x, wide.bottom - y)


def territories(x: Array, y: Array, wide: Box, scale: int) -> Territories:
    """The territories of at least one point inside `wide`, which starts on the grid of `scale`."""
    shape = (wide.height // scale + 1, wide.width // scale + 1)
    column = np.clip(((x - wide.x) / scale).astype(int), 0, shape[1] - 1)
    row = np.clip(((y - wide.y) / scale).astype(int), 0, shape[0] - 1)
    free = np.ones(shape, np.uint8)
    free[row, column] = 0
    distance, label = cv2.distanceTransformWithLabels(
        free, cv2.DIST_L2, cv2.DIST_MASK_5, labelType=cv2.DIST_LABEL_PIXEL
    )
    owner = np.zeros(int(label.max()) + 1, np.int64)
    owner[label[row, column]] = np.arange(len(x))
    return Territories(wide.x, wide.y, scale, owner[label], scale * distance)


# ---- where the tissue is and what kind it is ----

_CENSUS_SIDE = 128
"""Samples along the longer side of a slide when it is surveyed."""


@dataclass(frozen=True, slots=True)
class Tumour:
    """What makes one tumour look different from the next."""

    grade: float
    """0 well differentiated to 1 wild; drives size and variety of the nuclei."""
    cell_spacing_um: float
    nuclear_radius_um: float
    pleomorphism: float
    """Spread of nuclear size and roughness of outline."""
    openness: float
    """Share of vesicular (pale, rimmed) nuclei."""
    nest_um: float
    tumour_share: float
    fat_share: float
    necrosis_share: float
    lymphocyte_share: float
    clefts: float
    """How often gaps open between cells and around nests."""
    foaminess: float
    """Contrast of the cytoplasm's fine net."""
    cytoplasm: float
    """Eosin uptake of the cytoplasm."""


def draw_tumour(case: Case) -> Tumour:
    """The tumour of a case; a high mitotic rate goes with larger and wilder nuclei, loosely."""
    rng = generator(case.seed, 21)
    rate = np.log(max(case.mitoses_per_mm2, 1.0)) / np.log(60)
    grade = float(np.clip(0.75 * rate + rng.normal(0.1, 0.2), 0, 1))
    radius = 3.4 + 1.5 * grade + rng.normal(0, 0.25)
    return Tumour(
        grade=grade,
        nuclear_radius_um=float(radius),
        cell_spacing_um=float(2.3 * radius * rng.uniform(0.94, 1.18)),
        pleomorphism=float(0.07 + 0.13 * grade * rng.uniform(0.7, 1.2)),
        openness=float(np.clip(0.2 + 0.7 * grade + rng.normal(0, 0.2), 0.05, 0.95)),
        nest_um=float(np.exp(rng.uniform(np.log(90), np.log(380)))),
        tumour_share=float(rng.uniform(0.62, 0.85)),
        fat_share=float(rng.uniform(0.02, 0.09)),
        necrosis_share=float(rng.uniform(0.0, 0.08) * (0.3 + grade)),
        lymphocyte_share=float(rng.uniform(0.04, 0.2)),
        clefts=float(rng.uniform(0.2, 1.0)),
        foaminess=float(rng.uniform(0.15, 0.30)),
        cytoplasm=float(rng.uniform(0.85, 1.15)),
    )


@dataclass(frozen=True)
class Fields:
    """Values at requested positions; memberships are above 0 inside and about 1 well inside."""

    tissue: Array
    tumour: Array
    fat: Array
    necrosis: Array
    gaps: Array
    """Where the section tends to tear: standard normal noise."""
    cleft: Array
    """Above 0 in the slit between a nest that has drawn back and its stroma."""

    def each(self, change: Callable[[Array], Array]) -> Fields:
        """Apply a function to every field."""
        return Fields(*(change(getattr(self, name)) for name in self.__dataclass_fields__))


class Architecture:
    """The smooth fields that decide what lies where in one case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.tumour = draw_tumour(case)
        um = PX_PER_UM
        nest = self.tumour.nest_um * um
        self._outline = self._noise(1, 600 * um, 4)
        self._nests = self._noise(2, nest, 3, 0.4)
        self._septa = self._noise(3, 0.8 * nest, 2, 0.4)
        self._fat = self._noise(4, 380 * um, 2)
        self._necrosis = self._noise(5, 500 * um, 3)
        self._lymphocytes = self._noise(6, 180 * um, 2)
        self._hotspots = self._noise(7, 900 * um, 2)
        self._warp = self._noise(8, 130 * um, 2, 0.35)
        self._warp_along = self._noise(9, 260 * um)
        self._ripple = self._noise(10, 28 * um, 2)
        self._gaps = self._noise(11, 60 * um, 4, 0.6)
        rng = generator(case.seed, 22)
        self._heading = float(rng.uniform(0, np.pi))
        self._hotspot_spread = float(rng.uniform(0.3, 0.9))
        self.tumour_fraction, self._hotspot_mean = self._census()
        """Tumour per tissue, and the mean of the hot spots over tumour, as this slide has them."""

    def _noise(self, layer: int, wavelength: float, octaves: int = 1, gain: float = 0.5) -> Noise:
        return Noise(derived_seed(self.case.seed, 20, layer), wavelength, octaves, gain)

    def over(self, box: Box) -> Fields:
        """The fields at the pixel centres of `box`, as float32 pictures."""
        coarse = self._coarse(coarse_grid(box))
        return coarse.each(lambda field: interpolate(box, field))

    def at(self, box: Box, x: Array, y: Array) -> Fields:
        """The fields at points inside `box`."""
        coarse = self._coarse(coarse_grid(box))
        return coarse.each(lambda field: sample_at(box, field, x, y))

    def fibres_over(self, box: Box) -> tuple[Array, Array]:
        """Two coordinates in pixels at the pixel centres of `box`: across the fibres and along them."""
        grid = coarse_grid(box)
        x, y = centres(grid, COARSE_STEP)
        straight = np.cos(self._heading) * y - np.sin(self._heading) * x
        along = np.asarray(straight + 60 * self._warp_along.over(grid, COARSE_STEP), np.float32)
        return interpolate(box, self._across(grid)), interpolate(box, along)

    def fibre_angle_at(self, box: Box, x: Array, y: Array) -> Array:
        """Direction of the fibres at points inside `box`, in radians."""
        slopes = np.gradient(self._across(coarse_grid(box)))
        down, right = (sample_at(box, slope, x, y) for slope in slopes)
        return np.arctan2(down, right) + np.pi / 2

    def hotspot_at(self, box: Box, x: Array, y: Array) -> Array:
        """Factor on the mitotic rate at points inside `box`, of mean 1 over the slide's tumour."""
        heat = np.exp(self._hotspot_spread * self._hotspots.at(box, x, y))
        return heat / self._hotspot_mean

    def _census(self) -> tuple[float, float]:
        """Sample the slide coarsely: what share of its tissue is tumour, and how hot that is on average."""
        slide = Box(0, 0, self.case.width, self.case.height)
        step = max(slide.width, slide.height) / _CENSUS_SIDE
        tissue = self.tissue_over(slide, step) > 0
        tumour = tissue & (self._tumour_over(slide, step) > 0)
        heat = np.exp(self._hotspot_spread * self._hotspots.over(slide, step))
        mean = float(heat[tumour].mean()) if tumour.any() else 1.0
        return float(tumour.sum() / max(1, tissue.sum())), mean

    def _tumour_over(self, box: Box, step: float) -> Array:
        """Membership in a nest, every `step` pixels."""
        nests = self._nests.over(box, step) - float(ndtri(1 - self.tumour.tumour_share))
        inside: Array = np.minimum(nests, 2.2 * np.abs(self._septa.over(box, step)) - 0.16)
        return inside

    def lymphocytes_at(self, box: Box, x: Array, y: Array) -> Array:
        """Membership in a cluster of lymphocytes at points inside `box`."""
        cluster: Array = self._lymphocytes.at(box, x, y) - float(ndtri(1 - self.tumour.lymphocyte_share))
        return cluster

    def tissue_over(self, box: Box, step: float) -> Array:
        """About the distance from the tissue edge in 100 um, positive inside, every `step` pixels."""
        outline = self._outline.over(box, step)
        half_width, half_height = self.case.width / 2, self.case.height / 2
        x, y = centres(box, step)
        u, v = (x / half_width - 1) ** 2, (y / half_height - 1) ** 2
        radius = np.sqrt(np.sqrt(u * u * u + v * v * v))
        reach = max(1.0, min(half_width, half_height) / PX_PER_UM / 100)
        depth: Array = reach * (0.97 - radius) + min(1.5, 0.09 * reach) * outline
        return depth

    def _coarse(self, grid: Box) -> Fields:
        t = self.tumour
        gaps = self._gaps.over(grid, COARSE_STEP)
        tumour = self._tumour_over(grid, COARSE_STEP)
        fat_depth = self._fat.over(grid, COARSE_STEP) - float(ndtri(1 - 3 * t.fat_share))
        necrotic = self._necrosis.over(grid, COARSE_STEP) - float(ndtri(1 - max(t.necrosis_share, 1e-6)))
        return Fields(
            tissue=self.tissue_over(grid, COARSE_STEP),
            tumour=tumour,
            fat=np.minimum(2 * fat_depth, -tumour - 0.15),
            necrosis=np.minimum(2.5 * necrotic, 1.5 * tumour - 0.6),
            gaps=gaps,
            cleft=0.035 * (gaps + 2 * t.clefts - 1.9) - np.abs(tumour),
        )

    def _across(self, grid: Box) -> Array:
        """Its level lines, the fibres, run along the nests' borders, with waves and ripples."""
        x, y = centres(grid, COARSE_STEP)
        slope = 0.35 * (np.cos(self._heading) * x + np.sin(self._heading) * y)
        bends = 60 * self._warp.over(grid, COARSE_STEP) + 7 * self._ripple.over(grid, COARSE_STEP)
        nests = 0.2 * self.tumour.nest_um * PX_PER_UM * self._nests.over(grid, COARSE_STEP)
        return np.asarray(slope + bends + nests, np.float32)
