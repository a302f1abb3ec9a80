"""The bootstrap: exact in small cases, covering in simulated ones."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from metaphase.counting.calibration import (
    atypical_share,
    draws_for,
    estimate_uncertainty,
    hotspot_count,
    threshold_range,
)
from metaphase.counting.clinical import count_slide
from metaphase.counting.hotspot import filled_percentile, lattice_around, lattice_counts
from metaphase.counting.specimen import CountConfig
from metaphase.detections.table import OPERATING_POINTS
from tests.counting.scenes import MPP, Floats, all_tissue, table

STILL = CountConfig(threshold_spread=0.0)
SIDE_UM = 7000.0


def section(generator: np.random.Generator, peak: float) -> Floats:
    """A tumour whose activity falls off from its middle: `peak` mitoses in 2 mm2 there."""
    points = generator.uniform(0, SIDE_UM, (generator.poisson(peak * SIDE_UM**2 / 2e6), 2))
    fall = np.exp(-((points - SIDE_UM / 2) ** 2).sum(axis=1) / (2 * 1500.0**2))
    return points[generator.uniform(size=len(points)) < fall]


def test_statistic_of_weights_is_the_count_of_repeated_points() -> None:
    generator = np.random.default_rng(0)
    points = generator.normal(3000, 800, (60, 2))
    weights = generator.poisson(1.0, (60, 4)).astype(np.int32)
    drawn = hotspot_count(points, STILL)(weights)
    for draw, value in enumerate(drawn):
        repeated = np.repeat(points, weights[:, draw], axis=0)
        lattice = lattice_around(points, STILL.radius_um, STILL.step_um)
        counts = lattice_counts(repeated, lattice, STILL.radius_um).reshape(-1, 1)
        assert value == filled_percentile(counts, 95.0)[0]


@pytest.mark.parametrize("size", [5, 12, 40])
def test_one_cluster_has_the_interval_of_a_poisson_count(size: int) -> None:
    points = np.random.default_rng(0).uniform(0, 50, (size, 2))
    low, high = estimate_uncertainty(points, np.ones(size), size, STILL).interval
    exact = stats.chi2.ppf(0.025, 2 * size) / 2, stats.chi2.ppf(0.975, 2 * size + 2) / 2
    assert (low, high) == pytest.approx(exact, rel=0.15, abs=1.2)


def test_seed_decides() -> None:
    points = np.random.default_rng(0).normal(3000, 800, (80, 2))
    first, same, other = (
        count_slide(table(points), mpp=MPP, config=CountConfig(seed=seed)) for seed in (0, 0, 1)
    )
    assert first.count_interval == same.count_interval != other.count_interval
    assert first.grade_probabilities == same.grade_probabilities


def test_doubtful_detections_widen_the_interval() -> None:
    points = np.random.default_rng(0).uniform(0, 50, (40, 2))
    sure = count_slide(table(points, np.r_[np.full(20, 0.99), np.full(20, 0.1)]), mpp=MPP)
    doubtful = count_slide(table(points, np.r_[np.full(20, 0.82), np.full(20, 0.78)]), mpp=MPP)
    assert sure.count == doubtful.count == 20
    (low, high), (lowest, highest) = sure.count_interval, doubtful.count_interval
    assert lowest < low < high < highest
    assert sum(doubtful.grade_probabilities) == pytest.approx(1)


def test_threshold_range_is_in_log_odds() -> None:
    assert threshold_range(CountConfig()) == pytest.approx((0.708, 0.868), abs=1e-3)
    for certain in (0.0, 1.0):
        assert threshold_range(CountConfig(threshold=certain)) == (certain, certain)


def test_a_table_cut_at_the_threshold_is_reported() -> None:
    points = np.random.default_rng(0).uniform(0, 50, (40, 2))
    cut = count_slide(table(points, 0.9), mpp=MPP)
    assert any("no detection is below the threshold of 0.8" in one.text for one in cut.warnings)
    own = table(points, 0.9)
    own.attrs[OPERATING_POINTS] = {}
    assert "cut-at-threshold" not in {warning.code for warning in count_slide(own, mpp=MPP).warnings}
    for silent in (table(points), table(points, np.linspace(0.5, 1, 40))):
        warnings = count_slide(silent, mpp=MPP, config=CountConfig(thetas_tuned=True)).warnings
        assert [one.code for one in warnings] == ["uncalibrated"]


def test_small_slides_vary_like_their_total() -> None:
    points = np.random.default_rng(0).uniform(0, 1200, (9, 2))
    score = count_slide(table(points), mpp=MPP, tissue=all_tissue(1200, 1200))
    assert score.count == 9
    assert score.count_interval == pytest.approx((4.1, 17.1), abs=1.5)


def test_many_detections_get_fewer_draws_and_a_word_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert draws_for(10_000, STILL) == 1000
    assert draws_for(50_000, STILL) == 200
    assert draws_for(10**7, STILL) == 100
    assert draws_for(10**7, CountConfig(draws=7)) == 7
    monkeypatch.setattr("metaphase.counting.calibration.MOST_WEIGHTS", 10_000)
    points = np.random.default_rng(0).uniform(0, 2000, (50, 2))
    score = count_slide(table(points), mpp=MPP, config=STILL)
    assert score.draws == 200
    assert "200 draws, not 1000" in score.warnings[0].text


@pytest.mark.parametrize("peak", [6.0, 30.0])
def test_interval_covers_the_count_of_an_average_section(peak: float) -> None:
    config = CountConfig(threshold_spread=0.0, step_um=150.0, draws=150)
    generator = np.random.default_rng(4)

    def count(points: Floats) -> float:
        lattice = lattice_around(points, config.radius_um, config.step_um)
        return float(
            filled_percentile(lattice_counts(points, lattice, config.radius_um).reshape(-1, 1), 95.0)[0]
        )

    expected = np.mean([count(section(generator, peak)) for _ in range(120)])
    intervals = []
    for _ in range(40):
        points = section(generator, peak)
        intervals.append(estimate_uncertainty(points, np.ones(len(points)), count(points), config).interval)
    covered = np.mean([low <= expected <= high for low, high in intervals])
    assert 0.85 <= covered <= 1
    assert np.mean(np.diff(intervals)) < 1.2 * expected


@pytest.mark.parametrize("size", [0, 1, 2, 40])
def test_the_interval_holds_its_own_count(size: int) -> None:
    """Nothing found says nothing against nothing being there: 0 to 3.7, the exact interval of a Poisson 0."""
    points = np.random.default_rng(0).uniform(0, 50, (size, 2))
    score = count_slide(table(points), mpp=MPP)
    low, high = score.count_interval
    assert low <= score.count <= high
    if size == 0:
        assert low == 0
        assert high == pytest.approx(stats.chi2.ppf(0.975, 2) / 2, rel=0.1)


# ---- the share of atypical figures ----


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_the_share_of_atypical_figures_lies_in_its_interval(chances: list[float]) -> None:
    table = pd.DataFrame({"probability": 1.0, "atypical": chances})
    found = atypical_share(table, 0.5)
    assert found is not None
    low, high = found.interval
    assert 0 <= low <= high <= 1
    assert low - 1 / len(chances) <= found.share <= high + 1 / len(chances)
    assert found.of == len(chances)


def test_the_interval_of_a_share_holds() -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(200):
        chance = rng.beta(1, 4, 30)
        seen = (rng.random(30) < chance).mean()
        found = atypical_share(pd.DataFrame({"probability": 1.0, "atypical": chance}), 0.5, draws=300)
        assert found is not None
        inside += found.interval[0] <= seen <= found.interval[1]
    assert inside >= 186


def test_where_nobody_tells_there_is_no_share() -> None:
    table = pd.DataFrame({"probability": [0.9, 0.2]})
    assert atypical_share(table, 0.5) is None
    assert atypical_share(table.assign(atypical=0.3), 0.95) is None
    assert atypical_share(table.assign(atypical=np.nan), 0.5) is None
    some = atypical_share(table.assign(atypical=[np.nan, 0.1]), 0.1)
    assert some is not None
    assert (some.share, some.of) == (0.1, 1), "those that the network judged"
