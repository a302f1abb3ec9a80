"""One door for every kind of file."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import numpy as np
import openslide
from PIL import Image, UnidentifiedImageError
from tifffile import TiffPage

from metaphase.errors import SlideError
from metaphase.geometry import Box
from metaphase.slides.array import ArraySlide
from metaphase.slides.contract import Slide, SlideInfo
from metaphase.slides.metadata import choose_resolution, openslide_mpp
from metaphase.slides.openslide_backend import OpenSlideSlide, objective_power
from metaphase.slides.pixels import as_rgb
from metaphase.slides.pyramid import make_levels
from metaphase.slides.tiff import TiffSlide
from metaphase.slides.tiff_layout import DECODABLE, not_bright_field, open_layout

Backend = Literal["auto", "openslide", "tiff", "image"]

FAST_VENDORS = frozenset({None, "aperio", "generic-tiff"})
"""OpenSlide's names of the TIFF layouts that the fast path reads; the others have traps of their own."""
_TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def open_slide(path: str | Path, *, mpp: float | None = None, backend: Backend = "auto") -> Slide:
    """Open a whole-slide image, a TIFF or a plain image. `mpp` overrides what the file says."""
    path = Path(path)
    _check_file(path)
    vendor = openslide.OpenSlide.detect_format(path)
    if backend == "openslide" or (backend == "auto" and vendor not in FAST_VENDORS):
        return OpenSlideSlide(path, mpp)
    if backend == "tiff" or (backend == "auto" and _is_tiff(path)):
        return _open_tiff(path, vendor, mpp, may_fall_back=backend == "auto")
    return _open_image(path, mpp)


def _open_tiff(path: Path, vendor: str | None, mpp: float | None, *, may_fall_back: bool) -> Slide:
    layout = open_layout(path)
    with ExitStack() as on_failure:
        on_failure.callback(layout.close)
        full = layout.pages[0]
        if may_fall_back and vendor and full.compression not in DECODABLE:
            return OpenSlideSlide(path, mpp)
        _check_readable(full, path)
        properties = _openslide_properties(path) if vendor else {}
        own, tags = openslide_mpp(properties), layout.mpp
        stated = own or tags if vendor == "aperio" else tags or own
        resolution, doubts = choose_resolution(stated, mpp, path)
        info = SlideInfo(
            levels=make_levels((page.imagewidth, page.imagelength) for page in layout.pages),
            resolution=resolution,
            vendor=vendor or "tiff",
            backend="tiff",
            bounds=Box(0, 0, full.imagewidth, full.imagelength),
            objective_power=objective_power(properties),
            path=path,
            warnings=doubts,
            properties=properties,
        )
        on_failure.pop_all()
        return TiffSlide(layout, info)


def _check_readable(page: TiffPage, path: Path) -> None:
    problem = not_bright_field(page)
    if problem is None and page.compression not in DECODABLE:
        problem = f"compression {page.compression!r} is not supported"
    if problem:
        raise SlideError(problem, path=path, next_step="export it as tiled 8-bit RGB TIFF")


def _open_image(path: Path, mpp: float | None) -> Slide:
    try:
        with (
            warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning),
            Image.open(path) as image,
        ):
            if image.mode.startswith(("I", "F")):
                raise SlideError(
                    f"pixels of type {image.mode} are not 8-bit",
                    path=path,
                    next_step="export it as 8-bit RGB",
                )
            pixels = as_rgb(np.asarray(image.convert("RGBA" if image.has_transparency_data else "RGB")))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise SlideError(
            "too many pixels for a plain image", path=path, next_step="export it as a tiled pyramidal TIFF"
        ) from error
    except UnidentifiedImageError as error:
        raise SlideError(
            "neither a slide that OpenSlide knows, nor a TIFF, nor an image",
            path=path,
            next_step="check the file; of a scanner's folder, name the index file (.mrxs, .vms, one .dcm)",
        ) from error
    except (OSError, ValueError, SyntaxError) as error:
        raise SlideError(
            f"damaged image ({error})", path=path, next_step="copy or export the file again"
        ) from error
    return ArraySlide(pixels, mpp, path=path, vendor="image")


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise SlideError("is a folder", path=path, next_step="name the slide file inside it")
    if not path.exists():
        raise SlideError("no such file", path=path, next_step="check the spelling and the disk")
    try:
        with path.open("rb") as file:
            empty = not file.read(1)
    except OSError as error:
        raise SlideError(
            f"cannot be read ({error.strerror})", path=path, next_step="check its permissions"
        ) from error
    if empty:
        raise SlideError("the file is empty (0 bytes)", path=path, next_step="copy it again")


def _is_tiff(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) in _TIFF_MAGIC


def _openslide_properties(path: Path) -> dict[str, str]:
    try:
        with openslide.OpenSlide(path) as handle:
            return dict(handle.properties)
    except openslide.OpenSlideError:
        return {}  # the fast path may know more codecs than OpenSlide
