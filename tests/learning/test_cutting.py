"""Patches show what lies around their points."""

from __future__ import annotations

import numpy as np

from metaphase.learning.cutting import cut_patches
from metaphase.slides import ArraySlide
from tests.slides.images import BLOBS, blob_image


def test_patches_are_centred_at_any_resolution() -> None:
    slide = ArraySlide(blob_image(), mpp=0.25)
    for mpp in (0.25, 0.2, 0.4):
        for patch in cut_patches(slide, BLOBS, side_px=32, mpp=mpp):
            darkest = 255.0 - patch[..., 1]
            weight = np.clip(darkest - 110, 0, None)
            rows, columns = np.indices(weight.shape)
            centre = np.array([(columns * weight).sum(), (rows * weight).sum()]) / weight.sum() + 0.5
            assert np.abs(centre - 16).max() < 0.75


def test_patches_beyond_the_slide_are_white() -> None:
    slide = ArraySlide(np.zeros((50, 50, 3), np.uint8), mpp=0.25)
    (patch,) = cut_patches(slide, np.array([[0.0, 0.0]]), side_px=20)
    assert (patch[:10] == 255).all()
    assert (patch[:, :10] == 255).all()
    assert (patch[10:, 10:] == 0).all()
