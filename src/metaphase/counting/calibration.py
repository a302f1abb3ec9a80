"""The chance that a detection is a mitosis in one laboratory, and the count that follows from it.

A model's probabilities mean something else in every laboratory. From answers to a sample of its detections
the chance of a mitosis is learned anew: a logistic curve of the probability, of what lies around the
detection and of the slide as a whole, with an effect of the slide that nothing explains. All that is not
known is kept as draws: of the curve, of how much slides differ, and of the share of mitoses that no
detection marks. A draw of the slide's true map follows from each, and the count of a slide is that of these
maps, by the same definition as ever. As the hotspot is found anew on each map, that it was chosen for its
many detections does no harm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.spatial import cKDTree
from scipy.special import expit, logit

from metaphase.base.arrays import Floats, Integers, Mask, Points
from metaphase.base.errors import UsageError
from metaphase.base.foreign import finite
from metaphase.counting.hotspot import Hotspot
from metaphase.counting.specimen import CountConfig, Specimen
from metaphase.counting.uncertainty import CHUNK, MOST_WEIGHTS, hotspot_count, total_count

# ---- what is known about a detection ----

CLEAREST = 1e-4
"""Probabilities nearer to 0 or 1 than this say no more."""
EVIDENCE = ("constant", "log-odds above 0", "log-odds below 0", "counted around")
"""Columns of the evidence; the slide's own offset is the fifth where the curve is learned."""
PRIOR_MEAN = np.array([-3.5, 1.3, 1.0, 0.5, 0.9])
PRIOR_SD = np.array([1.5, 0.35, 0.35, 0.4, 0.3])
"""Of the curve's coefficients before any answer: what a detector that tells mitoses from others comes to. The
bundled model has slopes of 1.3 and 1.1 on MiDeSeC, of 1.7 and 1.1 on MITOS-ATYPIA-14."""
SLOPES = 3
"""Of the coefficients, those that concern a detection by itself."""
OFFSETS = np.arange(-4.0, 4.01, 0.1)
OFFSET_SD = 1.2
EFFECTS = np.linspace(-2.0, 2.0, 9)


def evidence(
    points_um: Points, probability: Floats, *, counted_from: float, area_mm2: float, config: CountConfig
) -> Floats:
    """What tells about each detection of a slide (n, 4): its log-odds, and whether many lie around it.

    The latter is the density of counted detections within the hotspot's radius over that of the slide.
    `area_mm2` is the slide's tissue, NaN where it is not known.
    """
    odds = logit(np.clip(probability, CLEAREST, 1 - CLEAREST))
    counted = probability >= counted_from
    around = np.zeros(len(odds))
    if area_mm2 > config.area_mm2 and counted.any():
        tree = cKDTree(points_um[counted])
        inside = tree.query_ball_point(points_um, config.radius_um, return_length=True) - counted
        around = np.log((inside + 1) / config.area_mm2 / ((counted.sum() + 1) / area_mm2))
    return np.stack([np.ones(len(odds)), np.maximum(odds, 0), np.minimum(odds, 0), around], axis=1)


@dataclass(frozen=True, eq=False)
class Reference:
    """All detections of the laboratory's slides together, with which those of one slide are compared."""

    slopes: Floats
    """(3,): the curve by a detection's log-odds alone."""
    share: float
    """Of the detections, how many are mitoses by that curve."""
    response: float = 0.0
    """By how much the offset of a usual slide moves with its effect."""

    def offset(self, known: Floats, effect: float = 0.0) -> float:
        """By how much mitoses are the likelier on a slide than in the laboratory, in log-odds.

        The detections of a slide are a mixture of mitoses and others, whose probabilities are spread as they
        are in the laboratory: the share of the mixture is read from the slide's own probabilities, without
        any answer. Few detections say little, and the offset stays near 0. An `effect` makes mitoses so
        much the likelier at each probability: look-alikes of a slide may look more or less like mitoses.
        """
        if not len(known):
            return 0.0
        odds = logit(np.clip(self.share, CLEAREST, 1 - CLEAREST))
        likelier = np.exp(np.clip(known[:, :SLOPES] @ self.slopes - odds + effect, -30, 30))
        share = expit(odds + OFFSETS)
        plausible = [np.log1p(each * (likelier - 1)).sum() for each in share]
        return float(OFFSETS[int(np.argmax(np.array(plausible) - 0.5 * (OFFSETS / OFFSET_SD) ** 2))])

    def offsets(self, known: Floats, effects: Floats) -> Floats:
        """The offset of a slide under each of its possible effects."""
        tried = [self.offset(known, effect) for effect in EFFECTS]
        return np.interp(effects, EFFECTS, tried)

    def responding(self, slides: Iterable[Floats]) -> Reference:
        """With the response of the laboratory's slides, given by their evidence."""
        moved = [self.offset(known, 0.5) - self.offset(known, -0.5) for known in slides]
        return replace(self, response=float(np.mean(moved)))


def reference_of(known: Floats, slopes: Floats) -> Reference:
    """The reference that a curve makes of all detections of a laboratory."""
    return Reference(slopes, float(expit(known[:, :SLOPES] @ slopes).mean()))


def with_offset(known: Floats, offset: float | Floats) -> Floats:
    """The evidence with the offset of the slide as its last column."""
    return np.column_stack([known, np.broadcast_to(offset, len(known))])


# ---- learning from answers ----

SPREADS = np.array([0.2, 0.3, 0.4, 0.5, 0.65, 0.85, 1.1, 1.4])
"""How much slides may differ, as a standard deviation in log-odds ..."""
USUAL_SPREAD, SPREAD_FACTOR = 0.5, 1.6
"""... of which this is the usual one, times or over the factor (log-normal): 100 answers alone tell little
about it, and to suppose that slides are alike would make intervals too narrow."""
DRAWS = 400
TRIED = 10
"""Draws of the curve for each that is kept, so that squares can choose among them."""
STEPS = 50
FLAT = 1e-9
USUAL_MISSED = 0.15
"""Mean of what is supposed about missed mitoses, as a share of those found, before squares are seen."""
MISSED = np.linspace(0.0, 2.0, 401)


@dataclass(frozen=True)
class ReviewerError:
    """How often an answer is wrong; none where the reviewer is the standard."""

    missed: float = 0.0
    """Share of the mitoses that are called something else."""
    false_alarms: float = 0.0
    """Share of all else that is called a mitosis."""

    def __post_init__(self) -> None:
        if not (0 <= self.missed < 1 and 0 <= self.false_alarms < 1 - self.missed):
            raise UsageError(
                f"a reviewer who misses {self.missed:g} and sees {self.false_alarms:g} too many",
                next_step="give two shares from 0 on, together below 1",
            )


DRAWN = ("coefficients", "spread", "missed")


@dataclass(frozen=True, eq=False)
class Chances:
    """What was learned, as draws."""

    coefficients: Floats
    """(draws, 5): of the curve, by the columns of the evidence and the slide's offset."""
    spread: Floats
    """(draws,): standard deviation of the slides' effects."""
    missed: Floats
    """(draws,): mitoses without any detection, as a share of those with one."""
    reference: Reference

    def __len__(self) -> int:
        return len(self.spread)

    def effects(self, known: Floats, generator: np.random.Generator) -> Floats:
        """What a slide that nobody was asked about may add to the log-odds of its detections, by draw.

        Its own effect is not known, and its offset has to be read under each: a slide on which few mitoses
        hide among many look-alikes is the more uncertain. The spread was learned with the offsets as they
        are, so what a usual slide's offset adds to it is taken out first.
        """
        weight = self.coefficients[:, -1]
        effect = generator.normal(0, self.spread) / (1 + weight * self.reference.response)
        return effect + weight * self.reference.offsets(known, effect)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        drawn = {name: np.round(getattr(self, name), 5).tolist() for name in DRAWN}
        known = self.reference
        return drawn | {"slopes": known.slopes.tolist(), "share": known.share, "response": known.response}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Chances:
        """Back from plain values; what cannot be draws is a `ValueError`."""
        drawn = {name: _numbers(values.get(name), name) for name in DRAWN}
        slopes = _numbers(values.get("slopes"), "slopes")
        draws, share = len(drawn["spread"]), finite(values.get("share"))
        shapes = [one.shape for one in (*drawn.values(), slopes)]
        if not draws or shapes != [(draws, len(PRIOR_MEAN)), (draws,), (draws,), (SLOPES,)]:
            raise ValueError(f"draws of the shapes {shapes}")
        if not (0 <= share <= 1 and (drawn["spread"] >= 0).all() and (drawn["missed"] >= 0).all()):
            raise ValueError("a share beyond 0 to 1, or a negative spread")
        return cls(**drawn, reference=Reference(slopes, share, finite(values.get("response"))))


def _numbers(values: Any, name: str) -> Floats:
    """Numbers in lists, or in lists of lists."""
    if not isinstance(values, list) or len({len(row) if isinstance(row, list) else -1 for row in values}) > 1:
        raise ValueError(f"{name} are no list of numbers")
    rows = [[finite(one) for one in row] if isinstance(row, list) else finite(row) for row in values]
    return np.asarray(rows, np.float64)


@dataclass(frozen=True, eq=False)
class Curve:
    """The draws of a curve with the effects of the slides that it was learned on."""

    coefficients: Floats
    spread: Floats
    effects: Floats
    """(draws, slides)."""


def fit_curve(
    known: Floats,
    yes: Floats,
    slide: Integers,
    reviewer: ReviewerError,
    *,
    draws: int = TRIED * DRAWS,
    seed: int = 0,
) -> Curve:
    """Learn the curve from answers `yes` (from 0 to 1) about detections with the evidence `known`.

    `slide` numbers the slides from 0. For each possible spread of slides the posterior is taken as normal
    around its mode; the spreads are weighed by their evidence (Laplace), and draws are taken of all of it.
    """
    slides = int(slide.max(initial=-1)) + 1
    design = np.concatenate([known, np.eye(slides)[slide]], axis=1)
    count = known.shape[1]
    modes = [_mode(design, yes, _prior(spread, count, slides), reviewer) for spread in SPREADS]
    plausible = np.array([value for *_, value in modes])
    plausible = plausible - 0.5 * (np.log(SPREADS / USUAL_SPREAD) / math.log(SPREAD_FACTOR)) ** 2
    weights = np.exp(plausible - plausible.max())
    generator = np.random.default_rng(seed)
    chosen = generator.choice(len(SPREADS), draws, p=weights / weights.sum())
    rows = np.empty((draws, design.shape[1]))
    for index in np.unique(chosen):
        mode, factor, _ = modes[index]
        here = chosen == index
        noise = generator.standard_normal((design.shape[1], int(here.sum())))
        rows[here] = mode + solve_triangular(factor, noise, lower=True, trans="T").T
    return Curve(rows[:, :count], SPREADS[chosen], rows[:, count:])


def _prior(spread: float, count: int, slides: int) -> tuple[Floats, Floats]:
    """Mean and standard deviation of the first coefficients and all effects."""
    return np.r_[PRIOR_MEAN[:count], np.zeros(slides)], np.r_[PRIOR_SD[:count], np.full(slides, spread)]


def _mode(
    design: Floats, yes: Floats, prior: tuple[Floats, Floats], reviewer: ReviewerError
) -> tuple[Floats, Floats, float]:
    """Most probable coefficients, Cholesky factor of their precision, and log evidence; Fisher's scoring."""
    mean, sd = prior
    clear = 1 - reviewer.missed - reviewer.false_alarms
    at = mean.copy()
    for _ in range(STEPS):
        chance = expit(design @ at)
        said = np.clip(reviewer.false_alarms + clear * chance, FLAT, 1 - FLAT)
        slope = clear * chance * (1 - chance)
        weight = slope**2 / (said * (1 - said))
        gradient = design.T @ (slope * (yes - said) / (said * (1 - said))) - (at - mean) / sd**2
        precision = (design.T * weight) @ design + np.diag(1 / sd**2)
        step = cho_solve(cho_factor(precision, lower=True), gradient)
        at = at + step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-7:
            break
    factor = np.linalg.cholesky(precision)
    likelihood = np.sum(yes * np.log(said) + (1 - yes) * np.log1p(-said))
    before = -0.5 * np.sum(((at - mean) / sd) ** 2) - np.log(sd).sum()
    return at, factor, float(likelihood + before - np.log(np.diag(factor)).sum())


def plausible_missed(expected: Floats, variance: Floats, seen: float, reviewer: ReviewerError) -> Floats:
    """Log-plausibility (draws, missed) of each draw with each share `MISSED` of missed mitoses, by squares.

    `expected` and `variance` (draws,) are those of the number of mitoses in the squares that have a
    detection; `seen` is what the reviewer counted in all squares together.
    """
    kept = 1 - reviewer.missed
    mean = kept * expected[:, None] * (1 + MISSED)
    spread = kept**2 * variance[:, None] + kept * (reviewer.missed + MISSED) * expected[:, None] + 0.25
    return np.asarray(-0.5 * (seen - mean) ** 2 / spread - 0.5 * np.log(spread) - MISSED / USUAL_MISSED)


def drawn_missed(plausible: Floats, draws: int, seed: int = 0) -> tuple[Integers, Floats]:
    """Which draws of the curve agree with the squares, and the share of missed mitoses with each."""
    weights = np.exp(plausible - plausible.max())
    total = weights.sum(axis=1)
    generator = np.random.default_rng(seed)
    chosen = np.searchsorted(total.cumsum(), generator.uniform(size=draws) * total.sum())
    chosen = np.minimum(chosen, len(total) - 1)
    steps = weights[chosen].cumsum(axis=1)
    level = generator.uniform(size=(draws, 1)) * steps[:, -1:]
    return chosen.astype(np.int64), np.asarray(MISSED[(steps < level).sum(axis=1)])


# ---- the count of a slide ----


@dataclass(frozen=True, slots=True)
class CalibratedCount:
    """What the count of a slide would be if every mitosis on it were known, as far as that can be said."""

    count: float
    """Expected: by the definition of the count, over all maps that are possible."""
    count_interval: tuple[float, float]
    """Where the count of this very slide lies."""
    section_interval: tuple[float, float]
    """Where that of another section of the tumour lies: the slide's, and the chance of what was cut."""
    in_hotspot: float
    """Mitoses expected in the machine's hotspot ..."""
    in_hotspot_interval: tuple[float, float]
    """... and where their true number lies."""
    grade_probabilities: tuple[float, float, float]
    """Of grades 1, 2 and 3, by another section, too."""
    answers_to_halve: int | None
    """Answers that would halve the interval of this slide; None where answers on other slides cannot."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """What a count needs to know of a laboratory."""

    chances: Chances
    counted_from: float
    """The count's threshold where it was learned."""
    answers: int
    """How many it was learned from."""

    def chance(self, slide: Specimen) -> Floats:
        """Chance of a mitosis of each detection, over all that is not known."""
        known = evidence(
            slide.places * slide.mpp, slide.probability, counted_from=self.counted_from,
            area_mm2=slide.area_mm2, config=slide.config,
        )  # fmt: skip
        effect = self.chances.effects(known, np.random.default_rng(slide.config.seed))
        total = np.zeros(len(known))
        for coefficients, moved in zip(self.chances.coefficients[:, :-1], effect, strict=True):
            total += expit(known @ coefficients + moved)
        return total / len(self.chances)

    def count(self, slide: Specimen, hotspot: Hotspot) -> CalibratedCount:
        """The count of one of the laboratory's slides."""
        return calibrated_count(
            slide, self.chances, hotspot, counted_from=self.counted_from, answers=self.answers
        )


def calibrated_count(
    slide: Specimen, chances: Chances, hotspot: Hotspot, *, counted_from: float, answers: int
) -> CalibratedCount:
    """The count of a slide of the laboratory that `chances` were learned in, from `answers` answers.

    Of the detections each is a mitosis with its chance, on a slide whose effect is not known; missed ones lie
    where others were found. Another section has each mitosis a Poisson(1) number of times; as that adds
    noise to a high percentile, it is moved back to the slide's own, as in `uncertainty`.
    """
    config, points_um = slide.config, slide.places * slide.mpp
    if not len(points_um):
        return _nothing_found(slide, chances)
    known = evidence(
        points_um, slide.probability, counted_from=counted_from, area_mm2=slide.area_mm2, config=config
    )
    draws = min(len(chances), max(100, MOST_WEIGHTS // len(points_um)))
    generator = np.random.default_rng(config.seed)
    statistic = total_count if slide.is_small else hotspot_count(points_um, config)
    inside = _inside(slide, hotspot)
    effects, usual = (
        chances.effects(known, generator),
        chances.coefficients[:, -1] * chances.reference.offset(known),
    )
    own, section, within, steady = [], [], [], []
    for start in range(0, draws, CHUNK):
        part = slice(start, min(start + CHUNK, draws))
        curve = known @ chances.coefficients[part, :-1].T
        chance = expit(curve + effects[part])
        there = (generator.uniform(size=chance.shape) < chance) + generator.poisson(
            chance * chances.missed[part]
        )
        own.append(statistic(there.astype(np.int32)))
        section.append(statistic(generator.poisson(there).astype(np.int32)))
        within.append(there[inside].sum(axis=0))
        steady.append((expit(curve[inside] + usual[part]) * (1 + chances.missed[part])).sum(axis=0))
    counts = np.concatenate(own)
    drawn = _moved(np.concatenate(section), counts)
    found = np.concatenate(within).astype(np.float64)
    shares = [float(np.mean(config.grade_of(drawn) == grade)) for grade in (1, 2, 3)]
    (low, high), (first, last) = _interval(counts, config), _interval(drawn, config)
    return CalibratedCount(
        count=float(counts.mean()),
        count_interval=(low, high),
        section_interval=(min(low, first), max(high, last)),
        in_hotspot=float(found.mean()),
        in_hotspot_interval=_interval(found, config),
        grade_probabilities=(shares[0], shares[1], shares[2]),
        answers_to_halve=_answers_to_halve(float(found.var()), np.concatenate(steady), answers),
    )


def _nothing_found(slide: Specimen, chances: Chances) -> CalibratedCount:
    """Without a detection: the counts of a rate of which nothing was seen."""
    unseen = np.random.default_rng(slide.config.seed).exponential(1.0, len(chances)) * chances.missed
    shares = [float(np.mean(slide.config.grade_of(unseen) == grade)) for grade in (1, 2, 3)]
    interval = (0.0, _interval(unseen, slide.config)[1])
    chance = (shares[0], shares[1], shares[2])
    return CalibratedCount(0.0, interval, interval, 0.0, interval, chance, None)


def _inside(slide: Specimen, hotspot: Hotspot) -> Mask:
    """Detections in the hotspot; on less tissue than it has, all."""
    if slide.is_small:
        return np.ones(len(slide.places), bool)
    away = np.hypot(slide.places[:, 0] - hotspot.x, slide.places[:, 1] - hotspot.y)
    return np.asarray(away <= hotspot.radius_px * (1 + 1e-9))


def _moved(section: Floats, own: Floats) -> Floats:
    """Counts of other sections, moved between square roots so that they lie around the slide's own."""
    roots = np.sqrt(section)
    return np.asarray(np.maximum(roots + np.median(np.sqrt(own)) - np.median(roots), 0) ** 2)


def _interval(values: npt.NDArray[Any], config: CountConfig) -> tuple[float, float]:
    tail = (1 - config.confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def _answers_to_halve(variance: float, steady: Floats, answers: int) -> int | None:
    """More answers shrink what comes from the curve and the misses, not what is chance on this slide."""
    learned = float(steady.var())
    left = variance / 4 - max(variance - learned, 0)
    if left <= 0:
        return None
    return max(0, math.ceil(answers * (learned / left - 1)))
