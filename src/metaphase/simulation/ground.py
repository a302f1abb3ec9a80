"""The ground on which nuclei lie: cytoplasm, collagen, fat, necrosis, gaps and glass."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from metaphase.base.arrays import Floats32
from metaphase.base.geometry import Box
from metaphase.simulation.architecture import Architecture, Fields, reach, territories
from metaphase.simulation.config import PX_PER_UM
from metaphase.simulation.placement import MITOSES, Kind, Placement
from metaphase.simulation.randomness import Noise, Texture, derived_seed, generator

Array = npt.NDArray[Any]
_CELL_HALO = 112
"""Pixels around a box in which nuclei can own territory inside it."""
_FAT_HALO = 480
_OWNERS = (Kind.TUMOUR, Kind.BROWN_NUCLEUS, Kind.HYPERCHROMATIC, *MITOSES)
"""Kinds that fill a place of their own in a nest."""


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

    def painted(self, box: Box, fields: Fields) -> Floats32:
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

    def grain(self, box: Box) -> Floats32:
        """Factor on haematoxylin: the fine unevenness that chromatin and cytoplasm share."""
        return np.asarray(np.maximum(1 + 0.15 * self._granules.over(box.moved(389, 211)), 0.3), np.float32)

    def thickness(self, box: Box) -> Floats32:
        """Factor on all stain from the section's uneven thickness."""
        return np.asarray(np.exp(0.09 * self._thickness.smoothly_over(box)), np.float32)

    def fading(self, box: Box) -> Floats32:
        """Factor on eosin, which was washed out here more than there."""
        return np.asarray(np.exp(0.08 * self._fading.smoothly_over(box)), np.float32)

    def _stroma(self, box: Box, fields: Fields) -> tuple[Floats32, Floats32]:
        """Wavy collagen: a noise picture looked up along and across the fibres, at two scales."""
        across, along = self.architecture.fibres_over(box)
        fibre = self._strand_picture(along * np.float32(0.16), across)
        bundle = self._strand_picture(along * np.float32(0.08), across * np.float32(0.25))
        eosin = 0.60 + 0.10 * fibre + 0.13 * bundle + 0.05 * self._granules.over(box)
        split = np.clip((-bundle - 0.6 * fibre - 1.9 + 0.5 * fields.gaps) * 1.4, 0, 0.9)
        return np.clip(eosin, 0.08, 2), np.asarray(split * self.architecture.tumour.clefts, np.float32)

    def _strand_picture(self, x: Floats32, y: Floats32) -> Floats32:
        """The strand texture at the given coordinates; it repeats, so they may be brought near zero."""
        side = self._strands.picture.shape[0]
        x, y = (axis - np.float32(side * np.floor(axis.min() / side)) for axis in (x, y))
        picture = cv2.remap(self._strands.picture, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
        return np.asarray(picture, np.float32)

    def _cells(self, box: Box, net: Floats32, clouds: Floats32, gaps: Floats32) -> tuple[Floats32, Floats32]:
        """Stain of the cytoplasm and the gaps between cells, from each cell's own territory."""
        tumour = self.architecture.tumour
        tint, border, near = self._territories(box)
        stain = tumour.cytoplasm * (0.54 + 0.16 * tint) * (1 + 0.12 * clouds + tumour.foaminess * net)
        stain = stain * (1 - 0.5 * near) + 0.10 * border
        opened = 0.75 * self._slits.smoothly_over(box) + 0.4 * gaps + 0.8 * tumour.clefts + 0.2 * net
        gap = np.clip(1.5 * (2.2 * border + 0.9 * near + opened - 2.1), 0, 1)
        return np.clip(stain, 0.05, 2), np.asarray(gap, np.float32)

    def _territories(self, box: Box) -> tuple[Floats32, Floats32, Floats32]:
        """Per pixel: tint of its cell (-1 to 1), closeness to a border, clearing around the nucleus."""
        wide = reach(box, _CELL_HALO, 2)
        cells = self.placement.within(wide)
        cells = cells[np.isin(cells["kind"], _OWNERS)]
        if not len(cells):
            empty = np.zeros((box.height, box.width), np.float32)
            return empty, empty, empty
        owned = territories(cells["x"], cells["y"], wide, 2)
        tint = _fraction(cells["seed"], 20)[owned.owner] * 2 - 1
        clearing = np.clip(1.6 * _fraction(cells["seed"], 34) - 0.6, 0, 1)[owned.owner]
        from_membrane = owned.distance - cells["radius"][owned.owner] - 4
        ring = clearing * np.exp(-((from_membrane / 7) ** 2))
        pictures = cv2.merge([cv2.blur(tint, (3, 3)), owned.borders(1.3), ring])
        shifts = (np.float32(1.3) * noise.smoothly_over(box) for noise in self._waviness)
        found = owned.at_pixels(np.asarray(pictures, np.float32), box, *shifts)
        return found[..., 0], found[..., 1], found[..., 2]

    def _apply_fat(self, maps: Floats32, box: Box, fields: Fields) -> None:
        """Fat cells: thin pink walls around empty drops."""
        if float(fields.fat.max()) < -0.2:
            return
        maps[:2] *= 1 - _ramp(fields.fat, 0.12) * (1 - 0.9 * self._fat_walls(box))

    def _fat_walls(self, box: Box) -> Floats32:
        wide = reach(box, _FAT_HALO, 4)
        owned = territories(*fat_centres(self.architecture.case.seed, wide), wide, 4)
        shifts = (np.float32(1.2) * noise.smoothly_over(box) for noise in self._waviness)
        return owned.at_pixels(np.minimum(1.6 * owned.borders(0.9), 1), box, *shifts)


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


def _fraction(seeds: Array, bit: int) -> Floats32:
    """Some bits of seeds as numbers from 0 to 1."""
    bits = (seeds >> np.uint64(bit)) & np.uint64(1023)
    return bits.astype(np.float32) / np.float32(1024)


def _ramp(values: Array, width: float) -> Floats32:
    """0 to 1 over `width` around zero."""
    return np.clip(values / np.float32(width) + np.float32(0.5), 0, 1).astype(np.float32, copy=False)
