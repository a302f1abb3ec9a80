"""One HTML file per slide with the mitotic count and its evidence: gather the parts, render, write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metaphase.base.errors import ResultWarning, ResultWarnings, unique
from metaphase.base.files import write_text
from metaphase.counting.clinical import SlideCount, count_text
from metaphase.counting.spread import edge_bands
from metaphase.labels.observers.positions import NOTE
from metaphase.reports.pages import render, sentence
from metaphase.reports.slide.inputs import ReportInput, facts_of, mpp_text, shown_points, size_mm
from metaphase.reports.slide.pictures import RING_UNITS, closeup_of, gallery_of, histogram_of, overview_of
from metaphase.slides.contract import Slide

# ---- the count and its interval on a line that is cut where one score ends and the next begins ----

LEAST_APART = 6.0
"""Per cent of the line between two labels."""
ROOM = 1.08
"""Length of the line in terms of the largest thing on it."""


def score_scale(score: SlideCount) -> dict[str, Any] | None:
    """Positions of count, interval and cuts along the line in per cent of its length.

    None without an interval. `cuts` are where scores 1 and 2 end, and the counts there; those that would run
    into another are left out.
    """
    if score.likely is None:
        return None
    (low, high), (one, two) = score.likely.interval, score.score.most
    length = ROOM * max(1.5 * two, high, score.count, 1)
    share = [round(100 * value / length, 2) for value in (score.count, low, high, one, two)]
    cuts = [(share[3], count_text(one)), (share[4], count_text(two))]
    apart = cuts[1][0] - cuts[0][0] >= LEAST_APART
    return {"count": share[0], "low": share[1], "high": share[2], "cuts": cuts if apart else cuts[1:]}


def notice_of(card: Mapping[str, Any]) -> tuple[str, str] | None:
    """Title and text of what the model's card says against clinical use; None where it says nothing."""
    sources = [str(source.get("name", "")) for source in card.get("data") or ()]
    simulated = [bool(re.search("simulat|synthetic", name, re.IGNORECASE)) for name in sources]
    use = str(card.get("intended_use") or "").strip()
    if simulated and all(simulated):
        return (
            "Made with a model trained on simulated slides only",
            f"It shows how the software works; its numbers say nothing about a patient. {use}".strip(),
        )
    if any(simulated):
        return "Made with a model trained partly on simulated slides", use
    if re.search(r"research|not for (diagnos|clinical)", use, re.IGNORECASE):
        return "For research", use
    return None


# ---- the report of one slide ----


def write_slide_report(path: Path, slide: Slide, result: ReportInput) -> None:
    """Write the report of `slide` as one HTML file that opens offline, whole or not at all.

    Pictures are cut from the slide and stay within a budget, so the file stays below about 5 MB whatever the
    size of the slide and the number of detections. A slide without a known resolution is an error.
    """
    write_text(path, slide_page(slide, result))


def slide_page(slide: Slide, result: ReportInput) -> str:
    """The report as HTML text."""
    record, points = result.record, shown_points(result)
    counted_px = points.counted[["x", "y"]].to_numpy(float)
    overview = overview_of(slide, result, points)
    closeup = closeup_of(slide, record, points)
    groups = gallery_of(slide, points, record, overview["frame"], closeup["frame"] if closeup else None)
    front = edge_bands(counted_px, result.tissue) if len(counted_px) and not record.scope.regions else None
    return render(
        "slide.html",
        "slide.js",
        score=record,
        points=points,
        counted=len(counted_px),
        above=int((points.network >= record.threshold).sum()),
        scale=score_scale(record),
        size=size_mm(slide),
        mpp=mpp_text(slide),
        notice=notice_of(result.card),
        warnings=_warnings(slide, result),
        notes=[mark for mark in result.marks if mark.kind == NOTE],
        overview=overview,
        small=record.is_small,
        closeup=closeup,
        ring_units=RING_UNITS,
        groups=groups,
        shown={crop.number for _, crops, _ in groups for crop in crops},
        histogram=histogram_of(points.network, record.threshold),
        front=[] if front is None else list(front.itertuples()),
        facts=facts_of(slide, result, points),
    )


def _warnings(slide: Slide, result: ReportInput) -> ResultWarnings:
    """Each different warning once, and each piece of advice with the first that calls for it."""
    given: set[str] = set()
    shown = []
    for warning in unique((*result.record.warnings, *slide.info.warnings, *result.tissue.warnings)):
        advice = "" if warning.next_step in given else warning.next_step
        given.add(advice)
        shown.append(ResultWarning(warning.code, sentence(warning.text), sentence(advice)))
    return tuple(shown)
