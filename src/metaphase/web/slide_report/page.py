"""The report of one slide: gather its parts, render them, write one file."""

from __future__ import annotations

from pathlib import Path

from metaphase import __version__
from metaphase.artifacts import write_text
from metaphase.slides import Slide
from metaphase.web.slide_report.advice import Warned, notice_of, warned
from metaphase.web.slide_report.closeup import RING_UNITS, closeup_of
from metaphase.web.slide_report.facts import facts_of, mpp_text, size_mm
from metaphase.web.slide_report.gallery import gallery_of
from metaphase.web.slide_report.grade_scale import grade_scale
from metaphase.web.slide_report.histogram import histogram_of
from metaphase.web.slide_report.inputs import Points, ReportInput, points_of
from metaphase.web.slide_report.overview import overview_of
from metaphase.web.slide_report.rendering import render


def write_slide_report(path: Path, slide: Slide, result: ReportInput) -> Path:
    """Write the report of `slide` as one HTML file that opens offline, whole or not at all.

    Pictures are cut from the slide and stay within a budget, so the file stays below about 5 MB whatever the
    size of the slide and the number of detections. A slide without a known resolution is an error.
    """
    write_text(path, slide_page(slide, result))
    return Path(path)


def slide_page(slide: Slide, result: ReportInput) -> str:
    """The report as HTML text."""
    points = points_of(result)
    overview = overview_of(slide, result, points)
    closeup = closeup_of(slide, result, points)
    groups = gallery_of(slide, points, overview.frame, closeup.frame if closeup else None)
    return render(
        "slide.html",
        "slide.js",
        name=result.name or slide.name,
        result=result,
        score=result.score,
        points=points,
        counted=int(points.counted.sum()),
        scale=grade_scale(result.score),
        size=size_mm(slide),
        mpp=mpp_text(slide),
        notice=notice_of(result.card),
        warnings=_warnings(slide, result, points),
        overview=overview,
        closeup=closeup,
        ring_units=RING_UNITS,
        groups=groups,
        shown={crop.number for group in groups for crop in group.crops},
        histogram=histogram_of(points, result.threshold),
        facts=facts_of(slide, result, points),
        version=__version__,
    )


def _warnings(slide: Slide, result: ReportInput, points: Points) -> tuple[Warned, ...]:
    texts = [*result.warnings, *slide.info.warnings, *result.tissue.warnings, *result.score.warnings]
    if points.dropped:
        texts.append(f"{points.dropped} detections without a finite place or probability are left out")
    return warned(texts)
