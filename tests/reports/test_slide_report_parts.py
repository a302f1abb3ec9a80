"""The parts of a report on their own: selection, geometry, colours, histogram, advice."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pandas as pd
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from metaphase.base.arrays import Box
from metaphase.base.errors import ResultWarning, ResultWarnings
from metaphase.counting.specimen import CountConfig
from metaphase.counting.spread import DensityMap
from metaphase.images.inspection import Quality, inspect_slide, quality_warnings
from metaphase.images.tissue.finding import TissueMask
from metaphase.reports.pages import Frame, dots_path, in_words, jpeg_uris, scale_bar
from metaphase.reports.slide import notice_of, score_scale
from metaphase.reports.slide.inputs import Points, shown_points
from metaphase.reports.slide.pictures import (
    BORDERLINE_MOST,
    HOTSPOT_MOST,
    LOOK_MOST,
    choose,
    closeup_of,
    gallery_of,
    heat_colours,
    heat_of,
    histogram_of,
    outline_path,
)
from metaphase.slides.arrays import ArraySlide
from tests.reports.slide_report_samples import (
    full_tissue,
    likely_of,
    noisy_slide,
    page_of,
    random_points,
    result_for,
    score_of,
)

probabilities = st.lists(st.floats(0, 1), max_size=300)


def as_points(values: list[float], threshold: float = 0.8, hotspot_every: int = 2) -> Points:
    probability = np.sort(np.asarray(values, float))[::-1]
    counted = probability >= threshold
    inside = counted & (np.arange(len(probability)) % hotspot_every == 0)
    position = np.arange(len(probability), dtype=float)
    table = pd.DataFrame({"x": position, "y": position, "probability": probability, "counted": counted})
    open_ = ~counted & (probability >= threshold / 2)
    return Points(table.assign(in_hotspot=inside, to_look_at=open_), probability, 0)


def pixels_of(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))))


@given(probabilities, st.floats(0, 1), st.integers(1, 3))
def test_the_gallery_shows_what_matters(values: list[float], threshold: float, every: int) -> None:
    points = as_points(values, threshold, every)
    keys = {"Counted, in the hotspot": "hotspot", "Not counted: nearest below the threshold": "under",
            "To be looked at, in the hotspot": "open"}  # fmt: skip
    choices = {keys.get(title, title): indices for title, indices, _ in choose(points)}
    table = points.table
    probability, counted, open_ = (
        table[name].to_numpy() for name in ("probability", "counted", "to_look_at")
    )
    every_index = np.concatenate([*choices.values(), np.array([], int)])
    assert len(set(every_index)) == len(every_index)
    for indices in choices.values():
        assert (np.diff(probability[indices]) <= 0).all()
    hotspot = choices.get("hotspot", [])
    assert len(hotspot) == min(HOTSPOT_MOST, int(table["in_hotspot"].sum()))
    under = probability[choices["under"]] if "under" in choices else np.array([])
    rest = probability[~counted & ~open_]
    assert list(under) == list(rest[:BORDERLINE_MOST])
    assert list(choices.get("open", [])) == list(np.flatnonzero(open_)[:LOOK_MOST])
    if counted.any():  # the least certain of the counted is always shown
        assert np.flatnonzero(counted)[-1] in every_index
    assert all(counted[choices[key]].all() for key in choices if key not in ("under", "open"))


@given(probabilities, st.floats(0, 1))
def test_the_histogram_holds_every_detection_once(values: list[float], threshold: float) -> None:
    points = as_points(values, threshold)
    histogram = histogram_of(points.network, threshold)
    numbers = [int(bar["text"].split()[0]) for bar in histogram["bars"]]
    assert sum(numbers) == len(points.table)
    counted = sum(int(bar["text"].split()[0]) for bar in histogram["bars"] if bar["counted"])
    if threshold < 1:  # the last bin reaches to 1 and takes the ones with it
        assert counted == len(points.counted)
    assert all(0 <= bar["y"] <= histogram["height"] and bar["width"] > 0 for bar in histogram["bars"])


@given(st.integers(1, 300_000), st.integers(1, 300_000), st.floats(0.05, 5))
def test_the_scale_bar_is_round_and_fits(width: int, height: int, mpp: float) -> None:
    frame = Frame(Box(7, 9, width, height))
    bar = scale_bar(frame, mpp)
    value, unit = bar.label.split()
    length_um = float(value) * (1000 if unit == "mm" else 1)
    assert bar.units == pytest.approx(length_um / mpp * frame.units_per_px, rel=1e-4)
    assert frame.width / 10.1 < bar.units <= frame.width / 4 * 1.001
    assert f"{length_um:.3e}"[0] in "125"


@pytest.mark.parametrize("mpp", [0.23, 0.25, 0.5])
def test_crops_are_centred_on_their_detection(mpp: float) -> None:
    slide = ArraySlide(np.full((900, 1000, 3), 230, np.uint8), mpp)
    x, y, radius = 411, 388, round(3 / mpp)
    slide._pixels[y - radius : y + radius, x - radius : x + radius] = 20
    result = result_for(slide, pd.DataFrame({"x": [x], "y": [y], "probability": [0.95]}))
    ((_, (crop,), _),) = gallery_of(slide, shown_points(result), result.record, Frame(slide.bounds), None)
    dark = np.argwhere(pixels_of(crop.image).mean(axis=2) < 120)
    assert np.allclose(dark.mean(axis=0) + 0.5, 128, atol=1)
    assert np.ptp(dark, axis=0) == pytest.approx([23, 23], abs=2)  # 6 um at 0.25 um/px
    assert tuple(crop.overview) == pytest.approx((x * 1.0, y * 1.0))


def test_dots_lie_where_the_detections_are() -> None:
    frame = Frame(Box(1000, 2000, 4000, 2000))
    path = dots_path(frame.position([1000, 5000, 3000, 3001], [2000, 4000, 3000, 3000]))
    assert set(re.findall(r"M(\S+) (\S+)h0", path)) == {("0", "0"), ("1000", "500"), ("500", "250")}


@pytest.mark.parametrize("size", [(40, 60), (2100, 1500)])
def test_the_outline_encloses_the_tissue_and_leaves_holes_out(size: tuple[int, int]) -> None:
    rows, columns = size
    mask = np.zeros(size, bool)
    mask[rows // 8 : rows * 7 // 8, columns // 8 : columns * 7 // 8] = True
    mask[rows // 3 : rows // 2, columns // 3 : columns // 2] = False
    tissue = TissueMask(mask, 4.0, 100.0, 50.0, 16.0)
    frame = Frame(Box(100, 50, columns * 16, rows * 16))
    rings = [
        shapely.Polygon([tuple(map(float, corner.split())) for corner in ring.split("L")])
        for ring in re.findall(r"M([^Z]+)Z", outline_path(tissue, frame))
    ]
    assert len(rings) == 2
    outer, hole = sorted(rings, key=lambda ring: -ring.area)
    share = (outer.area - hole.area) / (frame.width * frame.height)
    assert share == pytest.approx(mask.mean(), rel=0.02)
    assert outer.contains(hole)


def test_the_density_lies_on_its_cells_and_colours_mean_more_upwards() -> None:
    values = np.array([[0, 1, np.nan], [2, 4, 0]], np.float32)
    frame = Frame(Box(0, 0, 1000, 500))
    heat = heat_of(DensityMap(values, 100.0, 50.0, 50.0), frame)
    assert heat is not None
    assert [heat[name] for name in ("x", "y", "width", "height")] == pytest.approx([100, 50, 150, 100])
    assert heat["ticks"] == ("0", "2", "4")
    alpha = pixels_of(heat["image"])[..., 3]
    assert alpha[0, 0] == alpha[0, 2] == 0
    assert alpha[0, 1] < alpha[1, 0] < alpha[1, 1]
    assert (
        np.diff(heat_colours(np.linspace(0, 1, 64, dtype=np.float32)[None])[0, :, 3].astype(int)) >= 0
    ).all()
    assert heat_of(DensityMap(np.zeros((2, 2), np.float32), 0.0, 0.0, 9.0), frame) is None


def test_the_closeup_marks_the_mitoses_of_the_hotspot() -> None:
    slide = noisy_slide(9000, 400)
    points = random_points(40, slide)
    result = result_for(slide, points)
    usable = shown_points(result)
    table = usable.table
    closeup = closeup_of(slide, result.record, usable)
    assert closeup is not None
    hotspot = result.record.hotspot
    inside = np.hypot(table.x - hotspot.x, table.y - hotspot.y) <= hotspot.radius_px
    assert (inside & table.counted).sum() == hotspot.count
    assert table.in_hotspot.sum() == result.record.count > hotspot.count, "of so little tissue all is counted"
    marked = {number - 1 for number, _, _ in closeup["rings"]}
    assert set(np.flatnonzero(inside & table.counted)) <= marked
    assert all(table.counted[index] for index in marked)


def test_pictures_keep_within_their_budget() -> None:
    noise = [np.random.default_rng(i).integers(0, 255, (128, 128, 3), dtype=np.uint8) for i in range(4)]
    small, large = (sum(map(len, jpeg_uris(noise, budget))) for budget in (40_000, 10_000_000))
    assert small < 40_000 * 4 / 3 + 200
    assert small < large


def test_the_scale_of_scores_orders_count_interval_and_cuts() -> None:
    slide = noisy_slide(300, 200)
    own = CountConfig(theta1=6.0, theta2=20.0, thetas_given=True)
    found = score_of(slide, random_points(3, slide), full_tissue(slide), own)
    assert score_scale(found) is None, "there is no interval"
    score = found.model_copy(update={"count": 12, "likely": likely_of(8, 17)})
    scale = score_scale(score)
    assert scale is not None
    (first, six), (second, twenty) = scale["cuts"]
    assert (six, twenty) == ("6", "20")
    assert 0 < first < scale["low"] < scale["count"] < scale["high"] < second < 100
    wide = score_scale(score.model_copy(update={"likely": likely_of(0, 4000)}))
    assert wide is not None
    assert len(wide["cuts"]) == 1, "two labels would run into each other"
    assert wide["high"] <= 100


def seen_at(mpp: float, power: float) -> ResultWarnings:
    slide = noisy_slide(300, 200, mpp)
    object.__setattr__(slide.info, "objective_power", power)
    return inspect_slide(slide).warnings


SHARP = (0.3, 0.3, 0.3)
WARNINGS: dict[str, tuple[ResultWarnings, str]] = {
    "out-of-focus": (quality_warnings(Quality(12, 1.0, SHARP)), "scan the slide again"),
    "far-stain": (quality_warnings(Quality(12, 0.0, SHARP), (0.1, 0.1, 0.1)), "tune the threshold"),
    "coarse-scan": (seen_at(0.5, 20), "40x"),
    "objective-and-mpp": (seen_at(0.25, 20), "micrometres per pixel"),
    "no-tissue": (full_tissue(noisy_slide(300, 200), value=False).warnings, "--tissue"),
    "unheard-of": ((ResultWarning("unheard-of", "something unheard of"),), ""),
}


@pytest.mark.parametrize("code", WARNINGS)
def test_each_warning_comes_with_what_to_do(code: str) -> None:
    warnings, advice = WARNINGS[code]
    (found,) = (warning for warning in warnings if warning.code == code)
    assert advice in found.next_step
    assert bool(found.next_step) == bool(advice)
    slide = noisy_slide(400, 300)
    page = page_of(slide, result_for(slide, random_points(3, slide), warnings=(found, found)))
    assert page.text("b").count(found.text[1:]) == 1
    assert not found.next_step or page.text("span").count(in_words(found.next_step)[1:]) == 1
    assert "--" not in page.text(), "no shell where a pathologist reads"


@pytest.mark.parametrize(
    ("card", "title"),
    [
        ({"data": [{"name": "Simulated slides"}]}, "simulated slides only"),
        ({"data": [{"name": "Simulated slides"}, {"name": "TUPAC16"}]}, "partly"),
        ({"data": [{"name": "TUPAC16"}], "intended_use": "Research only."}, "research"),
        ({"data": [{"name": "TUPAC16"}], "intended_use": "Counting mitoses."}, None),
        ({}, None),
    ],
)
def test_the_notice_says_what_the_model_is_for(card: dict[str, object], title: str | None) -> None:
    notice = notice_of(card)
    assert (notice is None) if title is None else (notice is not None and title in notice[0])


def test_points_are_sorted_and_flagged() -> None:
    slide = noisy_slide()
    points = shown_points(result_for(slide, random_points(50, slide), full_tissue(slide))).table
    assert (np.diff(points.probability) <= 0).all()
    assert (points.counted == (points.probability >= 0.8)).all()
