"""What a slide's report is made from, which detections it shows, and its facts as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from metaphase.base.arrays import Floats
from metaphase.base.later import pandas as pd
from metaphase.base.tables import as_text
from metaphase.counting.hotspot import Hotspot
from metaphase.detections.table import ATYPICAL, LOOKALIKE, MACHINE, MITOSIS, REVIEWED, REVIEWERS
from metaphase.images.tissue.finding import TissueMask
from metaphase.labels.observers.positions import SAME_UM, Mark
from metaphase.reports.pages import area, measure, number, with_units
from metaphase.reports.record import SlideRecord
from metaphase.slides.contract import Slide

# ---- what a report is made from ----

LEAST_ATYPICAL = 0.5
"""Figures that the network calls atypical with at least this probability say so."""


@dataclass(frozen=True, eq=False)
class ReportInput:
    """Everything about one slide that the report shows, apart from the slide itself."""

    record: SlideRecord
    tissue: TissueMask
    detections: pd.DataFrame
    """All detections as people left them, those under the threshold and rejected ones included."""
    card: Mapping[str, Any]
    """The model's card as plain values."""
    marks: tuple[Mark, ...] = ()
    """Figures that people call atypical, and their notes."""


@dataclass(frozen=True, eq=False)
class Points:
    """The detections of a report."""

    table: pd.DataFrame
    """A row each, the most probable first, without those that were rejected or lie outside the regions.

    `probability` is the network's (NaN where people added one), `certainty` that with which it counts (1
    where people call it a mitosis); `said` tells what people said, `atypical_note` what calls it atypical.
    `in_hotspot` are those of which the count is the number, `to_look_at` those that lie there as well, are
    listed and not counted, and about which nobody decided.
    """
    network: Floats
    """What the network said of all of its detections, the rejected ones included."""
    outside: int
    """How many would count, but lie outside the regions."""

    @property
    def counted(self) -> pd.DataFrame:
        """Those at or above the threshold."""
        return self.table[self.table["counted"]]


def shown_points(result: ReportInput) -> Points:
    """The detections in order of the network's probability, then position."""
    record, table = result.record, result.detections
    machine = table[MACHINE] if MACHINE in table else table["probability"]
    shown = table.assign(certainty=table["probability"], probability=machine)[table["label"] != LOOKALIKE]
    held = record.scope.holds(shown[["x", "y"]].to_numpy(float))
    outside = int((~held & (shown["certainty"] >= record.threshold)).sum())
    shown = shown[held]
    shown = shown.iloc[np.lexsort((shown["x"], shown["y"], -shown["probability"].fillna(2.0)))]
    hotspot, counted = drawn_hotspot(record), shown["certainty"] >= record.threshold
    inside = np.full(len(shown), record.is_small)
    if hotspot is not None:
        inside |= hotspot.holds(shown[["x", "y"]].to_numpy(float))
    shown = shown.assign(
        counted=counted,
        in_hotspot=inside & counted,
        to_look_at=inside & ~counted & (shown["certainty"] >= record.detection_threshold),
        said=_said(shown),
        atypical_note=_atypical(shown, result),
    )
    network = machine.dropna().to_numpy(float)
    return Points(shown.reset_index(drop=True), network, outside)


def _said(table: pd.DataFrame) -> list[str]:
    """What people said of each detection, and who; empty where nobody looked."""
    if REVIEWED not in table:
        return [""] * len(table)
    words = []
    columns = (as_text(table[name]) for name in (REVIEWED, REVIEWERS))
    for verdict, names, machine in zip(*columns, table[MACHINE], strict=True):
        what = "left open" if verdict != MITOSIS else "added" if np.isnan(machine) else "accepted"
        who = f" by {names}" if ";" not in names else f"; answers of {names.replace(';', ',')}"
        words.append(f"{what}{who}" if verdict else "")
    return words


def _atypical(table: pd.DataFrame, result: ReportInput) -> list[str]:
    """Who or what calls each detection atypical; empty where nobody does."""
    chance = table[ATYPICAL].to_numpy(float) if ATYPICAL in table else np.full(len(table), np.nan)
    words = [f"atypical, network {value:.2f}" if value >= LEAST_ATYPICAL else "" for value in chance]
    reach_px, positions = SAME_UM / result.record.mpp, table[["x", "y"]].to_numpy(float)
    for mark in result.marks:
        away = np.hypot(*(positions - (mark.x, mark.y)).T)
        if mark.kind == ATYPICAL and len(away) and away.min() <= reach_px:
            words[int(away.argmin())] = f"atypical, marked by {mark.observer}"
    return words


def drawn_hotspot(record: SlideRecord) -> Hotspot | None:
    """The hotspot; None where there is nothing in it to draw."""
    return record.hotspot if record.hotspot.count or record.to_look_at or record.scope.place else None


# ---- where the numbers come from ----

MPP_SOURCES = {"metadata": "stated by the file", "flag": "given by the user"}

Rows = Iterable[tuple[str, Any]]
"""Terms and what is said of each; those without anything are left out."""


def facts_of(slide: Slide, result: ReportInput, points: Points) -> list[tuple[str, list[tuple[str, Any]]]]:
    """All groups of facts that have something to say, by title."""
    record, card, power = result.record, result.card, slide.info.objective_power
    measures = record.heterogeneity.items()
    slide_rows = (
        ("File", slide.name),
        ("Resolution", mpp_text(slide)),
        ("Objective", f"{power:g}x" if power else ""),
        ("Scan", f"{slide.width:,} × {slide.height:,} px, {size_mm(slide)} mm"),
        ("Tissue", f"{area(record.tissue_mm2)} mm²"),
        ("Stain", record.stain),
        ("Scanner or format", slide.info.vendor),
        ("Read with", slide.info.backend),
    )
    groups: dict[str, Rows] = {
        "Slide": slide_rows,
        "Count": _count_rows(record, points),
        "Spread of the mitoses": (
            (measure(name), number(value)) for name, value in measures if math.isfinite(value)
        ),
        "Model": _model_rows(card),
        "Training data": (_source(source) for source in card.get("data") or ()),
        "Time": _time_rows(record),
        "Versions": record.versions.items(),
    }
    filled = ((title, [row for row in rows if row[1]]) for title, rows in groups.items())
    return [(title, rows) for title, rows in filled if rows]


def size_mm(slide: Slide) -> str:
    """Width and height of the filled part, in mm."""
    return " × ".join(number(side * slide.mpp / 1000) for side in (slide.bounds.width, slide.bounds.height))


def mpp_text(slide: Slide) -> str:
    """Micrometres per pixel and who said so."""
    source = slide.info.resolution.source if slide.info.resolution else ""
    return f"{number(slide.mpp, 4)} µm/px, {MPP_SOURCES.get(source, source)}"


def _count_rows(record: SlideRecord, points: Points) -> Rows:
    hotspot, config, point = record.hotspot, record.config, record.operating_points.count
    table, listed_from = points.table, record.detection_threshold
    counted, listed = len(points.counted), int((table["certainty"] >= listed_from).sum())
    centre = f"{number(round(hotspot.x))}, {number(round(hotspot.y))} px"
    merits = [] if point.recall is None else [f"found {point.recall:.0%} of the mitoses"]
    if point.false_per_mm2 is not None:
        merits.append(f"made {number(point.false_per_mm2)} false positives per mm²")
    percentile = f"the {config.percentile:g}th percentile over positions"
    return (
        ("Threshold of the count", number(config.threshold)),
        ("Its source", with_units(point.source)),
        ("On validation slides it", " and ".join(merits)),
        ("Proliferation score", f"{number(record.proliferation)}, {percentile}"),
        ("Grade of the paper", f"{record.grade}: 1 up to {config.theta1:g}, 2 up to {config.theta2:g}"),
        ("Listed as mitoses", f"{listed:,}, threshold {number(listed_from)}"),
        ("Counted on the slide", f"{counted:,}"),
        ("Under the threshold", f"{len(table) - counted:,}" if len(table) > counted else ""),
        ("Centre of the hotspot", centre if table["in_hotspot"].any() else ""),
    )


def _model_rows(card: Mapping[str, Any]) -> Rows:
    gamma, mpp, patch = (card.get(name) for name in ("gamma", "mpp", "patch_px"))
    return (
        ("Name", card.get("name")),
        ("Family", card.get("family")),
        ("Width factor γ", number(gamma) if gamma else ""),
        ("Works at", f"{number(mpp)} µm/px" if mpp else ""),
        ("Sees", f"{patch} px" if patch else ""),
        ("Intended use", with_units(card.get("intended_use") or "")),
        ("Known failures", with_units("; ".join(map(str, card.get("known_failures") or ())))),
        ("Made with", ", ".join(f"{name} {value}" for name, value in (card.get("versions") or {}).items())),
        ("Weights", str(card.get("weights_sha256") or "")[:16]),
    )


def _source(source: Mapping[str, Any]) -> tuple[str, str]:
    numbers = {"mitoses": source.get("positives"), "others": source.get("negatives")}
    counts = [f"{value:,} {what}" for what, value in numbers.items() if value is not None]
    return str(source.get("name", "")), "; ".join([*counts, str(source.get("terms") or "terms not stated")])


def _time_rows(record: SlideRecord) -> Rows:
    if not (total := sum(record.seconds.values())):
        return ()
    rows = [(measure(name), f"{number(seconds)} s") for name, seconds in record.seconds.items()]
    speed = ("Tissue per second", f"{number(record.tissue_mm2 / total)} mm²/s")
    return (*rows, ("Total", f"{number(total)} s"), speed)
