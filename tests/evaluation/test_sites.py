"""The sample of a laboratory is drawn with known probabilities, and its profile says what holds there."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from metaphase.base.arrays import Mask
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.counting.populations import ReviewerError
from metaphase.counting.sites import (
    Answered,
    Fitted,
    SampleConfig,
    SiteProfile,
    draw_detections,
    draw_squares,
    fit_site,
    load_profile,
    save_profile,
    share_by_design,
    strata,
    supposed_chance,
)
from metaphase.detections.points import UNTUNED

DELTAS: Any = {"mitoses": 0.8, "count": 0.95}
SEARCH = {"networks": [{"weights_sha256": "a"}], "peaks": {"floor": 0.1}}


def answered(seed: int = 0, detections: int = 4000, asked: int = 120) -> tuple[Answered, Mask]:
    """A laboratory of 6 slides with 20 missed mitoses in 60 mm2, and what is true in it."""
    generator = np.random.default_rng(seed)
    true = generator.uniform(size=detections) < 0.06
    odds = np.where(true, generator.normal(3, 2, detections), generator.exponential(1.3, detections) - 2.2)
    odds = np.clip(odds, -2.2, 9)
    known = np.stack([odds, np.zeros(detections)], axis=1)
    probability = expit(odds)
    stratum = strata(probability, np.zeros(detections, bool))
    chosen, inclusion = draw_detections(stratum, supposed_chance(known), asked, generator)
    answer = np.full(detections, np.nan)
    answer[chosen] = true[chosen]
    in_square = np.arange(detections) % 10 == 0
    given = Answered(
        known, probability, np.arange(detections) % 6, answer, inclusion, in_square, 60.0, 20,
        float(true[in_square].sum() * 1.1),
    )  # fmt: skip
    return given, true


@given(st.integers(0, 2**32 - 1), st.integers(1, 400), st.integers(5, 120))
def test_each_stratum_gives_some_and_all_probabilities_are_known(seed: int, size: int, number: int) -> None:
    generator = np.random.default_rng(seed)
    probability = generator.uniform(0.1, 1, size)
    stratum = strata(probability, generator.uniform(size=size) < 0.3)
    chosen, inclusion = draw_detections(stratum, probability, number, generator)
    assert len(chosen) == len(set(chosen))
    least = sum(min(2, (stratum == one).sum()) for one in np.unique(stratum))
    assert len(chosen) == max(least, min(number, size))
    assert inclusion.sum() == pytest.approx(len(chosen))
    assert ((inclusion > 0) & (inclusion <= 1)).all()
    for one in np.unique(stratum):
        assert np.isclose(
            inclusion[stratum == one], (stratum[chosen] == one).mean() * len(chosen) / (stratum == one).sum()
        ).all()


def test_all_tissue_may_be_asked_about_and_active_tissue_more_often() -> None:
    expected = np.r_[np.full(50, 0.0), np.full(50, 2.0)]
    squares, chance = draw_squares(np.ones(100), expected, 40, np.random.default_rng(0))
    assert chance.sum() == pytest.approx(1)
    assert chance.min() > 0
    assert chance[99] == pytest.approx(9 * chance[0])
    assert len(np.unique(squares)) == len(squares) <= 40
    _, even = draw_squares(np.ones(4), np.zeros(4), 2, np.random.default_rng(0))
    assert even == pytest.approx(0.25)


@pytest.mark.slow
def test_what_is_said_of_a_laboratory_holds() -> None:
    held = []
    for seed in range(5):
        given_, true = answered(seed)
        found = fit_site(given_, DELTAS, ReviewerError(), seed)
        above = given_.probability >= DELTAS["count"]
        truth = {
            "precision": true[above].mean(),
            "recall": true[above].sum() / (true.sum() * 1.1),
            "false_per_mm2": (~true[above]).sum() / 60,
        }
        held += [
            found.at["count"][name].low <= value <= found.at["count"][name].high
            for name, value in truth.items()
        ]
        assert found.found.low < 1 / 1.1 < 1
        held.append(found.mitoses_per_mm2.low <= true.sum() * 1.1 / 60 <= found.mitoses_per_mm2.high)
    assert np.mean(held) >= 0.8


@cache
def fitted() -> tuple[Answered, Fitted]:
    given_, _ = answered()
    return given_, fit_site(given_, DELTAS, ReviewerError())


def profile(**changes: Any) -> SiteProfile:
    given_, found = fitted()
    values: dict[str, Any] = {
        "name": "ours", "made": date(2026, 11, 16), "model": "m", "searched_with": SEARCH, "slides": ("a",),
        "area_mm2": 60.0, "answers": given_.answers, "squares": 20, "observers": ("Anna",), "design": {},
        "reviewer": {}, "deltas": DELTAS, "at": found.at, "found": found.found,
        "mitoses_per_mm2": found.mitoses_per_mm2, "draws": found.laboratory.to_dict(),
        "answered": {"a": [(10.0, 20.0, 1.0)]},
    }  # fmt: skip
    return SiteProfile(**values | changes)


def test_a_profile_comes_back_and_is_for_its_own_model_alone(tmp_path: Path) -> None:
    site = profile()
    save_profile(tmp_path / "site.json", site)
    again = load_profile(tmp_path / "site.json")
    assert again == site
    again.refuse_other("m", SEARCH)
    with pytest.raises(UsageError, match=r"for the model m.*peaks\.floor was 0\.1 and is 0\.2"):
        again.refuse_other("n", SEARCH | {"peaks": {"floor": 0.2}})
    (tmp_path / "other.json").write_text("{}")
    for path, described in (
        (tmp_path / "other.json", "not a laboratory's profile"),
        (tmp_path / "none.json", "cannot be read"),
    ):
        with pytest.raises(MetaphaseError, match=described):
            load_profile(path)


def test_a_slide_of_the_profile_brings_its_answers() -> None:
    site = profile()
    own = site.calibration("a").own_answers
    assert own is not None
    assert own.tolist() == [[10.0, 20.0, 1.0]]
    none = site.calibration("b").own_answers
    assert none is not None
    assert not len(none)


def test_a_share_by_design_holds_whatever_was_supposed() -> None:
    held, widths = [], []
    for seed in range(60):
        given_, true = answered(seed, detections=2000, asked=200)
        turned = replace(given_, known=given_.known * [-1, 1])  # what is supposed is wrong everywhere
        chosen = given_.probability >= 0.3
        for one in (given_, turned):
            said = share_by_design(one, chosen, ReviewerError())
            held.append(said.low <= true[chosen].mean() <= said.high)
            widths.append(said.high - said.low)
    assert np.mean(held) >= 0.9
    assert np.mean(widths) < 0.4


def test_a_profile_rates_the_points_it_was_made_at() -> None:
    site = profile()
    at = UNTUNED.changed(delta=0.95)
    rated = site.rated(at)
    assert rated.count.false_per_mm2 == site.at["count"]["false_per_mm2"].value
    assert "the site ours" in rated.count.source
    assert rated.mitoses == at.mitoses


@pytest.mark.parametrize("wrong", [{"answers": 10}, {"squares": 100}, {"square_um": 5.0}])
def test_samples_that_say_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        SampleConfig(**wrong)
