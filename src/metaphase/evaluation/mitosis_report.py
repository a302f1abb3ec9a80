"""The report of task 3: what to say, tabulate and draw about detections."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from metaphase.evaluation.curves import FALSE_PER_MM2
from metaphase.evaluation.metrics import RATES, DetectionMetrics
from metaphase.evaluation.mitoses import MitosisResult
from metaphase.evaluation.plots import f1_plot, froc_plot, interval_plot, precision_recall_plot
from metaphase.evaluation.report import Figure, Report, Table, text, write_report

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
    write_report(folder, mitosis_report(result), data, _record(result))


def mitosis_report(result: MitosisResult) -> Report:
    """The report as data."""
    overall = result.overall
    return Report(
        title="Mitosis detection: agreement with the truth",
        summary=(
            f"{overall.true} of {overall.truths} mitoses found and {overall.false} false detections in "
            f"{overall.slides} slides of {overall.patients} patients, at threshold {result.threshold:.3g}."
        ),
        headline={
            "F1": overall.f1,
            "precision": overall.precision,
            "recall": overall.recall,
            "average precision": overall.average_precision,
        },
        tables=(_main_table(result), *_group_tables(result), *_froc_table(result), _slide_table(result)),
        figures=tuple(_figures(result)),
        settings=result.settings,
        warnings=result.warnings,
    )


def _figures(result: MitosisResult) -> list[Figure]:
    if not len(result.curve.threshold) or not result.curve.truths:
        return []
    share = f"{result.settings.get('bootstrap_confidence', 0.95):.0%}"
    figures = [
        Figure(
            "f1",
            f1_plot(result.curve, result.f1_band, result.threshold),
            f"A flat top means that the threshold hardly matters. Shaded: {share} interval of F1.",
        ),
        Figure(
            "precision_recall",
            precision_recall_plot(result.curve, result.overall.average_precision.value),
            "Mitoses that no detection matches keep the recall below 1.",
        ),
    ]
    if result.area_mm2 > 0:
        caption = f"False detections are counted over {result.area_mm2:,.1f} mm² in all."
        figures.append(Figure("froc", froc_plot(result.curve, result.area_mm2), caption))
    for column, members in result.groups.items():
        values = {f"{name} ({m.slides})": m.f1 for name, m in members.items()}
        picture = interval_plot(f"F1 by {column}", "F1", values)
        figures.append(Figure(f"f1_by_{column}", picture, f"Slides in brackets; bars are {share} intervals."))
    return figures


def _main_table(result: MitosisResult) -> Table:
    note = (
        f"The best F1 of any threshold would be {text(result.overall.best_f1)}, at "
        f"{text(result.overall.best_threshold)}: chosen on these slides, so optimistic. Matched detections "
        f"are {text(result.overall.distance_um)} um from their truth (median)."
    )
    return Table("All slides", ("", *_COLUMNS), (_row("all", result.overall),), note)


def _group_tables(result: MitosisResult) -> list[Table]:
    return [
        Table(f"By {column}", (column, *_COLUMNS), tuple(_row(name, m) for name, m in members.items()))
        for column, members in result.groups.items()
    ]


def _froc_table(result: MitosisResult) -> list[Table]:
    if not result.area_mm2 > 0:
        return []
    headings = ("false detections per mm²", *(f"{rate:g}" for rate in FALSE_PER_MM2))
    row = ("sensitivity", *(text(result.overall.froc[rate]) for rate in FALSE_PER_MM2))
    return [Table("FROC", headings, (row,))]


def _slide_table(result: MitosisResult) -> Table:
    """The slides that cost most: those with most errors first."""
    slides = result.slides.assign(errors=result.slides["false"] + result.slides["missed"])
    worst = slides.sort_values("errors", ascending=False, kind="stable").head(MAX_SLIDE_ROWS)
    names = ("case", "truths", "true", "false", "missed", "f1")
    rows = tuple(
        tuple(text(value) for value in row)
        for row in zip(*(worst[name].tolist() for name in names), strict=True)
    )
    note = f"The {len(rows)} with most errors of {len(slides)}; all are in slides.csv."
    return Table("Slides", ("slide", "mitoses", "true", "false", "missed", "F1"), rows, note)


def _row(name: str, metrics: DetectionMetrics) -> tuple[str, ...]:
    counts = (metrics.slides, metrics.truths, metrics.true, metrics.false, metrics.missed)
    return (name, *map(str, counts), *(text(getattr(metrics, rate)) for rate in RATES))


def _record(result: MitosisResult) -> dict[str, Any]:
    """The metrics as nested plain values."""

    def plain(metrics: DetectionMetrics) -> dict[str, Any]:
        return asdict(metrics) | {"missed": metrics.missed}

    groups = {
        column: {name: plain(metrics) for name, metrics in members.items()}
        for column, members in result.groups.items()
    }
    return {
        "threshold": result.threshold,
        "area_mm2": result.area_mm2,
        "all": plain(result.overall),
        "by": groups,
    }
