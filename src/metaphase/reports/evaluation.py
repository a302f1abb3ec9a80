"""The pages of the three TUPAC tasks: what to say, tabulate and draw."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from metaphase.base.errors import MetaphaseError, ResultWarnings, several
from metaphase.base.files import write_bytes, write_text
from metaphase.base.tables import write_table
from metaphase.detections.table import MITOSIS
from metaphase.evaluation.differences import FALSE, SourcesResult, column_of
from metaphase.evaluation.grades import AgreementResult
from metaphase.evaluation.metrics import FALSE_PER_MM2, RATES, DetectionMetrics, Estimate
from metaphase.evaluation.mitoses import MitosisResult
from metaphase.reports.pages import (
    DASH,
    TextTable,
    data_uri,
    encode_jpeg,
    jsonable,
    probability_text,
    render,
)
from metaphase.reports.plots import (
    confusion_plot,
    f1_plot,
    froc_plot,
    interval_plot,
    precision_recall_plot,
    scatter_plot,
)
from metaphase.slides.opening import SlidePool
from metaphase.slides.tiles import cut_square
from metaphase.version import __version__

# ---- a folder of results ----


Figure = tuple[str, bytes, str]
"""The name of a picture's file, its content as PNG, and a sentence about what to see in it."""


@dataclass(frozen=True)
class Gallery:
    """Small pictures of one kind."""

    title: str
    note: str
    pictures: Sequence[tuple[str, str]]
    """Each as a data URI, with what to say of it."""


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
    galleries: Sequence[Gallery] = ()


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


# ---- the report of several sources ----

SHOWN = 60
"""Pictures of a kind; more make the page slow."""
PICTURE_UM, PICTURE_PX = 32.0, 128
NAMES_OF_RATES = dict(zip(RATES, _COLUMNS[-len(RATES) :], strict=True))


def write_sources_report(result: SourcesResult, folder: Path) -> None:
    """Write the page, `metrics.json`, `metrics.csv` and, with every position that any source finds or that
    all miss, `positions.csv`."""
    names = [source.name for source in result.sources]
    pairs = {f"{one} less {other}": rates for (one, other), rates in result.differences.items()}
    rows = tuple((*_row(source.name, source.metrics), text(source.threshold)) for source in result.sources)
    apart = tuple((name, *(text(rates[rate]) for rate in RATES)) for name, rates in pairs.items())
    tables = (
        TextTable("Each source", ("source", *_COLUMNS, "threshold"), rows),
        TextTable(
            "Differences",
            ("", *NAMES_OF_RATES.values()),
            apart,
            "Draws of patients are the same for all sources: an interval without 0 is a difference.",
        ),
        TextTable("Who finds what", ("found by", "mitoses", "false positives"), _shares(result)),
    )
    f1 = {source.name: source.metrics.f1 for source in result.sources}
    first = result.sources[0].metrics
    report = Report(
        title=f"{' and '.join(names)}: the same slides",
        summary=f"{first.truths} mitoses in {several(first.slides, 'slide')} "
        f"of {several(first.patients, 'patient')}.",
        headline={f"F1 of {name}": value for name, value in f1.items()}
        | {f"F1: {name}": rates["f1"] for name, rates in pairs.items()},
        tables=tables,
        figures=(),
        settings=result.settings,
        warnings=result.warnings,
        galleries=_galleries(result),
    )
    record = {}
    for source in result.sources:
        record[source.name] = {"threshold": source.threshold, **asdict(source.metrics)}
    data = {"metrics": result.table(), "positions": result.positions}
    write_report(folder, report, data, {"sources": record, "differences": pairs})


def _shares(result: SourcesResult) -> tuple[tuple[str, ...], ...]:
    """Numbers of positions by who finds them."""
    found = result.found_by()
    kinds = Counter(zip(found, result.positions["label"], strict=True))
    return tuple(
        (_finders(names, result), str(kinds[names, MITOSIS]), str(kinds[names, FALSE]))
        for names in sorted(set(found), key=lambda names: (-len(names), names))
    )


def _finders(names: Sequence[str], result: SourcesResult) -> str:
    if len(names) == len(result.sources):
        return "both" if len(names) == 2 else "all"
    return f"{names[0]} alone" if len(names) == 1 else " and ".join(names) or "none"


def _galleries(result: SourcesResult) -> list[Gallery]:
    """Pictures of each kind of position, the least agreed upon first: what one source alone finds."""
    kinds = list(zip(result.found_by(), result.positions["label"], strict=True))
    ordered = sorted(set(kinds), key=lambda kind: (not kind[0], len(kind[0]), kind[1] != MITOSIS, kind[0]))
    slides, manifest, galleries = SlidePool(), result.manifest.set_index("case"), list[Gallery]()
    columns = [column_of(source.name) for source in result.sources]
    for found, label in ordered:
        rows = result.positions[[kind == (found, label) for kind in kinds]]
        rows = rows.assign(sure=rows[columns].max(axis=1)).sort_values("sure", ascending=False, kind="stable")
        pictures = []
        for row in rows.head(SHOWN).to_dict("records"):
            case = manifest.loc[row["slide"]]
            said = ", ".join(probability_text(row[name]) for name in columns if not math.isnan(row[name]))
            with suppress(MetaphaseError), slides.open(Path(case["he"]), case["mpp"]) as slide:
                pixels = cut_square(slide, row["x"], row["y"], PICTURE_PX, PICTURE_UM / PICTURE_PX)
                about = f"{row['slide']} ({row['x']:.0f}, {row['y']:.0f}) {said}"
                pictures.append((data_uri("image/jpeg", encode_jpeg(pixels)), about))
        what = "Mitoses" if label == MITOSIS else "False positives"
        who = f"found by {_finders(found, result)}" if found else "missed by all"
        shown = "" if len(pictures) == len(rows) else f"{len(pictures)} are shown, the most probable first."
        galleries.append(Gallery(f"{what} {who}: {len(rows)}", shown, pictures))
    slides.close()
    return galleries


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
