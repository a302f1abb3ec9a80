"""Detections cut from the slide: those counted, and those that the threshold only just left out or let in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metaphase.slides import RGB, WORKING_MPP, Slide
from metaphase.web.slide_report.drawing import Frame, jpeg_uris
from metaphase.web.slide_report.inputs import Points

CROP_PX = 256
"""Side of a crop at 0.25 um/px: 64 um."""
HOTSPOT_MOST, ELSEWHERE_LEAST, COUNTED_MOST, BORDERLINE_MOST = 54, 9, 54, 9
"""Crops of the hotspot at most; of other places at least, however full the hotspot is; of both together,
where the hotspot leaves room; on each side of the threshold."""
GALLERY_BYTES = 2_000_000


@dataclass(frozen=True)
class Choice:
    """Detections that a part of the gallery shows: indices into `Points`, out of `total` (0: not said)."""

    key: str
    title: str
    indices: tuple[int, ...]
    total: int


@dataclass(frozen=True)
class Crop:
    """One detection; `number` is its rank by probability, from 1."""

    number: int
    image: str
    x: float
    y: float
    probability: float
    counted: bool
    in_hotspot: bool
    overview: tuple[float, float]
    closeup: tuple[float, float] | None


@dataclass(frozen=True)
class Group:
    """A titled part of the gallery."""

    key: str
    title: str
    crops: tuple[Crop, ...]
    total: int


def choose(points: Points) -> tuple[Choice, ...]:
    """Detections to show, as parts that do not overlap; empty parts are left out."""
    hotspot = np.flatnonzero(points.in_hotspot)
    elsewhere = np.flatnonzero(points.counted & ~points.in_hotspot)
    under = np.flatnonzero(~points.counted)
    first = hotspot[:HOTSPOT_MOST]
    others = elsewhere[: max(ELSEWHERE_LEAST, COUNTED_MOST - len(first))]
    rest = np.setdiff1d(np.flatnonzero(points.counted), np.concatenate([first, others]))
    parts = (
        ("hotspot", "Counted, in the hotspot", first, len(hotspot)),
        ("elsewhere", "Counted, elsewhere on the slide", others, len(elsewhere)),
        ("least", "Counted, but only just", rest[-BORDERLINE_MOST:], 0),
        ("under", "Not counted: just under the threshold", under[:BORDERLINE_MOST], len(under)),
    )
    return tuple(
        Choice(key, title, tuple(map(int, indices)), total)
        for key, title, indices, total in parts
        if len(indices)
    )


def gallery_of(slide: Slide, points: Points, overview: Frame, closeup: Frame | None) -> tuple[Group, ...]:
    """Cut the chosen detections from the slide, in the order of `choose`."""
    choices = choose(points)
    pictures = [_cut(slide, points.x[i], points.y[i]) for choice in choices for i in choice.indices]
    images = iter(jpeg_uris(pictures, GALLERY_BYTES))
    return tuple(
        Group(
            choice.key,
            choice.title,
            tuple(_crop(points, i, next(images), overview, closeup) for i in choice.indices),
            choice.total,
        )
        for choice in choices
    )


def _cut(slide: Slide, x: float, y: float) -> RGB:
    half = CROP_PX / 2 * WORKING_MPP / slide.mpp
    return slide.read(x - half, y - half, CROP_PX, CROP_PX, WORKING_MPP)


def _crop(points: Points, index: int, image: str, overview: Frame, closeup: Frame | None) -> Crop:
    x, y = float(points.x[index]), float(points.y[index])
    return Crop(
        number=index + 1,
        image=image,
        x=x,
        y=y,
        probability=float(points.probability[index]),
        counted=bool(points.counted[index]),
        in_hotspot=bool(points.in_hotspot[index]),
        overview=_units(overview, x, y),
        closeup=_within(closeup, x, y),
    )


def _units(frame: Frame, x: float, y: float) -> tuple[float, float]:
    left, top = frame.place(x, y).round(1)
    return float(left), float(top)


def _within(frame: Frame | None, x: float, y: float) -> tuple[float, float] | None:
    if frame is None:
        return None
    left, top = _units(frame, x, y)
    return (left, top) if 0 <= left <= frame.width and 0 <= top <= frame.height else None
