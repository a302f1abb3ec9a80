"""What every slide backend must do. A backend's test subclasses this and provides `slide` and `pixels`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from metaphase.base.arrays import Box
from metaphase.base.errors import RegionError
from metaphase.slides.contract import Slide
from tests.slides.images import BLOBS

Image = npt.NDArray[np.uint8]

corners = st.integers(-40, 380)
sides = st.integers(1, 150)
resolutions = st.floats(0.08, 2.5)


def cut(pixels: Image, box: Box) -> Image:
    """Reference for a read at level 0: the pixels, white outside."""
    canvas = np.full((box.height, box.width, 3), 255, np.uint8)
    for y in range(max(0, box.y), min(pixels.shape[0], box.bottom)):
        x0, x1 = max(0, box.x), min(pixels.shape[1], box.right)
        if x0 < x1:
            canvas[y - box.y, x0 - box.x : x1 - box.x] = pixels[y, x0:x1]
    return canvas


class SlideConformance:
    """Contract tests; `slide` has mpp 0.25 and shows `blob_image()`, whose stored pixels are `pixels`."""

    seam_tolerance = 1
    """Grey levels by which two reads of one position may differ (rounding)."""

    def test_levels_go_from_fine_to_coarse(self, slide: Slide, pixels: Image) -> None:
        assert (slide.height, slide.width) == pixels.shape[:2]
        downsamples = [level.downsample for level in slide.levels]
        assert downsamples[0] == 1
        assert downsamples == sorted(downsamples)

    def test_resolution_has_a_source(self, slide: Slide) -> None:
        assert slide.mpp == pytest.approx(0.25)
        assert slide.info.resolution is not None
        assert slide.info.resolution.source in ("metadata", "flag")

    @given(x=corners, y=corners, width=sides, height=sides)
    def test_native_pixels_are_exact_and_white_outside(
        self, slide: Slide, pixels: Image, x: int, y: int, width: int, height: int
    ) -> None:
        box = Box(x, y, width, height)
        np.testing.assert_array_equal(slide.read(x, y, width, height, slide.mpp), cut(pixels, box))
        np.testing.assert_array_equal(slide.read_level(0, box), cut(pixels, box))

    @given(mpp=resolutions, x=st.floats(-20, 300), y=st.floats(-20, 280), split=st.integers(1, 39))
    def test_tiles_have_no_seams(self, slide: Slide, mpp: float, x: float, y: float, split: int) -> None:
        step = mpp / slide.mpp
        whole = slide.read(x, y, 40, 40, mpp).astype(int)
        right = slide.read(x + split * step, y, 40 - split, 40, mpp)
        below = slide.read(x, y + split * step, 40, 40 - split, mpp)
        assert np.abs(whole[:, split:] - right).max() <= self.seam_tolerance
        assert np.abs(whole[split:] - below).max() <= self.seam_tolerance

    @given(mpp=st.floats(0.1, 0.9), x=st.floats(-30, 0), y=st.floats(-30, 0))
    def test_nothing_moves_when_resampled(self, slide: Slide, mpp: float, x: float, y: float) -> None:
        step = mpp / slide.mpp
        width, height = (int(np.ceil(60 + side / step)) for side in (slide.width, slide.height))
        view = 255.0 - slide.read(x, y, width, height, mpp)[..., 1]
        for blob in BLOBS:
            centre = (blob - (x, y)) / step - 0.5
            found = _centroid(view, centre, reach=max(4, 14 / step))
            assert np.abs(found - centre).max() * step < 0.25  # level-0 pixels, a sixteenth of a micrometre

    def test_resampling_agrees_with_scipy(self, slide: Slide, pixels: Image) -> None:
        mpp = 0.35
        ours = slide.read(20, 30, 150, 120, mpp).astype(float)
        step = mpp / slide.mpp
        rows = 30 + (np.arange(120) + 0.5) * step - 0.5
        columns = 20 + (np.arange(150) + 0.5) * step - 0.5
        grid = np.meshgrid(rows, columns, indexing="ij")
        for channel in range(3):
            theirs = ndimage.map_coordinates(pixels[..., channel].astype(float), grid, order=3)
            assert np.abs(ours[..., channel] - theirs).max() < 4
            assert np.abs(ours[..., channel] - theirs).mean() < 0.6

    def test_thumbnail_shows_the_whole_slide(self, slide: Slide, pixels: Image) -> None:
        thumbnail = slide.thumbnail(50)
        assert max(thumbnail.shape[:2]) == 50
        np.testing.assert_allclose(thumbnail.mean((0, 1)), pixels.mean((0, 1)), atol=4)

    @pytest.mark.parametrize(("width", "height"), [(0, 10), (10, 0), (-1, 10)])
    def test_empty_region_is_refused(self, slide: Slide, width: int, height: int) -> None:
        with pytest.raises(RegionError, match="at least 1 x 1"):
            slide.read(0, 0, width, height, 0.25)

    def test_nonsense_place_is_refused(self, slide: Slide) -> None:
        with pytest.raises(RegionError, match="finite"):
            slide.read(float("nan"), 0, 10, 10, 0.25)
        with pytest.raises(RegionError, match="finite"):
            slide.read(0, 0, 10, 10, -1)

    def test_level_that_does_not_exist_is_refused(self, slide: Slide) -> None:
        with pytest.raises(RegionError, match="level 99"):
            slide.read_level(99, Box(0, 0, 5, 5))

    def test_threads_may_read_at_once(self, slide: Slide, pixels: Image) -> None:
        rng = np.random.default_rng(3)
        boxes = [Box(*map(int, rng.integers(0, 250, 2)), 90, 80) for _ in range(60)]
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda box: slide.read_level(0, box), boxes))
        for box, result in zip(boxes, results, strict=True):
            np.testing.assert_array_equal(result, cut(pixels, box))


def _centroid(
    view: npt.NDArray[np.float64], near: npt.NDArray[np.float64], reach: float
) -> npt.NDArray[np.float64]:
    """Centre of mass of what stands out around `near` (x, y)."""
    x0, y0 = np.maximum(0, np.round(near - reach)).astype(int)
    patch = view[y0 : round(near[1] + reach) + 1, x0 : round(near[0] + reach) + 1]
    weight = np.clip(patch - np.percentile(patch, 20) - 8, 0, None)
    rows, columns = np.indices(patch.shape)
    return np.array(
        [(columns * weight).sum() + x0 * weight.sum(), (rows * weight).sum() + y0 * weight.sum()]
    ) / (weight.sum())
