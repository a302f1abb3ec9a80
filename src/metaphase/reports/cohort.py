"""One page that leads to the reports of many slides, the failed ones with their error."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from metaphase.base.cautions import Cautions
from metaphase.base.files import write_text
from metaphase.reports.pages import render


@dataclass(frozen=True)
class CohortRow:
    """One slide of a cohort: its result, or the error that stopped it."""

    name: str
    report: Path | None = None
    """The slide's report, to be linked relative to the index."""
    count: float = math.nan
    """Mitoses in 2 mm2."""
    count_interval: tuple[float, float] = (math.nan, math.nan)
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
    done = sorted((row for row in every if not row.error), key=_by_count)
    highest = max((row.count for row in done if math.isfinite(row.count)), default=0.0)
    entries = [IndexEntry(row, _link(row.report, target), _share(row.count, highest)) for row in done]
    page = render(
        "cohort.html",
        "cohort.js",
        entries=entries,
        failed=failed,
        warned=sum(bool(row.warnings) for row in done),
    )
    write_text(target, page)
    return target


def _by_count(row: CohortRow) -> tuple[float, str]:
    return (-row.count if math.isfinite(row.count) else math.inf, row.name)


def _share(count: float, highest: float) -> float:
    return max(0.0, count / highest) if highest > 0 and math.isfinite(count) else 0.0


def _link(report: Path | None, index: Path) -> str:
    """A relative URL that works wherever the folder is moved to; quoting leaves no room for a scheme."""
    if report is None:
        return ""
    relative = os.path.relpath(Path(report).absolute(), index.absolute().parent)
    return quote(Path(relative).as_posix())
