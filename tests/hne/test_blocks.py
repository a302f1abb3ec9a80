"""Patches cut block by block."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaphase.hne.blocks import cut_by_block
from metaphase.slides import ArraySlide


def random_slide(mpp: float = 0.25) -> ArraySlide:
    rng = np.random.default_rng(0)
    return ArraySlide(rng.integers(0, 256, (300, 260, 3), dtype=np.uint8), mpp=mpp)


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(0, 40), st.integers(1, 400), st.sampled_from([1, 8, 31]))
def test_every_patch_is_the_one_around_its_point(seed: int, count: int, block_px: int, side: int) -> None:
    slide = random_slide()
    points = np.random.default_rng(seed).uniform((0, 0), (260, 300), (count, 2))
    cut = {}
    for rows, patches in cut_by_block(slide, points, side_px=side, block_px=block_px, threads=1):
        cut.update(zip(rows.tolist(), patches, strict=True))
    assert sorted(cut) == list(range(count))
    for row, patch in cut.items():
        x, y = np.floor(points[row]).astype(int) - side // 2
        np.testing.assert_array_equal(patch, slide.read(x, y, side, side))


@pytest.mark.parametrize("mpp", [0.25, 0.5])
def test_blocks_do_not_matter(mpp: float) -> None:
    slide = random_slide(mpp)
    points = np.random.default_rng(1).uniform((0, 0), (260, 300), (50, 2))
    stacks = []
    for block_px in (64, 10_000):
        patches = np.zeros((50, 40, 40, 3), np.uint8)
        for rows, part in cut_by_block(slide, points, side_px=40, block_px=block_px):
            patches[rows] = part
        stacks.append(patches)
    np.testing.assert_array_equal(*stacks)
