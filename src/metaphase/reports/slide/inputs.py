"""What a slide's report is made from, in the form that all its parts use, and its facts as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from metaphase.base.arrays import Floats, Integers, Mask
from metaphase.base.errors import ResultWarnings
from metaphase.base.later import pandas as pd
from metaphase.base.tables import as_text, require_columns
from metaphase.detections.table import ATYPICAL, LOOKALIKE, MACHINE, MITOSIS, REVIEWED, REVIEWERS
from metaphase.images.tissue.finding import TissueMask
from metaphase.labels.observers.positions import NOTE, SAME_UM, Mark
from metaphase.reports.pages import area, measure, number, with_units
from metaphase.slides.contract import Slide

if TYPE_CHECKING:
    from metaphase.counting.clinical import AtypicalShare, SlideCount
    from metaphase.counting.hotspot import Hotspot
    from metaphase.counting.spread import DensityMap

# ---- what a report is made from ----

LEAST_ATYPICAL = 0.5
"""Figures that the network calls atypical with at least this probability say so."""


@dataclass(frozen=True, eq=False)
class ReportInput:
    """Everything about one slide that the report shows, apart from the slide itself."""

    tissue: TissueMask
    detections: pd.DataFrame
    """Columns `x, y` (level-0 pixels) and `probability`, and those of a review; rows under the threshold, and
    rejected ones, are welcome."""
    score: SlideCount
    density: DensityMap
    card: Mapping[str, Any]
    """The model card as plain values (`ModelCard.model_dump()`), so that this package needs no torch."""
    points: Mapping[str, Any] = field(default_factory=dict)
    """The operating points used, as plain values by name (`mitoses`, `count`)."""
    warnings: ResultWarnings = ()
    """What to beware of, besides the warnings of slide, tissue and score, which are added."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds by step; `total` is the time from start to end where the steps overlap."""
    stain: str = ""
    """The likely stain, in words."""
    versions: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    """What to call the slide; its file name where empty."""
    review: tuple[str, ...] = ()
    """Who looked at what, in a line each."""
    mpp: float = 0.25
    """Micrometres per level-0 pixel."""
    links: Mapping[str, str] = field(default_factory=dict)
    """What lies beside the page: addresses by what they lead to."""
    marks: tuple[Mark, ...] = ()
    """Figures that people call atypical, and their notes."""
    atypical: AtypicalShare | None = None
    """Share of atypical figures among the listed ones."""

    def __post_init__(self) -> None:
        require_columns(self.detections, ("x", "y", "probability"))

    @property
    def threshold(self) -> float:
        """Probability from which a detection is counted."""
        return self.score.config.threshold

    @property
    def listed_from(self) -> float:
        """Probability from which a detection is listed, and to be looked at; 1 where that is not known."""
        return float(self.points.get("mitoses", {}).get("delta", 1.0))

    @property
    def notes(self) -> tuple[Mark, ...]:
        """What people noted at positions."""
        return tuple(one for one in self.marks if one.kind == NOTE)

    @property
    def is_small(self) -> bool:
        """Whether all of the slide is counted, because it has less tissue than a hotspot."""
        return self.score.scope.place is None and self.score.area_mm2 < self.score.config.area_mm2


@dataclass(frozen=True, eq=False)
class Points:
    """Detections with position and probability, the most probable first, without those that were rejected or
    lie outside the regions that count."""

    x: Floats
    y: Floats
    probability: Floats
    """What the network said; NaN where people added one."""
    certainty: Floats
    """Probability with which it counts: 1 where people call it a mitosis, else the network's."""
    said: tuple[str, ...]
    """What people said of it: `accepted by Anna`; empty where nobody looked."""
    counted: Mask
    """At or above the threshold."""
    in_hotspot: Mask
    """Those of which the count is the number: counted, and inside the circle (on a small slide, anywhere)."""
    to_look_at: Mask
    """There as well: listed, not counted, and nobody decided about them."""
    network: Floats
    """What the network said of all of its detections, the rejected ones included."""
    dropped: int
    """Rows without a finite position and probability, which no part of the report shows."""
    small: bool = False
    """Whether all of the slide is counted, for want of tissue."""
    outside: int = 0
    """How many would count, but lie outside the regions."""
    atypical: tuple[str, ...] = ()
    """Why each is called atypical: by a person, or by the network's probability; empty where it is not."""

    def __len__(self) -> int:
        return len(self.x)

    @property
    def counted_px(self) -> Floats:
        """Level-0 positions (n, 2) of those that count."""
        return np.stack([self.x, self.y], axis=1)[self.counted]


def shown_points(result: ReportInput) -> Points:
    """The usable detections of a result in order of the network's probability, then position."""
    table = result.detections
    values = table[["x", "y", "probability"]].to_numpy(float, na_value=np.nan)
    finite = np.isfinite(values).all(axis=1)
    machine = (table[MACHINE] if MACHINE in table else table["probability"]).to_numpy(float, na_value=np.nan)
    network = machine[finite & np.isfinite(machine)]
    shown = finite & (table["label"] != LOOKALIKE).to_numpy() if "label" in table else finite
    held = result.score.scope.holds(values[:, :2])
    outside = int((shown & ~held & (values[:, 2] >= result.threshold)).sum())
    rows = np.flatnonzero(shown & held)
    rows = rows[np.lexsort((values[rows, 0], values[rows, 1], -np.nan_to_num(machine[rows], nan=2.0)))]
    x, y, certainty = values[rows].T
    counted = certainty >= result.threshold
    circle = drawable(result.score)
    inside = np.full(len(x), result.is_small)
    if circle is not None:
        inside |= circle.holds(np.stack([x, y], axis=1))
    said, dropped = _said(table.iloc[rows]), int((~finite).sum())
    open_ = inside & ~counted & (certainty >= result.listed_from)
    return Points(
        x,
        y,
        machine[rows],
        certainty,
        said,
        counted,
        inside & counted,
        open_,
        network,
        dropped,
        result.is_small,
        outside,
        _atypical(result, rows),
    )


def _said(table: pd.DataFrame) -> tuple[str, ...]:
    """What people said of each detection, and who."""
    if not {MACHINE, REVIEWED, REVIEWERS} <= set(table.columns):
        return ("",) * len(table)
    words = []
    columns = (as_text(table[name]) for name in (REVIEWED, REVIEWERS))
    for verdict, names, machine in zip(*columns, table[MACHINE], strict=True):
        found = "added" if np.isnan(machine) else "accepted"
        what = found if verdict == MITOSIS else "left open" if verdict else ""
        who = f" by {names}" if ";" not in names else f"; answers of {names.replace(';', ',')}"
        words.append(what and f"{what}{who}")
    return tuple(words)


def _atypical(result: ReportInput, rows: Integers) -> tuple[str, ...]:
    """What calls each detection of these rows of the table atypical."""
    table = result.detections.iloc[rows]
    chance = table[ATYPICAL].to_numpy(float) if ATYPICAL in table else np.full(len(table), np.nan)
    words = [f"atypical, network {value:.2f}" if value >= LEAST_ATYPICAL else "" for value in chance]
    reach_px, positions = SAME_UM / result.mpp, table[["x", "y"]].to_numpy(float)
    for mark in result.marks:
        away = np.hypot(*(positions - (mark.x, mark.y)).T)
        if mark.kind == ATYPICAL and len(away) and away.min() <= reach_px:
            words[int(away.argmin())] = f"atypical, marked by {mark.observer}"
    return tuple(words)


def drawable(score: SlideCount) -> Hotspot | None:
    """The hotspot, or None where there is nothing to draw: nothing in it, or no finite position."""
    hotspot = score.hotspot
    finite = all(map(math.isfinite, (hotspot.x, hotspot.y, hotspot.radius_px)))
    shown = hotspot.count or score.to_look_at or score.scope.place
    return hotspot if shown and finite else None


# ---- where the numbers come from ----

MPP_SOURCES = {"metadata": "stated by the file", "flag": "given by the user"}

Rows = Iterable[tuple[str, Any]]
"""Terms and what is said of each; those without anything are left out."""


def facts_of(slide: Slide, result: ReportInput, points: Points) -> list[tuple[str, list[tuple[str, Any]]]]:
    """All groups of facts that have something to say, by title."""
    measures = result.score.heterogeneity
    spread = ((measure(name), number(value)) for name, value in measures.items() if math.isfinite(value))
    power = slide.info.objective_power
    slide_rows = (
        ("File", slide.name),
        ("Resolution", mpp_text(slide)),
        ("Objective", f"{power:g}x" if power else ""),
        ("Scan", f"{slide.width:,} × {slide.height:,} px, {size_mm(slide)} mm"),
        ("Tissue", f"{area(result.tissue.area_mm2)} mm²"),
        ("Stain", result.stain),
        ("Scanner or format", slide.info.vendor),
        ("Read with", slide.info.backend),
    )
    groups = (
        ("Slide", slide_rows),
        ("Count", _count_rows(result, points)),
        ("Spread of the mitoses", spread),
        ("Model", _model_rows(result.card)),
        ("Training data", (_source(source) for source in result.card.get("data") or ())),
        ("Time", _time_rows(result)),
        ("Versions", result.versions.items()),
    )
    filled = ((title, [row for row in rows if row[1]]) for title, rows in groups)
    return [(title, rows) for title, rows in filled if rows]


def size_mm(slide: Slide) -> str:
    """Width and height of the filled part, in mm."""
    return " × ".join(number(side * slide.mpp / 1000) for side in (slide.bounds.width, slide.bounds.height))


def mpp_text(slide: Slide) -> str:
    """Micrometres per pixel and who said so."""
    source = slide.info.resolution.source if slide.info.resolution else ""
    return f"{number(slide.mpp, 4)} µm/px, {MPP_SOURCES.get(source, source)}"


def _count_rows(result: ReportInput, points: Points) -> Rows:
    counted = int(points.counted.sum())
    hotspot = result.score.hotspot
    centre = f"{number(round(hotspot.x))}, {number(round(hotspot.y))} px" if points.in_hotspot.any() else ""
    config, mitoses = result.score.config, result.points.get("mitoses", {})
    listed = int((points.certainty >= mitoses["delta"]).sum()) if mitoses else 0
    point = result.points.get("count", {})
    recall, false = point.get("recall"), point.get("false_per_mm2")
    merits = [] if recall is None else [f"found {recall:.0%} of the mitoses"]
    merits += [] if false is None else [f"made {number(false)} false positives per mm²"]
    return (
        ("Threshold of the count", number(config.threshold)),
        ("Its source", with_units(point.get("source") or "")),
        ("On validation slides it", " and ".join(merits)),
        (
            "Proliferation score",
            f"{number(result.score.proliferation)}, the {config.percentile:g}th percentile over positions",
        ),
        ("Grade of the paper", f"{result.score.grade}: 1 up to {config.theta1:g}, 2 up to {config.theta2:g}"),
        ("Listed as mitoses", f"{listed:,}, threshold {number(mitoses['delta'])}" if mitoses else ""),
        ("Counted on the slide", f"{counted:,}"),
        ("Under the threshold", f"{len(points) - counted:,}" if len(points) > counted else ""),
        ("Centre of the hotspot", centre),
    )


def _model_rows(card: Mapping[str, Any]) -> Rows:
    mpp, patch = card.get("mpp"), card.get("patch_px")
    failures = card.get("known_failures") or ()
    return (
        ("Name", card.get("name")),
        ("Family", card.get("family")),
        ("Width factor γ", number(card["gamma"]) if card.get("gamma") else ""),
        ("Works at", f"{number(mpp)} µm/px" if mpp else ""),
        ("Sees", f"{patch} px" if patch else ""),
        ("Intended use", with_units(card.get("intended_use") or "")),
        ("Known failures", with_units("; ".join(map(str, failures)))),
        ("Made with", ", ".join(f"{name} {value}" for name, value in (card.get("versions") or {}).items())),
        ("Weights", str(card.get("weights_sha256") or "")[:16]),
    )


def _source(source: Mapping[str, Any]) -> tuple[str, str]:
    counts = [
        f"{source[name]:,} {what}"
        for name, what in (("positives", "mitoses"), ("negatives", "others"))
        if source.get(name) is not None
    ]
    return str(source.get("name", "")), "; ".join([*counts, str(source.get("terms") or "terms not stated")])


def _time_rows(result: ReportInput) -> Rows:
    steps = {name: seconds for name, seconds in result.timings.items() if math.isfinite(seconds)}
    if not steps:
        return ()
    total = steps.pop("total", sum(steps.values()))
    speed = result.tissue.area_mm2 / total if total > 0 else math.nan
    rows = [(measure(name), f"{number(seconds)} s") for name, seconds in steps.items()]
    return (*rows, ("Total", f"{number(total)} s"), ("Tissue per second", f"{number(speed)} mm²/s"))
