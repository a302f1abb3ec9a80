"""How far the count and the grade can be trusted: a bootstrap over detections and threshold.

Each draw stands for another section of the same tumour, read at a slightly different threshold: every
detection occurs a Poisson(1) number of times, those below the drawn threshold not at all. False detections
that the model is known to make are taken away in part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import expit, logit

from metaphase.base.arrays import Floats, Points
from metaphase.counting.hotspot import Lattice, counts_of_weights, filled_percentile, lattice_around, run_ends
from metaphase.counting.specimen import CountConfig
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
        exact = tuple(float(grade == config.grade_of(count)) for grade in (1, 2, 3))
        return Uncertainty((count, count), (exact[0], exact[1], exact[2]), 0)
    lowest, _ = threshold_range(config)
    possible = probability >= lowest
    points_um, probability = points_um[possible], probability[possible]
    statistic = total_count if whole_slide or not len(points_um) else hotspot_count(points_um, config)
    drawn = centred(drawn_counts(probability, statistic, config), count, config)
    if false:
        taken = np.random.default_rng((config.seed, 1)).uniform(0, false, len(drawn))
        drawn = np.maximum(drawn - taken, 0)
    tail = (1 - config.confidence) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    low, high = min(low, count), max(high, count)
    shares = [float(np.mean(config.grade_of(drawn) == grade)) for grade in (1, 2, 3)]
    return Uncertainty((float(low), float(high)), (shares[0], shares[1], shares[2]), len(drawn))


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
    roots = np.sqrt(drawn)
    moved = np.maximum(roots + np.sqrt(count) - np.median(roots), 0) ** 2
    return np.asarray(moved)


def total_count(weights: Weights) -> Floats:
    """All detections of the slide."""
    return np.asarray(weights.sum(axis=0), np.float64)


def hotspot_count(points_um: Points, config: CountConfig) -> Statistic:
    """The percentile over non-empty positions of the hotspot."""
    lattice = coarse_lattice(points_um, config)
    ends = run_ends(points_um, lattice, config.radius_um)
    return lambda weights: filled_percentile(counts_of_weights(ends, lattice, weights), config.percentile)


def coarse_lattice(points_um: Points, config: CountConfig) -> Lattice:
    """The lattice of the slide, its step doubled until it is small enough (at most to half the radius)."""
    step = config.step_um
    lattice = lattice_around(points_um, config.radius_um, step)
    while lattice.positions > MOST_POSITIONS and 4 * step <= config.radius_um:
        step *= 2
        lattice = lattice_around(points_um, config.radius_um, step)
    return lattice


# ---- the share of atypical figures, for research ----


def atypical_share(table: pd.DataFrame, threshold: float, draws: int = 2000) -> dict[str, Any] | None:
    """Share of the mitoses, from a probability on, that are atypical, with a 95 % interval; None if unknown.

    A draw takes as many mitoses, and each is atypical by the chance that its network gives: so the interval
    knows of few figures and of doubtful ones, not of a network that is wrong about a laboratory.
    """
    if ATYPICAL not in table.columns:
        return None
    chance = table.loc[table["probability"] >= threshold, ATYPICAL].to_numpy(np.float64)
    if not len(chance) or not np.isfinite(chance).all():
        return None
    rng = np.random.default_rng(0)
    taken = rng.integers(len(chance), size=(draws, min(len(chance), MOST_TAKEN)))
    shares = (rng.random(taken.shape) < chance[taken]).mean(axis=1)
    low, high = np.quantile(shares, [0.025, 0.975])
    return {"share": float(chance.mean()), "interval": [float(low), float(high)], "of": len(chance)}
