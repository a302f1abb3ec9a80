"""What is said beside a count: mitotic scores by Nottingham's thresholds or one's own, and
how many of the figures are atypical."""

from __future__ import annotations

import math

import numpy as np
from pydantic import computed_field

from metaphase.base.later import pandas as pd
from metaphase.base.typed import Stored
from metaphase.counting.specimen import FIELDS, CountConfig, field_mm2
from metaphase.detections.table import ATYPICAL

NOTTINGHAM = {
    40: (4, 9),
    41: (4, 9),
    42: (5, 10),
    43: (5, 10),
    44: (5, 11),
    45: (5, 11),
    46: (6, 12),
    47: (6, 12),
    48: (6, 13),
    49: (6, 13),
    50: (7, 14),
    51: (7, 14),
    52: (7, 15),
    53: (8, 16),
    54: (8, 16),
    55: (8, 17),
    56: (8, 17),
    57: (9, 18),
    58: (9, 19),
    59: (9, 19),
    60: (10, 20),
    61: (10, 21),
    62: (11, 22),
    63: (11, 22),
    64: (11, 23),
    65: (12, 24),
    66: (12, 24),
    67: (12, 25),
    68: (13, 26),
    69: (13, 27),
}
"""Most mitotic figures in ten high-power fields of scores 1 and 2, by the field's diameter in hundredths of a
millimetre: NHSBSP Publication 58 (2005), Pathology reporting of breast disease, and the CAP protocol."""
AREA_TOLERANCE = 0.01
"""Of the counted area: pixels of a tissue mask."""


class MitoticScore(Stored):
    """A score from 1 to 3 by one rule, or a range where the interval spans several."""

    rule: str
    """By which thresholds."""
    most: tuple[float, float]
    """Most figures of scores 1 and 2, in the counted area."""
    found: int
    """Score of the figures found."""
    low: int
    """Lowest score that the interval allows."""
    high: int
    """Highest score that the interval allows."""

    @property
    def withheld(self) -> bool:
        """Whether nothing is known: every score is possible."""
        return self.high - self.low == 2

    @computed_field  # type: ignore[prop-decorator]
    @property
    def text(self) -> str:
        """For reading: `2`, `1 to 2`, `withheld`."""
        if self.withheld:
            return "withheld"
        return f"{self.low}" if self.low == self.high else f"{self.low} to {self.high}"


def mitotic_scores(
    config: CountConfig, count: int, interval: tuple[int, int] | None, counted_mm2: float
) -> tuple[MitoticScore, ...]:
    """The scores of a count by each rule, that in force first: thresholds of one's own, then Nottingham's.

    `interval` holds the lowest and highest number of true figures, where these are known. On less tissue than
    the rule asks for, there may be as many figures in what is missing.
    """
    low_end, high_end = interval or (count, count)
    highest = float(high_end)
    if counted_mm2 < config.area_mm2 * (1 - AREA_TOLERANCE):
        highest = max(high_end, 1) * (config.area_mm2 / counted_mm2 if counted_mm2 > 0 else math.inf)

    def scored(rule: str, most: tuple[float, float]) -> MitoticScore:
        found, low, high = (1 + sum(number > edge for edge in most) for number in (count, low_end, highest))
        return MitoticScore(rule=rule, most=most, found=found, low=min(found, low), high=max(found, high))

    diameter = config.field_diameter_mm
    one, two = NOTTINGHAM[round(100 * diameter)]
    share = config.area_mm2 / (FIELDS * field_mm2(diameter))
    scores = [scored(f"Nottingham, fields of {diameter:g} mm", (one * share, two * share))]
    if config.thetas_given:
        scores.insert(0, scored("theta1 and theta2", (config.theta1, config.theta2)))
    return tuple(scores)


# ---- the share of atypical figures, for research ----

MOST_DRAWN = 5000
"""Mitoses in a draw of the share of atypical ones, at most."""


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
    drawn = rng.integers(len(chance), size=(draws, min(len(chance), MOST_DRAWN)))
    shares = (rng.random(drawn.shape) < chance[drawn]).mean(axis=1)
    low, high = np.quantile(shares, [0.025, 0.975])
    return AtypicalShare(share=float(chance.mean()), interval=(float(low), float(high)), of=len(chance))
