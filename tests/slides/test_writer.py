"""Pyramids that other libraries read back, and failures that leave nothing behind."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openslide
import pytest
import tifffile
from hypothesis import given
from hypothesis import strategies as st

from metaphase.base.arrays import Box
from metaphase.base.errors import OutputError, UsageError
from metaphase.slides.opening import open_slide
from metaphase.slides.writer import FADE_PX, GLASS, GLASS_PX, PyramidFormat, write_fields, write_pyramid
from tests.slides.images import blob_image, halved, noise_image


def tiles_of(image: npt.NDArray[Any], side: int) -> Iterator[npt.NDArray[Any]]:
    for y in range(0, image.shape[0], side):
        for x in range(0, image.shape[1], side):
            yield image[y : y + side, x : x + side]


def write(path: Path, image: npt.NDArray[Any], form: PyramidFormat) -> Path:
    write_pyramid(path, tiles_of(image, form.tile_px), image.shape[1], image.shape[0], form)
    return path


def test_openslide_and_tifffile_read_it(tmp_path: Path) -> None:
    image = blob_image(700, 501)
    path = write(tmp_path / "slide.tif", image, PyramidFormat(mpp=0.243, tile_px=128, quality=95))
    with openslide.OpenSlide(path) as slide:
        assert slide.properties["openslide.vendor"] == "generic-tiff"
        assert float(slide.properties["openslide.mpp-x"]) == pytest.approx(0.243, abs=1e-6)
        assert slide.level_dimensions == ((700, 501), (350, 250), (175, 125), (87, 62))
        seen = np.asarray(slide.read_region((0, 0), 0, (700, 501)).convert("RGB")).astype(int)
        assert np.abs(seen - image).mean() < 1.5
    with tifffile.TiffFile(path) as tiff:
        assert tiff.is_bigtiff
        assert [page.subfiletype for page in tiff.pages] == [0, 1, 1, 1]
        for level, page in enumerate(tiff.pages):
            numerator, denominator = page.tags["XResolution"].value
            assert 1e4 * denominator / numerator == pytest.approx(0.243 * 2**level, rel=1e-6)
        assert np.abs(tiff.pages[2].asarray().astype(int) - halved(halved(image))).mean() < 2


@given(width=st.integers(1, 300), height=st.integers(1, 300), side=st.sampled_from([16, 32, 48, 128]))
def test_every_level_is_the_mean_of_the_finer_one(
    tmp_path_factory: pytest.TempPathFactory, width: int, height: int, side: int
) -> None:
    image = noise_image(width, height)
    path = tmp_path_factory.getbasetemp() / "levels.tif"
    write(path, image, PyramidFormat(mpp=0.25, tile_px=side, quality=None))
    with open_slide(path) as slide:
        expected = image
        for index, level in enumerate(slide.levels):
            seen = slide.read_level(index, Box(0, 0, level.width, level.height))
            assert np.abs(seen.astype(int) - expected).max() <= (0 if index == 0 else index)
            if min(expected.shape[:2]) < 2:
                break
            expected = halved(expected)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.float32])
def test_peaks_of_probabilities_stay(tmp_path: Path, dtype: type) -> None:
    rng = np.random.default_rng(1)
    values = (rng.random((150, 210)) * 200).astype(dtype)
    path = write(tmp_path / "p.tif", values, PyramidFormat.probabilities(0.25, 64))
    with tifffile.TiffFile(path) as tiff:
        np.testing.assert_array_equal(tiff.pages[0].asarray(), values)
        peaks = values.reshape(75, 2, 105, 2).max(axis=(1, 3))
        np.testing.assert_array_equal(tiff.pages[1].asarray(), peaks)


def test_same_tiles_give_the_same_bytes(tmp_path: Path) -> None:
    image, form = noise_image(500, 400), PyramidFormat(mpp=0.25, tile_px=64)
    first, second = (write(tmp_path / name, image, form).read_bytes() for name in ("a.tif", "b.tif"))
    assert first == second


def test_colours_survive_jpeg(tmp_path: Path) -> None:
    image = np.zeros((64, 256, 3), np.uint8)
    image[:, :64], image[:, 64:128] = (200, 30, 40), (20, 180, 60)
    image[:, 128:192], image[:, 192:] = (30, 40, 210), (235, 200, 220)
    path = write(tmp_path / "colours.tif", image, PyramidFormat(mpp=0.25, tile_px=64, quality=95))
    for backend in ("tiff", "openslide"):
        with open_slide(path, backend=backend) as slide:
            assert np.abs(slide.read(0, 0, 256, 64).astype(int) - image).max() <= 6


def test_failure_midway_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[npt.NDArray[np.uint8]]:
        yield noise_image(64, 64)
        raise RuntimeError("renderer died")

    with pytest.raises(RuntimeError, match="renderer died"):
        write_pyramid(tmp_path / "slide.tif", broken(), 640, 640, PyramidFormat(mpp=0.25, tile_px=64))
    assert list(tmp_path.iterdir()) == []


def test_earlier_file_survives_a_failed_rewrite(tmp_path: Path) -> None:
    form = PyramidFormat(mpp=0.25, tile_px=64)
    path = write(tmp_path / "slide.tif", noise_image(64, 64), form)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="no tile at column 1, row 0"):
        write_pyramid(path, [noise_image(64, 64)], 128, 64, form)
    assert path.read_bytes() == before


def test_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tifffile.TiffWriter, "write", full)
    with pytest.raises(OutputError, match=r"slide\.tif: cannot write \(No space left on device\)\. Free"):
        write(tmp_path / "slide.tif", noise_image(64, 64), PyramidFormat(mpp=0.25))
    assert list(tmp_path.iterdir()) == []


def test_wrong_numbers_and_kinds_of_tiles_are_refused(tmp_path: Path) -> None:
    form, tile = PyramidFormat(mpp=0.25, tile_px=64), noise_image(64, 64)
    for tiles, message in (
        ([], "no tiles"),
        ([tile] * 3, "more than 2"),
        ([tile, tile[..., 0]], "broadcast"),
    ):
        with pytest.raises(ValueError, match=message):
            write_pyramid(tmp_path / "a.tif", tiles, 128, 64, form)
    assert list(tmp_path.iterdir()) == []


def test_tile_of_the_wrong_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected"):
        write_pyramid(tmp_path / "a.tif", [noise_image(63, 64)], 64, 64, PyramidFormat(mpp=0.25, tile_px=64))


@pytest.mark.parametrize("wrong", [{"mpp": 0}, {"tile_px": 100}, {"quality": 0}, {"mpp": float("nan")}])
def test_impossible_formats(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        PyramidFormat(**{"mpp": 0.25, **wrong})


def test_fields_become_one_slide(tmp_path: Path) -> None:
    """Two in a row; away from their edges they are what they were, between them is glass."""
    rng = np.random.default_rng(0)
    fields = [np.full((160, 240, 3), rng.integers(60, 200, 3), np.uint8) for _ in range(3)]
    write_fields(tmp_path / "slide.tif", fields, 0.25)
    with open_slide(tmp_path / "slide.tif") as slide:
        assert (slide.width, slide.height, slide.mpp) == (3 * GLASS_PX + 480, 3 * GLASS_PX + 320, 0.25)
        for number, one in enumerate(fields):
            x, y = GLASS_PX + number % 2 * (GLASS_PX + 240), GLASS_PX + number // 2 * (GLASS_PX + 160)
            inside = slide.read(x + FADE_PX, y + FADE_PX, 240 - 2 * FADE_PX, 160 - 2 * FADE_PX, 0.25)
            assert np.abs(inside.astype(int) - one[0, 0]).max() <= 6
        assert np.abs(slide.read(0, 0, GLASS_PX - 8, slide.height, 0.25).astype(int) - GLASS).max() <= 2
