"""Where the numbers come from: slide, model, run and versions, as text for reading."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from metaphase.slides import Slide
from metaphase.web.slide_report.inputs import Points, ReportInput

DASH = "–"
MPP_SOURCES = {"metadata": "stated by the file", "flag": "given by the user"}
UNITS = {"mm2": "mm²", "um": "µm", "px": "px", "mm": "mm"}
"""How the unit at the end of a measure's name is written."""

Rows = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class FactGroup:
    """Facts under one heading; those with an empty value are left out by `facts_of`."""

    title: str
    rows: Rows


def facts_of(slide: Slide, result: ReportInput, points: Points) -> tuple[FactGroup, ...]:
    """All groups that have something to say."""
    groups = (
        ("Slide", _slide_rows(slide, result)),
        ("Count", _count_rows(result, points)),
        ("Spread of the mitoses", _spread_rows(result)),
        ("Model", _model_rows(result.card)),
        ("Training data", _data_rows(result.card)),
        ("Time", _time_rows(result)),
        ("Versions", tuple((name, str(value)) for name, value in result.versions.items())),
    )
    filled = ((title, tuple(row for row in rows if row[1])) for title, rows in groups)
    return tuple(FactGroup(title, rows) for title, rows in filled if rows)


def number(value: Any, digits: int = 3) -> str:
    """A number for reading, a dash where it is not finite.

    >>> number(12.0), number(0.12345), number(float("nan")), number(81234.5)
    ('12', '0.123', '–', '81,234')
    """
    if value is None or not math.isfinite(value):
        return DASH
    value = float(value)
    if value.is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def count_text(value: float) -> str:
    """A count for reading, with a decimal where it has one and is not large.

    >>> count_text(13.25), count_text(7.0), count_text(1234.5), count_text(float("nan"))
    ('13.2', '7', '1,234', '–')
    """
    if not math.isfinite(value):
        return DASH
    return f"{value:,.1f}".removesuffix(".0") if value < 100 else f"{value:,.0f}"


def probability_text(value: float) -> str:
    """Three decimals, cut and not rounded, so that no probability seems to reach a threshold it missed.

    >>> probability_text(0.79996), probability_text(0.8), probability_text(1.0)
    ('0.799', '0.800', '1.000')
    """
    return f"{math.floor(value * 1000 + 1e-9) / 1000:.3f}"


def percent(share: float) -> str:
    """A share as a whole percentage."""
    return f"{share:.0%}".replace("%", " %") if math.isfinite(share) else DASH


def measure(name: str) -> str:
    """The name of a measure for reading, its unit in brackets.

    >>> measure("nearest_neighbour_um"), measure("mean_per_mm2"), measure("dispersion")
    ('Nearest neighbour (µm)', 'Mean per mm²', 'Dispersion')
    """
    stem, _, unit = name.rpartition("_")
    words = name
    if stem and unit in UNITS:
        words = f"{stem} {UNITS[unit]}" if stem.endswith("per") else f"{stem} ({UNITS[unit]})"
    words = words.replace("_", " ").strip()
    return words[:1].upper() + words[1:]


def size_mm(slide: Slide) -> str:
    """Width and height of the filled part, in mm."""
    return " × ".join(number(side * slide.mpp / 1000) for side in (slide.bounds.width, slide.bounds.height))


def mpp_text(slide: Slide) -> str:
    """Micrometres per pixel and who said so."""
    source = slide.info.resolution.source if slide.info.resolution else ""
    return f"{number(slide.mpp, 4)} µm/px, {MPP_SOURCES.get(source, source)}"


def _slide_rows(slide: Slide, result: ReportInput) -> Rows:
    power = slide.info.objective_power
    return (
        ("File", slide.name),
        ("Resolution", mpp_text(slide)),
        ("Objective", f"{power:g}x" if power else ""),
        ("Scan", f"{slide.width:,} × {slide.height:,} px, {size_mm(slide)} mm"),
        ("Tissue", f"{number(result.tissue.area_mm2)} mm²"),
        ("Stain", result.stain),
        ("Scanner or format", slide.info.vendor),
        ("Read with", slide.info.backend),
    )


def _count_rows(result: ReportInput, points: Points) -> Rows:
    counted = int(points.counted.sum())
    hotspot = result.score.hotspot
    centre = f"{number(round(hotspot.x))}, {number(round(hotspot.y))} px" if points.in_hotspot.any() else ""
    return (
        ("Threshold", number(result.threshold)),
        ("Counted on the slide", f"{counted:,}"),
        ("Under the threshold", f"{len(points) - counted:,}" if len(points) > counted else ""),
        ("Centre of the hotspot", centre),
    )


def _spread_rows(result: ReportInput) -> Rows:
    measures = result.score.heterogeneity
    return tuple((measure(name), number(value)) for name, value in measures.items() if math.isfinite(value))


def _model_rows(card: Mapping[str, Any]) -> Rows:
    mpp, patch = card.get("mpp"), card.get("patch_px")
    failures = card.get("known_failures") or ()
    return (
        ("Name", str(card.get("name") or "")),
        ("Family", str(card.get("family") or "")),
        ("Width factor γ", number(card["gamma"]) if card.get("gamma") else ""),
        ("Works at", f"{number(mpp)} µm/px" if mpp else ""),
        ("Sees", f"{patch} px" if patch else ""),
        ("Intended use", str(card.get("intended_use") or "")),
        ("Known failures", "; ".join(map(str, failures))),
        ("Made with", ", ".join(f"{name} {value}" for name, value in (card.get("versions") or {}).items())),
        ("Weights", str(card.get("weights_sha256") or "")[:16]),
    )


def _data_rows(card: Mapping[str, Any]) -> Rows:
    return tuple((str(source.get("name", "")), _source(source)) for source in card.get("data") or ())


def _source(source: Mapping[str, Any]) -> str:
    counts = [
        f"{source[name]:,} {what}"
        for name, what in (("positives", "mitoses"), ("negatives", "others"))
        if source.get(name) is not None
    ]
    return "; ".join([*counts, str(source.get("terms") or "terms not stated")])


def _time_rows(result: ReportInput) -> Rows:
    steps = {name: seconds for name, seconds in result.timings.items() if math.isfinite(seconds)}
    if not steps:
        return ()
    total = steps.pop("total", sum(steps.values()))
    speed = result.tissue.area_mm2 / total if total > 0 else math.nan
    rows = [(measure(name), f"{number(seconds)} s") for name, seconds in steps.items()]
    return (*rows, ("Total", f"{number(total)} s"), ("Tissue per second", f"{number(speed)} mm²/s"))
