"""The report of tasks 1 and 2: agreement on grades, or on proliferation scores."""

from __future__ import annotations

from pathlib import Path

from metaphase.evaluation.plots import confusion_plot, interval_plot, scatter_plot
from metaphase.evaluation.report import Figure, Report, Table, text, write_report
from metaphase.evaluation.scores import ScoreResult


def write_score_report(result: ScoreResult, folder: Path) -> None:
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
    write_report(folder, score_report(result), data, record)


def score_report(result: ScoreResult) -> Report:
    """The report as data."""
    what = "Tumour grade" if result.confusion is not None else "Proliferation score"
    everyone = ("all", str(len(result.cases)), text(result.overall))
    tables = [Table("All cases", ("", "cases", result.metric), (everyone,))]
    for column, members in result.groups.items():
        rows = tuple((name, str(count), text(value)) for name, (count, value) in members.items())
        tables.append(Table(f"By {column}", (column, "cases", result.metric), rows))
    return Report(
        title=f"{what}: agreement with the truth",
        summary=f"{result.metric} of {len(result.cases)} cases: {text(result.overall)}.",
        headline={result.metric: result.overall},
        tables=tuple(tables),
        figures=tuple(_figures(result)),
        settings=result.settings,
        warnings=result.warnings,
    )


def _figures(result: ScoreResult) -> list[Figure]:
    truth, predicted = (result.cases[name].to_numpy(float) for name in ("truth", "predicted"))
    if result.confusion is not None:
        caption = "Cases, and their share of the true grade. Kappa weighs an error of two grades four times."
        figures = [Figure("confusion", confusion_plot(result.confusion), caption)]
    else:
        caption = "One dot a case. Only the order of the values counts for Spearman's correlation."
        figures = [Figure("scatter", scatter_plot(truth, predicted, result.overall), caption)]
    for column, members in result.groups.items():
        values = {f"{name} ({count})": value for name, (count, value) in members.items()}
        picture = interval_plot(f"{result.metric} by {column}", result.metric, values)
        figures.append(Figure(f"agreement_by_{column}", picture, "Cases in brackets."))
    return figures
