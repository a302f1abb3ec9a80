"""A slide that lives in memory: a plain image, a test, a notebook's array."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from metaphase.errors import SlideError
from metaphase.geometry import Box
from metaphase.slides.contract import RGB, Slide, SlideInfo
from metaphase.slides.metadata import choose_resolution
from metaphase.slides.pyramid import make_levels


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
