"""The page of the experiments, and its curves as a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from metaphase.artifacts import write_bytes, write_text
from metaphase.pipeline.experiments import Summary, markdown
from metaphase.pipeline.experiments.plan import Experiment
from metaphase.pipeline.experiments.summary import centre_cells, contribution_cells, main_cells, networks_of
from metaphase.pipeline.stages import States
from metaphase.pipeline.training.testing import GRID, scores_of
from metaphase.web.run_page.plots import Line, f1_plot
from metaphase.web.run_page.rendering import TextTable, duration, png_uri, render


def write_experiments_page(
    folder: str | Path, summary: Summary, measured: Mapping[str, Any], states: States
) -> Path:
    """Write `results.json`, `table.md`, `curves.png` and `index.html`, a few MB in all."""
    folder = Path(folder)
    curves = curves_png(summary, measured) if summary.rows else b""
    seconds = {state.stage.name: state.seconds for state in states}
    content = {"laboratories": dict(summary.laboratories), "seconds": seconds, "networks": dict(measured)}
    write_text(folder / "results.json", json.dumps(content) + "\n")
    write_text(folder / "table.md", markdown(summary))
    if curves:
        write_bytes(folder / "curves.png", curves)
    page = render(
        "experiments.html",
        summary=summary,
        tables=_tables(summary),
        curves=png_uri(curves) if curves else "",
        stages=[(state.stage.name, state.status, duration(state.seconds)) for state in states],
        total=duration(sum(state.seconds or 0 for state in states)),
        finished=all(state.status in ("done", "kept") for state in states),
    )
    write_text(folder / "index.html", page)
    return folder / "index.html"


def curves_png(summary: Summary, measured: Mapping[str, Any]) -> bytes:
    """F1 against the threshold, on the training laboratory and on the others, as the paper's figure."""
    every = set(summary.rows[0].by_centre)
    away = set(summary.held_out)
    panels = {"Training laboratory": every - away, "Laboratories held out": away}
    lines: dict[str, list[Line]] = {}
    for title, centres in panels.items():
        if not centres:
            continue
        for row in summary.rows:
            values = networks_of(row.experiment.networks, measured)
            curves = scores_of(values, centres).curves().tolist()
            line = Line(_name(row.experiment), curves, [value["threshold"] for value in values])
            lines.setdefault(title, []).append(line)
    return f1_plot(lines, GRID.tolist())


def _name(experiment: Experiment) -> str:
    detail = experiment.ensemble or experiment.distilled or experiment.augment
    return f"{experiment.number}: {detail}"


def _tables(summary: Summary) -> list[TextTable]:
    where = f"{summary.slides} slides with {summary.mitoses:,} mitoses of {', '.join(summary.held_out)}"
    tables = [TextTable(*main_cells(summary), f"F1 on {where}; 95 % intervals draw slides.")]
    if summary.rows:
        tables.append(TextTable(*centre_cells(summary), "Mean over seeds, by laboratory of the test slides."))
    if summary.contributions:
        note = "What each part contributes, at the thresholds of the validation slides, on the same slides."
        tables.append(TextTable(*contribution_cells(summary), note))
    return tables
