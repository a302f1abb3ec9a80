"""Each backend against the contract, and the fast path against OpenSlide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openslide
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as PillowImage

from metaphase.base.arrays import Box
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.contract import Slide
from metaphase.slides.opening import open_slide
from tests.slides.conformance import Image, SlideConformance
from tests.slides.images import blob_image, noise_image, write_tiff


class TestArray(SlideConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def pixels(cls) -> Image:
        return blob_image()

    @pytest.fixture(scope="class")
    @classmethod
    def slide(cls, pixels: Image) -> Slide:
        return ArraySlide(pixels, mpp=0.25)


class TestPlainImage(TestArray):
    @pytest.fixture(scope="class")
    @classmethod
    def slide(cls, pixels: Image, tmp_path_factory: pytest.TempPathFactory) -> Slide:
        path = tmp_path_factory.mktemp("image") / "field.png"
        PillowImage.fromarray(pixels).save(path)
        return open_slide(path, mpp=0.25)


class TestLosslessTiff(TestArray):
    backend = "tiff"

    @pytest.fixture(scope="class")
    @classmethod
    def slide(cls, pixels: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slide]:
        path = write_tiff(tmp_path_factory.mktemp("tiff") / "slide.tif", pixels, compression="zlib")
        with open_slide(path, backend=cls.backend) as slide:
            assert slide.info.backend == cls.backend
            yield slide


class TestOpenSlide(TestLosslessTiff):
    backend = "openslide"
    # OpenSlide takes whole level-0 positions: a read of a coarser level whose size is no exact fraction
    # starts up to half a level-0 pixel off. The steepest step here, tissue to white, is 65 grey levels.
    seam_tolerance = 20


class TestStripedTiff(TestArray):
    @pytest.fixture(scope="class")
    @classmethod
    def slide(cls, pixels: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slide]:
        path = tmp_path_factory.mktemp("strips") / "strips.tif"
        write_tiff(path, pixels, tile=None, rowsperstrip=16, compression="lzw")
        with open_slide(path) as slide:
            assert slide.info.backend == "tiff"
            yield slide


@pytest.fixture(scope="module", params=[(1, 1), (2, 2)], ids=["4:4:4", "4:2:0"])
def jpeg_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jpeg") / "slide.tif"
    return write_tiff(path, noise_image(413, 331), compression="jpeg", subsampling=request.param)


@given(
    x=st.integers(-50, 450), y=st.integers(-50, 350), width=st.integers(1, 400), height=st.integers(1, 300)
)
def test_fast_path_equals_openslide(jpeg_file: Path, x: int, y: int, width: int, height: int) -> None:
    with open_slide(jpeg_file) as fast, openslide.OpenSlide(jpeg_file) as reference:
        assert fast.info.backend == "tiff"
        theirs = reference.read_region((x, y), 0, (width, height))
        white = PillowImage.new("RGBA", theirs.size, "white")
        expected = np.asarray(PillowImage.alpha_composite(white, theirs).convert("RGB"))
        np.testing.assert_array_equal(fast.read(x, y, width, height, fast.mpp), expected)


def test_fast_path_has_openslides_levels(jpeg_file: Path) -> None:
    with open_slide(jpeg_file) as fast, open_slide(jpeg_file, backend="openslide") as reference:
        assert fast.levels == reference.levels
        assert fast.levels[1].downsample == 2  # 413 is odd: the ratio of the widths is not
        for index, level in enumerate(fast.levels):
            box = Box(0, 0, level.width, level.height)
            np.testing.assert_array_equal(fast.read_level(index, box), reference.read_level(index, box))


def test_real_aperio_slide_is_equal_everywhere(real_data: Path) -> None:
    path = real_data / "wsi" / "CMU-1-Small-Region.svs"
    with open_slide(path) as fast, open_slide(path, backend="openslide") as reference:
        assert (fast.width, fast.height, fast.mpp, fast.info.backend) == (2220, 2967, 0.499, "tiff")
        whole = Box(0, 0, fast.width, fast.height)
        np.testing.assert_array_equal(fast.read_level(0, whole), reference.read_level(0, whole))
