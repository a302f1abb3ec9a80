"""Drawn pairs of slides with mitoses at known positions, as arrays and as files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import Image as Picture

from metaphase.base.arrays import RGB
from metaphase.detections.table import DetectionSet, detection_set
from metaphase.labels.registration.similarity import RegistrationConfig, Similarity
from metaphase.slides.arrays import ArraySlide
from tests.labels.registration.slides import MPP, he_slide, moved, nuclei, phh3_slide, true_places

SIZE = 700, 600
TO_HE = Similarity(1.0, 0.006, 8.0, -11.0)
QUICK = {
    "coarse_px": 128, "tile_px": 128, "search_px": 32, "tolerance_px": 6.0, "checks": 12, "controls": 60,
    "control_spacing_um": 50.0,
}  # fmt: skip
REGISTRATION = RegistrationConfig(**QUICK)  # type: ignore[arg-type]
"""Fewer and smaller tiles than usual, for small slides."""


@dataclass(frozen=True)
class DrawnPair:
    """The slides of one section; positions are level-0 pixels."""

    he: ArraySlide
    phh3: ArraySlide
    mitoses_phh3: npt.NDArray[np.float64]
    mitoses_he: npt.NDArray[np.float64]


def drawn_pair(seed: int = 1, mitoses: int = 8) -> DrawnPair:
    """Nuclei in both stains, some of them mitoses: far darker in H&E and brown in PHH3."""
    rng = np.random.default_rng(seed)
    cells = [(x, y) for x in range(100, 600, 70) for y in range(100, 500, 70)]
    chosen = rng.permutation(len(cells))[:mitoses]
    here = np.array([cells[index] for index in chosen], float).reshape(-1, 2)
    there = true_places(here * MPP, TO_HE, 0.0) / MPP
    tissue = np.minimum(nuclei(seed, *SIZE), 1.0)
    for x, y in there:
        cv2.ellipse(tissue, (round(x), round(y)), (8, 4), 30.0, 0, 360, 3.0, -1, cv2.LINE_AA)
    return DrawnPair(he_slide(tissue), phh3_slide(moved(tissue, TO_HE)), here, there)


def detections(positions: npt.ArrayLike, case: str = "one") -> DetectionSet:
    """Points of a PHH3 slide."""
    points = pd.DataFrame(np.asarray(positions, float).reshape(-1, 2), columns=["x", "y"])
    return detection_set(points.assign(slide=case, probability=0.9), (case,))


def save(path: Path, slide: ArraySlide) -> None:
    """The slide as a plain picture, which states no resolution."""
    Picture.fromarray(pixels(slide)).save(path)


def pixels(slide: ArraySlide) -> RGB:
    """All of level 0."""
    return slide.read(0, 0, slide.width, slide.height, slide.mpp)
