"""Slides whose bytes were damaged on the way: many still decode, to something else."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.inputs.odd import any_of
from tests.hostile.inputs.sound import on_slide, picture
from tests.hostile.trials import Attempt

SHARE = 6
MPP = 0.25
HEAD_BYTES = 1024
"""Of most files only the pixels are damaged, for a damaged header seldom opens."""


def make(random: Random, folder: Path) -> Attempt:
    name = any_of(random, *CONTAINERS)
    slide = CONTAINERS[name](folder / "slide", picture())
    damage(random, slide)
    return on_slide(random, slide.relative_to(folder))


# ---- one picture in many containers ----


def _plain(kind: str, **options: Any) -> Callable[[Path, Any], Path]:
    def write(path: Path, pixels: Any) -> Path:
        from PIL import Image

        Image.fromarray(pixels).save(path.with_suffix(f".{kind}"), **options)
        return path.with_suffix(f".{kind}")

    return write


def _tiff(suffix: str, **options: Any) -> Callable[[Path, Any], Path]:
    def write(path: Path, pixels: Any) -> Path:
        import tifffile

        scale = {"resolution": (1e4 / MPP, 1e4 / MPP), "resolutionunit": "CENTIMETER"}
        given = {"photometric": "rgb", "metadata": None, **scale, **options}
        with tifffile.TiffWriter(path.with_suffix(suffix), ome=suffix == ".ome.tif") as tiff:
            tiff.write(pixels, **given)
        return path.with_suffix(suffix)

    return write


def _dicom(path: Path, pixels: Any) -> Path:
    from tests.slides.dicoms import write_plain

    return write_plain(path.with_suffix(".dcm"), pixels, MPP)


def _series(*, jpeg: bool) -> Callable[[Path, Any], Path]:
    def write(path: Path, pixels: Any) -> Path:
        from wsidicom.codec import JpegSettings

        from tests.slides.dicoms import write_series

        options: dict[str, Any] = {}
        if jpeg:
            options = {"transcoding": JpegSettings(quality=90), "force_transcoding": True}
        folder = write_series(path, pixels, MPP, **options, add_missing_levels=not jpeg)
        shutil.rmtree(path.with_name(f"{path.name}-plain"))
        return folder

    return write


_APERIO = f"Aperio Image Library v1|AppMag = 40|MPP = {MPP}"
_OME = {"axes": "YXS", "PhysicalSizeX": MPP, "PhysicalSizeY": MPP}
_JPEG = {"compression": "jpeg", "compressionargs": {"level": 85}}

CONTAINERS: dict[str, Callable[[Path, Any], Path]] = {
    "JPEG": _plain("jpg", quality=85),
    "raw TIFF": _tiff(".tif", rowsperstrip=64),
    "raw tiles": _tiff(".tif", tile=(256, 256)),
    "LZW TIFF": _tiff(".tif", tile=(256, 256), compression="lzw"),
    "SVS": _tiff(".svs", tile=(240, 240), description=_APERIO, **_JPEG),
    "OME-TIFF": _tiff(".ome.tif", tile=(256, 256), metadata=_OME, **_JPEG),
    "raw DICOM": _dicom,
    "JPEG DICOM": _series(jpeg=True),
    "DICOM series": _series(jpeg=False),
    "PNG": _plain("png"),
}


# ---- one damage ----


def damage(random: Random, slide: Path) -> str:
    """Change some bytes of the slide, or of its largest file, in place; what was done."""
    file = max(slide.iterdir(), key=lambda path: path.stat().st_size) if slide.is_dir() else slide
    data = bytearray(file.read_bytes())
    kind = any_of(random, *DAMAGES)
    first = 0 if random.random() < 0.05 else min(HEAD_BYTES, len(data) // 4)
    DAMAGES[kind](random, data, first)
    file.write_bytes(bytes(data))
    return kind


def _span(random: Random, data: bytearray, first: int, *sizes: int) -> slice:
    size = min(any_of(random, *sizes), (len(data) - first) // 2)
    start = random.randrange(first, len(data) - size)
    return slice(start, start + size)


def _zeros(random: Random, data: bytearray, first: int) -> None:
    span = _span(random, data, first, 64, 4096, 65536)
    data[span] = bytes(span.stop - span.start)


def _grey(random: Random, data: bytearray, first: int) -> None:
    span = _span(random, data, first, 4096, 65536)
    data[span] = b"\x80" * (span.stop - span.start)


def _no_end(random: Random, data: bytearray, first: int) -> None:
    start = random.randrange(max(first, len(data) // 2), len(data))
    data[start:] = bytes(len(data) - start)


def _shifted(random: Random, data: bytearray, first: int) -> None:
    position = random.randrange(first, len(data))
    if random.random() < 0.5:
        data.insert(position, random.randrange(256))
        del data[-1]
    else:
        del data[position]
        data.append(0)


def _swapped(random: Random, data: bytearray, first: int) -> None:
    one = _span(random, data, first, 512, 4096)
    size = one.stop - one.start
    start = random.randrange(first, len(data) - size)
    data[one], data[start : start + size] = data[start : start + size], data[one]


def _repeated(random: Random, data: bytearray, first: int) -> None:
    one = _span(random, data, first, 4096, 65536)
    size = one.stop - one.start
    start = random.randrange(first, len(data) - size)
    data[start : start + size] = data[one]


def _flipped(random: Random, data: bytearray, first: int) -> None:
    for _ in range(any_of(random, 1, 4, 32)):
        data[random.randrange(first, len(data))] ^= 1 << random.randrange(8)


def _noise(random: Random, data: bytearray, first: int) -> None:
    span = _span(random, data, first, 64, 4096)
    data[span] = random.randbytes(span.stop - span.start)


DAMAGES: dict[str, Callable[[Random, bytearray, int], None]] = {
    "zeros": _zeros,
    "grey": _grey,
    "no end": _no_end,
    "shifted byte": _shifted,
    "swapped blocks": _swapped,
    "repeated block": _repeated,
    "flipped bits": _flipped,
    "noise": _noise,
}


def encoded(pixels: Any, kind: str = "JPEG", **options: Any) -> bytes:
    """A picture as bytes."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()
