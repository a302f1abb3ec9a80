"""Which candidates people shall label."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.errors import UsageError
from metaphase.phh3.errors import Phh3Error

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SampleConfig:
    """How many candidates to draw, and how."""

    count: int = 2000
    """Candidates to draw; all of them where there are fewer."""
    per_case: bool = False
    """Draw equally many from each case, as far as it has them; otherwise all candidates have equal odds, as
    in the paper."""
    active_share: float = 0.0
    """Share of the sample that is taken nearest to the decision line of the last network, not at random."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1 or not 0 <= self.active_share <= 1 or self.seed < 0:
            raise UsageError(
                f"a sample of {self.count} with {self.active_share:g} of it active and seed {self.seed}",
                next_step="give a count of at least 1, a share from 0 to 1 and a seed of at least 0",
            )


def draw_sample(pool: pd.DataFrame, config: SampleConfig, decision: float | None = None) -> pd.DataFrame:
    """Rows of `pool` in random order; `case` names the slide.

    With an active share, `pool` has a column `score` and `decision` is the score at the decision line.
    """
    if not len(pool):
        raise Phh3Error("there is no candidate to draw from", next_step="check the manifest and its splits")
    rng = np.random.default_rng(config.seed)
    count = min(config.count, len(pool))
    near = _nearest_to_line(pool, round(config.active_share * count), decision)
    others = np.setdiff1d(np.arange(len(pool)), near)
    draw = _draw_per_case if config.per_case else _draw_any
    chosen = np.concatenate([near, others[draw(pool["case"].to_numpy()[others], count - len(near), rng)]])
    return pool.iloc[rng.permutation(chosen)].reset_index(drop=True)


def _nearest_to_line(pool: pd.DataFrame, count: int, decision: float | None) -> Rows:
    if not count:
        return np.zeros(0, np.int64)
    if decision is None or "score" not in pool.columns:
        raise UsageError(
            "active sampling needs candidates that a network has scored",
            next_step="run metaphase phh3 classify first, or draw at random",
        )
    distance = np.abs(pool["score"].to_numpy() - decision)
    return np.argsort(distance, kind="stable")[:count]


def _draw_any(cases: npt.NDArray[np.object_], count: int, rng: np.random.Generator) -> Rows:
    return rng.permutation(len(cases))[:count]


def _draw_per_case(cases: npt.NDArray[np.object_], count: int, rng: np.random.Generator) -> Rows:
    """Deal from the cases in turn until `count` are drawn."""
    order = rng.permutation(len(cases))
    turn = pd.Series(cases[order]).groupby(cases[order], sort=False).cumcount().to_numpy()
    return order[np.argsort(turn, kind="stable")[:count]]
