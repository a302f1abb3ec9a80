"""Detections cut from the slide, and how sure the network was of all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metaphase.reports.drawing import Frame, jpeg_uris
from metaphase.reports.slide.inputs import Points
from metaphase.slides import Slide, cut_square

# ---- detections cut from the slide ----

CROP_PX = 256
"""Side of a crop at 0.25 um/px: 64 um."""
HOTSPOT_MOST, ELSEWHERE_LEAST, COUNTED_MOST, BORDERLINE_MOST = 54, 9, 54, 9
"""Crops of the hotspot at most; of other places at least, however full the hotspot is; of both together,
where the hotspot leaves room; on each side of the threshold."""
GALLERY_BYTES = 1_600_000
CONTEXT_UM, CONTEXT_PX = 256.0, 384
"""Side of the surroundings of a detection; the middle half of it, 128 um, is shown larger."""
CONTEXT_BYTES = 900_000


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
    context: str
    """Its surroundings."""
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
    chosen = [(points.x[i], points.y[i]) for choice in choices for i in choice.indices]
    images = jpeg_uris([cut_square(slide, x, y, CROP_PX) for x, y in chosen], GALLERY_BYTES)
    mpp = CONTEXT_UM / CONTEXT_PX
    contexts = jpeg_uris([cut_square(slide, x, y, CONTEXT_PX, mpp) for x, y in chosen], CONTEXT_BYTES)
    pictures = iter(zip(images, contexts, strict=True))
    return tuple(
        Group(
            choice.key,
            choice.title,
            tuple(_crop(points, i, next(pictures), overview, closeup) for i in choice.indices),
            choice.total,
        )
        for choice in choices
    )


def _crop(
    points: Points, index: int, pictures: tuple[str, str], overview: Frame, closeup: Frame | None
) -> Crop:
    x, y = float(points.x[index]), float(points.y[index])
    return Crop(
        number=index + 1,
        image=pictures[0],
        context=pictures[1],
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


# ---- how sure the network was ----

BINS = 50
WIDTH, HEIGHT = 600.0, 150.0
THINNEST = 0.5
"""Width of a bar that the threshold leaves no room for."""
TICKS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class Bar:
    """One bin: its place and size in units of the drawing, and what it holds."""

    x: float
    y: float
    width: float
    height: float
    text: str
    counted: bool


@dataclass(frozen=True)
class Histogram:
    """Bars from left (probability 0) to right (1), and the threshold's place."""

    width: float
    height: float
    bars: tuple[Bar, ...]
    threshold_x: float
    ticks: tuple[tuple[float, str], ...]
    most: int


def histogram_of(points: Points, threshold: float) -> Histogram:
    """Counts in bins of 0.02; a bin that the threshold cuts is drawn in two parts."""
    edges = np.unique(np.append(np.linspace(0, 1, BINS + 1).round(6), threshold))
    counts, _ = np.histogram(np.clip(points.probability, 0, 1), edges)
    most = int(counts.max(initial=0))
    bars = tuple(
        _bar(low, high, int(count), most, low >= threshold)
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
        if count
    )
    ticks = tuple((tick * WIDTH, f"{tick:g}") for tick in TICKS)
    return Histogram(WIDTH, HEIGHT, bars, threshold * WIDTH, ticks, most)


def _bar(low: float, high: float, count: int, most: int, counted: bool) -> Bar:
    height = HEIGHT * count / most
    left, width = low * WIDTH, (high - low) * WIDTH
    gap = min(1.0, width / 4)
    text = f"{count} from {low:.3g} to {high:.3g}"
    return Bar(
        round(left + gap / 2, 2),
        round(HEIGHT - height, 2),
        round(max(width - gap, THINNEST), 2),
        round(height, 2),
        text,
        counted,
    )
