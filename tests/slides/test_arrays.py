"""Pixels of every kind are a slide, those elsewhere are read in parts, what is no picture is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array
import numpy as np
import pytest
import zarr
from PIL import Image as PillowImage

import metaphase as mp
from metaphase.base.arrays import Box
from metaphase.slides import arrays
from metaphase.slides.contract import Slide
from tests.slides.conformance import Image, SlideConformance
from tests.slides.images import blob_image


class TestDask(SlideConformance):
    """Blocks of many chunks, none of which the slide fits."""

    @pytest.fixture(scope="class")
    @classmethod
    def pixels(cls) -> Image:
        return blob_image()

    @pytest.fixture(scope="class")
    @classmethod
    def slide(cls, pixels: Image) -> Slide:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(arrays, "BLOCK_PX", 100)
            return mp.open_slide(dask.array.from_array(pixels, chunks=(60, 70, 2)), mpp=0.25)


class TestZarr(TestDask):
    """Floats in chunks larger than a block may be."""

    @pytest.fixture(scope="class")
    @classmethod
    def slide(cls, pixels: Image, tmp_path_factory: pytest.TempPathFactory) -> Slide:
        folder = tmp_path_factory.mktemp("zarr") / "pixels.zarr"
        stored = zarr.create_array(folder, shape=pixels.shape, chunks=(128, 128, 3), dtype="float32")
        stored[:] = pixels.astype(np.float32) / 255
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(arrays, "MOST_BLOCK_PX", 90)
            return mp.open_slide(stored, mpp=0.25)


def xarray_of(pixels: Image) -> Any:
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    return xarray.DataArray(np.moveaxis(pixels, 2, 0), dims=("c", "y", "x"))


def rgba(pixels: Image) -> Image:
    return np.dstack([pixels, np.full(pixels.shape[:2], 255, np.uint8)])


KINDS: dict[str, Callable[[Image], Any]] = {
    "float64": lambda pixels: pixels / 255,
    "float16": lambda pixels: (pixels / 255).astype(np.float16),
    "overshoot": lambda pixels: np.where(pixels == 255, 1.0005, pixels / 255),
    "rgba": rgba,
    "float rgba": lambda pixels: rgba(pixels) / 255,
    "PIL": PillowImage.fromarray,
    "PIL rgba": lambda pixels: PillowImage.fromarray(rgba(pixels)),
    "dask": lambda pixels: dask.array.from_array(pixels, chunks=(50, 64, 3)),
    "dask float rgba": lambda pixels: dask.array.from_array(rgba(pixels) / 255, chunks=100),
    "zarr": lambda pixels: zarr.array(pixels, chunks=(64, 64, 3)),
    "xarray, channels first": xarray_of,
    "read-only": lambda pixels: np.frombuffer(pixels.tobytes(), np.uint8).reshape(pixels.shape),
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_are_the_same_pixels(kind: str) -> None:
    pixels = blob_image()
    with mp.open_slide(KINDS[kind](pixels), mpp=0.25) as slide:
        np.testing.assert_array_equal(slide.read(0, 0, slide.width, slide.height, mpp=0.25), pixels)


def test_transparent_pixels_lie_on_white() -> None:
    pixels = np.zeros((20, 30, 4))
    pixels[:, 15:, 3] = 0.5
    for given in (pixels, PillowImage.fromarray((pixels * 255).astype(np.uint8))):
        with mp.open_slide(given, mpp=0.25) as slide:
            found = slide.read(0, 0, 30, 20, mpp=0.25)
        assert (found[:, :15] == 255).all()
        assert abs(found[:, 15:].astype(int) - 128).max() <= 1


class Counted:
    """An array somewhere else, which counts what is read of it."""

    def __init__(self, pixels: Image, chunks: tuple[int, ...]) -> None:
        self.pixels, self.chunks, self.read = pixels, chunks, list[int]()
        self.shape, self.dtype = pixels.shape, pixels.dtype

    def __getitem__(self, index: Any) -> Image:
        self.read.append(self.pixels[index].size)
        return self.pixels[index]


def test_nothing_is_read_whole_and_no_block_twice() -> None:
    source = Counted(np.full((2500, 3000, 3), 200, np.uint8), (500, 500, 3))
    with mp.open_slide(source, mpp=0.25) as slide:
        assert not source.read
        for y in range(0, 2500, 500):
            slide.read_level(0, Box(0, y, 3000, 500))
    assert max(source.read) == 1500 * 1500 * 3
    assert sum(source.read) == source.pixels.size


REFUSED: dict[str, tuple[Callable[[Image], Any], str]] = {
    "floats up to 255": (lambda p: p.astype(float), r"values from \d+ to 2\d\d\. Floats go from 0 to 1: div"),
    "negative floats": (lambda p: p / 127.5 - 1, r"values from -[\d.]+ to [\d.]+\. Floats go from 0 to 1"),
    "NaN": (lambda p: np.where(p > p.mean(), np.nan, 0.5), "has pixels that are NaN. Fill them: 1.0 is wh"),
    "infinity": (lambda p: np.where(p > p.mean(), np.inf, 0.5), "values from 0.5 to inf"),
    "lazy floats": (lambda p: dask.array.from_array(p.astype(float)), "Floats go from 0 to 1: divide"),
    "grey": (
        lambda p: p[..., 0],
        r"of shape \(\d+, \d+\) and type uint8 is grey\. Give \(height, w",
    ),
    "one channel": (lambda p: p[..., :1], "is grey. Give"),
    "PIL grey": (lambda p: PillowImage.fromarray(p).convert("L"), "is grey. Give"),
    "PIL grey, 16 bits": (lambda p: PillowImage.fromarray(p[..., 0].astype(np.uint16)), "is grey. Give"),
    "16 bits": (lambda p: p.astype(np.uint16) * 257, r"type uint16 has 16 bits\. Bring it to 8, as \(pixels"),
    "int64": (
        lambda p: p.astype(np.int64),
        "type int64 is not of uint8 or float. If its values go",
    ),
    "bool": (lambda p: p > 100, "type bool is not of uint8 or float"),
    "channels first": (lambda p: np.moveaxis(p, 2, 0), "has its channels first. Move them to the end: nump"),
    "several": (lambda p: np.stack([p, p]), r"is several images\. Give them one by one: mp\.detect\(list"),
    "five channels": (lambda p: np.dstack([p, p[..., :2]]), "is not an image. Give"),
    "empty": (lambda p: p[:0], "has no pixels"),
    "a table": (lambda p: p.tolist(), "list is not a slide. Give a path, or pixels with their mpp"),
    "a zarr group": (lambda _: zarr.group(), "Group is not a slide"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_picture_is_refused_by_what_is_wrong(kind: str) -> None:
    make, message = REFUSED[kind]
    with (
        pytest.raises(mp.MetaphaseError, match=message),
        mp.open_slide(make(blob_image()), mpp=0.25) as slide,
    ):
        slide.read(0, 0, slide.width, slide.height, mpp=0.25)


def test_pixels_need_a_resolution() -> None:
    with (
        mp.open_slide(blob_image()) as slide,
        pytest.raises(mp.MetaphaseError, match="micrometres per pixel"),
    ):
        _ = slide.mpp
