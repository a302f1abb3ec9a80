"""Drawn pairs of slides: the same nuclei in two stains, moved by a known amount."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from metaphase.base.arrays import RGB
from metaphase.images.stain.deconvolution import H_DAB_RESIDUAL, HE_RESIDUAL, combine
from metaphase.labels.registration.similarity import Similarity
from metaphase.slides.arrays import ArraySlide

MPP = 0.5
Image = npt.NDArray[np.float32]


def nuclei(seed: int, width: int = 1400, height: int = 1200) -> Image:
    """Haematoxylin of a tissue: nuclei of various size and darkness, denser in some parts than in others."""
    rng = np.random.default_rng(seed)
    canvas = np.zeros((height, width), np.float32)
    crowd = cv2.resize(rng.random((5, 6)).astype(np.float32), (width, height), interpolation=cv2.INTER_CUBIC)
    for x, y in rng.uniform((0, 0), (width, height), (width * height // 350, 2)):
        if crowd[int(y), int(x)] > rng.uniform(0, 0.8):
            axes = tuple(int(v) for v in rng.uniform(4, 11, 2))
            turn, dark = float(rng.uniform(0, 180)), float(rng.uniform(0.5, 1.4))
            cv2.ellipse(canvas, (int(x), int(y)), axes, turn, 0, 360, dark, -1, cv2.LINE_AA)
    return np.asarray(cv2.GaussianBlur(canvas, (0, 0), 1.2), np.float32)


def he_slide(haematoxylin: Image, mpp: float = MPP) -> ArraySlide:
    """The tissue in H&E."""
    stains = np.stack([haematoxylin + 0.05, 0.35 + 0.1 * haematoxylin, np.zeros_like(haematoxylin)], axis=-1)
    return ArraySlide(_pixels(combine(stains, HE_RESIDUAL), 1), mpp)


def phh3_slide(haematoxylin: Image, mpp: float = MPP) -> ArraySlide:
    """The tissue in weak haematoxylin, the darkest nuclei brown."""
    brown = np.clip(haematoxylin - 1.2, 0, 1) * 4
    stains = np.stack([0.4 * haematoxylin + 0.05, brown + 0.02, np.zeros_like(brown)], axis=-1)
    return ArraySlide(_pixels(combine(stains, H_DAB_RESIDUAL), 2), mpp)


def moved(haematoxylin: Image, to_he: Similarity, bend_um: float = 0.0, mpp: float = MPP) -> Image:
    """The tissue as it lies on the PHH3 slide: its place p shows what lies at `true_places(p)` in H&E."""
    height, width = haematoxylin.shape
    y, x = np.indices((height, width)).astype(np.float64)
    positions = (np.stack([x.ravel(), y.ravel()], axis=1) + 0.5) * mpp
    there = (true_places(positions, to_he, bend_um) / mpp - 0.5).astype(np.float32).reshape(height, width, 2)
    maps = (np.ascontiguousarray(there[..., k]) for k in (0, 1))
    return np.asarray(cv2.remap(haematoxylin, *maps, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT))


def true_places(
    positions_um: npt.NDArray[np.float64], to_he: Similarity, bend_um: float
) -> npt.NDArray[np.float64]:
    """H&E um of PHH3 um."""
    bend = bend_um * np.sin(positions_um[:, ::-1] / 80.0)
    return to_he.apply(positions_um) + bend


def _pixels(unit: npt.NDArray[np.float32], seed: int) -> RGB:
    noise = np.random.default_rng(seed).normal(0, 2, unit.shape)
    return np.clip(unit * 255 + noise, 0, 255).astype(np.uint8)
