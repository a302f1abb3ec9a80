"""The whole score of a slide: definition, edge cases, warnings, bad input."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.counting.clinical import SlideCount, count_slide, slide_density
from metaphase.counting.specimen import CountConfig, grade_of
from metaphase.images.tissue.finding import TissueMask
from tests.counting.scenes import MPP, Floats, all_tissue, most_in_a_circle, positions_um, table

QUICK = CountConfig()


def clusters(*sizes: int) -> Floats:
    """Groups of points within 100 um, far from each other."""
    generator = np.random.default_rng(1)
    return np.concatenate(
        [generator.uniform(0, 100, (size, 2)) + 4000 * index for index, size in enumerate(sizes)]
    )


@given(positions_um)
def test_the_proliferation_score_is_the_95th_percentile_over_filled_positions(points: Floats) -> None:
    step, radius = QUICK.step_um, QUICK.radius_um
    low, high = np.floor((points.min(axis=0) - radius) / step), np.ceil((points.max(axis=0) + radius) / step)
    x, y = ((np.arange(a, b) + 0.5) * step for a, b in zip(low, high, strict=True))
    inside = [(x - px) ** 2 + (y[:, None] - py) ** 2 <= radius**2 for px, py in np.unique(points, axis=0)]
    counts = np.sum(inside, axis=0)
    score = count_slide(table(points), mpp=MPP, config=QUICK)
    assert score.proliferation == pytest.approx(np.percentile(counts[counts > 0], 95))
    assert score.count >= counts.max()


@given(positions_um)
def test_the_count_is_what_the_drawn_circle_holds_and_no_circle_holds_more(points: Floats) -> None:
    found = count_slide(table(points), mpp=MPP, config=QUICK)
    every = np.unique(points, axis=0)
    away = np.hypot(*(every / MPP - (found.hotspot.x, found.hotspot.y)).T)
    assert found.count == int((away <= found.hotspot.radius_px * (1 + 1e-9)).sum()) == found.hotspot.count
    assert found.count == most_in_a_circle(every, QUICK.radius_um)


def test_an_outlying_cluster_raises_the_count_but_not_the_proliferation_score() -> None:
    calm = np.stack(np.meshgrid(np.arange(8) * 3000.0, np.arange(8) * 3000.0), axis=-1).reshape(-1, 2)
    score = count_slide(table(np.concatenate([calm, clusters(30) + 4450])), mpp=MPP, config=QUICK)
    assert (score.proliferation, score.count, score.grade) == (1, 30, 1)


@given(st.floats(0, 60), st.integers(0, 30), st.integers(0, 30))
def test_there_is_one_grade_rule(count: float, low: int, more: int) -> None:
    config = CountConfig(theta1=low, theta2=low + more)
    assert grade_of(count, config.theta1, config.theta2) == (
        1 if count <= low else 2 if count <= low + more else 3
    )


@pytest.mark.parametrize(("size", "grade"), [(0, 1), (6, 1), (7, 2), (20, 2), (21, 3)])
def test_grade_by_the_papers_thresholds(size: int, grade: int) -> None:
    score = count_slide(table(clusters(size)), mpp=MPP, config=QUICK)
    assert (score.count, score.proliferation, score.grade) == (size, size, grade)


def test_only_detections_from_the_threshold_on_count() -> None:
    detections = table(clusters(10), np.r_[0.1, 0.5, 0.7, 0.79, 0.7999, 0.8, 0.81, 0.9, 0.99, 1])
    assert count_slide(detections, mpp=MPP, config=QUICK).counted == 5
    assert count_slide(detections, mpp=MPP, config=CountConfig(threshold=0.0)).counted == 10


def test_scale_and_place_do_not_matter() -> None:
    points = np.random.default_rng(3).uniform(0, 8000, (300, 2))
    fine = count_slide(table(points), mpp=0.25, config=QUICK)
    coarse = count_slide(table(points, mpp=0.5), mpp=0.5, config=QUICK)
    moved = count_slide(table(points + 40 * QUICK.step_um), mpp=0.25, config=QUICK)
    assert fine.count == coarse.count == moved.count
    assert fine.proliferation == coarse.proliferation == moved.proliferation
    assert (fine.hotspot.x, fine.hotspot.y) == pytest.approx((coarse.hotspot.x * 2, coarse.hotspot.y * 2))


def test_finer_steps_hardly_change_the_proliferation_score() -> None:
    points = np.random.default_rng(3).normal(5000, 1500, (300, 2))
    counts = [
        count_slide(table(points), mpp=MPP, config=CountConfig(step_um=step)).proliferation
        for step in (20.0, 50.0, 100.0)
    ]
    assert np.ptp(counts) <= 1


def test_less_tissue_than_a_hotspot_counts_everything_and_says_so() -> None:
    far_apart = np.array([(100.0, 100.0), (1900.0, 100.0)])
    score = count_slide(table(far_apart), mpp=MPP, tissue=all_tissue(2000, 400), config=QUICK)
    assert (score.count, score.hotspot.count) == (2, 1)
    assert score.area_mm2 == pytest.approx(0.8)
    assert "0.80 mm2" in score.warnings[0].text
    by_area = count_slide(table(far_apart), mpp=MPP, area_mm2=0.8, config=QUICK)
    assert (by_area.count, by_area.area_mm2) == (2, 0.8)


def test_hotspot_knows_how_much_tissue_it_holds() -> None:
    tissue = all_tissue(6000, 4000)
    inner = count_slide(table(clusters(5) + 2000), mpp=MPP, tissue=tissue, config=QUICK).hotspot
    assert inner.tissue_mm2 == pytest.approx(2, rel=0.01)
    assert inner.per_mm2 == pytest.approx(2.5, rel=0.01)
    corner = count_slide(table([(0.0, 0.0)]), mpp=MPP, tissue=tissue, config=QUICK)
    assert corner.hotspot.tissue_mm2 == pytest.approx(0.5, rel=0.02)
    assert any("only 0.50 mm2" in one.text for one in corner.warnings)


def test_a_slide_without_mitoses() -> None:
    tissue = all_tissue(6000, 4000)
    score = count_slide(table([]), mpp=MPP, tissue=tissue)
    assert (score.count, score.proliferation, score.grade, score.counted) == (0, 0, 1, 0)
    assert (score.hotspot.x * MPP, score.hotspot.y * MPP) == (3000, 2000)
    assert slide_density(table([]), mpp=MPP, tissue=tissue, config=score.config).values.max() == 0
    assert not score.warnings


def test_where_nothing_counts_the_circle_lies_where_most_is_listed_or_on_tissue() -> None:
    mask = np.zeros((500, 1500), np.bool_)
    mask[:, :400] = mask[:, 1100:] = True
    pieces = TissueMask(mask, 8.0, 0.0, 0.0, 8.0 / MPP)
    bare = count_slide(table([]), mpp=MPP, tissue=pieces, config=CountConfig(threshold=0.4))
    assert bare.counted_mm2 > 1.9
    weak, config = clusters(6) + np.array((9500.0, 2000.0)), CountConfig(threshold=0.4)
    listed = count_slide(table(weak, 0.3), mpp=MPP, tissue=pieces, config=config, listed=0.2)
    assert (listed.count, listed.to_look_at) == (0, 6)


def test_empty_mask_is_reported_and_not_believed() -> None:
    empty = TissueMask(np.zeros((50, 50), np.bool_), 8.0, 0.0, 0.0, 32.0)
    score = count_slide(table(clusters(8)), mpp=MPP, tissue=empty, config=QUICK)
    assert score.count == 8
    assert np.isnan(score.area_mm2)
    assert "no tissue found" in score.warnings[0].text


def test_detections_off_the_tissue_are_reported() -> None:
    score = count_slide(table(clusters(8) + 50_000), mpp=MPP, tissue=all_tissue(4000, 4000), config=QUICK)
    assert "8 of 8 detections lie off the tissue" in score.warnings[0].text


def test_copies_count_once() -> None:
    once = table(clusters(9), 0.9)
    twice = pd.concat([once, once.assign(probability=0.5)])
    assert count_slide(twice, mpp=MPP, config=QUICK).count == 9


def test_a_count_is_json_and_comes_back_from_it() -> None:
    score = count_slide(table(clusters(8)), mpp=MPP)
    content = json.loads(json.dumps(score.to_dict(), allow_nan=False))
    assert content["hotspot"]["count"] == 8
    assert content["area_mm2"] is None
    assert content["config"]["theta2"] == 20
    assert (content["kind"], content["beneath"]) == ("model", [])
    again = SlideCount.model_validate_json(json.dumps(content))
    assert again.to_dict() == content
    assert again.counts == score.counts
    assert math.isnan(again.area_mm2)
    with pytest.raises(ValidationError, match="finite"):
        SlideCount.model_validate_json(json.dumps(content | {"area_mm2": math.inf}))


def reviewed(points: Floats, probability: float, said: list[str]) -> pd.DataFrame:
    """What people left of detections of one probability."""
    label = ["lookalike" if one == "not" else "mitosis" for one in said]
    now = [1.0 if one == "mitosis" else probability for one in said]
    return table(points, np.array(now)).assign(label=label, machine_probability=probability, review=said)


def test_a_reviewed_table_counts_what_people_said() -> None:
    said = ["mitosis"] * 5 + ["not"] * 3 + [""] * 2
    some = count_slide(reviewed(clusters(10), 0.9, said), mpp=MPP, config=QUICK)
    assert (some.count, some.counted, some.unseen, some.in_force.kind) == (7, 7, 2, "reviewed")
    every = count_slide(reviewed(clusters(8), 0.9, said[:8]), mpp=MPP, config=QUICK)
    assert (every.count, every.unseen) == (5, 0)


def test_what_is_listed_and_does_not_count_is_to_be_looked_at() -> None:
    probability = np.r_[np.full(6, 0.9), np.full(5, 0.3), np.full(4, 0.2)]
    config = CountConfig(threshold=0.4)
    found = count_slide(table(clusters(15), probability), mpp=MPP, config=config, listed=0.25)
    assert (found.count, found.to_look_at) == (6, 5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"area_mm2": 0}, {"step_um": 900}, {"percentile": 101}, {"threshold": 2}, {"theta1": 7, "theta2": 6},
        {"seed": -1}, {"cell_um": float("nan")}, {"field_diameter_mm": 0.39}, {"field_diameter_mm": 0.7},
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(reversed(wrong))):
        CountConfig(**wrong)  # type: ignore[arg-type]


def bad_scores() -> dict[str, dict[str, object]]:
    fine = {"detections": table(clusters(3)), "mpp": MPP}
    return {
        "mpp is 0": {**fine, "mpp": 0.0},
        "mpp is nan": {**fine, "mpp": float("nan")},
        "no column y": {**fine, "detections": pd.DataFrame({"x": [1.0]})},
        "not a number": {**fine, "detections": pd.DataFrame({"x": ["a"], "y": [1.0]})},
        "row 0": {**fine, "detections": pd.DataFrame({"x": [np.nan], "y": [1.0]})},
        "probability": {**fine, "detections": table([(1, 1)], 1.5)},
        "area is -1": {**fine, "area_mm2": -1.0},
        "made at 0.25": {**fine, "mpp": 0.5, "tissue": all_tissue(4000, 4000)},
    }


@pytest.mark.parametrize("problem", bad_scores())
def test_bad_input_is_named(problem: str) -> None:
    arguments = bad_scores()[problem]
    with pytest.raises(MetaphaseError, match=problem):
        count_slide(**arguments)  # type: ignore[arg-type]


def test_probability_may_be_absent() -> None:
    score: SlideCount = count_slide(table(clusters(4))[["x", "y"]], mpp=MPP, config=QUICK)
    assert score.count == 4
