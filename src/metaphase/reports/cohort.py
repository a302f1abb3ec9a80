"""The index of all reports of a folder: a page with the first rows, and all of them beside it in `index.js`,
for search, sorting, filter and paging."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from metaphase.base.errors import ResultWarning
from metaphase.base.files import write_text
from metaphase.base.provenance import fingerprint_of
from metaphase.reports.pages import render
from metaphase.version import __version__

if TYPE_CHECKING:
    from metaphase.counting.clinical import SlideCount

ROWS = "index.js"
ASSIGNED, BEFORE, AFTER = "const SLIDES = ", ', "rows": [\n', "\n]};\n"
"""Around the rows: a local page may load a script, but not fetch a file."""
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
    methods: str = "",
) -> None:
    """Write the index of `rows`, the highest count first; `failed` tells why slides have no result, and
    those `apart` are named with the reason.

    `by_code` has the words of the first slide with a warning, by code; `methods` says how it was counted.
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
        warnings=sorted(codes.items(), key=lambda item: -len(item[1])),
        by_code=by_code,
        everywhere=[code for code in codes if len(codes[code]) == len(rows)],
        methods=methods,
        most=NAMED_AT_MOST,
    )
    write_text(path, page)


SOURCES = """
[1] Elston CW, Ellis IO. Pathological prognostic factors in breast cancer. I. The value of histological \
grade in breast cancer: experience from a large study with long-term follow-up. Histopathology \
1991;19:403-410.
[2] NHS Breast Screening Programme. Pathology reporting of breast disease. NHSBSP Publication No 58. \
Sheffield: NHS Cancer Screening Programmes; 2005.
"""


def methods_text(
    count: SlideCount, points: Mapping[str, Any], total: int, *, reviewed: int, scoped: int
) -> str:
    """A paragraph for a paper: a count and its operating points, which stand for all of `total` slides.

    People looked at so many of them as are `reviewed`, and said of those `scoped` where figures count.
    """
    config, site = count.config, points.get("site")
    slides = f"{total:,} whole slide{'' if total == 1 else 's'}"
    model = f" and the model {points['model']}" if points.get("model") else ""
    looked = f"{reviewed:,} of the slides {'was' if reviewed == 1 else 'were'} reviewed by people"
    looked = f"{looked}, whose answers replaced the model's" if reviewed else "nobody reviewed them"
    area = f"{config.area_mm2:g} mm²"
    chosen = f"On {scoped:,} of the slides people said where figures count: in regions that they outlined, "
    parts = (
        f"Mitotic figures were counted on {slides} with metaphase {__version__}{model}.",
        f"Detections with a probability of at least {config.threshold:.3g} counted; {looked}.",
        f"The mitotic count of a slide is the number of mitotic figures in the densest circle of {area},",
        f"anywhere on the slide; on slides with less than {area} of tissue all figures were counted.",
        *((f"{chosen}or at a place that they chose.",) if scoped else ()),
        f"The profile of the laboratory {site} was used." if site else "No profile of a laboratory was used.",
        _interval_in_words(count, bool(site), bool(reviewed)),
        _score_in_words(count),
    )
    return f"{' '.join(parts)}\n{SOURCES}"


def _interval_in_words(count: SlideCount, site: bool, reviewed: bool) -> str:
    """What the interval is, and what it rests on."""
    if count.config.prior is None:
        return "No interval is given, because nothing is known of how this model errs in other laboratories."
    rests = ["the model's errors in other laboratories", "its probabilities in and beside the circle"]
    rests += ["the laboratory's answers about a sample of detections"] if site else []
    rests += ["the answers of people on the slide"] if reviewed else []
    return (
        "The interval is the 95 % credible interval of the number of true mitotic figures in that circle, "
        f"with those that the model did not mark; it rests on {', '.join(rests[:-1])} and {rests[-1]}."
    )


def _score_in_words(count: SlideCount) -> str:
    """By which rules the score is given, and when it is a range."""
    config, nottingham, own = count.counted_config, count.scores[-1], count.score.most
    one, two = (f"{most:.3g}" for most in nottingham.most)
    rule = (
        f"by the Nottingham criteria [1] for ten high-power fields with a diameter of "
        f"{config.field_diameter_mm:g} mm [2], scaled to {config.area_mm2:.3g} mm²: score 1 up to {one} "
        f"figures, 2 up to {two}"
    )
    given = f"The mitotic score was given {rule}."
    if len(count.scores) > 1:
        given = f"The mitotic score is 1 up to {own[0]:g} figures and 2 up to {own[1]:g}"
        given = f"{given}; beside it stands that {rule}."
    why = "too little tissue" if config.prior is None else "the interval, or too little tissue,"
    return f"{given} It is a range where {why} allows two scores, and withheld where all."


def write_rows(path: Path, made: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Write rows as the page reads them, one a line, behind the facts about all of them."""
    columns = list(rows[0]) if rows else []
    lines = ",\n".join(json.dumps([row[name] for name in columns], allow_nan=False) for row in rows)
    head = json.dumps({**made, "columns": columns, "checksum": fingerprint_of(lines)}, allow_nan=False)
    write_text(path, f"{ASSIGNED}{head[:-1]}{BEFORE}{lines}{AFTER}")


def read_rows(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Facts and rows that `write_rows` wrote; empty where the file is missing or was changed."""
    try:
        head, _, lines = path.read_text(encoding="utf-8").removeprefix(ASSIGNED).partition(BEFORE)
        made, lines = json.loads(f"{head}}}"), lines.removesuffix(AFTER)
        if made["checksum"] != fingerprint_of(lines):
            return {}, []
        return made, [dict(zip(made["columns"], row, strict=True)) for row in json.loads(f"[{lines}]")]
    except (OSError, ValueError, KeyError, TypeError):
        return {}, []
