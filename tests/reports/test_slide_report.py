"""The report of a slide: its facts, its safety, its size, and the odd cases."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from metaphase.base.errors import MissingResolutionError, OutputError, ResultWarning
from metaphase.counting.scores import mitotic_scores
from metaphase.detections.table import LOOKALIKE, MACHINE, MITOSIS, REVIEWED, REVIEWERS
from metaphase.reports.pages import area, number, with_units
from metaphase.reports.slide import ReportInput, slide_page, write_slide_report
from metaphase.reports.slide.inputs import shown_points
from metaphase.reports.slide.pictures import (
    BORDERLINE_MOST,
    ELSEWHERE_LEAST,
    HOTSPOT_MOST,
    LOOK_MOST,
)
from metaphase.slides.arrays import ArraySlide
from tests.reports.slide_report_samples import (
    CARD,
    LIKELY,
    HugeSlide,
    Page,
    changed,
    full_tissue,
    likely_of,
    noisy_slide,
    page_of,
    random_points,
    result_for,
    score_of,
    unknown,
)
from tests.work import lines_run

HOSTILE = "<script>alert('1')</script>\"><img src=x onerror=alert(2)>&amp; {{ 7*7 }} ${x}"
MOST_BYTES = 5_000_000


def test_the_page_states_the_result_and_where_it_comes_from() -> None:
    slide = noisy_slide()
    result = result_for(
        slide,
        random_points(60, slide),
        stain="H&E (97 % sure)",
        seconds={"network": 3.0, "tissue": 1.0},
        versions={"metaphase": "9.8.7"},
    )
    page, score = page_of(slide, result), result.record
    text = page.text()
    assert page.text("h1") == "case 7.tif"
    assert f"Mitotic figures in {area(score.counted_mm2)} mm² {score.count} By the model alone" in text
    assert f"{number(score.per_mm2)} per mm², {number(score.per_10_fields)} in ten fields of 0.5 mm" in text
    for fact in (
        "0.25 µm/px, given by the user",
        "H&E (97 % sure)",
        f"{area(result.tissue.area_mm2)} mm²",
        f"{number(result.tissue.area_mm2 / 4)} mm²/s",
        "cnn5-simulated",
        "1,234 mitoses; own work",
        "9.8.7",
        "1,600 × 1,200 px, 0.4 × 0.3 mm",
    ):
        assert fact in text
    assert "trained on simulated slides only" in text


def test_the_interval_and_what_it_rests_on_are_there_or_why_it_is_not() -> None:
    slide = noisy_slide(600, 400)
    points = random_points(30, slide)
    result = result_for(slide, points)
    plain = page_of(slide, result)
    assert "True figures on this slide not known" in plain.text()
    assert f"No interval: {result.record.no_interval}." in plain.text()
    assert not plain.of("div", class_="scale-line")
    score = score_of(slide, points, result.tissue, LIKELY)
    assert score.likely is not None
    shown = page_of(slide, changed(result, **dict(score)))
    low, high = score.likely.interval
    assert f"True figures on this slide {low} to {high}" in shown.text()
    assert f"{score.interval_note}." in shown.text()
    assert f"Median {score.likely.figures}; " in shown.text()
    assert shown.of("div", class_="scale-line")


@pytest.mark.parametrize(
    ("low", "high", "score"), [(2, 5, "1"), (2, 9, "1 to 2"), (9, 20, "2 to 3"), (3, 20, "withheld")]
)
def test_a_score_may_be_a_range_or_withheld(low: int, high: int, score: str) -> None:
    slide = noisy_slide(800, 300, mpp=5.0)
    result = result_for(slide, random_points(6, slide))
    likely = likely_of(low, high)
    rules = mitotic_scores(result.record.config, likely.figures, likely.interval, 2.0)
    about = {"likely": likely, "scores": rules, "no_interval": "", "counted_mm2": 2.0}
    result = changed(result, **about)
    text = page_of(slide, result).text()
    assert f"True figures in this circle {low} to {high} " in text
    assert f"Mitotic score {score} Nottingham, fields of 0.5 mm: 1 up to " in text
    assert ("Withheld: the interval leaves every score open" in text) == (score == "withheld")
    assert ("A range, because of the interval" in text) == (" to " in score)
    own = replace(result.record.config, theta1=6.0, theta2=20.0, thetas_given=True)
    rules = mitotic_scores(own, likely.figures, likely.interval, 2.0)
    text = page_of(slide, changed(result, scores=rules)).text()
    assert f"Mitotic score {rules[0].text} theta1 and theta2: {rules[0].text} , 1 up to 6, 2 up to 20" in text


STATED = {"mitoses": {"delta": 0.5}, "count": {"delta": 0.8, "source": "at most 4 errors per mm2"}}


def large_result() -> tuple[ArraySlide, ReportInput]:
    """A slide of 12 mm2 of tissue with detections all over it, those of one part reviewed."""
    slide = noisy_slide(800, 800, mpp=5.0)
    points = random_points(150, slide)
    points[MACHINE], points["label"] = points["probability"], MITOSIS
    points[REVIEWED], points[REVIEWERS] = "", ""
    rows = points.index[::5]
    said = np.array([MITOSIS, "not", "unsure"])[np.arange(len(rows)) % 3]
    points.loc[rows, REVIEWED], points.loc[rows, REVIEWERS] = said, "Anna"
    points.loc[rows[said == "not"], "label"] = LOOKALIKE
    points.loc[rows[said == MITOSIS], "probability"] = 1.0
    return slide, result_for(slide, points, points=STATED)


def test_what_is_marked_in_the_circle_adds_up_to_the_count() -> None:
    """Count of rings within the drawn circle, crops of the group and titles: all say the same number."""
    slide, result = large_result()
    page, score = page_of(slide, result), result.record
    assert score.count == score.hotspot.count > 3
    assert page.of("p", id="count")
    assert f"{score.count} mitoses in the circle" in page.text()
    assert f"Counted, in the hotspot {score.count} " in page.text("h3", "span")
    crops = page.of("li", class_="inside")
    assert len(crops) == score.count
    circle = [found for found in page.of("circle") if found["r"] not in ("13.0", "18", "24")][-1]
    middle, reach = complex(float(circle["cx"]), float(circle["cy"])), float(circle["r"])
    rings = {(found["cx"], found["cy"]) for found in page.of("circle") if found.get("r") == "13.0"}
    inside = [1 for x, y in rings if abs(complex(float(x), float(y)) - middle) <= reach + 0.2]
    assert len(inside) == score.count


def test_what_is_to_be_looked_at_has_a_group_of_its_own() -> None:
    slide, result = large_result()
    page, score, points = page_of(slide, result), result.record, shown_points(result).table
    assert score.to_look_at == points.to_look_at.sum() > 0
    (title,) = re.findall(r"To be looked at, in the hotspot (\d+) ", page.text("h3", "span") + " ")
    assert int(title) == score.to_look_at
    more = f"{score.to_look_at} more {'is' if score.to_look_at == 1 else 'are'} listed there"
    assert more in page.text()
    texts = page.text("h3")
    assert texts.index("To be looked at") < texts.index("nearest below the threshold")
    assert (points.certainty[points.to_look_at] >= 0.5).all()
    assert not (points.to_look_at & points.counted).any()


def test_areas_have_two_decimals_and_their_unit() -> None:
    slide, result = large_result()
    for shown in (
        (slide, result),
        (small := noisy_slide(600, 400), result_for(small, random_points(4, small))),
    ):
        text = page_of(*shown).text()
        assert "mm2" not in text
        numbers = re.findall(r"([\d.,]+) mm² of tissue|figures in ([\d.,]+) mm²", text)
        assert len(numbers) >= 2
        assert all(re.fullmatch(r"[\d,]+\.\d\d", "".join(one)) for one in numbers)


def test_warnings_come_once_each_with_a_next_step() -> None:
    slide = noisy_slide(600, 400)
    focus = ResultWarning("out-of-focus", "5 fields are out of focus", "scan it again")
    stain = ResultWarning("not-he", "this looks like a PHH3 slide", "use the H&E slide of the same tissue")
    sharp = ResultWarning("out-of-focus", "the hotspot is out of focus", "scan it again")
    warnings = (focus, focus, stain, sharp)
    result = result_for(slide, random_points(4, slide), warnings=warnings)
    text = page_of(slide, result).text()
    assert result.record.warnings  # little tissue
    assert text.count("5 fields are out of focus") == 1
    assert "The hotspot is out of focus" in text
    assert text.count("Scan it again.") == 1, "a piece of advice stands beside the first that calls for it"
    assert "Use the H&E slide of the same tissue." in text
    for warning in result.record.warnings:
        assert with_units(warning.text[1:]) in text
        assert with_units(warning.next_step[1:]) in text


def test_hostile_names_stay_text() -> None:
    slide = noisy_slide(500, 400, path="x.tif")
    card = CARD | {
        "name": HOSTILE,
        "data": [{"name": HOSTILE, "terms": HOSTILE}],
        "known_failures": [HOSTILE],
    }
    result = result_for(
        slide,
        random_points(5, slide),
        name=HOSTILE,
        card=card,
        warnings=(ResultWarning(HOSTILE, HOSTILE, HOSTILE),),
        stain=HOSTILE,
        seconds={HOSTILE: 1.0},
        versions={HOSTILE: HOSTILE},
    )
    page = page_of(slide, result)
    assert len(page.of("script")) == 1
    assert page.text("h1") == " ".join(HOSTILE.split())
    assert all(image.get("src", "data:image/").startswith("data:image/") for image in page.of("img"))
    assert not [name for _, found in page.elements for name in found if name.startswith("on")]


def test_nothing_is_fetched_from_anywhere() -> None:
    slide = noisy_slide()
    html = slide_page(slide, result_for(slide, random_points(40, slide)))
    page = Page(html)
    links = [found[key] for _, found in page.elements for key in ("src", "href", "action") if key in found]
    assert links
    assert all(link.startswith(("data:image/", "#", "../")) for link in links)
    assert not re.search(r"https?://|@import|//cdn", html)
    assert set(re.findall(r"url\(([^)]*)\)", html)) <= {"#on-tissue"}
    assert not page.of("link")


def test_the_policy_allows_the_one_script_and_no_network() -> None:
    slide = noisy_slide(400, 300)
    html = slide_page(slide, result_for(slide, random_points(3, slide)))
    script = re.search(r"<script>(.*)</script>", html, re.DOTALL)
    policy = Page(html).of("meta", **{"http-equiv": "Content-Security-Policy"})
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy[0]["content"]
    assert "default-src 'none'" in policy[0]["content"]


def test_ids_are_unique_and_links_inside_the_page_arrive() -> None:
    slide = noisy_slide()
    page = page_of(slide, result_for(slide, random_points(300, slide)))
    ids = [found["id"] for _, found in page.elements if "id" in found]
    assert len(ids) == len(set(ids))
    targets = {found["href"][1:] for _, found in page.elements if found.get("href", "").startswith("#")}
    assert targets <= set(ids)
    assert {found["for"] for found in page.of("label")} == {found["id"] for found in page.of("input")}


@pytest.mark.slow
def test_however_many_detections_the_page_stays_small_and_is_little_work() -> None:
    slide = noisy_slide()
    some, points = (random_points(count, slide) for count in (2500, 5000))
    results = [result_for(slide, one) for one in (some, points)]
    pages: list[str] = []
    few, many = (lines_run(lambda one=one: pages.append(slide_page(slide, one))) for one in results)
    assert many < 1.1 * few
    before, html = pages
    assert len(html) < 1.05 * len(before)
    assert len(html.encode()) < MOST_BYTES
    assert html.count('<li class="crop') <= HOTSPOT_MOST + ELSEWHERE_LEAST + LOOK_MOST + 2 * BORDERLINE_MOST
    assert f"{int((points.probability >= 0.8).sum()):,}" in html


def test_a_huge_slide_is_read_sparingly() -> None:
    slide = HugeSlide()
    rng = np.random.default_rng(0)
    points = pd.DataFrame(
        {
            "x": rng.uniform(9e4, 1e5, 30),
            "y": rng.uniform(9e4, 1e5, 30),
            "probability": np.linspace(0.5, 1, 30),
        }
    )
    html = slide_page(slide, result_for(slide, points, full_tissue(slide, mask_mpp=64.0)))
    assert slide.decoded_px < 60_000_000
    assert len(html.encode()) < MOST_BYTES


@pytest.mark.parametrize("tissue", [True, False])
def test_no_detections(tissue: bool) -> None:
    slide = noisy_slide(800, 600)
    empty = pd.DataFrame({"x": [], "y": [], "probability": []}, dtype=float)
    page = page_of(slide, result_for(slide, empty, full_tissue(slide, value=tissue)))
    text = page.text()
    assert re.search(r"Mitotic figures in (2\.00|0\.02) mm² 0 ", text)
    assert "No mitosis reached the threshold of 0.8" in text
    assert "The hotspot" not in page.text("h2")
    assert not page.of("li", class_="crop")
    assert bool(page.of("path", class_="tissue")) == tissue
    assert ("No tissue found" in text) != tissue


def test_one_detection() -> None:
    slide = noisy_slide(800, 600)
    points = pd.DataFrame({"x": [400.0], "y": [300.0], "probability": [0.9]})
    page = page_of(slide, result_for(slide, points))
    assert len(page.of("li", class_="crop")) == 1
    assert "The hotspot" not in page.text("h2"), "it would show the slide again"
    assert len([found for found in page.of("circle") if found.get("r") == "13.0"]) == 2, "a ring and its halo"


@pytest.mark.parametrize("size", [(1, 1), (12, 9), (4000, 3), (3, 4000)])
def test_slides_of_any_shape(size: tuple[int, int]) -> None:
    slide = noisy_slide(*size)
    page = page_of(slide, result_for(slide, random_points(3, slide)))
    assert page.of("svg", class_="stage")


def test_unknown_numbers_become_dashes() -> None:
    slide = noisy_slide(700, 500)
    result = result_for(slide, random_points(8, slide))
    text = page_of(slide, replace(result, record=unknown(result.record))).text()
    assert "Mitotic figures in – mm²" in text
    assert "nan" not in text.lower()


def test_borderline_detections_are_there_but_not_counted() -> None:
    slide = noisy_slide()
    points = pd.DataFrame({"x": [300.0, 600], "y": [300.0, 600], "probability": [0.81, 0.79]})
    page = page_of(slide, result_for(slide, points))
    assert len(page.of("li", class_="under")) == 1
    assert "Counted 1 0.810 1 Not counted" in page.text("h3", "span")
    assert "nearest below the threshold" in page.text()


def test_the_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    slide = noisy_slide(300, 200)
    result = result_for(slide, random_points(2, slide))
    path = tmp_path / "new" / "report.html"
    write_slide_report(path, slide, result)
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")
    with pytest.raises(OutputError, match="in the way"):
        write_slide_report(path / "inside.html", slide, result)
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


def test_bad_input_is_refused_with_a_next_step() -> None:
    slide = noisy_slide(300, 200)
    points = random_points(2, slide)
    unscaled = ArraySlide(np.zeros((50, 50, 3), np.uint8))
    with pytest.raises(MissingResolutionError, match="--mpp"):
        slide_page(unscaled, result_for(slide, points))


def test_the_package_needs_no_torch() -> None:
    code = "import sys, metaphase.reports.slide; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_curve_towards_the_edge_is_there_where_tissue_has_an_inside() -> None:
    shown = []
    for mpp in (0.25, 4.0):
        slide = noisy_slide(mpp=mpp)
        tissue = full_tissue(slide, mask_mpp=2 * mpp)
        page = slide_page(slide, result_for(slide, random_points(60, slide), tissue))
        shown.append((page.count('class="interval"'), 'id="front"' in page))
    assert shown == [(0, False), (5, True)], "a band alone is no curve"
