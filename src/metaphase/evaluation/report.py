"""A folder of results: one self-contained page, and beside it the same as tables, JSON and pictures."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from metaphase import __version__
from metaphase.artifacts import write_bytes, write_text
from metaphase.evaluation.bootstrap import Estimate
from metaphase.tables import write_table


@dataclass(frozen=True)
class Figure:
    """A picture with the name of its file and a sentence about what to see in it."""

    name: str
    png: bytes
    caption: str


@dataclass(frozen=True)
class Table:
    """A table for reading: headings and cells as text."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Report:
    """All that the page shows."""

    title: str
    summary: str
    """One sentence with the main result."""
    headline: Mapping[str, Estimate]
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    settings: Mapping[str, Any]
    warnings: tuple[str, ...]


def write_report(folder: Path, report: Report, data: Mapping[str, pd.DataFrame], record: Any) -> None:
    """Write `index.html`, `metrics.json`, `metrics.md`, pictures as PNG and the tables of `data` as CSV."""
    for name, frame in data.items():
        write_table(folder / f"{name}.csv", frame)
    for figure in report.figures:
        write_bytes(folder / f"{figure.name}.png", figure.png)
    content = {"metaphase": __version__, "settings": dict(report.settings), "warnings": list(report.warnings)}
    content |= {"results": record}
    write_text(folder / "metrics.json", json.dumps(jsonable(content), indent=2, ensure_ascii=False) + "\n")
    write_text(folder / "metrics.md", markdown(report))
    write_text(folder / "index.html", page(report))


def page(report: Report) -> str:
    """The page as one HTML text with its pictures inside."""
    template = files("metaphase.evaluation").joinpath("templates/report.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    pictures = [(figure, base64.b64encode(figure.png).decode()) for figure in report.figures]
    return environment.from_string(template).render(
        report=report, pictures=pictures, version=__version__, text=text
    )


def markdown(report: Report) -> str:
    """Headline and tables for a lab notebook or an issue."""
    lines = [f"# {report.title}", "", report.summary, ""]
    for table in report.tables:
        lines += [
            f"## {table.title}",
            "",
            _markdown_row(table.headings),
            _markdown_row(["---"] * len(table.headings)),
        ]
        lines += [*(_markdown_row(row) for row in table.rows), ""]
    lines += [f"- {warning}" for warning in report.warnings]
    return "\n".join(lines).rstrip() + "\n"


def text(value: Any) -> str:
    """A value for reading: three decimals, a dash where undefined."""
    if isinstance(value, Estimate):
        return str(value) if not math.isnan(value.value) else "–"
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:.3f}" if not value.is_integer() else f"{value:g}"
    return "–" if value is None or value == "" else str(value)


def jsonable(value: Any) -> Any:
    """Plain JSON values; undefined numbers become null."""
    if isinstance(value, Estimate):
        return {name: jsonable(getattr(value, name)) for name in ("value", "low", "high")}
    if isinstance(value, Mapping):
        return {str(name): jsonable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _markdown_row(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
