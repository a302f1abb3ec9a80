"""Pictures of items, cut from the slides when they are wanted."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from metaphase.errors import MetaphaseError
from metaphase.slides import RGB, Slide, open_slide
from metaphase.web.labelling.project import Item, LabellingError, Project

View = Literal["close", "context"]
SIDE_PX = 512
QUALITY = 90
CACHED_CROPS = 2000
"""About 120 MB of JPEG."""
OPEN_SLIDES = 8
BEYOND = (42, 45, 49)
"""Colour of what the slide does not show; that of the page."""

_log = logging.getLogger(__name__)


@dataclass
class _Handle:
    slide: Slide | None = None
    users: int = 0
    opening: threading.Lock = field(default_factory=threading.Lock)


class SlidePool:
    """Open slides shared by threads; the ones unused longest are closed when there are too many."""

    def __init__(self, limit: int = OPEN_SLIDES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._handles: OrderedDict[tuple[Path, float | None], _Handle] = OrderedDict()

    @contextlib.contextmanager
    def open(self, path: Path, mpp: float | None) -> Iterator[Slide]:
        """The slide, kept open at least until the end of the `with` statement."""
        key = (path, mpp)
        with self._lock:
            handle = self._handles.setdefault(key, _Handle())
            self._handles.move_to_end(key)
            handle.users += 1
        try:
            with handle.opening:
                if handle.slide is None:
                    handle.slide = open_slide(path, mpp=mpp)
            yield handle.slide
        finally:
            with self._lock:
                handle.users -= 1
                self._trim(self._limit)

    def close(self) -> None:
        """Close every slide that nobody reads."""
        with self._lock:
            self._trim(0)

    def _trim(self, limit: int) -> None:
        idle = [key for key, handle in self._handles.items() if not handle.users]
        for key in idle[: max(0, len(self._handles) - limit)]:
            slide = self._handles.pop(key).slide
            if slide is not None:
                slide.close()


class CropMaker:
    """JPEG pictures of a project's items, the latest kept in memory. Safe to use from several threads."""

    def __init__(
        self, project: Project, *, cached: int = CACHED_CROPS, open_slides: int = OPEN_SLIDES
    ) -> None:
        self._project = project
        self._slides = SlidePool(open_slides)
        self._jpeg = lru_cache(cached)(self._cut)
        self._complained: set[int] = set()

    @cached_property
    def version(self) -> str:
        """Changes with everything that changes pictures, so that browsers may keep them for long."""
        settings = self._project.settings
        scales = (settings.close_um, settings.context_um, SIDE_PX, QUALITY)
        text = repr((scales, [(item.number, item.mpp) for item in self._project.items]))
        return blake2b(text.encode(), digest_size=6).hexdigest()

    def jpeg(self, number: int, view: View) -> bytes | None:
        """The picture, or None where it cannot be had; the reason is logged once, for the operator only."""
        try:
            return self._jpeg(number, view)
        except MetaphaseError as error:
            if number not in self._complained:
                self._complained.add(number)
                _log.warning("item %s is unavailable: %s", self._project.by_number[number].name, error)
            return None

    def close(self) -> None:
        """Close the slides."""
        self._slides.close()

    def _cut(self, number: int, view: View) -> bytes:
        item = self._project.by_number[number]
        side_um = getattr(self._project.settings, f"{view}_um")
        with self._slides.open(item.slide, item.mpp) as slide:
            return encode(cut(slide, item, side_um))


def cut(slide: Slide, item: Item, side_um: float, side_px: int = SIDE_PX) -> RGB:
    """A square of `side_um` with the item in its middle; dark beyond the slide's edge, unlike glass."""
    if not (0 <= item.x < slide.width and 0 <= item.y < slide.height):
        raise LabellingError(
            f"({item.x:g}, {item.y:g}) lies outside the slide of {slide.width} x {slide.height} pixels",
            path=item.slide,
            next_step="check that x and y are level-0 pixels of this slide",
        )
    side = side_um / slide.mpp
    left, top = item.x - side / 2, item.y - side / 2
    pixels = slide.read(left, top, side_px, side_px, side_um / side_px).copy()
    centres = (np.arange(side_px) + 0.5) * side / side_px
    columns, rows = left + centres, top + centres
    pixels[(rows < 0) | (rows >= slide.height)] = BEYOND
    pixels[:, (columns < 0) | (columns >= slide.width)] = BEYOND
    return pixels


def encode(pixels: RGB, quality: int = QUALITY) -> bytes:
    """A JPEG without metadata, colours at full resolution."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality, subsampling=0)
    return file.getvalue()
