"""Slides that are broken, or say more than they hold."""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
import tifffile

from metaphase.base.errors import SlideError
from metaphase.base.foreign import LIMITS
from metaphase.slides.opening import open_slide
from tests.slides.images import noise_image, write_tiff


def tag(
    path: Path, name: str, *, kind: int | None = None, count: int | None = None, value: int | None = None
) -> None:
    """Change an entry of the first directory as it stands in the file."""
    with tifffile.TiffFile(path) as tiff:
        position = tiff.pages.first.tags[name].offset
    data = bytearray(path.read_bytes())
    for at, form, new in ((2, "<H", kind), (4, "<I", count), (8, "<I", value)):
        if new is not None:
            struct.pack_into(form, data, position + at, new)
    path.write_bytes(bytes(data))


@pytest.fixture
def slide(tmp_path: Path) -> Path:
    return write_tiff(tmp_path / "slide.tif", noise_image(200, 150))


@pytest.mark.parametrize(
    "change",
    [
        ("ImageWidth", {"value": 0}), ("ImageWidth", {"count": 2}), ("ImageWidth", {"kind": 2}),
        ("ImageLength", {"value": 0}), ("TileWidth", {"value": 0}), ("TileWidth", {"count": 3}),
        ("TileLength", {"value": 3}), ("TileOffsets", {"count": 1}), ("TileByteCounts", {"count": 2}),
        ("TileByteCounts", {"kind": 2}), ("PhotometricInterpretation", {"value": 7}),
        ("PhotometricInterpretation", {"value": 255}), ("SamplesPerPixel", {"count": 2}),
        ("SamplesPerPixel", {"value": 0}), ("BitsPerSample", {"kind": 12}), ("Compression", {"value": 9999}),
    ],
)  # fmt: skip
def test_tags_that_cannot_be_are_an_error_or_do_no_harm(
    slide: Path, change: tuple[str, dict[str, int]]
) -> None:
    tag(slide, change[0], **change[1])
    with contextlib.suppress(SlideError), open_slide(slide) as opened:
        opened.thumbnail(64)


@pytest.mark.parametrize("change", [{"kind": 3}, {"count": 0}, {"kind": 2}])
def test_odd_resolution_tags_are_no_resolution(slide: Path, change: dict[str, int]) -> None:
    tag(slide, "XResolution", **change)
    with open_slide(slide) as opened:
        assert opened.info.resolution is None


def sparse(path: Path, side: int, tile: int, tiles: int, first: int = 8) -> Path:
    """A TIFF that promises side x side pixels and lists so many tiles, of which the first has some bytes."""
    values = [first] + [0] * (tiles - 1)
    tags = [
        (256, 4, 1, side), (257, 4, 1, side), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (277, 3, 1, 1),
        (322, 4, 1, tile), (323, 4, 1, tile), (324, 4, tiles, 400), (325, 4, tiles, 400),
    ]  # fmt: skip
    body = b"".join(struct.pack("<HHII", *one) for one in tags)
    head = b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags)) + body + bytes(4)
    path.write_bytes(head.ljust(400, b"\0") + struct.pack(f"<{tiles}I", *values))
    return path


def test_headers_promise_no_more_than_the_file_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SlideError, match="are needed"):
        open_slide(sparse(tmp_path / "few.tif", 300_000, 256, 1))
    promising = sparse(tmp_path / "promising.tif", 80_000, 8000, 100)
    with pytest.raises(SlideError, match=LIMITS):
        open_slide(promising)
    monkeypatch.setenv(LIMITS, "100")
    with open_slide(promising) as opened:
        assert opened.width == 80_000


def test_a_slide_without_any_tile_is_none(tmp_path: Path) -> None:
    with pytest.raises(SlideError, match="all its tiles or strips are empty"):
        open_slide(sparse(tmp_path / "nothing.tif", 4096, 256, 256, first=0))


def test_a_jpeg_larger_than_its_tile_is_not_unpacked(tmp_path: Path) -> None:
    path = write_tiff(tmp_path / "slide.tif", noise_image(64, 64), compression="jpeg")
    data = bytearray(path.read_bytes())
    with tifffile.TiffFile(path) as tiff:
        start = tiff.pages.first.dataoffsets[0]
    position = data.find(b"\xff\xc0", start) + 5
    struct.pack_into(">HH", data, position, 65535, 65535)
    path.write_bytes(bytes(data))
    with (
        open_slide(path) as opened,
        pytest.raises(SlideError, match="65535 x 65535 pixels in a tile of 64 x 64"),
    ):
        opened.read(0, 0, 64, 64, 0.25)


def test_bytes_before_the_frame_of_a_jpeg_hide_nothing(tmp_path: Path) -> None:
    path = write_tiff(tmp_path / "slide.tif", noise_image(64, 64), compression="jpeg")
    data = bytearray(path.read_bytes())
    with tifffile.TiffFile(path) as tiff:
        start, size = tiff.pages.first.dataoffsets[0], tiff.pages.first.databytecounts[0]
    tile = data[start : start + size]
    data[start : start + size] = (tile[:2] + b"\0\0" + tile[2:])[:size]
    path.write_bytes(bytes(data))
    with open_slide(path) as opened, pytest.raises(SlideError, match="without a frame"):
        opened.read(0, 0, 64, 64, 0.25)


def test_directories_are_counted_before_they_are_read(tmp_path: Path) -> None:
    path = write_tiff(tmp_path / "slide.tif", noise_image(64, 64))
    number = 100_000
    with tifffile.TiffFile(path) as tiff:
        first = tiff.pages.first.offset
    data = bytearray(path.read_bytes())
    position = len(data)
    data += struct.pack(f"<{number}I", *[first] * number)
    path.write_bytes(bytes(data))
    tag(path, "Software", kind=4, count=number, value=position)
    data = bytearray(path.read_bytes())
    with tifffile.TiffFile(path) as tiff:
        struct.pack_into("<H", data, tiff.pages.first.tags["Software"].offset, 330)
    path.write_bytes(bytes(data))
    with pytest.raises(SlideError, match=f"directories.*{LIMITS}"):
        open_slide(path, backend="tiff")


def test_a_jpeg_smaller_than_its_tile_is_an_error(tmp_path: Path) -> None:
    path = write_tiff(tmp_path / "slide.tif", noise_image(64, 64), compression="jpeg")
    small = imagecodecs.jpeg8_encode(noise_image(16, 16))
    data = bytearray(path.read_bytes())
    with tifffile.TiffFile(path) as tiff:
        start, size = tiff.pages.first.dataoffsets[0], tiff.pages.first.databytecounts[0]
    data[start : start + size] = small.ljust(size, b"\0")[:size]
    path.write_bytes(bytes(data))
    with open_slide(path) as opened, pytest.raises(SlideError, match="cannot be decoded"):
        opened.read(0, 0, 64, 64, 0.25)


@pytest.mark.parametrize(
    ("kind", "expected"), [("assocalpha", (155, 165, 175)), ("unassalpha", (141, 146, 151))]
)
def test_transparent_colours_lie_over_white_however_they_are_stored(
    tmp_path: Path, kind: str, expected: tuple[int, int, int]
) -> None:
    pixels = np.empty((64, 64, 4), np.uint8)
    pixels[:] = (28, 38, 48, 128)
    path = tmp_path / "alpha.tif"
    tifffile.imwrite(path, pixels, photometric="rgb", extrasamples=[kind], tile=(64, 64), metadata=None)
    with open_slide(path, mpp=0.25) as opened:
        assert tuple(opened.read(0, 0, 8, 8, 0.25)[0, 0].tolist()) == expected


def test_no_program_is_started_for_an_image(tmp_path: Path) -> None:
    path = tmp_path / "slide.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    with pytest.raises(SlideError, match="nor an image"):
        open_slide(path)


def test_a_slide_has_the_size_of_a_slide(slide: Path, tmp_path: Path) -> None:
    long = write_tiff(tmp_path / "long.tif", noise_image(20_000, 32))
    with pytest.raises(SlideError, match="400 mm long"):
        open_slide(long, mpp=20)


def test_a_pipe_is_no_slide(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "slide.tif")
    with pytest.raises(SlideError, match="a pipe, device or socket"):
        open_slide(tmp_path / "slide.tif")


@pytest.mark.parametrize("rows", [0, 1, 40])
def test_an_image_without_some_of_its_rows_is_not_filled_up(rows: int, tmp_path: Path) -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    def png(held: int) -> bytes:
        header = chunk(b"IHDR", struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0))
        body = chunk(b"IDAT", zlib.compress(bytes(193 * held)))
        return b"\x89PNG\r\n\x1a\n" + header + body + chunk(b"IEND", b"")

    (tmp_path / "whole.png").write_bytes(png(64))
    with open_slide(tmp_path / "whole.png", mpp=0.25) as slide:
        assert slide.read_level(0, slide.bounds).shape == (64, 64, 3)
    (tmp_path / "part.png").write_bytes(png(rows))
    with pytest.raises(SlideError, match="damaged image"):
        open_slide(tmp_path / "part.png", mpp=0.25)
