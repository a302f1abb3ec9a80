"""Formats of extras against the contract, from files that their own libraries wrote."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metaphase.base.errors import SlideError, UsageError
from metaphase.slides.contract import Slide
from metaphase.slides.opening import SlideSource, open_slide
from tests.slides.conformance import Image, SlideConformance
from tests.slides.images import blob_image


def write_czi(path: Path, pixels: Image, mpp: float = 0.25) -> Path:
    """Tiles somewhere on the glass, as Zeiss's library writes them; OpenSlide refuses their dimension Z."""
    czi = pytest.importorskip("pylibCZIrw.czi", reason="pylibCZIrw is not installed: metaphase[czi]")
    with czi.create_czi(str(path)) as file:
        for y in range(0, pixels.shape[0], 128):
            for x in range(0, pixels.shape[1], 128):
                tile = np.ascontiguousarray(pixels[y : y + 128, x : x + 128, ::-1])
                file.write(tile, location=(x + 700, y - 300), plane={"C": 0})
        file.write_metadata("slide", scale_x=mpp * 1e-6, scale_y=mpp * 1e-6)
    return path


def write_zarr(
    path: Path, pixels: Image, version: int = 3, unit: str = "micrometer", **described: Any
) -> Path:
    """Two levels (t, c, z, y, x) as OME-Zarr 0.5 (Zarr 3) or 0.4 (Zarr 2) has them."""
    zarr = pytest.importorskip("zarr", reason="zarr is not installed: metaphase[zarr]")
    half = pixels[: pixels.shape[0] // 2 * 2, : pixels.shape[1] // 2 * 2].astype(np.uint16)
    half = (half[::2, ::2] + half[1::2, ::2] + half[::2, 1::2] + half[1::2, 1::2] + 2) // 4
    group = zarr.open_group(str(path), mode="w", zarr_format=version)
    levels = []
    for name, image in (("0", pixels), ("1", half.astype(np.uint8))):
        data = np.moveaxis(image, 2, 0)[None, :, None]
        array = group.create_array(name, shape=data.shape, chunks=(1, 1, 1, 128, 128), dtype=data.dtype)
        array[:] = data
        scale = [1, 1, 1, 0.25 * 2 ** int(name), 0.25 * 2 ** int(name)]
        levels.append({"path": name, "coordinateTransformations": [{"type": "scale", "scale": scale}]})
    space = [{"name": axis, "type": "space", "unit": unit} for axis in "zyx"]
    axes = [{"name": "t", "type": "time"}, {"name": "c", "type": "channel"}, *space]
    image = {"axes": axes, "datasets": levels, "name": "slide"} | described
    group.attrs.update({"ome": {"version": "0.5", "multiscales": [image]}} if version == 3 else
                       {"multiscales": [image | {"version": "0.4"}]})  # fmt: skip
    return path


class TestCzi(SlideConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def pixels(cls) -> Image:
        return blob_image()

    @pytest.fixture(scope="class")
    @classmethod
    def slide(cls, pixels: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slide]:
        with open_slide(write_czi(tmp_path_factory.mktemp("czi") / "slide.czi", pixels)) as slide:
            assert slide.info.backend == "czi"
            yield slide


class TestOmeZarr(TestCzi):
    @pytest.fixture(scope="class")
    @classmethod
    def slide(cls, pixels: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slide]:
        with open_slide(write_zarr(tmp_path_factory.mktemp("zarr") / "slide.ome.zarr", pixels)) as slide:
            assert (slide.info.backend, len(slide.levels)) == ("ome-zarr", 2)
            yield slide


def test_ome_zarr_of_other_layouts(tmp_path: Path) -> None:
    pixels = blob_image()
    old = write_zarr(tmp_path / "old.zarr", pixels, version=2, unit="millimeter")
    with pytest.raises(SlideError, match="micrometres per pixel"):
        _ = open_slide(old).mpp  # 250 um are no bright-field scan
    inner = write_zarr(tmp_path / "raw.zarr" / "0", pixels, version=2)
    import zarr

    zarr.open_group(str(inner.parent), mode="a", zarr_format=2).attrs["bioformats2raw.layout"] = 3
    with open_slide(inner.parent) as slide:
        assert slide.mpp == 0.25
    with zipfile.ZipFile(tmp_path / "packed.ozx", "w") as packed:
        new = write_zarr(tmp_path / "new.zarr", pixels)
        for file in new.rglob("*"):
            packed.write(file, file.relative_to(new))
    with open_slide(tmp_path / "packed.ozx") as slide:
        np.testing.assert_array_equal(slide.read(10, 20, 50, 40), pixels[20:60, 10:60])


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "slide.zarr", blob_image(), version=2)
    described = path / "0" / ".zarray"
    stated = json.loads(described.read_text())
    described.write_text(json.dumps(stated | {"filters": [{"id": "pickle", "protocol": 5}]}))
    with pytest.raises(SlideError, match="pickle"):
        open_slide(path)
    described.write_text(json.dumps(stated | {"chunks": [1, 1, 1, 1 << 20, 1 << 20]}))
    with pytest.raises(SlideError, match="METAPHASE_LIMITS"):
        open_slide(path)


def test_a_level_without_pixels_is_an_error(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "slide.zarr", blob_image(), version=2)
    described = path / "1" / ".zarray"
    stated = json.loads(described.read_text())
    described.write_text(json.dumps(stated | {"shape": [*stated["shape"][:-2], 0, stated["shape"][-1]]}))
    with pytest.raises(SlideError, match="a level without pixels"):
        open_slide(path)


@pytest.mark.parametrize("axes", ["cyx", "xczyx"])
def test_axes_that_do_not_fit_the_arrays_are_an_error(tmp_path: Path, axes: str) -> None:
    path = write_zarr(tmp_path / "slide.zarr", blob_image(), axes=[{"name": name} for name in axes])
    with pytest.raises(SlideError, match="axes"):
        open_slide(path)


def test_every_level_has_bytes_as_pixels(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "slide.zarr", blob_image(), version=2)
    described = path / "1" / ".zarray"
    described.write_text(json.dumps(json.loads(described.read_text()) | {"dtype": "<f4"}))
    with pytest.raises(SlideError, match="channels of float32"):
        open_slide(path)


def test_a_folder_is_accounted_for_by_its_content(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "slide.zarr", blob_image())
    source = SlideSource(path)
    before = source.account()
    assert source.effective_mpp == 0.25
    chunk = max((file for file in path.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"x")
    assert SlideSource(path).account() != before


def test_what_is_no_slide_says_so(tmp_path: Path) -> None:
    (tmp_path / "slide.czi").write_bytes(b"ZISRAWFILE" + bytes(200))
    with pytest.raises(SlideError, match=r"slide\.czi"):
        open_slide(tmp_path / "slide.czi")
    with pytest.raises(SlideError, match="is a folder"):
        open_slide(tmp_path)
    (tmp_path / "bad.zarr").mkdir()
    (tmp_path / "bad.zarr" / "zarr.json").write_text("{}")
    with pytest.raises(SlideError, match="not an OME-Zarr image"):
        open_slide(tmp_path / "bad.zarr")
    with pytest.raises(UsageError, match="there is no backend 'czy'"):
        open_slide(tmp_path / "slide.czi", backend="czy")
