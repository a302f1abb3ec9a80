"""Chances of a mitosis are learned from answers, and counts follow from them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from scipy.special import expit

from metaphase.base.errors import UsageError
from metaphase.counting.calibration import SiteCalibration, evidence
from metaphase.counting.clinical import SlideCount, count_slide
from metaphase.counting.populations import (
    OWN,
    SPREADS,
    Laboratory,
    Posterior,
    ReviewerError,
    cells_of,
    learn,
    log_odds,
    middles_of,
    own_of,
)
from metaphase.counting.specimen import CountConfig
from tests.counting.scenes import all_tissue, table

Floats = npt.NDArray[np.float64]
COUNTED = 0.95
CONFIG = CountConfig(threshold=COUNTED, step_um=200.0, draws=50)
FLOOR = -2.2
MIDDLES = middles_of(FLOOR)


def scene(
    generator: np.random.Generator, mitoses: int, others: int, side_um: float = 4000.0
) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Places, probabilities and truth of a slide."""
    true = np.arange(mitoses + others) < mitoses
    odds = np.where(true, generator.normal(3, 2, len(true)), generator.exponential(1.0, len(true)) + FLOOR)
    return generator.uniform(0, side_um, (len(true), 2)), expit(np.maximum(odds, FLOOR)), true


def sure(missed: float = 0.0, spread: float = 1e-6, share: float = -1.4) -> SiteCalibration:
    """A laboratory of which everything is known: the densities of `scene`."""
    draws = 100
    lab = Laboratory(
        FLOOR,
        np.tile(-(MIDDLES - FLOOR), (draws, 1)),
        np.tile(-0.5 * ((MIDDLES - 3) / 2) ** 2, (draws, 1)),
        np.full(draws, share),
        np.zeros(draws),
        np.full((draws, len(SPREADS)), spread),
        np.full(draws, missed),
    )
    return SiteCalibration(lab, COUNTED, 100, ReviewerError())


def answered_slides(
    seed: int, reviewer: ReviewerError, asked: int, slides: int = 6
) -> tuple[Posterior, npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Slides that differ in their share of mitoses, some detections of which were asked about."""
    generator = np.random.default_rng(seed)
    shares = generator.uniform(20, 300, slides).astype(int)
    parts = [scene(generator, number, 1500) for number in shares]
    probability, true = (np.concatenate([one[k] for one in parts]) for k in (1, 2))
    slide = np.repeat(np.arange(slides), [len(one[1]) for one in parts])
    answer, luck = np.full(len(true), np.nan), generator.uniform(size=len(true))
    chosen = generator.choice(np.flatnonzero(probability > 0.5), asked, replace=False)
    said = np.where(true, luck >= reviewer.missed, luck < reviewer.false_alarms)
    answer[chosen] = said[chosen]
    cells = cells_of(log_odds(probability), np.zeros(len(true)), slide, slides, FLOOR, answer)
    return Posterior(cells, FLOOR, 0.0, 0.0, reviewer), true, slide


def expected_of(posterior: Posterior, own: Floats, lab: Laboratory) -> Floats:
    """Mitoses expected on each slide (draws, slides)."""
    found = []
    for slide, number in enumerate(posterior.cells.number.sum(axis=1)):
        others, mitoses = lab.densities(own[:, slide])
        found.append(expit(lab.shares(own[:, slide])[:, None] + mitoses - others) @ number)
    return np.stack(found, axis=1)


def test_the_slope_of_the_posterior_is_right() -> None:
    posterior, *_ = answered_slides(0, ReviewerError(0.1, 0.05), 60, 3)
    numbers = np.random.default_rng(1).normal(0, 0.3, posterior.size)
    _, (slope,) = posterior.at(numbers[None])
    ways = 1e-5 * np.eye(posterior.size)
    by_steps = (posterior.at(numbers + ways)[0] - posterior.at(numbers - ways)[0]) / 2e-5
    assert slope == pytest.approx(by_steps, rel=1e-3, abs=1e-2)


@pytest.mark.parametrize("reviewer", [ReviewerError(), ReviewerError(0.1, 0.05)])
def test_mitoses_of_each_slide_are_learned_whatever_known_errors_reviewers_make(
    reviewer: ReviewerError,
) -> None:
    posterior, true, slide = answered_slides(2, reviewer, 300)
    found = learn(posterior)
    expected = expected_of(posterior, found.own, found.laboratory)
    truth = np.bincount(slide, true)
    low, high = np.quantile(expected, [0.005, 0.995], axis=0)
    noise = 3 * np.sqrt(truth)
    assert ((low - noise <= truth) & (truth <= high + noise)).all()
    assert np.corrcoef(expected.mean(axis=0), truth)[0, 1] > 0.97


def test_fewer_answers_leave_more_open() -> None:
    wide, narrow = (
        (lambda one, found: expected_of(one, found.own, found.laboratory).sum(axis=1).std())(one, learn(one))
        for one in (answered_slides(3, ReviewerError(), asked)[0] for asked in (40, 1000))
    )
    assert wide > 1.3 * narrow


def test_a_slide_is_placed_by_its_own_probabilities_and_answers() -> None:
    generator = np.random.default_rng(4)
    site = sure(spread=0.8)
    shares = []
    for mitoses in (20, 400):
        _, probability, _ = scene(generator, mitoses, 1500)
        cells = cells_of(
            log_odds(probability), np.zeros(len(probability)), np.zeros(len(probability), int), 1, FLOOR
        )
        own, best = own_of(site.laboratory, cells, ReviewerError(), generator)
        assert own.shape == best.shape == (100, OWN)
        shares.append(site.laboratory.shares(own).mean())
    assert shares[0] < -3 < -2 < shares[1]


def test_squares_say_how_many_are_missed() -> None:
    generator = np.random.default_rng(5)
    _, probability, true = scene(generator, 300, 1500)
    odds, nobody = log_odds(probability), np.zeros(len(true))
    answer = np.where(np.arange(len(true)) % 4 == 0, true.astype(float), np.nan)
    square = np.ones(len(true), bool)
    cells = cells_of(odds, nobody, nobody.astype(int), 1, FLOOR, answer, square)
    few, many = (
        learn(
            Posterior(cells, FLOOR, seen, float(np.nansum(answer)), ReviewerError())
        ).laboratory.missed.mean()
        for seen in (300.0, 420.0)
    )
    assert few < 0.15 < many
    assert many == pytest.approx(0.4, abs=0.15)


def counted(mitoses: int, others: int, site: SiteCalibration, seed: int = 0) -> tuple[SlideCount, int]:
    """The count of a small slide, and how many of its detections are mitoses."""
    generator = np.random.default_rng((5, seed))
    points, probability, _ = scene(generator, mitoses, others, 1300.0)
    odds = log_odds(probability)
    prior = site.laboratory.take([0])
    own = np.zeros((1, OWN))
    (away,), (ours,) = prior.densities(own)
    chance = expit(prior.share[0] + np.interp(odds, MIDDLES, ours - away))
    true = int((generator.uniform(size=len(chance)) < chance).sum())
    tissue = all_tissue(1300, 1300)
    return count_slide(table(points, probability), mpp=0.25, tissue=tissue, config=CONFIG, site=site), true


def test_the_interval_holds_where_the_chances_are_right() -> None:
    held = 0
    for seed in range(40):
        found, true = counted(15, 60, sure(), seed)
        assert found.calibrated is not None
        low, high = found.calibrated.count_interval
        held += low <= true <= high
        assert found.calibrated.section_interval[0] <= low <= high <= found.calibrated.section_interval[1]
        assert sum(found.calibrated.grade_probabilities) == pytest.approx(1)
    assert held >= 36


def test_misses_raise_and_warning_widens_a_calibrated_count() -> None:
    plain, missed, doubtful = (
        counted(15, 60, site)[0].calibrated for site in (sure(), sure(missed=0.5), sure(spread=1.0))
    )
    assert plain is not None
    assert missed is not None
    assert doubtful is not None
    assert missed.count == pytest.approx(1.5 * plain.count, rel=0.1)
    widths = [high - low for low, high in (plain.count_interval, doubtful.count_interval)]
    assert widths[1] > 1.3 * widths[0]
    assert plain.answers_to_halve is None


def test_evidence_counts_the_others_around_a_detection() -> None:
    config, slide_mm2 = CountConfig(), 20.0
    positions = np.array([[0.0, 0.0], [100.0, 0.0], [9000.0, 0.0], [50.0, 0.0]])
    found = evidence(
        positions, np.array([0.9, 0.8, 0.9, 0.1]), counted_from=0.5, area_mm2=slide_mm2, config=config
    )
    others = np.array([1, 1, 0, 2])  # counted ones within the hotspot's radius, without oneself
    expected = np.log((others + 1) / config.area_mm2 / ((3 + 1) / slide_mm2))
    np.testing.assert_allclose(found[:, 1], expected)


def test_a_large_slide_is_counted_in_its_hotspot() -> None:
    generator = np.random.default_rng(9)
    points, probability, true = scene(generator, 150, 900)
    found = count_slide(
        table(points, probability), mpp=0.25, tissue=all_tissue(4000, 4000), config=CONFIG, site=sure()
    )
    assert found.calibrated is not None
    assert found.calibrated.count < true.sum()
    assert found.calibrated.in_hotspot > 0
    assert found.to_dict()["calibrated"]["count"] == found.calibrated.count


def test_answers_about_a_slide_enter_its_own_count() -> None:
    generator = np.random.default_rng(10)
    points, probability, true = scene(generator, 15, 60, 1300.0)
    positions = table(points, probability)
    described = np.column_stack([positions[["x", "y"]].to_numpy(), true.astype(float)])
    tissue = all_tissue(1300, 1300)
    some, every = (
        count_slide(
            positions,
            mpp=0.25,
            tissue=tissue,
            config=CONFIG,
            site=replace(sure(spread=0.5), own_answers=rows),
        )
        for rows in (described[:0], described)
    )
    assert some.calibrated is not None
    assert every.calibrated is not None
    assert every.calibrated.count_interval == (true.sum(), true.sum())
    assert some.calibrated.count_interval[1] > some.calibrated.count_interval[0]


def test_a_review_counts_as_people_said_and_the_rest_by_its_chance() -> None:
    generator = np.random.default_rng(10)
    points, probability, true = scene(generator, 15, 60, 1300.0)
    verdict = np.where(true, "mitosis", "not").astype(object)
    more = {"x": [700.0], "y": [900.0], "probability": 1.0, "label": "mitosis", "review": "mitosis"}
    kinds = {}
    for name, said in (("every", verdict), ("half", np.where(np.arange(len(true)) % 2, verdict, ""))):
        label = np.where(said == "not", "lookalike", "mitosis")
        rows = table(points, np.where(said == "mitosis", 1.0, probability))
        rows = rows.assign(machine_probability=probability, review=said, label=label)
        rows = pd.concat([rows, pd.DataFrame(more)], ignore_index=True)
        site = sure(missed=0.5, spread=0.5)
        kinds[name] = count_slide(rows, mpp=0.25, tissue=all_tissue(1300, 1300), config=CONFIG, site=site)
    every, half = kinds["every"].in_force, kinds["half"].in_force
    assert every.kind == half.kind == "reviewed"
    assert every.interval_name == half.interval_name == "95 % interval"
    assert (every.count, every.count_interval) == (true.sum() + 1, (true.sum() + 1, true.sum() + 1))
    decided = true[1::2].sum() + 1
    assert half.count_interval is not None
    assert decided <= half.count_interval[0] < half.count < half.count_interval[1]


def test_a_slide_without_detections_has_a_count_of_none() -> None:
    found = count_slide(table(np.zeros((0, 2))), mpp=0.25, config=CONFIG, site=sure(missed=0.2)).calibrated
    assert found is not None
    assert found.count == found.count_interval[0] == 0


def test_a_laboratory_comes_back_from_a_file() -> None:
    first = sure(missed=0.3).laboratory
    again = Laboratory.from_dict(first.to_dict())
    for name in ("others", "mitoses", "share", "spreads", "missed"):
        assert getattr(again, name) == pytest.approx(getattr(first, name), abs=1e-4)
    assert again.floor == first.floor


@pytest.mark.parametrize(("missed", "false_alarms"), [(-0.1, 0.0), (0.6, 0.5), (1.0, 0.0)])
def test_a_reviewer_who_says_nothing_is_refused(missed: float, false_alarms: float) -> None:
    with pytest.raises(UsageError, match="miss"):
        ReviewerError(missed, false_alarms)
