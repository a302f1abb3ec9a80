"""The index of many reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from metaphase.base.errors import ResultWarning
from metaphase.counting.clinical import SlideCount
from metaphase.counting.regions import Place, Scope
from metaphase.counting.specimen import CountConfig
from metaphase.reports.cohort import (
    PAGE_ROWS,
    ROWS,
    Row,
    methods_text,
    read_rows,
    write_cohort_index,
    write_rows,
)
from metaphase.version import __version__
from tests.reports.slide_report_samples import (
    LIKELY,
    Page,
    count_of,
    full_tissue,
    noisy_slide,
    random_points,
    score_of,
)

FOCUS = ResultWarning("out-of-focus", "out of focus", "scan it again")
HOSTILE = "javascript:alert(1)//<b>\"'"
METHODS = "Counted with care, </textarea> and all."


def row(name: str, count: int, low: int | None = 0, high: int = 9, *codes: str, **other: Any) -> Row:
    """A slide with an interval, unless there is no `low`."""
    shown = count_of(count, low or 0, high)
    facts = {
        "case": name,
        "count": count,
        "kind": "model",
        "likely": low,
        "per_mm2": count / 2,
        "score": "1 to 2",
        "scope": "",
    }
    areas = {"counted_mm2": 0.264, "area_mm2": 30.0}
    texts = {"text": shown.text, "interval_text": "" if low is None else shown.interval_text}
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
    write_cohort_index(folder / "index.html", rows, apart, failed or {}, words, METHODS)
    return Page((folder / "index.html").read_text(encoding="utf-8"))


def sample(folder: Path) -> Page:
    rows = [
        row("b", 7, 2, 11, "out-of-focus", "far-stain", report="reports/b c#1.html"),
        row("d", 0, None, score="withheld"),
        row("a", 31, 25, 40, "far-stain"),
        row(HOSTILE, 0, 0, 2, HOSTILE, "far-stain", report=HOSTILE),
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
    assert text.index("cannot be decoded") < text.index("True figures")
    assert page.text("button").startswith(
        "‹ › Slide Mitotic count Per mm² True figures Kind Score Counted in, mm² Model Tissue, mm² Warnings"
    )
    cells = page.text("td", "b", "a")
    assert "a 31 15.5 25 to 40 model 1 to 2 0.26 breast 30.00 far stain" in cells
    assert "d 0 0 – model withheld 0.26" in cells
    assert page.text("textarea") == METHODS


def test_a_warning_of_many_slides_is_told_once_with_their_names(tmp_path: Path) -> None:
    text = sample(tmp_path).text()
    assert text.count("Far stain: 3 slides") == 1
    assert f"b, a, {HOSTILE}" in text
    assert "Out of focus: 1 slide b: out of focus. Scan it again." in text
    assert "out of focus, far stain" in text
    all_of_them = [row(name, 1, 0, 1, "out-of-focus") for name in "abc"]
    everywhere = write_index(tmp_path, all_of_them, None, FOCUS)
    assert "Out of focus: all 3 slides" in everywhere.text("summary")
    assert "out of focus" not in everywhere.text("td"), "not again in every row"


def test_what_is_not_in_the_counts_is_named_with_the_reason_and_the_model(tmp_path: Path) -> None:
    others = [row("old", 3, reason="no longer asked for"), row(HOSTILE, 4, reason="of another model")]
    page = write_index(tmp_path, [row("a", 1)], apart=others)
    text = page.text()
    assert "1 counted" in text
    assert "Not in these counts" in text
    assert "No longer asked for: 1 slide old : 3, model breast" in text
    assert f"Of another model: 1 slide {HOSTILE} : 4, model breast" in text
    assert page.of("a")[0]["href"] == "old/report.html"


def test_where_people_count_stands_with_the_slide(tmp_path: Path) -> None:
    rows = [row("a", 2), row("b", 1, scope=f"in {HOSTILE}; a circle at a chosen place")]
    page = write_index(tmp_path, rows)
    assert page.text("small") == rows[1]["scope"]
    assert "scope" in read_rows(tmp_path / ROWS)[0]["columns"]


def methods(count: SlideCount, reviewed: int = 0, scoped: int = 0, **points: Any) -> str:
    return methods_text(count, {"model": "breast", **points}, 12, reviewed=reviewed, scoped=scoped)


def test_the_methods_have_the_numbers_of_the_count_and_the_sources() -> None:
    slide = noisy_slide(300, 200)
    tissue, points = full_tissue(slide), random_points(9, slide)
    config = replace(LIKELY, threshold=0.432, field_diameter_mm=0.55)
    text = methods(score_of(slide, points, tissue, config))
    for part in (
        f"on 12 whole slides with metaphase {__version__} and the model breast.",
        "a probability of at least 0.432 counted; nobody reviewed them.",
        "the densest circle of 2 mm²",
        "No profile of a laboratory was used.",
        "95 % credible interval of the number of true mitotic figures",
        "a diameter of 0.55 mm [2], scaled to 2 mm²: score 1 up to 6.73 figures, 2 up to 14.3.",
        "and withheld where all.",
        "Elston CW, Ellis IO.",
        "NHSBSP Publication No 58",
    ):
        assert part in text
    assert "mm2" not in text
    assert "people said" not in text
    own = methods(
        score_of(slide, points, tissue, replace(config, theta2=21.0, thetas_given=True)), 3, site="Ours"
    )
    assert "3 of the slides were reviewed by people" in own
    ten = Scope(place=Place(x=9.0, y=9.0, field_diameter_mm=0.4))
    fields = methods(score_of(slide, points, tissue, config, scope=ten), scoped=2)
    assert "On 2 of the slides people said where figures count" in fields
    assert "a diameter of 0.4 mm [2], scaled to 1.26 mm²: score 1 up to 4 figures, 2 up to 9." in fields
    assert "The profile of the laboratory Ours was used." in own
    assert "the laboratory's answers about a sample of detections and the answers of people" in own
    assert (
        "The mitotic score is 1 up to 6 figures and 2 up to 21; beside it stands that by the Nottingham"
        in own
    )
    assert "No interval is given" in methods(score_of(slide, points, tissue, CountConfig()))


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
    rows = [row(f"s{number}", number % 40, 0, 50, "far-stain") for number in range(10_000)]
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
    write_rows(tmp_path / ROWS, {}, [row("a", 1)])
    written = (tmp_path / ROWS).read_text()
    for text in ("", "const SLIDES = 7;", written[:-9], written.replace('"a"', '"b"')):
        (tmp_path / ROWS).write_text(text)
        assert read_rows(tmp_path / ROWS) == ({}, [])
