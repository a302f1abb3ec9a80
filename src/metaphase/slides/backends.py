"""Slides that OpenSlide reads, and slides that live in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openslide

from metaphase.base.arrays import RGB
from metaphase.base.errors import SlideError
from metaphase.base.foreign import parsing
from metaphase.base.geometry import Box
from metaphase.slides.contract import DamagedPixelsError, Slide, SlideInfo, make_levels, over_white
from metaphase.slides.metadata import choose_resolution, openslide_mpp

# ---- slides of every vendor that OpenSlide 4 knows ----

Properties = dict[str, str]


class OpenSlideSlide(Slide):
    """A slide read through OpenSlide, whose handles are thread-safe."""

    def __init__(self, path: Path, mpp: float | None = None) -> None:
        self._path, complete = path, "check that the copy is complete"
        with parsing(path, "OpenSlide cannot open it", next_step=complete, error=SlideError):
            self._handle = openslide.OpenSlide(path)
        properties = dict(self._handle.properties)
        resolution, warnings = choose_resolution(openslide_mpp(properties), mpp, path)
        levels = make_levels(self._handle.level_dimensions)
        info = SlideInfo(
            levels=levels,
            resolution=resolution,
            vendor=properties.get("openslide.vendor", "unknown"),
            backend="openslide",
            bounds=filled_bounds(properties, Box(0, 0, levels[0].width, levels[0].height)),
            objective_power=objective_power(properties),
            path=path,
            warnings=warnings,
            properties=properties,
        )
        super().__init__(info)

    def _decode(self, level: int, box: Box) -> RGB:
        # OpenSlide wants the corner in whole level-0 pixels and divides by its own downsample, so where that
        # is no whole number a coarser level comes out up to half a level-0 pixel (about 0.1 um) off.
        downsample = self._handle.level_downsamples[level]
        corner = (round(box.x * downsample), round(box.y * downsample))
        size, handle = (box.width, box.height), self._handle
        try:
            image = handle.read_region(corner, level, size)
        except openslide.OpenSlideError:  # after which a handle reads nothing more
            path = self._path
            with parsing(
                path,
                f"level {level} cannot be decoded at {corner}",
                next_step="check that the copy is complete",
                error=DamagedPixelsError,
            ):
                if self._handle is handle:
                    self._handle = openslide.OpenSlide(path)
                with openslide.OpenSlide(path) as own:  # others may spoil one that is shared
                    image = own.read_region(corner, level, size)
        return over_white(np.asarray(image))

    def close(self) -> None:
        """Release the file."""
        self._handle.close()


def filled_bounds(properties: Properties, full: Box) -> Box:
    """The part of level 0 that the scanner filled, where the format says so (MRXS, SCN, ...)."""
    try:
        x, y, width, height = (
            int(properties[f"openslide.bounds-{k}"]) for k in ("x", "y", "width", "height")
        )
    except (KeyError, ValueError):
        return full
    bounds = Box(x, y, width, height).intersection(full)
    return bounds if bounds.area else full


def objective_power(properties: Properties) -> float | None:
    """Magnification of the objective, where stated."""
    try:
        return float(properties["openslide.objective-power"])
    except (KeyError, ValueError):
        return None


# ---- a slide that lives in memory ----


class ArraySlide(Slide):
    """One level of uint8 RGB pixels (height, width, 3)."""

    def __init__(
        self, pixels: RGB, mpp: float | None = None, *, path: Path | None = None, vendor: str = "array"
    ) -> None:
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8 or pixels.size == 0:
            raise SlideError(
                f"an array of shape {pixels.shape} and type {pixels.dtype} is not an image",
                path=path,
                next_step="give (height, width, 3) uint8 RGB",
            )
        height, width = pixels.shape[:2]
        info = SlideInfo(
            levels=make_levels([(width, height)]),
            resolution=choose_resolution(None, mpp, path)[0],
            vendor=vendor,
            backend="array",
            bounds=Box(0, 0, width, height),
            path=path,
        )
        super().__init__(info)
        self._pixels = pixels

    def _decode(self, level: int, box: Box) -> RGB:  # noqa: ARG002 -- there is one level
        return self._pixels[box.y : box.bottom, box.x : box.right].copy()
