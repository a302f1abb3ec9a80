"""The index of many reports."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from metaphase.base.cautions import Caution
from metaphase.reports.slide import CohortRow, write_cohort_index
from tests.reports.slide_report_samples import Page, count_of

FOCUS = Caution("out-of-focus", "out of focus", "scan it again")
HOSTILE = "javascript:alert(1)//<b>\"'"


def rows(folder: Path) -> list[CohortRow]:
    return [
        CohortRow(
            "b", folder / "reports" / "b c#1.html", count_of(7.5, 0.0941, 11.04), 2.0, 2, 7.5, 30.0, (FOCUS,)
        ),
        CohortRow("d"),
        CohortRow("a", folder / "reports" / "a.html", count_of(31.0, 25, 40), 2.0, 3, 31.0, 12.0),
        CohortRow("z", error="z.svs: cannot be decoded at level 0. Copy the file again."),
        CohortRow(
            HOSTILE,
            folder / HOSTILE.replace("/", "_"),
            count_of(0.0, 0, 2),
            0.264,
            1,
            0.0,
            1.0,
            (Caution("odd", HOSTILE),),
        ),
        CohortRow("y", error=HOSTILE),
    ]


def test_highest_count_first_and_failures_apart(tmp_path: Path) -> None:
    html = write_cohort_index(tmp_path / "index.html", rows(tmp_path)).read_text(encoding="utf-8")
    page = Page(html)
    names = [cell["data-key"] for cell in page.of("td", class_="name")]
    assert names == ["a", "b", HOSTILE, "d"]
    text = page.text()
    assert "4 counted" in text
    assert "2 with warnings" in text
    assert "2 failed" in text
    assert text.index("cannot be decoded") < text.index("May be")
    assert "0.1 to 11" in text
    assert "model, in 0.26 mm²" in text
    assert "counting range: another section; it leaves out errors" in text
    assert "95 %" not in text
    assert "out of focus: scan it again" in text


def test_links_are_relative_and_arrive(tmp_path: Path) -> None:
    target = tmp_path / "out" / "index.html"
    page = Page(write_cohort_index(target, rows(tmp_path)).read_text(encoding="utf-8"))
    links = [link["href"] for link in page.of("a")]
    assert all(":" not in link and not link.startswith("/") for link in links)
    reached = {(target.parent / unquote(link)).resolve() for link in links}
    assert reached == {row.report.resolve() for row in rows(tmp_path) if row.report}


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    page = Page(write_cohort_index(tmp_path / "i.html", rows(tmp_path)).read_text(encoding="utf-8"))
    assert not [link for link in page.of("a") if link["href"].startswith("javascript:")]
    assert len(page.of("script")) == 1
    assert HOSTILE in page.text("dd")


def test_an_empty_cohort_and_one_of_failures(tmp_path: Path) -> None:
    empty = Page(write_cohort_index(tmp_path / "0.html", []).read_text(encoding="utf-8"))
    assert "0 slides" in empty.text("h1")
    failed = Page(
        write_cohort_index(tmp_path / "1.html", [CohortRow("x", error="no")]).read_text(encoding="utf-8")
    )
    assert "1 slide" in failed.text("h1")
    assert not failed.of("table")
