"""The index of many reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from metaphase.base.errors import ResultWarning
from metaphase.reports.cohort import PAGE_ROWS, ROWS, Row, read_rows, write_cohort_index, write_rows
from tests.reports.slide_report_samples import Page, count_of

FOCUS = ResultWarning("out-of-focus", "out of focus", "scan it again")
HOSTILE = "javascript:alert(1)//<b>\"'"
KINDS = {"model": ("by the model alone", "counting range: another section; it does not include errors")}


def row(
    name: str, count: float | None, low: float = 0.0, high: float = 9.0, *codes: str, **other: Any
) -> Row:
    shown = count_of(0.0 if count is None else count, low, high)
    facts = {"case": name, "count": count, "kind": "model", "count_low": low, "grade": 1, "grade_shown": "1"}
    areas = {"counted_mm2": 0.264, "area_mm2": 30.0}
    texts = {"text": "–" if count is None else shown.text, "interval_text": shown.interval_text}
    where = {"report": f"{name}/report.html", "folder": name, "model": "breast"}
    return {**facts, **areas, "warnings": list(codes), **where, **texts, **other}


def write_index(
    folder: Path,
    rows: Sequence[Row],
    failed: dict[str, str] | None = None,
    *described: ResultWarning,
    apart: Sequence[Row] = (),
) -> Page:
    write_rows(folder / ROWS, {}, rows)
    words = {one.code: one for one in described}
    write_cohort_index(folder / "index.html", rows, apart, failed or {}, words, KINDS)
    return Page((folder / "index.html").read_text(encoding="utf-8"))


def sample(folder: Path) -> Page:
    rows = [
        row("b", 7.5, 0.0941, 11.04, "out-of-focus", "far-stain", report="reports/b c#1.html"),
        row("d", None),
        row("a", 31.0, 25, 40, "far-stain"),
        row(HOSTILE, 0.0, 0, 2, HOSTILE, "far-stain", report=HOSTILE),
    ]
    failed = {"z": "z.svs: cannot be decoded at level 0. Copy the file again.", "y": HOSTILE}
    return write_index(
        folder, rows, failed, FOCUS, ResultWarning("far-stain", "far"), ResultWarning(HOSTILE, HOSTILE)
    )


def test_highest_count_first_and_failures_apart(tmp_path: Path) -> None:
    page = sample(tmp_path)
    assert page.text("a").split()[:2] == ["a", "b"]
    text = page.text()
    assert "4 counted" in text
    assert "3 with warnings" in text
    assert "2 failed" in text
    assert text.index("cannot be decoded") < text.index("Range")
    assert "0.1 to 11" in text
    assert "0.264" in text
    assert "Counting range" not in text
    assert "counting range: another section; it does not include errors" in text
    assert "95 %" not in text


def test_a_warning_of_many_slides_is_told_once_with_their_names(tmp_path: Path) -> None:
    text = sample(tmp_path).text()
    assert text.count("Far stain: 3 slides") == 1
    assert f"b, a, {HOSTILE}" in text
    assert "Out of focus: 1 slide b: out of focus. Scan it again." in text
    assert "out of focus, far stain" in text
    all_of_them = [row(name, 1.0, 0, 1, "out-of-focus") for name in "abc"]
    everywhere = write_index(tmp_path, all_of_them, None, FOCUS)
    assert "Out of focus: all 3 slides" in everywhere.text("summary")
    assert "out of focus" not in everywhere.text("td"), "not again in every row"


def test_what_is_not_in_the_counts_is_named_with_the_reason_and_the_model(tmp_path: Path) -> None:
    others = [row("old", 3.0, reason="no longer asked for"), row(HOSTILE, 4.0, reason="of another model")]
    page = write_index(tmp_path, [row("a", 1.0)], apart=others)
    text = page.text()
    assert "1 counted" in text
    assert "Not in these counts" in text
    assert "No longer asked for: 1 slide old : 3, model breast" in text
    assert f"Of another model: 1 slide {HOSTILE} : 4, model breast" in text
    assert page.of("a")[0]["href"] == "old/report.html"


def test_links_are_relative_and_arrive(tmp_path: Path) -> None:
    links = [link["href"] for link in sample(tmp_path).of("a")]
    assert all(":" not in link and not link.startswith("/") for link in links)
    assert {unquote(link) for link in links} == {
        "reports/b c#1.html",
        "d/report.html",
        "a/report.html",
        HOSTILE,
    }


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    page = sample(tmp_path)
    assert not [link for link in page.of("a") if link["href"].startswith("javascript:")]
    assert [script.get("src") for script in page.of("script")] == [ROWS, None]
    assert HOSTILE in page.text("dd")


def test_an_empty_cohort_and_one_of_failures(tmp_path: Path) -> None:
    assert "0 slides" in write_index(tmp_path, []).text("h1")
    failed = write_index(tmp_path, [], {"x": "no"})
    assert "1 slide" in failed.text("h1")
    assert not failed.of("table")


def test_ten_thousand_slides_are_one_light_page_and_rows_beside_it(tmp_path: Path) -> None:
    rows = [row(f"s{number}", float(number % 40), 0, 50, "far-stain") for number in range(10_000)]
    failed = {f"f{number}": "cannot be decoded" for number in range(300)}
    page = write_index(tmp_path, rows, failed, ResultWarning("far-stain", "far"))
    assert (tmp_path / "index.html").stat().st_size < 60_000
    assert len(page.of("td", class_="name")) == PAGE_ROWS
    assert len(page.of("dt")) == 20
    assert "and 280 more" in page.text()
    assert "those of all 10,000 slides are in counts.csv" in page.text()
    made, kept = read_rows(tmp_path / ROWS)
    assert kept == rows
    assert made["columns"] == list(rows[0])


def test_rows_that_are_not_as_they_were_written_are_none(tmp_path: Path) -> None:
    assert read_rows(tmp_path / ROWS) == ({}, [])
    write_rows(tmp_path / ROWS, {}, [row("a", 1.0)])
    written = (tmp_path / ROWS).read_text()
    for text in ("", "const SLIDES = 7;", written[:-9], written.replace('"a"', '"b"')):
        (tmp_path / ROWS).write_text(text)
        assert read_rows(tmp_path / ROWS) == ({}, [])
