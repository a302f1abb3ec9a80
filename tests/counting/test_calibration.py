"""Chances of a mitosis are learned from answers, and counts follow from them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import expit

from metaphase.base.errors import UsageError
from metaphase.counting import CountConfig, SlideCount, count_slide
from metaphase.counting.calibration import (
    Calibration,
    Chances,
    Reference,
    ReviewerError,
    drawn_missed,
    evidence,
    fit_curve,
    plausible_missed,
)
from tests.counting.scenes import all_tissue, table

Floats = npt.NDArray[np.float64]
SLOPES = np.array([-3.0, 1.4, 1.0])
COUNTED = 0.95
CONFIG = CountConfig(threshold=COUNTED, step_um=200.0, draws=50)


def scene(
    generator: np.random.Generator, mitoses: int, others: int, side_um: float = 4000.0
) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    """Places, probabilities and truth of a slide."""
    true = np.arange(mitoses + others) < mitoses
    odds = np.where(true, generator.normal(3, 2, len(true)), generator.exponential(1.0, len(true)) - 2)
    return generator.uniform(0, side_um, (len(true), 2)), expit(odds), true


def known_of(points: Floats, probability: Floats, side_um: float = 4000.0) -> Floats:
    area = (side_um / 1000) ** 2
    return evidence(points, probability, counted_from=COUNTED, area_mm2=area, config=CONFIG)


def sure(slopes: Floats = SLOPES, missed: float = 0.0, spread: float = 1e-6) -> Calibration:
    """A laboratory of which everything is known."""
    coefficients = np.tile(np.r_[slopes, 0.0, 0.0], (100, 1))
    reference = Reference(slopes, 0.05)
    chances = Chances(coefficients, np.full(100, spread), np.full(100, missed), reference)
    return Calibration(chances, COUNTED, 100)


def test_the_curve_is_learned_whatever_known_errors_the_reviewer_makes() -> None:
    generator = np.random.default_rng(0)
    odds = generator.uniform(-2, 5, 20_000)
    known = np.stack([np.ones(len(odds)), np.maximum(odds, 0), np.minimum(odds, 0)], axis=1)
    true = generator.uniform(size=len(odds)) < expit(known @ SLOPES)
    slide = np.arange(len(odds)) % 5
    for reviewer in (ReviewerError(), ReviewerError(0.1, 0.05)):
        luck = generator.uniform(size=len(odds))
        said = np.where(true, luck >= reviewer.missed, luck < reviewer.false_alarms)
        found = fit_curve(known, said.astype(float), slide, reviewer).coefficients
        assert np.abs(found.mean(axis=0) - SLOPES).max() < 0.4
        assert (np.abs(found.mean(axis=0) - SLOPES) < 4 * found.std(axis=0)).all()


def test_fewer_answers_leave_more_open() -> None:
    generator = np.random.default_rng(1)
    odds = generator.uniform(-2, 5, 3000)
    known = np.stack([np.ones(len(odds)), np.maximum(odds, 0), np.minimum(odds, 0)], axis=1)
    yes = (generator.uniform(size=len(odds)) < expit(known @ SLOPES)).astype(float)
    slide = np.zeros(len(odds), np.int64)
    wide, narrow = (fit_curve(known[:n], yes[:n], slide[:n], ReviewerError()) for n in (60, 3000))
    assert (wide.coefficients.std(axis=0) > narrow.coefficients.std(axis=0)).all()


def test_a_slide_with_more_mitoses_than_the_laboratory_has_a_positive_offset() -> None:
    generator = np.random.default_rng(2)
    points, probability, true = scene(generator, 200, 4000)
    known = known_of(points, probability)
    answers = fit_curve(known[:, :3], true.astype(float), np.zeros(len(true), np.int64), ReviewerError())
    reference = Reference(answers.coefficients.mean(axis=0), float(true.mean()))
    busy, calm = (scene(generator, number, 4000)[:2] for number in (800, 40))
    offsets = [reference.offset(known_of(*one)) for one in (calm, (points, probability), busy)]
    assert offsets[0] < -0.7 < abs(offsets[1]) < 0.35 < 0.7 < offsets[2]
    assert reference.offset(known_of(*busy), effect=1.0) > offsets[2]
    assert reference.offset(known[:0]) == 0


def test_squares_choose_the_share_of_missed_mitoses() -> None:
    expected, variance = np.full(50, 100.0), np.full(50, 1.0)
    means = []
    for seen in (100.0, 130.0):
        _, missed = drawn_missed(plausible_missed(expected, variance, seen, ReviewerError()), 400)
        means.append(missed.mean())
    assert means[0] < 0.1
    assert means[1] == pytest.approx(0.28, abs=0.06)
    kept, _ = drawn_missed(
        plausible_missed(np.array([10.0, 100.0]), variance[:2], 105.0, ReviewerError()), 100
    )
    assert (kept == 1).all()


def counted(mitoses: int, others: int, site: Calibration, seed: int = 0) -> tuple[SlideCount, int]:
    """The count of a small slide, and how many mitoses it really has by the curve of `SLOPES`."""
    generator = np.random.default_rng((5, seed))
    points, probability, _ = scene(generator, mitoses, others, 1300.0)
    chance = expit(known_of(points, probability, 1300.0)[:, :3] @ SLOPES)
    true = int((generator.uniform(size=len(chance)) < chance).sum())
    tissue = all_tissue(1300, 1300)
    return count_slide(table(points, probability), mpp=0.25, tissue=tissue, config=CONFIG, site=site), true


def test_the_interval_holds_where_the_chances_are_right() -> None:
    held = 0
    for seed in range(60):
        found, true = counted(15, 60, sure(), seed)
        assert found.calibrated is not None
        low, high = found.calibrated.count_interval
        held += low <= true <= high
        assert found.calibrated.section_interval[0] <= low <= high <= found.calibrated.section_interval[1]
        assert sum(found.calibrated.grade_probabilities) == pytest.approx(1)
    assert held >= 54


def test_misses_raise_and_doubt_widens_a_calibrated_count() -> None:
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


def test_a_large_slide_is_counted_in_its_hotspot() -> None:
    generator = np.random.default_rng(9)
    points, probability, _ = scene(generator, 150, 900)
    found = count_slide(
        table(points, probability), mpp=0.25, tissue=all_tissue(4000, 4000), config=CONFIG, site=sure()
    )
    assert found.calibrated is not None
    assert found.calibrated.count < expit(known_of(points, probability)[:, :3] @ SLOPES).sum()
    assert found.calibrated.in_hotspot > 0
    assert found.to_dict()["calibrated"]["count"] == found.calibrated.count


def test_a_slide_without_detections_has_a_count_of_none() -> None:
    found = count_slide(table(np.zeros((0, 2))), mpp=0.25, config=CONFIG, site=sure(missed=0.2)).calibrated
    assert found is not None
    assert found.count == found.count_interval[0] == 0


def test_chances_come_back_from_a_file() -> None:
    first = sure(missed=0.3).chances
    again = Chances.from_dict(first.to_dict())
    for name in ("coefficients", "spread", "missed"):
        assert getattr(again, name) == pytest.approx(getattr(first, name), abs=1e-5)
    assert again.reference.share == first.reference.share


@pytest.mark.parametrize(("missed", "false_alarms"), [(-0.1, 0.0), (0.6, 0.5), (1.0, 0.0)])
def test_a_reviewer_who_says_nothing_is_refused(missed: float, false_alarms: float) -> None:
    with pytest.raises(UsageError, match="a reviewer who misses"):
        ReviewerError(missed, false_alarms)
