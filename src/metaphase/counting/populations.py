"""Mitoses and look-alikes of one laboratory: how a detector's log-odds are spread among each, slide by slide.

A laboratory has one density of the log-odds among mitoses and one among all else. A slide has a share of
mitoses of its own, and densities that lean away from the laboratory's, by an amount that is learned, too.
Unanswered detections tell how the mixture of both looks on each slide, answers which of it are mitoses, and
squares how many were missed; laboratories are drawn from the posterior of all of it. Laboratory and slides
are standard normal numbers before any answer. Hamiltonian Monte Carlo starts from their mode, at the scale of
the curvature there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logit

from metaphase.base.arrays import Floats, Integers, Mask
from metaphase.base.errors import UsageError
from metaphase.base.foreign import finite
from metaphase.base.settings import Share, settings

CLEAREST = 1e-4
"""Probabilities nearer to 0 or 1 than this say no more."""
BINS = 28
"""Of the log-odds, in which they are counted."""
TAIL = 4.0
"""Log-odds from which on a lean of the look-alikes stays what it is."""
EDGE = 0.9
"""So far above the lowest log-odds the numbers of detections differ from slide to slide for other reasons."""
AROUND = np.array([-0.4, 0.2, 0.9])
"""Edges of the groups of detections by how many counted ones lie around."""
WALK = 4
"""Steps up to `TAIL` in which a slide's look-alikes may depart from the laboratory's."""


def log_odds(probability: Floats) -> Floats:
    """Of a probability, not beyond what is clear."""
    return np.asarray(logit(np.clip(probability, CLEAREST, 1 - CLEAREST)))


TOP = float(log_odds(np.array(1.0)))
"""Highest log-odds."""


@settings
class ReviewerError:
    """How often an answer is wrong; none where the observer is the standard."""

    missed: Share = 0.0
    """Share of the mitoses that are called something else."""
    false_alarms: Share = 0.0
    """Share of all else that is called a mitosis."""

    def __post_init__(self) -> None:
        if self.missed + self.false_alarms >= 1:
            raise UsageError(
                f"an observer who misses {self.missed:g} and sees {self.false_alarms:g} too many",
                next_step="give two shares from 0 on, together below 1",
            )

    @property
    def clear(self) -> float:
        """By how much a mitosis is called one the more often than anything else."""
        return 1 - self.missed - self.false_alarms

    def described(self, chance: Floats, answer: Floats) -> Floats:
        """Chance of a mitosis once its answer is known: the answer itself where observers do not err."""
        right, wrong = chance * (1 - self.missed), (1 - chance) * self.false_alarms
        other, true = chance * self.missed, (1 - chance) * (1 - self.false_alarms)
        tiny = np.finfo(float).tiny
        yes, no = right / np.maximum(right + wrong, tiny), other / np.maximum(other + true, tiny)
        return np.asarray(answer * yes + (1 - answer) * no)


# ---- detections, counted in cells ----


@dataclass(frozen=True, eq=False)
class Cells:
    """Detections by slide, group (how many lie around) and bin of log-odds: (slides, groups, bins)."""

    around: Floats
    """(slides, groups): log density of counted detections around, in the mean."""
    number: Floats
    answered: Floats
    yes: Floats
    """Of the answers, those that say mitosis."""
    in_squares: Floats
    """Unanswered, in squares that were counted."""

    def repeated(self, often: int) -> Cells:
        """All slides so often."""
        return Cells(*(np.concatenate([getattr(self, one.name)] * often) for one in fields(Cells)))


def cells_of(
    odds: Floats, around: Floats, slide: Integers, slides: int, floor: float,
    answer: Floats | None = None, in_square: Mask | None = None,
) -> Cells:  # fmt: skip
    """Count them; `answer` is NaN where nobody was asked."""
    groups = len(AROUND) + 1
    group = np.searchsorted(AROUND, around)
    line = slide * groups + group
    position = line * BINS + bin_of(odds, floor)
    answer = np.full(len(odds), np.nan) if answer is None else answer
    in_square = np.zeros(len(odds), bool) if in_square is None else in_square
    asked = np.isfinite(answer)

    def counted(chosen: Mask, weights: Floats | None = None) -> Floats:
        found = np.bincount(
            position[chosen], None if weights is None else weights[chosen], slides * groups * BINS
        )
        return np.asarray(found, np.float64).reshape(slides, groups, BINS)

    total, often = (np.bincount(line, weights, slides * groups) for weights in (around, None))
    mean = (total / np.maximum(often, 1)).reshape(slides, groups)
    every = np.ones(len(odds), bool)
    return Cells(mean, counted(every), counted(asked), counted(asked, answer), counted(in_square & ~asked))


def bin_of(odds: Floats, floor: float) -> Integers:
    """The bin of each."""
    width = (TOP - floor) / BINS
    return np.asarray(np.clip((odds - floor) / width, 0, BINS - 1), np.int64)


def middles_of(floor: float) -> Floats:
    """The middles of the bins."""
    return np.asarray(floor + (np.arange(BINS) + 0.5) * (TOP - floor) / BINS)


# ---- the laboratory, as numbers ----

SPREADS = {
    "share": (1.1, 0.25),
    "edge": (0.5, 0.6),
    "lean": (0.3, 0.6),
    "walk": (0.18, 0.5),
    "clearness": (0.25, 0.5),
}
"""How much slides may differ: the usual standard deviation, and how far (in logarithms) it may be off."""
KINDS = np.array([0, 1, 2, *[3] * WALK, 4])
"""Of the numbers that describe a slide, which of `SPREADS` each has."""
OWN = len(KINDS)


@lru_cache(maxsize=8)
def _leans(floor: float) -> Floats:
    middles = middles_of(floor)
    x = (middles - floor) / (TAIL - floor)
    steps = np.clip(WALK * x - np.arange(WALK)[:, None], 0, 1)
    edge = np.clip(1 - (middles - floor) / EDGE, 0, 1)
    return np.stack([edge, np.clip(x, 0, 1), *steps, np.clip(x, 0, 1.5) - 0.75])


@dataclass(frozen=True, eq=False)
class Laboratory:
    """Draws of what holds in a laboratory; arrays with as many rows as there are draws."""

    floor: float
    """Lowest log-odds of a detection."""
    others: Floats
    """(draws, bins): log density of the look-alikes ..."""
    mitoses: Floats
    """... and of the mitoses."""
    share: Floats
    """Log-odds of the share of mitoses on a usual slide."""
    around: Floats
    """By how much it rises with what lies around."""
    spreads: Floats
    """(draws, 5): how much slides differ, see `SPREADS`."""
    missed: Floats
    """Mitoses without any detection, as a share of those with one."""

    def __len__(self) -> int:
        return len(self.missed)

    @property
    def leans(self) -> Floats:
        """(7, bins), by which slides depart from the laboratory; the last is of mitoses."""
        return _leans(self.floor)

    def take(self, chosen: Any) -> Laboratory:
        """Some of the draws."""
        return Laboratory(self.floor, **{name: getattr(self, name)[chosen] for name in DRAWN})

    def mean(self) -> Laboratory:
        """Of all draws, as one."""
        return Laboratory(
            self.floor, **{name: getattr(self, name).mean(axis=0, keepdims=True) for name in DRAWN}
        )

    def densities(self, own: Floats) -> tuple[Floats, Floats]:
        """Log densities of look-alikes and mitoses (draws, bins) on slides described by `own` (draws, 8)."""
        moved = own[:, 1:] * self.spreads[:, KINDS[1:]]
        return (
            _log_density(self.others + moved[:, :-1] @ self.leans[:-1]),
            _log_density(self.mitoses + moved[:, -1:] * self.leans[-1:]),
        )

    def shares(self, own: Floats) -> Floats:
        """Log-odds of the share of mitoses on such slides."""
        return np.asarray(self.share + self.spreads[:, 0] * own[:, 0])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"floor": self.floor} | {name: np.round(getattr(self, name), 4).tolist() for name in DRAWN}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Laboratory:
        """Back from plain values; what cannot be draws is a `ValueError`."""
        drawn = {name: _numbers(values.get(name), name) for name in DRAWN}
        draws, floor = len(drawn["missed"]), finite(values.get("floor"))
        shapes = {name: one.shape for name, one in drawn.items()}
        wide = {"others": (BINS,), "mitoses": (BINS,), "spreads": (len(SPREADS),)}
        if not draws or shapes != {name: (draws, *wide.get(name, ())) for name in DRAWN}:
            raise ValueError(f"draws of the shapes {shapes}")
        if not floor < TAIL or (drawn["spreads"] < 0).any() or (drawn["missed"] < 0).any():
            raise ValueError("a lowest log-odds that leaves no room, or a negative spread")
        return cls(floor, **drawn)


DRAWN = tuple(one.name for one in fields(Laboratory) if one.name != "floor")


def _numbers(values: Any, name: str) -> Floats:
    """Numbers in lists, or in lists of lists."""
    if not isinstance(values, list) or len({len(row) if isinstance(row, list) else -1 for row in values}) > 1:
        raise ValueError(f"{name} are not a list of numbers")
    rows = [[finite(one) for one in row] if isinstance(row, list) else finite(row) for row in values]
    return np.asarray(rows, np.float64)


# ---- a slide, given the laboratory ----


def _log_density(weights: Floats) -> Floats:
    """Log weights as log densities, by row."""
    top = weights.max(axis=1, keepdims=True)
    return np.asarray(weights - top - np.log(np.exp(weights - top).sum(axis=1, keepdims=True)))


def slope_of(density: Floats, toward: Floats) -> Floats:
    """Derivative by log weights of what has the derivative `toward` by log densities exp(density)."""
    return np.asarray(toward - np.exp(density) * toward.sum(axis=-1, keepdims=True))


@dataclass(frozen=True, eq=False)
class _Likelihood:
    """Log-likelihood of cells, and its derivatives by log-odds of the share and log densities."""

    value: Floats
    """By slide."""
    by_share: Floats
    """(slides, groups)."""
    by_others: Floats
    by_mitoses: Floats
    """(slides, bins)."""
    chance: Floats
    """Of a mitosis in each cell."""


def likelihood(
    cells: Cells, share: Floats, others: Floats, mitoses: Floats, reviewer: ReviewerError
) -> _Likelihood:
    """Of all detections and answers; `share` is (slides, groups), the log densities are (slides, bins)."""
    ratio = share[:, :, None] + (mitoses - others)[:, None, :]
    chance = expit(ratio)
    mixed = others[:, None, :] - log_expit(-ratio) + log_expit(-share)[:, :, None]
    value = (cells.number * mixed).sum(axis=(1, 2))
    belong = cells.number * chance
    asked = cells.answered.nonzero()
    if len(asked[0]):
        often, yes, here = cells.answered[asked], cells.yes[asked], chance[asked]
        said = np.clip(reviewer.false_alarms + reviewer.clear * here, 1e-9, 1 - 1e-9)
        answers = yes * np.log(said) + (often - yes) * np.log1p(-said)
        value = value + np.bincount(asked[0], answers, len(value))
        belong[asked] += reviewer.clear * here * (1 - here) * (yes - often * said) / (said * (1 - said))
    expected = cells.number.sum(axis=2) * expit(share)
    by_share, by_mitoses = belong.sum(axis=2) - expected, belong.sum(axis=1)
    return _Likelihood(value, by_share, cells.number.sum(axis=1) - by_mitoses, by_mitoses, chance)


def own_of(
    laboratory: Laboratory, cells: Cells, reviewer: ReviewerError, generator: np.random.Generator
) -> tuple[Floats, Floats]:
    """What describes a slide (draws, 8), and what does so best, given its cells and draws of the laboratory.

    Its own answers count where it has any. From the mode, by Metropolis steps in all draws at once.
    """
    usual = _SlidePosterior(laboratory.mean(), cells, reviewer)
    everywhere = _SlidePosterior(laboratory, cells.repeated(len(laboratory)), reviewer)
    own = usual.mode(np.zeros((1, OWN)), NEWTON)
    best = everywhere.mode(np.repeat(own, len(laboratory), axis=0), NEWTON_EACH)
    factor = np.linalg.cholesky(np.linalg.inv(everywhere.curvature(best)))
    own, (value, _) = best, everywhere.at(best)
    for _ in range(STEPS):
        noise = generator.standard_normal(own.shape) * generator.choice(STRIDES)
        tried = own + np.einsum("dij,dj->di", factor, noise)
        there, _ = everywhere.at(tried)
        taken = np.log(generator.uniform(size=len(own))) < there - value
        own, value = np.where(taken[:, None], tried, own), np.where(taken, there, value)
    return own, best


NEWTON, NEWTON_EACH, STEPS = 20, 2, 30
STRIDES = (0.4, 0.8, 1.2)
STEP = 1e-3
"""Of differences."""


@dataclass(frozen=True, eq=False)
class _SlidePosterior:
    """Of what describes a slide, in each draw of the laboratory by itself."""

    laboratory: Laboratory
    cells: Cells
    """The slide's, repeated for each draw."""
    reviewer: ReviewerError

    def at(self, own: Floats) -> tuple[Floats, Floats]:
        """Log-posterior and its slope."""
        lab = self.laboratory
        others, mitoses = lab.densities(own)
        share = lab.shares(own)[:, None] + lab.around[:, None] * self.cells.around
        found = likelihood(self.cells, share, others, mitoses, self.reviewer)
        by_others, by_mitoses = slope_of(others, found.by_others), slope_of(mitoses, found.by_mitoses)
        slope = np.column_stack(
            [found.by_share.sum(axis=1), by_others @ lab.leans[:-1].T, by_mitoses @ lab.leans[-1:].T]
        )
        return found.value - 0.5 * (own**2).sum(axis=1), slope * lab.spreads[:, KINDS] - own

    def curvature(self, own: Floats) -> Floats:
        """By differences of slopes, (draws, 8, 8), with no eigenvalue below a half."""
        here = self.at(own)[1]
        columns = [(here - self.at(own + STEP * way)[1]) / STEP for way in np.eye(OWN)]
        values, ways = np.linalg.eigh(0.5 * (np.stack(columns, axis=2) + np.stack(columns, axis=1)))
        return np.asarray((ways * np.maximum(values, 0.5)[:, None, :]) @ np.swapaxes(ways, 1, 2))

    def mode(self, own: Floats, steps: int) -> Floats:
        """By Newton's steps, shortened where they lead down."""
        value, slope = self.at(own)
        for _ in range(steps):
            step = np.linalg.solve(self.curvature(own), slope[:, :, None])[:, :, 0]
            step /= np.maximum(1, np.linalg.norm(step, axis=1) / 2)[:, None]
            for shorter in (1.0, 0.3, 0.1):
                there, slope_there = self.at(own + shorter * step)
                better = there > value
                own, value = (
                    np.where(better[:, None], own + shorter * step, own),
                    np.where(better, there, value),
                )
                slope = np.where(better[:, None], slope_there, slope)
                step = np.where(better[:, None], 0.0, step)
                if not step.any():
                    break
            if np.abs(slope).max() < 0.05:
                break
        return own


# ---- what is supposed before any answer ----

RATIO_SLOPE, RATIO_SD, RATIO_STEP = 1.1, 0.35, 0.35
"""By how much the log ratio of the densities rises with the log-odds, and how much that may change from knot
to knot. The bundled model has slopes of 1.1 to 1.7 on MiDeSeC and MITOS-ATYPIA-14."""
OTHERS_SLOPE, OTHERS_SD, OTHERS_STEP = -1.0, 0.5, 0.35
"""By how much the log density of the look-alikes falls with the log-odds, and how much that may change from
bin to bin."""
USUAL = {
    "share": (-3.5, 1.5),
    "around": (0.5, 0.4),
}
"""Mean and standard deviation: of the share of mitoses in log-odds, and of its rise with what is around."""
MISSED = (0.08, 0.9)
"""Mitoses without any detection, as a share of those with one: usually, and how far that may be off (in
logarithms)."""
USUAL_PRIORS, SPREAD_PRIORS = (np.array(list(each.values())) for each in (USUAL, SPREADS))
KNOTS = 9
"""Of the log ratio of the densities."""
LABORATORY = BINS + KNOTS - 1 + len(USUAL) + len(SPREADS) + 1
"""Numbers that describe a laboratory."""


# ---- the posterior, and its draws ----

CHAINS, WARM_UP, KEPT, LEAPS = 10, 50, 400, 8


@dataclass(frozen=True, eq=False)
class Learned:
    """Draws of a laboratory, and of its slides."""

    laboratory: Laboratory
    own: Floats
    """(draws, slides, 8)."""


class Posterior:
    """Of laboratory and slides together, over standard normal numbers."""

    def __init__(
        self, cells: Cells, floor: float, seen: float, known: float, reviewer: ReviewerError
    ) -> None:
        """`seen` mitoses in all squares together, of which `known` were answered for by themselves."""
        self.cells, self.floor, self.reviewer = cells, floor, reviewer
        self.seen, self.known = seen, known
        self.slides = len(cells.number)
        knots = np.linspace(floor, TOP, KNOTS)
        hats = np.stack([np.interp(middles_of(floor), knots, one) for one in np.eye(KNOTS)], axis=1)
        ratio = hats @ (np.tri(KNOTS, KNOTS - 1, -1) * (knots[1] - knots[0]))
        walk = np.tri(KNOTS - 1) * RATIO_STEP
        walk[:, 0] = RATIO_SD
        falls = np.tri(BINS, BINS - 1, -1) * (TOP - floor) / BINS
        steps = np.tri(BINS - 1) * OTHERS_STEP
        steps[:, 0] = OTHERS_SD
        # What turns standard normal numbers into log densities over the bins.
        self.others, self.others_mean = (
            np.column_stack([falls @ steps, np.eye(BINS)[0]]),
            OTHERS_SLOPE * falls.sum(axis=1),
        )
        self.ratio, self.ratio_mean = ratio @ walk, RATIO_SLOPE * ratio.sum(axis=1)
        self.size = LABORATORY + self.slides * OWN
        self._cells = cells

    def laboratory(self, numbers: Floats) -> Laboratory:
        """What rows of numbers (draws, size) stand for."""
        parts = self._parts(numbers)
        others = self.others_mean + parts["others"] @ self.others.T
        level = USUAL_PRIORS[:, 0] + USUAL_PRIORS[:, 1] * parts["usual"]
        return Laboratory(
            self.floor,
            others,
            others + self.ratio_mean + parts["ratio"] @ self.ratio.T,
            level[:, 0],
            level[:, 1],
            SPREAD_PRIORS[:, 0] * np.exp(SPREAD_PRIORS[:, 1] * np.clip(parts["spreads"], -5, 5)),
            MISSED[0] * np.exp(MISSED[1] * np.clip(parts["missed"][:, 0], -5, 5)),
        )

    def own(self, numbers: Floats) -> Floats:
        """(draws, slides, 8)."""
        return numbers[:, LABORATORY:].reshape(len(numbers), self.slides, OWN)

    @staticmethod
    def _parts(numbers: Floats) -> dict[str, Floats]:
        sizes = {
            "others": BINS,
            "ratio": KNOTS - 1,
            "usual": len(USUAL),
            "spreads": len(SPREADS),
            "missed": 1,
        }
        ends = np.cumsum([0, *sizes.values()])
        return {name: numbers[:, a:b] for name, a, b in zip(sizes, ends[:-1], ends[1:], strict=True)}

    def at(self, numbers: Floats) -> tuple[Floats, Floats]:
        """Log-posterior of each row of numbers, and its slope."""
        rows = len(numbers)
        if len(self._cells.number) != rows * self.slides:
            self._cells = self.cells.repeated(rows)
        cells, lab = self._cells, self.laboratory(numbers)
        own = self.own(numbers).reshape(-1, OWN)
        every = lab.take(np.repeat(np.arange(rows), self.slides))
        others, mitoses = every.densities(own)
        share = every.shares(own)[:, None] + every.around[:, None] * cells.around
        found = likelihood(cells, share, others, mitoses, self.reviewer)
        squares, by_chance, by_missed = self._squares(found.chance, lab.missed)
        by_share, by_others, by_mitoses = found.by_share, found.by_others, found.by_mitoses
        if by_chance.any():
            moved = cells.in_squares * found.chance * (1 - found.chance)
            moved *= np.repeat(by_chance, self.slides)[:, None, None]
            by_share = by_share + moved.sum(axis=2)
            by_others, by_mitoses = by_others - moved.sum(axis=1), by_mitoses + moved.sum(axis=1)
        by_others, by_mitoses = slope_of(others, by_others), slope_of(mitoses, by_mitoses)
        leans = lab.leans
        by_own = np.column_stack(
            [by_share.sum(axis=1), by_others @ leans[:-1].T, by_mitoses @ leans[-1:].T]
        ).reshape(rows, self.slides, OWN)
        of_mitoses, of_others = (
            each.reshape(rows, self.slides, BINS).sum(axis=1) for each in (by_mitoses, by_others)
        )
        around = (by_share * cells.around).reshape(rows, -1).sum(axis=1)
        spreads = (by_own * self.own(numbers)).sum(axis=1) @ np.eye(len(SPREADS))[KINDS]
        slope = np.concatenate([
            (of_mitoses + of_others) @ self.others,
            of_mitoses @ self.ratio,
            np.column_stack([by_share.reshape(rows, -1).sum(axis=1), around]) * USUAL_PRIORS[:, 1],
            spreads * lab.spreads * SPREAD_PRIORS[:, 1],
            (by_missed * lab.missed * MISSED[1])[:, None],
            (by_own * lab.spreads[:, None, KINDS]).reshape(rows, -1),
        ], axis=1)  # fmt: skip
        value = found.value.reshape(rows, -1).sum(axis=1) + squares - 0.5 * (numbers**2).sum(axis=1)
        return value, slope - numbers

    def _squares(self, chance: Floats, missed: Floats) -> tuple[Floats, Floats, Floats]:
        """Log-likelihood of what was seen in squares, and its slopes by a mitosis found and the share missed.

        What the spread adds to the slopes is left out; draws do not depend on it.
        """
        if not self.cells.in_squares.any() and not self.known:
            return (np.zeros(len(missed)),) * 3
        kept, there = 1 - self.reviewer.missed, np.flatnonzero(self.cells.in_squares)
        often = self.cells.in_squares.ravel()[there]
        chance = chance.reshape(len(missed), -1)[:, there]
        expected, variance = self.known + chance @ often, (chance * (1 - chance)) @ often
        mean = kept * expected * (1 + missed)
        spread = kept**2 * variance + kept * (self.reviewer.missed + missed) * expected + 0.25
        away = (self.seen - mean) / spread
        value = -0.5 * away * (self.seen - mean) - 0.5 * np.log(spread)
        return value, away * kept * (1 + missed), away * kept * expected


def learn(posterior: Posterior, seed: int = 0) -> Learned:
    """Draws of a posterior, by Hamiltonian Monte Carlo from its mode, at the scale of its curvature there."""

    def downhill(numbers: Floats) -> tuple[float, Floats]:
        value, slope = posterior.at(numbers[None])
        return -float(value[0]), -slope[0]

    start = minimize(
        downhill, np.zeros(posterior.size), jac=True, method="L-BFGS-B", options={"maxiter": 300}
    ).x
    ways = STEP * np.eye(posterior.size)
    curvature = (posterior.at(start - ways)[1] - posterior.at(start + ways)[1]) / (2 * STEP)
    values, axes = np.linalg.eigh(0.5 * (curvature + curvature.T))
    scale = axes / np.sqrt(np.maximum(values, 0.5))
    rows = np.concatenate(list(_chains(posterior, start, scale, np.random.default_rng(seed))))
    return Learned(posterior.laboratory(rows), posterior.own(rows))


def _chains(
    posterior: Posterior, start: Floats, scale: Floats, generator: np.random.Generator
) -> Iterator[Floats]:
    """Rows of numbers, one of each chain at a time."""
    here = start + 0.5 * generator.standard_normal((CHAINS, len(start))) @ scale.T
    value, slope = posterior.at(here)
    length = 0.25
    for number in range(WARM_UP + KEPT // CHAINS):
        speed = generator.standard_normal(here.shape)
        position, there, slope_there, moving = here, value, slope, speed
        each = length * generator.uniform(0.7, 1.3)
        for _ in range(LEAPS):
            moving = moving + 0.5 * each * slope_there @ scale
            position = position + each * moving @ scale.T
            there, slope_there = posterior.at(position)
            moving = moving + 0.5 * each * slope_there @ scale
        gain = np.nan_to_num(
            there - value + 0.5 * ((speed**2).sum(axis=1) - (moving**2).sum(axis=1)), nan=-np.inf
        )
        taken = np.log(generator.uniform(size=CHAINS)) < gain
        here, slope = (
            np.where(taken[:, None], new, old) for new, old in ((position, here), (slope_there, slope))
        )
        value = np.where(taken, there, value)
        if number < WARM_UP:
            length *= float(np.exp(0.3 * (np.exp(np.minimum(gain, 0)).mean() - 0.8)))
        else:
            yield here
