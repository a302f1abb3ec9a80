"""A laboratory learned from what was answered about its slides: draws of one posterior.

Laboratory and slides (`populations`) are standard normal numbers before any answer. Hamiltonian Monte Carlo
starts from their mode, at the scale of the curvature there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from metaphase.base.arrays import Floats
from metaphase.counting.populations import (
    BINS,
    KINDS,
    OWN,
    SPREADS,
    STEP,
    TOP,
    Cells,
    Laboratory,
    ReviewerError,
    likelihood,
    middles_of,
    slope_of,
)

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
