"""The pages of the three TUPAC tasks: what to say, tabulate and draw."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from metaphase.base.errors import ResultWarnings, several
from metaphase.base.files import write_bytes, write_text
from metaphase.base.tables import write_table
from metaphase.evaluation.grades import AgreementResult
from metaphase.evaluation.metrics import FALSE_PER_MM2, RATES, DetectionMetrics, Estimate
from metaphase.evaluation.mitoses import MitosisResult
from metaphase.reports.pages import DASH, TextTable, data_uri, jsonable, render
from metaphase.reports.plots import (
    confusion_plot,
    f1_plot,
    froc_plot,
    interval_plot,
    precision_recall_plot,
    scatter_plot,
)
from metaphase.version import __version__

# ---- a folder of results ----


Figure = tuple[str, bytes, str]
"""The name of a picture's file, its content as PNG, and a sentence about what to see in it."""


@dataclass(frozen=True)
class Report:
    """All that the page shows."""

    title: str
    summary: str
    """One sentence with the main result."""
    headline: Mapping[str, Estimate]
    tables: tuple[TextTable, ...]
    figures: tuple[Figure, ...]
    settings: Mapping[str, Any]
    warnings: ResultWarnings


def write_report(folder: Path, report: Report, data: Mapping[str, pd.DataFrame], record: Any) -> None:
    """Write `index.html`, `metrics.json`, `metrics.md`, pictures as PNG and the tables of `data` as CSV."""
    for name, frame in data.items():
        write_table(folder / f"{name}.csv", frame)
    for name, png, _ in report.figures:
        write_bytes(folder / f"{name}.png", png)
    content = {
        "metaphase": __version__,
        "settings": dict(report.settings),
        "warnings": [warning.to_dict() for warning in report.warnings],
        "results": record,
    }
    write_text(folder / "metrics.json", json.dumps(jsonable(content), indent=2, ensure_ascii=False) + "\n")
    write_text(folder / "metrics.md", markdown(report))
    write_text(folder / "index.html", page(report))


def page(report: Report) -> str:
    """The page as one HTML text with its pictures inside."""
    pictures = [(caption, data_uri("image/png", png)) for _, png, caption in report.figures]
    return render("evaluation.html", report=report, pictures=pictures, text=text)


def markdown(report: Report) -> str:
    """Headline and tables for a lab notebook or an issue."""
    lines = [f"# {report.title}", "", report.summary, ""]
    for table in report.tables:
        lines += [f"## {table.title}", "", table.markdown, ""]
    lines += [f"- {warning}" for warning in report.warnings]
    return "\n".join(lines).rstrip() + "\n"


def text(value: Any) -> str:
    """A value for reading: three decimals, a dash where undefined."""
    if isinstance(value, Estimate):
        return DASH if math.isnan(value.value) else str(value)
    if isinstance(value, float):
        return DASH if math.isnan(value) else f"{value:g}" if value.is_integer() else f"{value:.3f}"
    return DASH if value is None or value == "" else str(value)


# ---- the report of task 3 ----

MAX_SLIDE_ROWS = 60
_COLUMNS = ("slides", "mitoses", "true", "false", "missed", "precision", "recall", "F1", "average precision")


def write_mitosis_report(result: MitosisResult, folder: Path) -> None:
    """Write the page, `metrics.json`, `metrics.csv`, `slides.csv`, `curve.csv` and the pictures."""
    curve = result.curve
    columns = {"threshold": curve.threshold, "true": curve.true, "false": curve.false}
    columns |= {"precision": curve.precision, "recall": curve.recall, "f1": curve.f1}
    if len(result.f1_band[0]):
        columns |= {"f1_low": result.f1_band[0], "f1_high": result.f1_band[1]}
    data = {"metrics": result.table(), "slides": result.slides, "curve": pd.DataFrame(columns)}

    def plain(metrics: DetectionMetrics) -> dict[str, Any]:
        return asdict(metrics) | {"missed": metrics.missed}

    record = {
        "threshold": result.threshold,
        "area_mm2": result.area_mm2,
        "all": plain(result.overall),
        "by": {
            column: {name: plain(metrics) for name, metrics in members.items()}
            for column, members in result.groups.items()
        },
    }
    overall = result.overall
    report = Report(
        title="Mitosis detection: agreement with the truth",
        summary=(
            f"{overall.true} of {overall.truths} mitoses found and {overall.false} false positives in "
            f"{several(overall.slides, 'slide')} of {several(overall.patients, 'patient')}, "
            f"at threshold {result.threshold:.3g}."
        ),
        headline={
            "F1": overall.f1,
            "precision": overall.precision,
            "recall": overall.recall,
            "average precision": overall.average_precision,
        },
        tables=tuple(_tables(result)),
        figures=tuple(_figures(result)),
        settings=result.settings,
        warnings=result.warnings,
    )
    write_report(folder, report, data, record)


def _figures(result: MitosisResult) -> list[Figure]:
    if not len(result.curve.threshold) or not result.curve.truths:
        return []
    share = f"{result.settings.get('bootstrap_confidence', 0.95):.0%}"
    figures = [
        (
            "f1",
            f1_plot(result.curve, result.f1_band, result.threshold),
            f"A flat top means that the threshold hardly matters. Shaded: {share} interval of F1.",
        ),
        (
            "precision_recall",
            precision_recall_plot(result.curve, result.overall.average_precision.value),
            "Mitoses without a matching detection keep the recall below 1.",
        ),
    ]
    if result.area_mm2 > 0:
        caption = f"False positives are counted over {result.area_mm2:,.1f} mm² in all."
        figures.append(("froc", froc_plot(result.curve, result.area_mm2), caption))
    for column, members in result.groups.items():
        values = {f"{name} ({m.slides})": m.f1 for name, m in members.items()}
        picture = interval_plot(f"F1 by {column}", "F1", values)
        figures.append((f"f1_by_{column}", picture, f"Slides in brackets; bars are {share} intervals."))
    return figures


def _tables(result: MitosisResult) -> Iterator[TextTable]:
    overall = result.overall
    note = (
        f"The best F1 of any threshold would be {text(overall.best_f1)}, at "
        f"{text(overall.best_threshold)}: chosen on these slides, so optimistic. Matched detections "
        f"are {text(overall.distance_um)} um from their truth (median)."
    )
    yield TextTable("All slides", ("", *_COLUMNS), (_row("all", overall),), note)
    for column, members in result.groups.items():
        rows = tuple(_row(name, metrics) for name, metrics in members.items())
        yield TextTable(f"By {column}", (column, *_COLUMNS), rows)
    if result.area_mm2 > 0:
        headings = ("false positives per mm²", *(f"{rate:g}" for rate in FALSE_PER_MM2))
        row = ("sensitivity", *(text(overall.froc[rate]) for rate in FALSE_PER_MM2))
        yield TextTable("FROC", headings, (row,))
    slides = result.slides.assign(errors=result.slides["false"] + result.slides["missed"])
    worst = slides.sort_values("errors", ascending=False, kind="stable").head(MAX_SLIDE_ROWS)
    names = ("case", "truths", "true", "false", "missed", "f1")
    columns = zip(*(worst[name].tolist() for name in names), strict=True)
    rows = tuple(tuple(text(value) for value in row) for row in columns)
    note = f"The {len(rows)} with most errors of {len(slides)}; all are in slides.csv."
    yield TextTable("Slides", ("slide", "mitoses", "true", "false", "missed", "F1"), rows, note)


def _row(name: str, metrics: DetectionMetrics) -> tuple[str, ...]:
    counts = (metrics.slides, metrics.truths, metrics.true, metrics.false, metrics.missed)
    return (name, *map(str, counts), *(text(getattr(metrics, rate)) for rate in RATES))


# ---- the report of tasks 1 and 2 ----


def write_agreement_report(result: AgreementResult, folder: Path) -> None:
    """Write the page, `metrics.json`, `metrics.csv`, `cases.csv` and the pictures."""
    record = {
        "metric": result.metric,
        "all": result.overall,
        "by": {
            column: {name: {"cases": count, "agreement": value} for name, (count, value) in members.items()}
            for column, members in result.groups.items()
        },
        "confusion": result.confusion,
    }
    data = {"metrics": result.table(), "cases": result.cases}
    what = "Tumour grade" if result.confusion is not None else "Proliferation score"
    everyone = ("all", str(len(result.cases)), text(result.overall))
    tables = [TextTable("All cases", ("", "cases", result.metric), (everyone,))]
    for column, members in result.groups.items():
        rows = tuple((name, str(count), text(value)) for name, (count, value) in members.items())
        tables.append(TextTable(f"By {column}", (column, "cases", result.metric), rows))
    report = Report(
        title=f"{what}: agreement with the truth",
        summary=f"{result.metric} of {several(len(result.cases), 'case')}: {text(result.overall)}.",
        headline={result.metric: result.overall},
        tables=tuple(tables),
        figures=tuple(_agreement_figures(result)),
        settings=result.settings,
        warnings=result.warnings,
    )
    write_report(folder, report, data, record)


def _agreement_figures(result: AgreementResult) -> list[Figure]:
    truth, predicted = (result.cases[name].to_numpy(float) for name in ("truth", "predicted"))
    if result.confusion is not None:
        caption = "Cases, and their share of the true grade. Kappa weighs an error of two grades four times."
        figures = [("confusion", confusion_plot(result.confusion), caption)]
    else:
        caption = "One dot per case. Only the order of the values counts for Spearman's correlation."
        figures = [("scatter", scatter_plot(truth, predicted, result.overall), caption)]
    for column, members in result.groups.items():
        values = {f"{name} ({count})": value for name, (count, value) in members.items()}
        picture = interval_plot(f"{result.metric} by {column}", result.metric, values)
        figures.append((f"agreement_by_{column}", picture, "Cases in brackets."))
    return figures
