"""The interval of the true figures: against simulation, in its limits, and where answers speak."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit

from metaphase.counting.clinical import Likely, SiteKnowledge, count_slide
from metaphase.counting.likely import (
    LaboratoryPrior,
    ObserverError,
    by_shape,
    densities_by_bin,
    draw_figures,
    slide_likelihood,
    slide_prior,
    tally,
)
from metaphase.counting.scores import NOTTINGHAM, mitotic_scores
from metaphase.counting.sites import draw_detections, precision_by_design, strata
from metaphase.counting.specimen import FIELDS, CountConfig, field_mm2, stated_config

Floats = npt.NDArray[np.float64]
PRIOR = LaboratoryPrior()
CONFIG = CountConfig(threshold=0.4, prior=PRIOR)
MPP = 0.25


def tumour(
    figures: int, lookalikes: float, seed: int = 0, area_mm2: float = 50.0
) -> tuple[pd.DataFrame, Floats]:
    """Figures within 700 um of the middle of a slide, look-alikes everywhere, as in the prior's middle."""
    rng = np.random.default_rng(seed)
    side = 1e3 * np.sqrt(area_mm2)
    radius, angle = 700 * np.sqrt(rng.uniform(size=figures)), rng.uniform(0, 2 * np.pi, figures)
    here = side / 2 + np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])
    odds = rng.normal(PRIOR.shift[0], PRIOR.width, figures)
    others = rng.uniform(0, side, (rng.poisson(lookalikes * area_mm2), 2))
    theirs = logit(0.1) + rng.exponential(np.exp(-PRIOR.fall[0]), len(others))
    seen = odds >= logit(0.1)
    table = pd.DataFrame(np.concatenate([here[seen], others]) / MPP, columns=["x", "y"])
    table["probability"] = expit(np.concatenate([odds[seen], theirs]))
    table["true"] = np.arange(len(table)) < seen.sum()
    return table, here / MPP


def likely_of(table: pd.DataFrame, area_mm2: float = 50.0, site: SiteKnowledge | None = None) -> Likely:
    found = count_slide(table, mpp=MPP, area_mm2=area_mm2, config=CONFIG, site=site).likely
    assert found is not None
    return found


def answered(table: pd.DataFrame, rows: npt.NDArray[np.int64]) -> pd.DataFrame:
    """People say the truth of some rows."""
    true = table["true"].to_numpy(bool)[rows]
    label, said = np.full(len(table), "mitosis", object), np.full(len(table), "", object)
    label[rows], said[rows] = np.where(true, "mitosis", "lookalike"), np.where(true, "mitosis", "not")
    return table.assign(machine_probability=table["probability"], label=label, review=said)


def test_what_is_listed_and_what_is_missed_add_up() -> None:
    figures, others, company = densities_by_bin(PRIOR)
    np.testing.assert_allclose(others.sum(axis=1), 1.0)
    assert (figures.sum(axis=1) < 1 - PRIOR.unlisted + 1e-9).all()
    assert (company > 0).all()


@pytest.mark.parametrize("figures", [0, 3, 10, 30])
def test_the_interval_contains_the_truth_of_slides_as_the_prior_has_them(figures: int) -> None:
    """Of 12 slides at most one is missed: at a coverage of 0.95 that fails by chance in 12 %."""
    held = 0
    for seed in range(12):
        table, here = tumour(figures, 3.8, seed)
        count = count_slide(table, mpp=MPP, area_mm2=50.0, config=CONFIG)
        assert count.likely is not None
        true = int(
            (np.hypot(*(here - (count.hotspot.x, count.hotspot.y)).T) <= count.hotspot.radius_px).sum()
        )
        held += count.likely.interval[0] <= true <= count.likely.interval[1]
    assert held >= 11


def test_answers_in_the_circle_narrow_the_interval_and_move_it() -> None:
    table, _ = tumour(20, 3.8, 4)
    plain = count_slide(table, mpp=MPP, area_mm2=50.0, config=CONFIG)
    away = np.hypot(table["x"] - plain.hotspot.x, table["y"] - plain.hotspot.y)
    inside = np.flatnonzero(away <= plain.hotspot.radius_px)
    some = likely_of(answered(table, inside[::2]))
    every = likely_of(answered(table, inside))
    assert plain.likely is not None
    width = [one.interval[1] - one.interval[0] for one in (plain.likely, some, every)]
    assert width[0] > width[1] > width[2]
    assert (some.answers, every.answers) == (len(inside[::2]), len(inside))
    right = int(table["true"].to_numpy(bool)[inside].sum())
    assert abs(every.figures - right) < every.unmarked + 4


def test_what_people_refuse_may_be_a_figure_that_they_missed() -> None:
    circle, rest = tally(np.full(20, 4.0), np.zeros(20), 2.0), tally(np.empty(0), np.empty(0), 0.0)

    def refused_figures(missed: float) -> float:
        error = ObserverError(missed, 0.03)
        likelihood = slide_likelihood(circle, rest, PRIOR, error)
        marked, _ = draw_figures(likelihood, slide_prior((), PRIOR), circle, PRIOR, error)
        return float(marked.mean())

    assert refused_figures(0.0) == 0
    assert 0.05 < refused_figures(0.06) < refused_figures(0.3) < 20


def test_answers_of_the_laboratory_narrow_the_interval() -> None:
    error, shapes = ObserverError(), []
    for seed in range(6):
        table, _ = tumour(15, 3.8, 20 + seed)
        true = table["true"].to_numpy(float)
        odds = logit(table["probability"].to_numpy(float))
        hot = np.hypot(table["x"] - 3536 / MPP, table["y"] - 3536 / MPP) * MPP <= 798
        parts = (tally(odds[here], true[here], area) for here, area in ((hot, 2.0), (~hot, 48.0)))
        shapes.append(by_shape(slide_likelihood(*parts, PRIOR, error)))
    site = SiteKnowledge(300, tuple(shapes), error, (40, 38), np.zeros((0, 3)))
    table, _ = tumour(15, 3.8, 1)
    narrow, wide = likely_of(table, site=site), likely_of(table)
    assert narrow.interval[1] - narrow.interval[0] < wide.interval[1] - wide.interval[0]
    assert (narrow.site_answers, wide.site_answers) == (300, 0)


def test_own_answers_of_a_calibration_count_as_answers_of_the_slide() -> None:
    table, _ = tumour(12, 3.8, 2)
    count = count_slide(table, mpp=MPP, area_mm2=50.0, config=CONFIG)
    away = np.hypot(table["x"] - count.hotspot.x, table["y"] - count.hotspot.y)
    inside = table[away <= count.hotspot.radius_px]
    own = inside[["x", "y"]].assign(answer=inside["true"].astype(float)).to_numpy(float)
    site = SiteKnowledge(len(own), (), ObserverError(), (0, 0), own)
    assert likely_of(table, site=site).answers == len(own)
    assert (
        likely_of(answered(table, np.flatnonzero(away <= count.hotspot.radius_px))).interval
        == likely_of(table, site=site).interval
    )


def flat_tailed(seed: int) -> tuple[pd.DataFrame, Floats]:
    """Eight figures in the middle, and 40 look-alikes per mm2 of which more are sure than anywhere else."""
    table, here = tumour(8, 40.0, seed)
    rng, others = np.random.default_rng(seed), ~table["true"]
    table.loc[others, "probability"] = expit(logit(0.1) + rng.exponential(1 / 0.7, int(others.sum())))
    return table, here


def test_a_laboratory_unlike_all_others_is_never_sure_and_wrong() -> None:
    """It was said to have 64 to 85 figures where it has 8, with and without answers elsewhere."""
    shapes = []
    for seed in range(6):
        table, _ = flat_tailed(40 + seed)
        odds, asked = logit(table["probability"].to_numpy(float)), np.arange(len(table)) % 600 == 0
        said = np.where(asked, table["true"].to_numpy(float), np.nan)
        hot = np.hypot(table["x"] - 3536 / MPP, table["y"] - 3536 / MPP) * MPP <= 798
        parts = (tally(odds[here], said[here], area) for here, area in ((hot, 2.0), (~hot, 48.0)))
        shapes.append(by_shape(slide_likelihood(*parts, PRIOR)))
    site = SiteKnowledge(20, tuple(shapes), ObserverError(), (2, 0), np.zeros((0, 3)))
    for seed in range(4):
        table, here = flat_tailed(seed)
        for known in (None, site):
            count = count_slide(table, mpp=MPP, area_mm2=50.0, config=CONFIG, site=known)
            away = np.hypot(*(here - (count.hotspot.x, count.hotspot.y)).T)
            assert count.likely is not None
            low, high = count.likely.interval
            assert low <= (away <= count.hotspot.radius_px).sum() <= high


def test_on_a_blurred_slide_figures_are_not_called_none() -> None:
    """Nothing is sure there: half of each probability is left."""
    held = 0
    for seed in range(8):
        table, here = tumour(12, 3.8, seed)
        table["probability"] *= 0.5
        count = count_slide(
            table[table["probability"] >= 0.1], mpp=MPP, area_mm2=50.0, config=replace(CONFIG, threshold=0.2)
        )
        assert count.likely is not None
        away = np.hypot(*(here - (count.hotspot.x, count.hotspot.y)).T)
        held += (
            count.likely.interval[0] <= (away <= count.hotspot.radius_px).sum() <= count.likely.interval[1]
        )
    assert held >= 7


def test_no_to_all_beside_sure_detections_is_no_count_of_none() -> None:
    """It may be the observer, or the model: who says no to what is doubtful alone is believed."""
    probability = np.r_[np.full(5, 0.97), np.full(5, 0.5), 0.97]
    table = pd.DataFrame({"x": 4000.0 + 50 * np.arange(11), "y": 4000.0, "probability": probability})
    refused = answered(table.assign(true=False), np.arange(10))
    count = count_slide(refused, mpp=MPP, area_mm2=50.0, config=CONFIG)
    assert "of 5 sure detections that people looked at, 0 are" in count.no_interval
    doubtful = table.assign(true=False, probability=np.r_[np.full(10, 0.15), 0.97])
    assert likely_of(answered(doubtful, np.arange(10))).interval[1] <= 6


def test_a_laboratory_that_does_not_fit_is_refused_with_words() -> None:
    table, _ = tumour(12, 3.8)
    site = SiteKnowledge(40, (), ObserverError(), (12, 2), np.zeros((0, 3)))
    count = count_slide(table, mpp=MPP, area_mm2=50.0, config=CONFIG, site=site)
    assert count.likely is None
    assert "of 12 sure detections that people looked at, 2 are mitotic figures" in count.no_interval
    assert count.interval_text == ""
    none = replace(site, sure=(5, 0))
    assert count_slide(table, mpp=MPP, area_mm2=50.0, config=CONFIG, site=none).likely is None
    fewer = replace(site, sure=(9, 1))
    assert count_slide(table, mpp=MPP, area_mm2=50.0, config=CONFIG, site=fewer).likely is not None


def test_without_a_prior_there_is_no_interval_and_it_is_said_why() -> None:
    table, _ = tumour(12, 3.8)
    count = count_slide(table, mpp=MPP, area_mm2=50.0, config=CountConfig(threshold=0.4))
    assert count.likely is None
    assert count.interval_note.startswith("no interval: nothing is known")


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 5), st.floats(0.02, 2.0), st.booleans())
def test_no_input_breaks_it(yes: int, unanswered: int, added: int, area_mm2: float, rest: bool) -> None:
    rng = np.random.default_rng(yes + 41 * unanswered)
    odds = rng.uniform(logit(0.1), 9.0, yes + unanswered)
    answer = np.r_[rng.integers(0, 2, yes).astype(float), np.full(unanswered, np.nan)]
    circle = tally(odds, answer, area_mm2, added)
    beside = tally(odds, answer, 30.0 if rest else 0.0)
    likelihood = slide_likelihood(circle, beside, PRIOR)
    assert np.isfinite(likelihood).all()
    marked, unmarked = draw_figures(likelihood, slide_prior((), PRIOR), circle, PRIOR)
    assert (marked >= added).all()
    assert (marked <= added + len(odds)).all()
    assert (unmarked >= 0).all()


def test_nothing_found_on_a_large_slide_means_few_figures() -> None:
    empty = pd.DataFrame({"x": [], "y": [], "probability": []}, dtype=float)
    large, small = likely_of(empty, 100.0), likely_of(empty, 0.07)
    assert large.interval[0] == 0
    assert large.interval[1] <= 4
    assert small.interval[1] <= 4


def test_ever_more_lookalikes_are_no_figures() -> None:
    """However many are listed, their log-odds say what they are."""
    rng = np.random.default_rng(0)
    odds = logit(0.1) + rng.exponential(np.exp(-PRIOR.fall[0]), 50_000)
    nothing = np.full(len(odds), np.nan)
    circle, rest = tally(odds[:2000], nothing[:2000], 2.0), tally(odds[2000:], nothing[2000:], 48.0)
    likelihood = slide_likelihood(circle, rest, PRIOR)
    marked, unmarked = draw_figures(likelihood, slide_prior((), PRIOR), circle, PRIOR)
    assert np.median(marked + unmarked) < 10
    assert np.quantile(marked + unmarked, 0.975) < 100


def test_figures_that_people_added_tell_that_more_were_missed() -> None:
    none, empty = np.zeros(0), tally(np.zeros(0), np.zeros(0), 48.0)

    def highest(added: int) -> float:
        circle = tally(none, none, 2.0, added)
        drawn = draw_figures(slide_likelihood(circle, empty, PRIOR), slide_prior((), PRIOR), circle, PRIOR)
        return float(np.quantile(sum(drawn), 0.975)) - added

    assert highest(10) > highest(0)


def test_a_weak_figure_that_people_accepted_is_in_the_interval() -> None:
    table, _ = tumour(0, 0.0)
    weak = pd.DataFrame({"x": 1000.0 + 50 * np.arange(10), "y": 1000.0, "probability": 0.06, "true": True})
    accepted = answered(weak, np.arange(10)).assign(probability=1.0)
    found = count_slide(accepted, mpp=MPP, area_mm2=50.0, config=CONFIG)
    assert found.likely is not None
    assert (len(table), found.count) == (0, 10)
    assert found.likely.interval[0] >= 10


def test_a_threshold_below_what_is_listed_has_no_interval() -> None:
    table, _ = tumour(10, 3.8)
    low = count_slide(table, mpp=MPP, area_mm2=50.0, config=replace(CONFIG, threshold=0.05))
    assert low.no_interval == "the threshold of the count is below 0.1"


def test_answers_of_a_calibration_do_not_count_twice() -> None:
    sure = pd.DataFrame({"x": 400.0 * np.arange(2), "y": 900.0, "probability": 0.95, "true": False})
    own = sure[["x", "y"]].assign(answer=0.0).to_numpy(float)
    site = SiteKnowledge(0, (), ObserverError(), (2, 0), own)
    assert count_slide(sure, mpp=MPP, area_mm2=50.0, config=CONFIG, site=site).likely is not None


# ---- scores ----


@pytest.mark.parametrize(
    ("diameter_mm", "count", "score"),
    [(0.40, 4, 1), (0.40, 5, 2), (0.40, 9, 2), (0.40, 10, 3), (0.50, 7, 1), (0.50, 8, 2), (0.50, 14, 2),
     (0.50, 15, 3), (0.59, 9, 1), (0.59, 10, 2), (0.59, 19, 2), (0.59, 20, 3), (0.69, 13, 1), (0.69, 28, 3)],
)  # fmt: skip
def test_the_nottingham_score_of_ten_fields_is_the_guidelines(
    diameter_mm: float, count: int, score: int
) -> None:
    config = CountConfig(area_mm2=FIELDS * field_mm2(diameter_mm), field_diameter_mm=diameter_mm)
    (found,) = mitotic_scores(config, count, None, config.area_mm2)
    assert (found.found, found.low, found.high, found.text) == (score, score, score, str(score))


def test_the_guidelines_thresholds_follow_the_fields_area() -> None:
    """About 3.6 and 7.3 figures per mm2 end scores 1 and 2, whatever the microscope."""
    assert sorted(NOTTINGHAM) == list(range(40, 70))
    for hundredths, (one, two) in NOTTINGHAM.items():
        area = FIELDS * field_mm2(hundredths / 100)
        assert one == pytest.approx(3.57 * area, abs=1.0)
        assert two == pytest.approx(7.3 * area, abs=1.0)


def test_a_score_is_a_range_where_the_interval_spans_several_and_withheld_where_all() -> None:
    def text(low: int, high: int) -> str:
        return mitotic_scores(CONFIG, (low + high) // 2, (low, high), 2.0)[0].text

    assert (text(2, 5), text(2, 9), text(9, 20), text(30, 40), text(3, 20)) == (
        "1",
        "1 to 2",
        "2 to 3",
        "3",
        "withheld",
    )


def test_on_less_tissue_higher_scores_stay_open() -> None:
    (found,) = mitotic_scores(CONFIG, 5, None, 1.0)
    assert (found.found, found.text) == (1, "1 to 2")
    assert mitotic_scores(CONFIG, 2, None, 0.1)[0].text == "withheld"
    assert mitotic_scores(CONFIG, 0, None, 0.05)[0].text == "withheld"
    assert mitotic_scores(CONFIG, 0, None, 0.0)[0].text == "withheld"
    assert mitotic_scores(CONFIG, 0, None, 1.995)[0].text == "1"


def test_thresholds_of_ones_own_come_first() -> None:
    own, nottingham = mitotic_scores(replace(CONFIG, theta1=2, theta2=9, thetas_given=True), 8, None, 2.0)
    assert (own.found, nottingham.found) == (2, 2)
    assert own.most == (2, 9)


def test_a_table_is_counted_at_the_point_it_carries() -> None:
    table, _ = tumour(12, 3.8)
    prior = {"shift": (0.2, 1.0), "width": 2.0}
    point = {"delta": 0.7, "theta1": 2.0, "theta2": 9.0, "kappa": 0.6, "prior": prior}
    table.attrs["operating_points"] = {"model": "m", "count": point}
    found = count_slide(table, mpp=MPP, area_mm2=50.0)
    assert (found.config.threshold, found.config.theta2) == (0.7, 9.0)
    assert found.config.prior == LaboratoryPrior(shift=(0.2, 1.0), width=2.0)
    assert not found.config.thetas_given, "they were tuned for the proliferation score"
    assert stated_config(table[["x"]].copy().assign(y=0)) is not None


# ---- the sample of a laboratory ----


@given(st.integers(10, 200), st.integers(0, 2**16))
def test_the_sample_takes_strata_in_turn_and_knows_its_chances(number: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    probability, hot = rng.uniform(0.1, 1, 400), rng.uniform(size=400) < 0.2
    stratum = strata(probability, hot)
    chosen, inclusion = draw_detections(stratum, number, rng)
    assert len(chosen) == len(set(chosen)) == min(number, 400)
    asked = pd.Series(stratum[chosen]).value_counts()
    sizes = pd.Series(stratum).value_counts()
    left = [asked.get(name, 0) for name in sizes.index if asked.get(name, 0) < sizes[name]]
    assert max(left, default=0) - min(left, default=0) <= 1
    for name in sizes.index:
        np.testing.assert_allclose(inclusion[stratum == name], asked.get(name, 0) / sizes[name])


def test_precision_by_design_holds_in_repeated_samples() -> None:
    rng, held = np.random.default_rng(5), 0
    error = ObserverError(0.0, 0.0)
    probability = rng.uniform(0.1, 1, 3000)
    true = rng.uniform(size=3000) < probability
    stratum = strata(probability, rng.uniform(size=3000) < 0.2)
    chosen = probability >= 0.4
    for _ in range(60):
        asked, inclusion = draw_detections(stratum, 100, rng)
        answer = np.full(3000, np.nan)
        answer[asked] = true[asked]
        found = precision_by_design(answer, inclusion, chosen, error)
        assert found is not None
        held += found.low <= true[chosen].mean() <= found.high
    assert held >= 53
