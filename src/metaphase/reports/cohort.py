"""One page that leads to the reports of many slides, the failed ones with their error."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from metaphase.base.cautions import Cautions
from metaphase.base.files import write_text
from metaphase.reports.pages import render

if TYPE_CHECKING:
    from metaphase.counting import Count


@dataclass(frozen=True)
class CohortRow:
    """One slide of a cohort: its result, or the error that stopped it."""

    name: str
    report: Path | None = None
    """The slide's report, to be linked relative to the index."""
    count: Count | None = None
    """The count in force."""
    counted_mm2: float | None = None
    """The area in which it was counted."""
    grade: int | None = None
    """By the thetas alone."""
    proliferation: float = math.nan
    area_mm2: float = math.nan
    warnings: Cautions = ()
    error: str = ""
    """Why there is no result; empty for a slide that went well."""
    grade_text: str = ""
    """The grade as it may be shown."""


@dataclass(frozen=True)
class IndexEntry:
    """A row with its link and the length of its bar, as a share of the highest count."""

    row: CohortRow
    link: str
    share: float


def write_cohort_index(path: Path, rows: Iterable[CohortRow]) -> Path:
    """Write the index of `rows` as one HTML file: highest count first, failed slides above the table."""
    target = Path(path)
    every = list(rows)
    failed = sorted((row for row in every if row.error), key=lambda row: row.name)
    done = sorted((row for row in every if not row.error), key=lambda row: (-_number(row), row.name))
    highest = max([1.0, *map(_number, done)])
    entries = [IndexEntry(row, _link(row.report, target), max(0.0, _number(row) / highest)) for row in done]
    page = render(
        "cohort.html",
        "cohort.js",
        entries=entries,
        failed=failed,
        warned=sum(bool(row.warnings) for row in done),
        kinds=dict.fromkeys((row.count.kind_text, row.count.interval_note) for row in done if row.count),
    )
    write_text(target, page)
    return target


def _number(row: CohortRow) -> float:
    """Its count; below all others where it is not known."""
    return row.count.count if row.count and math.isfinite(row.count.count) else -1.0


def _link(report: Path | None, index: Path) -> str:
    """A relative URL that works wherever the folder is moved to; quoting leaves no room for a scheme."""
    if report is None:
        return ""
    relative = os.path.relpath(Path(report).absolute(), index.absolute().parent)
    return quote(Path(relative).as_posix())
