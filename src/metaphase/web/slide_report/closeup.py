"""The hotspot large enough to recognise architecture, with a ring around each mitosis."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from metaphase.geometry import Box
from metaphase.slides import Slide
from metaphase.web.slide_report.drawing import Circle, Frame, ScaleBar, jpeg_uris, scale_bar
from metaphase.web.slide_report.inputs import Points, ReportInput, drawable
from metaphase.web.slide_report.overview import hotspot_circle

CLOSEUP_MPP = 2.0
CLOSEUP_BYTES = 500_000
MARGIN = 1.08
"""Half the side of the close-up, in radii of the hotspot."""
RING_UNITS = 13.0
MAX_RINGS = 600


@dataclass(frozen=True)
class Ring:
    """A mark around the detection of rank `number`."""

    number: int
    x: float
    y: float


@dataclass(frozen=True)
class Closeup:
    """The hotspot's surroundings."""

    frame: Frame
    image: str
    mpp: float
    circle: Circle
    rings: tuple[Ring, ...]
    crowded: bool
    """Whether only the most probable mitoses have a ring."""
    bar: ScaleBar


def closeup_of(slide: Slide, result: ReportInput, points: Points) -> Closeup | None:
    """Read the surroundings of the hotspot at about 2 um/px; None without a hotspot on the slide."""
    box = _box(slide, result)
    if box is None:
        return None
    frame = Frame(box)
    circle = hotspot_circle(result, frame)
    if circle is None:
        return None
    mpp = max(CLOSEUP_MPP, slide.mpp)
    width, height = (max(1, round(side * slide.mpp / mpp)) for side in (box.width, box.height))
    rings = _rings(frame, points)
    pixels = slide.read(box.x, box.y, width, height, mpp)
    return Closeup(
        frame=frame,
        image=jpeg_uris([pixels], CLOSEUP_BYTES)[0],
        mpp=mpp,
        circle=circle,
        rings=rings,
        crowded=len(rings) == MAX_RINGS,
        bar=scale_bar(frame, slide.mpp),
    )


def _box(slide: Slide, result: ReportInput) -> Box | None:
    hotspot = drawable(result.score.hotspot)
    if hotspot is None:
        return None
    half = hotspot.radius_px * MARGIN
    x, y = math.floor(hotspot.x - half), math.floor(hotspot.y - half)
    side = math.ceil(2 * half)
    box = Box(x, y, side, side).intersection(slide.bounds)
    return box if box.area else None


def _rings(frame: Frame, points: Points) -> tuple[Ring, ...]:
    """Counted mitoses in view, the most probable ones where there are very many."""
    places = frame.place(points.x, points.y)
    inside = ((places >= 0) & (places <= (frame.width, frame.height))).all(axis=1)
    chosen = np.flatnonzero(inside & points.counted)[:MAX_RINGS]
    return tuple(Ring(int(i) + 1, *map(float, places[i].round(1))) for i in chosen)
