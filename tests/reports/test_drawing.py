"""Pictures of items: the right place, the right scale, and what lies beyond the slide."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from metaphase.base.arrays import Box
from metaphase.labels.observers.project import Item, LabellingError
from metaphase.reports.pages import BEYOND, item_view
from metaphase.slides.arrays import ArraySlide

SIDE_PX = 512


def item_at(x: float, y: float) -> Item:
    return Item("i", Path("s.png"), x, y, "", None, 0)


def test_the_item_is_in_the_middle_at_both_scales() -> None:
    pixels = np.full((2000, 2000, 3), 255, np.uint8)
    pixels[596:604, 1196:1204] = 0
    slide = ArraySlide(pixels, 0.5)
    for side_um in (64.0, 256.0):
        dark = np.argwhere(item_view(slide, item_at(1200, 600), side_um, SIDE_PX)[..., 0] < 128)
        middle = dark.mean(axis=0)
        assert np.abs(middle - (SIDE_PX - 1) / 2).max() < 1.0
        assert len(dark) == pytest.approx((4.0 / side_um * SIDE_PX) ** 2, rel=0.3)


def test_beyond_the_edge_is_dark_and_outside_is_an_error() -> None:
    slide = ArraySlide(np.full((100, 100, 3), 200, np.uint8), 0.5)
    corner = item_view(slide, item_at(0, 0), 20.0, SIDE_PX)
    half = SIDE_PX // 2
    assert (corner[:half] == BEYOND).all()
    assert (corner[:, :half] == BEYOND).all()
    assert (corner[half + 64 :, half + 64 :] == 200).all()
    assert (item_view(slide, item_at(99, 99), 20.0, SIDE_PX)[-100:] == BEYOND).all()
    assert (item_view(slide, item_at(50, 50), 20.0, SIDE_PX) == 200).all()
    for x, y in ((-1, 5), (5, 100), (1e9, 5)):
        with pytest.raises(LabellingError, match="outside the slide of 100 x 100"):
            item_view(slide, item_at(x, y), 20.0, SIDE_PX)


def test_what_the_scanner_left_out_is_glass_and_not_beyond_the_slide() -> None:
    slide = ArraySlide(np.full((100, 100, 3), 200, np.uint8), 0.5)
    slide.bounds = Box(31, 17, 40, 40)
    view = item_view(slide, item_at(50, 50), 40.0, SIDE_PX)
    assert (view == 200).all()
    assert (item_view(slide, item_at(50, 99), 40.0, SIDE_PX)[-100:] == BEYOND).all()
