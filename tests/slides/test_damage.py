"""Damage that decoders pass over in silence."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import imagecodecs
import numpy as np
import pytest
import tifffile
from PIL import Image
from wsidicom.codec import JpegSettings

from metaphase.base.arrays import Box
from metaphase.base.errors import SlideError
from metaphase.images.tissue.finding import TissueSource
from metaphase.slides.arrays import ArraySlide
from metaphase.slides.contract import UNDECODABLE, DamagedPixelsError, Slide
from metaphase.slides.damage import cell_of, check_jpeg, odd_parts
from metaphase.slides.opening import open_slide
from metaphase.slides.tiles import plan_tiles, read_tiles
from tests.slides.dicoms import TILE_PX, write_series
from tests.slides.images import with_halo, write_tiff


def tissue(width: int = 320, height: int = 256, seed: int = 0) -> Any:
    """Coloured texture as smooth as a microscope's."""
    noise = np.random.default_rng(seed).normal(0, 1, (height, width)).astype(np.float32)
    smooth = cv2.GaussianBlur(noise, (0, 0), 2.0)
    shade = (smooth / smooth.std()).clip(-2, 2)[..., None] * np.array([20, 30, 22])
    return (np.array([190, 130, 175]) + shade).round().clip(0, 255).astype(np.uint8)


def jpeg(pixels: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", **options)
    return out.getvalue()


# ---- what decoders should have said ----


@pytest.mark.parametrize(
    "options",
    [
        {"quality": 85}, {"quality": 8}, {"quality": 98, "subsampling": 0}, {"optimize": True},
        {"progressive": True}, {"restart_marker_blocks": 7},
    ],
)  # fmt: skip
def test_sound_jpegs_pass(options: dict[str, Any]) -> None:
    for pixels in (tissue(), tissue()[..., 1], np.full((240, 240, 3), 243, np.uint8), tissue(17, 33)):
        check_jpeg(jpeg(pixels, **options))


def _zeros(data: bytearray) -> None:
    data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)


def _no_end(data: bytearray) -> None:
    data[len(data) * 2 // 3 :] = bytes(len(data) - len(data) * 2 // 3)


def _swapped(data: bytearray) -> None:
    one, other = slice(2000, 2512), slice(4000, 4512)
    data[one], data[other] = data[other], data[one]


def _marker(data: bytearray) -> None:
    data[3000:3002] = b"\xff\xe1"


@pytest.mark.parametrize("damage", [_zeros, _no_end, _swapped, _marker])
def test_a_jpeg_that_goes_wrong_on_the_way_is_refused(
    damage: Callable[[bytearray], None], tmp_path: Path
) -> None:
    data = bytearray(jpeg(tissue(), quality=90))
    damage(data)
    assert imagecodecs.jpeg8_decode(bytes(data)).shape == (256, 320, 3)  # the decoder says nothing
    with pytest.raises((ValueError, OSError)):
        check_jpeg(bytes(data))
    path = tmp_path / "slide.jpg"
    path.write_bytes(data)
    with pytest.raises(Exception, match="damaged image"):
        open_slide(path, mpp=0.25)


def damaged(path: Path, index: int, damage: Callable[[bytearray], None]) -> None:
    """Change the bytes of one tile."""
    with tifffile.TiffFile(path) as tiff:
        page = tiff.pages.first
        start, size = page.dataoffsets[index], page.databytecounts[index]
    content = bytearray(path.read_bytes())
    data = content[start : start + size]
    damage(data)
    content[start : start + size] = data
    path.write_bytes(bytes(content))


def _flip(data: bytearray) -> None:
    data[len(data) // 2] ^= 0x10


@pytest.mark.parametrize(("compression", "damage"), [("jpeg", _no_end), ("jpeg", _zeros), ("lzw", _flip)])
def test_damaged_tiles_are_noted_by_whoever_goes_on(
    tmp_path: Path, compression: str, damage: Callable[[bytearray], None]
) -> None:
    path = write_tiff(tmp_path / "slide.tif", tissue(), compression=compression, tile=(128, 128))
    damaged(path, 1, damage)
    with open_slide(path) as slide:
        slide.flaws = []
        pixels = slide.read_level(0, Box(0, 0, 320, 256))
        assert [(flaw.kind, flaw.box) for flaw in slide.flaws] == [(UNDECODABLE, Box(128, 0, 128, 128))]
        assert (pixels[:128, 128:256] == 255).all()


def tile_tag(path: Path, name: str, values: dict[int, int]) -> None:
    with tifffile.TiffFile(path) as tiff:
        tag = tiff.pages.first.tags[name]
        form = {3: "<H", 4: "<I", 16: "<Q"}[int(tag.dtype)]
    data = bytearray(path.read_bytes())
    for index, value in values.items():
        struct.pack_into(form, data, tag.valueoffset + index * struct.calcsize(form), value)
    path.write_bytes(bytes(data))


def test_tiles_that_share_their_bytes_must_be_blank(tmp_path: Path) -> None:
    image = tissue()
    image[128:] = 240
    path = write_tiff(tmp_path / "slide.tif", image, tile=(128, 128))
    with tifffile.TiffFile(path) as tiff:
        offsets = tiff.pages.first.dataoffsets
    tile_tag(path, "TileOffsets", {1: offsets[0], 4: offsets[3]})
    with open_slide(path) as slide:
        assert (slide.read_level(0, Box(128, 128, 128, 128)) == 240).all()
        with pytest.raises(DamagedPixelsError, match="other tiles have the same bytes"):
            slide.read_level(0, Box(128, 0, 128, 128))


def test_damage_that_leaves_no_tissue_is_called_damage(tmp_path: Path) -> None:
    path = tmp_path / "slide.tif"
    tifffile.imwrite(path, tissue(), tile=(128, 128), photometric="rgb", metadata=None)
    with tifffile.TiffFile(path) as tiff:
        offset = tiff.pages.first.dataoffsets[0]
    tile_tag(path, "TileOffsets", dict.fromkeys(range(6), offset))
    with open_slide(path, mpp=0.25) as slide:
        slide.flaws = []
        with pytest.raises(SlideError, match="tiles cannot be decoded: 6"):
            TissueSource().of(slide)


def test_no_tile_begins_in_the_header(tmp_path: Path) -> None:
    path = write_tiff(tmp_path / "slide.tif", tissue(), tile=(128, 128))
    tile_tag(path, "TileOffsets", {1: 0})
    with open_slide(path) as slide, pytest.raises(DamagedPixelsError, match="header"):
        slide.read_level(0, Box(128, 0, 128, 128))


def test_damaged_frames_of_dicom_are_noted(tmp_path: Path) -> None:
    coded = {"transcoding": JpegSettings(quality=95), "force_transcoding": True, "add_missing_levels": False}
    folder = write_series(tmp_path / "slide", tissue(128, 128), **coded)
    (file,) = folder.iterdir()
    data = bytearray(file.read_bytes())
    start = data.rfind(b"\xff\xda")
    data[start + 600 : start + 700] = bytes(100)
    file.write_bytes(bytes(data))
    for backend in ("auto", "dicom"):
        with open_slide(file, backend=backend) as slide:
            slide.flaws = []
            slide.read_level(0, Box(0, 0, 128, 128))
            assert {flaw.kind for flaw in slide.flaws} == {UNDECODABLE}
            assert any(flaw.box.right > TILE_PX for flaw in slide.flaws)


# ---- what pixels look like ----


def noted(pixels: Any) -> list[tuple[str, Box]]:
    return noted_of(ArraySlide(pixels, mpp=0.25))


def noted_of(slide: Slide) -> list[tuple[str, Box]]:
    slide.flaws = []
    for _ in read_tiles(slide, with_halo(plan_tiles(slide.bounds, 0.25, tile_px=160), 40)):
        pass
    return [(flaw.kind, flaw.box) for flaw in slide.flaws]


def test_sound_pixels_are_not_odd() -> None:
    assert noted(tissue()) == []
    slide = ArraySlide(tissue(), mpp=0.25)
    slide.flaws = []
    part = with_halo(plan_tiles(Box(40, 30, 300, 240), 0.25, tile_px=160), 40)  # to the edge, and beyond
    for tile, pixels in read_tiles(slide, part):
        np.testing.assert_array_equal(
            pixels, slide.read(40 + tile.outer.x, 30 + tile.outer.y, tile.outer.width, tile.outer.height)
        )
    assert slide.flaws == []
    glass = tissue()
    glass[:, 100:] = 243
    glass[:100] = 243
    assert noted(cv2.GaussianBlur(glass, (0, 0), 2)) == []


@pytest.mark.parametrize("kind", ["zeros", "grey", "shifted byte", "swapped rows", "noise", "left out"])
def test_damaged_pixels_are_odd(kind: str) -> None:
    pixels = tissue()
    flat = pixels.reshape(-1)
    row = 320 * 3
    span = slice(100 * row, 116 * row)
    if kind in ("zeros", "grey"):
        flat[span] = 0 if kind == "zeros" else 128
    elif kind == "shifted byte":
        flat[100 * row :] = np.roll(flat[100 * row :], 1)
    elif kind == "swapped rows":
        flat[span], flat[: 16 * row] = flat[: 16 * row].copy(), flat[span].copy()
    elif kind == "noise":
        flat[span] = np.random.default_rng(1).integers(0, 256, 16 * row)
    else:
        pixels[64:128, 64:192] = 255
    found = noted(pixels)
    assert found
    assert min(abs(box.y - (64 if kind == "left out" else 100)) for _, box in found) <= 2
    assert {"zeros": "plain area", "grey": "plain area", "noise": "noise"}.get(kind, "seam") in {
        name for name, _ in found
    }


def test_where_all_is_odd_each_tile_notes_one_flaw_of_a_kind_per_cell() -> None:
    found = noted(np.zeros((320, 320, 3), np.uint8))
    assert {name for name, _ in found} == {"plain area"}
    assert len({cell_of(box) for _, box in found}) == 4
    assert len(found) < 20, "thousands of segments are plain"


def test_a_tile_without_bytes_is_odd_inside_tissue(tmp_path: Path) -> None:
    path = write_tiff(tmp_path / "slide.tif", tissue(), tile=(128, 128))
    tile_tag(path, "TileByteCounts", {1: 0})
    with open_slide(path) as slide:
        assert {kind for kind, _ in noted_of(slide)} == {"seam"}


@pytest.mark.parametrize(
    "name", ["icpr2012-aperio/A03_09.jpg", "midesec/P0_09.jpg", "mitos-atypia14-A03/A03_05Bd.jpg"]
)
def test_real_fields_are_not_odd(real_data: Path, name: str) -> None:
    assert list(odd_parts(np.asarray(Image.open(real_data / name).convert("RGB"))[:1024, :1024])) == []
