"""How sure the network was: the number of detections by probability, with the threshold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metaphase.web.slide_report.inputs import Points

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
