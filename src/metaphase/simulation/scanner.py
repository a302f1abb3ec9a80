"""From stain concentrations to the pixels of a scanner."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from metaphase.geometry import Box
from metaphase.simulation.config import PX_PER_UM
from metaphase.simulation.laboratories import Laboratory, Scanner
from metaphase.simulation.randomness import Floats, Noise, Texture, derived_seed, generator
from metaphase.simulation.sprites import blurred

HALO_PX = 16
"""How far optics carry light: pixels that must be known around what is scanned."""
RGB = npt.NDArray[np.uint8]
_NOISE_SHIFTS = ((0, 0), (331, 517), (743, 199))
"""Red, green and blue see the same noise picture at unrelated places."""
_BATCH_SPREAD = 0.07
_BLACK = (0.58, 0.58, 0.57)


def he_matrix(laboratory: Laboratory, batch_seed: int) -> Floats:
    """Optical density (4, 3) per unit of haematoxylin, eosin, brown (here only of pigment) and black.

    Within a laboratory each slide takes a little more or less of each stain, by its batch.
    """
    batch = np.exp(generator(batch_seed).normal(0, _BATCH_SPREAD, 2))
    rows = [
        np.array(laboratory.haematoxylin) * laboratory.haematoxylin_gain * batch[0],
        np.array(laboratory.eosin) * laboratory.eosin_gain * batch[1],
        np.array(laboratory.dab),
        np.array(_BLACK) * 2.2,
    ]
    return np.array(rows, np.float32)


def phh3_matrix(laboratory: Laboratory) -> Floats:
    """Optical density (4, 3) of the restained slide: weak counterstain, grey ground, brown DAB."""
    rows = [
        np.array(laboratory.counterstain) * laboratory.counterstain_gain,
        np.array(laboratory.ground) * laboratory.ground_gain,
        np.array(laboratory.dab) * laboratory.dab_gain,
        np.array(_BLACK) * 2.2,
    ]
    return np.array(rows, np.float32)


class Camera:
    """A scanner looking at one slide; noise and focus depend on the place only."""

    def __init__(self, seed: int, scanner: Scanner) -> None:
        self.scanner = scanner
        self._noise = Texture(derived_seed(seed, 4), coarse=40, fine=1.0)
        self._focus = Noise(derived_seed(seed, 5), 350 * PX_PER_UM, 2)

    def scan(self, density: Floats, box: Box) -> RGB:
        """Pixels of `box` from optical densities of the box grown by `HALO_PX`."""
        wide = box.grown(HALO_PX)
        scanner = self.scanner
        light = blurred(cv2.exp(-density), scanner.blur_px)
        light = self._focused(light, wide)
        light *= np.array(scanner.white, np.float32)
        if scanner.gamma != 1:
            light = np.asarray(255 * cv2.pow(light / 255, scanner.gamma), np.float32)
        light += scanner.sharpening * (light - blurred(light, 1.6))
        light = light[HALO_PX:-HALO_PX, HALO_PX:-HALO_PX]
        if scanner.noise:
            light += cv2.merge(
                [scanner.noise * self._noise.over(box.moved(*shift)) for shift in _NOISE_SHIFTS]
            )
        return np.clip(np.rint(light), 0, 255).astype(np.uint8)

    def _focused(self, light: Floats, wide: Box) -> Floats:
        """Blend in a blurred copy where the slide lies out of focus."""
        lost = np.clip(1.4 * (self._focus.smoothly_over(wide) - 1.7), 0, 1)[..., None]
        if not lost.any():
            return light
        return np.asarray(light + lost * (blurred(light, 2.4) - light), np.float32)
