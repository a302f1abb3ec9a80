"""Pictures of items, cut from the slides when they are wanted."""

from __future__ import annotations

import json
import logging
import math
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import ClassVar

import cv2
import numpy as np
import numpy.typing as npt

from metaphase.base.arrays import RGB
from metaphase.base.errors import MetaphaseError, OutputError
from metaphase.base.files import write_text
from metaphase.jobs.reference import TRANSFORM
from metaphase.jobs.reference_review import CLOSE_UM, Review
from metaphase.labels.observers.project import UNAVAILABLE, Project
from metaphase.labels.registration.transform import Transform, load_transform
from metaphase.reports.drawing import JPEG_QUALITY, encode_jpeg, item_view
from metaphase.slides import Slide
from metaphase.slides.opening import OPEN_SLIDES, SlidePool

# ---- pictures of items, cut from the slides when they are wanted ----

SIDE_PX = 512
CACHED_CROPS = 2000
"""About 120 MB of JPEG."""

_log = logging.getLogger(__name__)


class Crops(ABC):
    """JPEG pictures of a project's items, the latest kept in memory. Safe to use from several threads.

    Items that cannot be shown are noted beside the project, until they can: nobody is asked about them.
    """

    views: ClassVar[tuple[str, ...]]
    """Names of the pictures of an item."""

    def __init__(self, project: Project, cached: int = CACHED_CROPS, open_slides: int = OPEN_SLIDES) -> None:
        self._project = project
        self._slides = SlidePool(open_slides)
        self._jpeg = lru_cache(cached)(self._cut)
        self._lock, self._left_out = Lock(), project.unavailable
        self._failed: dict[str, str] = {}
        """Which picture of an item failed."""
        self._logged: set[str] = set()

    def jpeg(self, number: int, view: str) -> bytes | None:
        """The picture, or None where it cannot be had; the reason is logged once, for the operator only."""
        item = self._project.by_number[number].name
        try:
            cut = self._jpeg(number, view)
        except MetaphaseError as error:
            self._note(item, view, str(error))
            return None
        self._note(item, view)
        return cut

    def close(self) -> None:
        """Close the slides."""
        self._slides.close()

    @property
    @abstractmethod
    def version(self) -> str:
        """Changes with everything that changes pictures, so that browsers may keep them for long."""

    @abstractmethod
    def _cut(self, number: int, view: str) -> bytes:
        """The picture, as JPEG."""

    def _note(self, item: str, view: str, reason: str = "") -> None:
        """A picture of an item cannot be had for a reason; or it can."""
        with self._lock:
            if self._left_out.get(item, "") == reason or self._failed.setdefault(item, view) != view:
                return
            self._left_out = {name: why for name, why in (self._left_out | {item: reason}).items() if why}
            with suppress(OutputError):
                write_text(self._project.folder / UNAVAILABLE, json.dumps(self._left_out, indent=1) + "\n")
        if reason and reason not in self._logged:
            self._logged.add(reason)
            _log.warning("item %s cannot be shown and is left out: %s", item, reason)


class CropMaker(Crops):
    """Pictures of the items of a labelling project."""

    views = ("close", "context")

    @cached_property
    def version(self) -> str:
        """Changes with items and scales."""
        settings = self._project.settings
        scales = (settings.close_um, settings.context_um, SIDE_PX, JPEG_QUALITY)
        text = repr((scales, [(item.number, item.mpp) for item in self._project.items]))
        return blake2b(text.encode(), digest_size=6).hexdigest()

    def _cut(self, number: int, view: str) -> bytes:
        item = self._project.by_number[number]
        side_um = getattr(self._project.settings, f"{view}_um")
        with self._slides.open(item.slide, item.mpp) as slide:
            return encode_jpeg(item_view(slide, item, side_um, SIDE_PX))


# ---- pictures of a point ----

CACHED_REVIEW_CROPS = 1000


class ReviewCrops(Crops):
    """Pictures of the points of a review, in each stain."""

    views = ("he", "phh3")

    def __init__(self, review: Review) -> None:
        super().__init__(review.project, CACHED_REVIEW_CROPS)
        self._review = review
        self._transform = lru_cache(64)(load_transform)

    @property
    def version(self) -> str:
        """Changes with the points."""
        text = repr((SIDE_PX, CLOSE_UM, self._review.order))
        return blake2b(text.encode(), digest_size=6).hexdigest()

    def _cut(self, number: int, view: str) -> bytes:
        row = self._review.by_number[number]
        case = str(row["case"])
        pair = self._review.pairs[case]
        names = ("x", "y") if view == "he" else ("x_phh3", "y_phh3")
        place = np.array([row[name] for name in names], float)
        path, mpp = (pair.he, pair.he_mpp) if view == "he" else (pair.phh3, pair.phh3_mpp)
        with self._slides.open(path, mpp) as slide:
            matrix = np.eye(2) if view == "he" else self._matrix(case)
            return encode_jpeg(turned_crop(slide, place, matrix, CLOSE_UM, SIDE_PX))

    def _matrix(self, case: str) -> npt.NDArray[np.float64]:
        transform: Transform = self._transform(self._review.workspace / Path(case) / TRANSFORM)
        return transform.matrix


def turned_crop(
    slide: Slide,
    place: npt.NDArray[np.float64],
    matrix: npt.NDArray[np.float64],
    side_um: float,
    side_px: int,
) -> RGB:
    """A square of `side_um` after `matrix` (2, 2) was applied to the slide, level-0 `place` in its middle."""
    mpp = side_um / side_px
    back = np.linalg.inv(matrix)
    reach_px = math.ceil(float(np.abs(back).sum(axis=1).max()) * side_px / 2) + 2
    left, top = (place - reach_px * mpp / slide.mpp).tolist()
    source = slide.read(left, top, 2 * reach_px, 2 * reach_px, mpp)
    middle = np.full(2, (side_px - 1) / 2)
    offset = np.full(2, reach_px - 0.5) - back @ middle
    pull = np.column_stack([back, offset])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return np.asarray(cv2.warpAffine(source, pull, (side_px, side_px), flags=flags), np.uint8)
