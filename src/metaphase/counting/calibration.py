"""The chance that a detection is a mitosis in one laboratory, and the count that follows from it.

Also how uncertain a count is without a calibration, and the share of atypical figures.

A model's probabilities mean something else in every laboratory. What was learned of a laboratory from answers
(`populations`) is a set of draws; a slide is placed among its kind by its own probabilities, and by its own
answers where it has any. A draw of the slide's true map follows from each, and the count of a slide is that
of these maps, by the same definition as ever. As the hotspot is found anew on each, that it was chosen for
its many detections does no harm.

Each draw stands for another section of the same tumour, read at a slightly different threshold: every
detection occurs a Poisson(1) number of times, those below the drawn threshold not at all. False positives
that the model is known to make are taken away in part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.spatial import cKDTree
from scipy.special import expit, logit

from metaphase.base.arrays import Floats, Mask, Points
from metaphase.base.typed import Stored
from metaphase.counting.hotspot import (
    Hotspot,
    counts_of_weights,
    filled_percentile,
    lattice_around,
    run_ends,
)
from metaphase.counting.populations import Laboratory, ReviewerError, bin_of, cells_of, log_odds, own_of
from metaphase.counting.specimen import CountConfig, Specimen
from metaphase.detections.table import ATYPICAL

Weights = npt.NDArray[np.int32]
Statistic = Callable[[Weights], Floats]
"""The slide's count for each column of weights (points, draws)."""

MOST_WEIGHTS = 10_000_000
"""Detections times draws; beyond, fewer draws are made."""
FEWEST_DRAWS = 100
MOST_POSITIONS = 40_000
"""The draws are counted on a coarser lattice where the slide's own has more positions than this."""
CHUNK = 50
MOST_TAKEN = 5000
"""Mitoses that a draw of the share of atypical ones takes at most."""


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """What the draws say about the count and the grade."""

    interval: tuple[float, float]
    """Holds the share `confidence` of the draws."""
    grade_probabilities: tuple[float, float, float]
    draws: int
    """How many were made."""


def estimate_uncertainty(
    points_um: Points,
    probability: Floats,
    count: float,
    config: CountConfig,
    *,
    whole_slide: bool = False,
    false: float = 0.0,
) -> Uncertainty:
    """The spread of `count`, the slide's count at the threshold, given detections of any probability.

    With `whole_slide` the count is that of all detections, without a hotspot. Of the `false` ones that the
    model leads one to expect among the counted, each draw takes away between none and all: in another
    laboratory there may be fewer.
    """
    if config.draws == 0:
        return Uncertainty((count, count), _grade_shares(np.array([count]), config), 0)
    lowest, _ = threshold_range(config)
    possible = probability >= lowest
    points_um, probability = points_um[possible], probability[possible]
    statistic = total_count if whole_slide or not len(points_um) else hotspot_count(points_um, config)
    drawn = centred(drawn_counts(probability, statistic, config), count, config)
    if false:
        taken = np.random.default_rng((config.seed, 1)).uniform(0, false, len(drawn))
        drawn = np.maximum(drawn - taken, 0)
    low, high = _interval(drawn, config)
    return Uncertainty((min(low, count), max(high, count)), _grade_shares(drawn, config), len(drawn))


def threshold_range(config: CountConfig) -> tuple[float, float]:
    """The lowest and the highest threshold that a draw may have."""
    middle = logit(config.threshold)
    return float(expit(middle - config.threshold_spread)), float(expit(middle + config.threshold_spread))


def draws_for(detections: int, config: CountConfig) -> int:
    """How many draws are made for so many detections."""
    return min(config.draws, max(FEWEST_DRAWS, MOST_WEIGHTS // max(1, detections)))


def drawn_counts(probability: Floats, statistic: Statistic, config: CountConfig) -> Floats:
    """The count of each draw."""
    generator = np.random.default_rng(config.seed)
    draws = draws_for(len(probability), config)
    spread = generator.uniform(-config.threshold_spread, config.threshold_spread, draws)
    thresholds = expit(logit(config.threshold) + spread) if config.threshold_spread else config.threshold
    thresholds = np.broadcast_to(thresholds, draws)
    drawn = []
    for start in range(0, draws, CHUNK):
        limit = thresholds[start : start + CHUNK]
        times = generator.poisson(1.0, (len(probability), len(limit)))
        drawn.append(statistic((times * (probability[:, None] >= limit)).astype(np.int32)))
    return np.concatenate(drawn)


def centred(drawn: Floats, count: float, config: CountConfig) -> Floats:
    """The draws moved so that their median is the slide's own count.

    Drawing adds the noise of sampling a second time, and the high percentile of noisier counts is higher.
    The move is made between square roots, where the noise of a count does not depend on its size. A slide
    without detections cannot be resampled: there the draws are those of a rate of which nothing was seen.
    """
    if count == 0:
        unseen = np.random.default_rng(config.seed).exponential(1.0, len(drawn))
        return np.maximum(drawn, unseen)
    return _moved(drawn, math.sqrt(count))


def total_count(weights: Weights) -> Floats:
    """All detections of the slide."""
    return np.asarray(weights.sum(axis=0), np.float64)


def hotspot_count(points_um: Points, config: CountConfig) -> Statistic:
    """The percentile over non-empty positions of the hotspot.

    The slide's lattice has its step doubled until it is small enough (at most to half the radius).
    """
    step = config.step_um
    lattice = lattice_around(points_um, config.radius_um, step)
    while lattice.positions > MOST_POSITIONS and 4 * step <= config.radius_um:
        step *= 2
        lattice = lattice_around(points_um, config.radius_um, step)
    ends = run_ends(points_um, lattice, config.radius_um)
    return lambda weights: filled_percentile(counts_of_weights(ends, lattice, weights), config.percentile)


# ---- the share of atypical figures, for research ----


class AtypicalShare(Stored):
    """How many of the listed mitoses are atypical, as a network says."""

    share: float
    """Mean probability of being atypical."""
    interval: tuple[float, float]
    """95 % interval of the share."""
    of: int
    """Number of listed mitoses that the network judged."""


def atypical_share(table: pd.DataFrame, threshold: float, draws: int = 2000) -> AtypicalShare | None:
    """Share of the judged mitoses, from a probability on, that are atypical, with a 95 % interval.

    A draw takes as many mitoses, and each is atypical by the chance that its network gives: so the interval
    knows of few figures and of doubtful ones, not of a network that is wrong about a laboratory.
    """
    if ATYPICAL not in table.columns:
        return None
    chance = table.loc[table["probability"] >= threshold, ATYPICAL].to_numpy(np.float64)
    chance = chance[np.isfinite(chance)]  # what people added, no network has judged
    if not len(chance):
        return None
    rng = np.random.default_rng(0)
    taken = rng.integers(len(chance), size=(draws, min(len(chance), MOST_TAKEN)))
    shares = (rng.random(taken.shape) < chance[taken]).mean(axis=1)
    low, high = np.quantile(shares, [0.025, 0.975])
    return AtypicalShare(share=float(chance.mean()), interval=(float(low), float(high)), of=len(chance))


EVIDENCE = ("log-odds", "counted around")
"""What is known about a detection."""
SAME_PX = 0.5
"""An answer is about the detection that is no farther away than this."""


def evidence(
    points_um: Points, probability: Floats, *, counted_from: float, area_mm2: float, config: CountConfig
) -> Floats:
    """What tells about each detection of a slide (n, 2): its log-odds, and whether many lie around it.

    The latter is the density of counted detections within the hotspot's radius over that of the slide.
    `area_mm2` is the slide's tissue, NaN where it is not known.
    """
    counted = probability >= counted_from
    around = np.zeros(len(probability))
    if area_mm2 > config.area_mm2 and counted.any():
        tree = cKDTree(points_um[counted])
        inside = tree.query_ball_point(points_um, config.radius_um, return_length=True) - counted
        around = np.log((inside + 1) / config.area_mm2 / ((counted.sum() + 1) / area_mm2))
    return np.stack([log_odds(probability), around], axis=1)


# ---- the count of a slide ----


@dataclass(frozen=True, slots=True)
class CalibratedCount:
    """What the count of a slide would be if every mitosis on it were known, as far as that can be said."""

    __pydantic_config__: ClassVar = {"strict": True, "allow_inf_nan": False, "use_attribute_docstrings": True}

    count: float
    """Expected count of this slide."""
    count_interval: tuple[float, float]
    """Interval of the count of this slide."""
    section_interval: tuple[float, float]
    """Interval of the count of another section of the tumour."""
    in_hotspot: float
    """Mitotic figures expected in the hotspot."""
    in_hotspot_interval: tuple[float, float]
    """Interval of their number."""
    grade_probabilities: tuple[float, float, float]
    """Probabilities of grades 1, 2 and 3."""
    answers_to_halve: int | None
    """Further answers that would halve the interval; null where answers on other slides cannot."""


@dataclass(frozen=True, eq=False)
class SiteCalibration:
    """What a count needs to know of a laboratory, and of the slide itself."""

    laboratory: Laboratory
    counted_from: float
    """The count's threshold where it was learned."""
    answers: int
    """How many it was learned from."""
    reviewer: ReviewerError
    own_answers: Floats | None = None
    """(n, 3): x and y of detections of this very slide that were asked about, and their answers."""

    def chance(self, slide: Specimen) -> Floats:
        """Chance of a mitosis of each detection, over all that is not known."""
        if not len(slide.positions):
            return np.zeros(0)
        found, _ = self._placed(slide, len(self.laboratory))
        total = np.zeros(len(slide.positions))
        for start in range(0, len(found.share), CHUNK):
            total += found.chance(slice(start, start + CHUNK)).sum(axis=1)
        return total / len(found.share)

    def count(self, slide: Specimen, hotspot: Hotspot) -> CalibratedCount:
        """The count of one of the laboratory's slides.

        Of the detections each is a mitosis with its chance, or as people said who reviewed the slide; missed
        ones lie where others were found and nobody looked. Another section has each mitosis a Poisson(1)
        number of times; as that adds noise to a high percentile, it is moved back to the slide's own, as in
        `uncertainty`.
        """
        config, points_um = slide.config, slide.positions * slide.mpp
        if not len(points_um):
            return _nothing_found(slide, self.laboratory)
        draws = min(len(self.laboratory), max(100, MOST_WEIGHTS // len(points_um)))
        found, best = self._placed(slide, draws)
        generator = np.random.default_rng((config.seed, 1))
        statistic = total_count if slide.is_small else hotspot_count(points_um, config)
        inside, unseen = _inside(slide, hotspot), np.isnan(slide.answer)[:, None]
        own, section, within, steady = [], [], [], []
        for start in range(0, draws, CHUNK):
            part = slice(start, min(start + CHUNK, draws))
            chance, missed = found.chance(part), found.missed[part]
            there = (generator.uniform(size=chance.shape) < chance) + generator.poisson(
                chance * missed * unseen
            )
            own.append(statistic(there.astype(np.int32)))
            section.append(statistic(generator.poisson(there).astype(np.int32)))
            within.append(there[inside].sum(axis=0))
            steady.append((best.chance(part, inside) * (1 + missed)).sum(axis=0))
        counts = np.concatenate(own)
        drawn = _moved(np.concatenate(section), float(np.median(np.sqrt(counts))))
        number = np.concatenate(within).astype(np.float64)
        (low, high), (first, last) = _interval(counts, config), _interval(drawn, config)
        # More answers shrink what is not known of the laboratory, not what is chance on this slide.
        variance, learned = float(number.var()), float(np.concatenate(steady).var())
        left = variance / 4 - max(variance - learned, 0)
        return CalibratedCount(
            count=float(counts.mean()),
            count_interval=(low, high),
            section_interval=(min(low, first), max(high, last)),
            in_hotspot=float(number.mean()),
            in_hotspot_interval=_interval(number, config),
            grade_probabilities=_grade_shares(drawn, config),
            answers_to_halve=None if left <= 0 else max(0, math.ceil(self.answers * (learned / left - 1))),
        )

    def _placed(self, slide: Specimen, draws: int) -> tuple[_Placed, _Placed]:
        """The slide among its kind in so many draws of all, and of the laboratory alone."""
        lab = self.laboratory.take(np.linspace(0, len(self.laboratory) - 1, draws).astype(np.int64))
        found = np.isfinite(slide.machine)  # the others were added by people
        known = np.tile((lab.floor, 0.0), (len(found), 1))
        known[found] = evidence(
            slide.positions[found] * slide.mpp, slide.machine[found], counted_from=self.counted_from,
            area_mm2=slide.area_mm2, config=slide.config,
        )  # fmt: skip
        odds, around = known.T
        answer = np.full(len(slide.positions), np.nan)  # where nobody was asked
        if self.own_answers is not None and len(self.own_answers):
            away, nearest = cKDTree(slide.positions).query(self.own_answers[:, :2])
            answer[nearest[away <= SAME_PX]] = self.own_answers[away <= SAME_PX, 2]
        answered = np.where(np.isnan(slide.answer), answer, slide.answer)[found]
        cells = cells_of(
            odds[found], around[found], np.zeros(len(answered), np.int64), 1, lab.floor, answered
        )
        drawn = own_of(lab, cells, self.reviewer, np.random.default_rng(slide.config.seed))
        bins = bin_of(odds, lab.floor)
        first, second = (
            _Placed(lab.shares(own), lab.around, np.subtract(*lab.densities(own)[::-1]), lab.missed, around,
                    bins, answer, slide.answer, self.reviewer)
            for own in drawn
        )  # fmt: skip
        return first, second


@dataclass(frozen=True, eq=False)
class _Placed:
    """Draws of a slide, and its detections."""

    share: Floats
    rise: Floats
    """With what lies around."""
    ratio: Floats
    """(draws, bins): of the log densities."""
    missed: Floats
    around: Floats
    bin: npt.NDArray[np.int64]
    answer: Floats
    """Of the calibration, to be taken with the observer's errors."""
    decided: Floats
    """Of the slide's own review: what people said there is so."""
    reviewer: ReviewerError

    def chance(self, part: slice, chosen: Mask | slice = slice(None)) -> Floats:
        """Of a mitosis, (chosen detections, draws)."""
        around, answer = self.around[chosen, None], self.answer[chosen]
        chance = np.asarray(
            expit(self.share[part] + around * self.rise[part] + self.ratio[part].T[self.bin[chosen]])
        )
        asked = np.isfinite(answer)
        chance[asked] = self.reviewer.described(chance[asked], answer[asked, None])
        decided = self.decided[chosen, None]
        return np.where(np.isnan(decided), chance, decided)


def _nothing_found(slide: Specimen, laboratory: Laboratory) -> CalibratedCount:
    """Without a detection: the counts of a rate of which nothing was seen."""
    unseen = np.random.default_rng(slide.config.seed).exponential(1.0, len(laboratory)) * laboratory.missed
    interval = (0.0, _interval(unseen, slide.config)[1])
    return CalibratedCount(0.0, interval, interval, 0.0, interval, _grade_shares(unseen, slide.config), None)


def _inside(slide: Specimen, hotspot: Hotspot) -> Mask:
    """Detections in the hotspot; on less tissue than it has, all."""
    if slide.is_small:
        return np.ones(len(slide.positions), bool)
    away = np.hypot(slide.positions[:, 0] - hotspot.x, slide.positions[:, 1] - hotspot.y)
    return np.asarray(away <= hotspot.radius_px * (1 + 1e-9))


def _moved(counts: Floats, root: float) -> Floats:
    """Counts moved between square roots, where noise does not depend on their size, to this median root."""
    roots = np.sqrt(counts)
    return np.asarray(np.maximum(roots + root - np.median(roots), 0) ** 2)


def _grade_shares(counts: Floats, config: CountConfig) -> tuple[float, float, float]:
    """Shares of the counts that are of grade 1, 2 and 3."""
    one, two, three = (float(np.mean(config.grade_of(counts) == grade)) for grade in (1, 2, 3))
    return one, two, three


def _interval(values: npt.NDArray[Any], config: CountConfig) -> tuple[float, float]:
    tail = (1 - config.confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)
