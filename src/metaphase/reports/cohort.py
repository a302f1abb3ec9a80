"""The index of all reports of a folder: a page with the first rows, and all of them beside it in `index.js`,
for search, sorting, filter and paging."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from metaphase.base.errors import ResultWarning
from metaphase.base.files import write_text
from metaphase.base.provenance import fingerprint_of
from metaphase.reports.pages import render

ROWS = "index.js"
ASSIGNED, BEFORE, AFTER = "const SLIDES = ", ', "rows": [\n', "\n]};\n"
"""Around them: a script may be loaded where a page that is a file may fetch nothing."""
PAGE_ROWS = 50
NAMED_AT_MOST = 20
"""Slides of a warning, failed ones and those that are listed apart, that the page itself names."""
Row = Mapping[str, Any]
"""A slide: its row of `counts.csv`, `warnings` by their codes, `text` and `interval_text` of its count; one
that is listed apart has a `reason`."""


def write_cohort_index(
    path: Path,
    rows: Sequence[Row],
    apart: Sequence[Row],
    failed: Mapping[str, str],
    by_code: Mapping[str, ResultWarning],
    kinds: Mapping[str, tuple[str, str]],
) -> None:
    """Write the index of `rows`, the highest count first; `failed` tells why slides have no result, and
    those `apart` are named with the reason.

    `by_code` has the words of the first slide with a warning, by code; `kinds` what each kind of count is,
    and what its interval means.
    """
    codes = {code: [row["case"] for row in rows if code in row["warnings"]] for code in by_code}
    ordered = sorted(rows, key=lambda row: -1.0 if row["count"] is None else row["count"], reverse=True)
    page = render(
        "cohort.html",
        "cohort.js",
        beside=ROWS,
        rows=ordered[:PAGE_ROWS],
        links={row["folder"]: quote(row["report"]) for row in (*ordered[:PAGE_ROWS], *apart)},
        total=len(rows),
        apart=apart,
        failed=failed,
        warned=sum(bool(row["warnings"]) for row in rows),
        warnings=sorted(codes.items(), key=lambda one: -len(one[1])),
        by_code=by_code,
        everywhere=[code for code in codes if len(codes[code]) == len(rows)],
        kinds=kinds,
        most=NAMED_AT_MOST,
    )
    write_text(path, page)


def write_rows(path: Path, made: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Write rows as the page reads them, one a line, after what is said about all of them."""
    columns = list(rows[0]) if rows else []
    lines = ",\n".join(json.dumps([row[name] for name in columns], allow_nan=False) for row in rows)
    head = json.dumps({**made, "columns": columns, "checksum": fingerprint_of(lines)}, allow_nan=False)
    write_text(path, f"{ASSIGNED}{head[:-1]}{BEFORE}{lines}{AFTER}")


def read_rows(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What `write_rows` wrote; nothing where it is not as it was written."""
    try:
        head, _, lines = path.read_text(encoding="utf-8").removeprefix(ASSIGNED).partition(BEFORE)
        made, lines = json.loads(f"{head}}}"), lines.removesuffix(AFTER)
        if made["checksum"] != fingerprint_of(lines):
            return {}, []
        return made, [dict(zip(made["columns"], row, strict=True)) for row in json.loads(f"[{lines}]")]
    except (OSError, ValueError, KeyError, TypeError):
        return {}, []
