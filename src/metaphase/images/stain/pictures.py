"""Pictures in and out: a view of any slide, and files that appear whole or not at all."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from metaphase.base.arrays import RGB, Box
from metaphase.base.errors import UsageError
from metaphase.base.files import write_bytes
from metaphase.images.stain.deconvolution import HE_RESIDUAL, StainMatrix, stain_pictures
from metaphase.slides.contract import Slide

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg")
JPEG_QUALITY = 95
MOST_PX = 100_000_000
"""Pixels of a picture."""


def view(slide: Slide, region: Box | None = None, *, max_side: int = 2048) -> RGB:
    """A region at level 0, or the whole slide reduced to at most `max_side` pixels."""
    if region is not None:
        if region.area > MOST_PX:
            raise UsageError(
                f"a region of {region.width} x {region.height} px is not a picture",
                path=slide.info.path,
                next_step=f"give one of up to {MOST_PX / 1e6:g} million pixels",
            )
        return slide.read_level(0, region)
    if max(slide.bounds.width, slide.bounds.height) <= max_side:
        return slide.read_level(0, slide.bounds)
    return slide.thumbnail(max_side)


def write_picture(path: str | Path, rgb: RGB) -> None:
    """Write uint8 (h, w, 3) as PNG or JPEG, as the name says."""
    suffix = Path(path).suffix.lower()
    if suffix not in PICTURE_SUFFIXES:
        raise UsageError(
            f"{path}: there is no picture format {suffix!r}",
            next_step=f"choose from {', '.join(PICTURE_SUFFIXES)}",
        )
    buffer = io.BytesIO()
    form = "PNG" if suffix == ".png" else "JPEG"
    Image.fromarray(rgb).save(buffer, format=form, quality=JPEG_QUALITY)
    write_bytes(path, buffer.getvalue())


def write_stain_pictures(
    slide: Slide,
    folder: str | Path,
    matrix: StainMatrix = HE_RESIDUAL,
    *,
    region: Box | None = None,
) -> list[Path]:
    """Write one PNG a stain, `<slide>-<stain>.png`, and return their paths."""
    paths = []
    for name, picture in stain_pictures(view(slide, region), matrix).items():
        path = Path(folder) / f"{Path(slide.name).stem}-{name}.png"
        write_picture(path, picture)
        paths.append(path)
    return paths
