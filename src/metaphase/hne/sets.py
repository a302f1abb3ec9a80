"""Which candidates each network learns from: pure draws over the labelled candidates of many slides.

A set is a table a slide, of the rows whose patches are to be cut. Draws with replacement do not repeat rows:
columns `hard_0`, `hard_1`, ... say how often each was drawn, so that a patch is stored once for all sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.hne.candidates import CandidateError
from metaphase.hne.config import SetConfig
from metaphase.hne.labelling import NEGATIVE, POSITIVE

Tables = Mapping[str, pd.DataFrame]
"""A table for each slide, by its name; the order of the slides is part of the draw."""
Rows = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]

_EASY, _HARD, _VALIDATION = 0, 1, 2
"""Purposes: each has its own random numbers."""


def hard_column(number: int) -> str:
    """Column of an index that says how often a patch is in difficult set `number`."""
    return f"hard_{number}"


def positives(labelled: Tables) -> dict[str, pd.DataFrame]:
    """All positives; none at all is an error."""
    next_step = "check that the reference standard names these slides and holds mitoses"
    return _labelled(labelled, POSITIVE, "positive", next_step)


def easy_negatives(labelled: Tables, config: SetConfig) -> dict[str, pd.DataFrame]:
    """Negatives of the easy set: every negative of every slide is as likely; all, where there are fewer."""
    negatives = _negatives(labelled)
    rng = np.random.default_rng((config.seed, _EASY))
    chosen = draw_evenly([len(table) for table in negatives.values()], config.easy_negatives, rng)
    return _taken(negatives, chosen)


def validation_set(labelled: Tables, config: SetConfig) -> dict[str, pd.DataFrame]:
    """A share of the positives and of the negatives of the validation slides, at least one of each."""
    rng = np.random.default_rng((config.seed, _VALIDATION))
    parts = []
    for tables, share in (
        (positives(labelled), config.validation_positives),
        (_negatives(labelled), config.validation_negatives),
    ):
        counts = [len(table) for table in tables.values()]
        parts.append(_taken(tables, draw_evenly(counts, max(1, round(share * sum(counts))), rng)))
    return {name: pd.concat([part[name] for part in parts], ignore_index=True) for name in labelled}


def hard_negatives(
    labelled: Tables, scores: Mapping[str, Scores], config: SetConfig
) -> dict[str, pd.DataFrame]:
    """Negatives of the difficult sets: drawn with replacement, in proportion to their score.

    `scores` has a value for each row of each table. Rows drawn for any set come with their counts.
    """
    negatives, weights = {}, []
    for name, table in labelled.items():
        if len(scores[name]) != len(table):
            raise CandidateError(
                f"slide {name} has {len(table):,} candidates and {len(scores[name]):,} scores",
                next_step="score the candidates again",
            )
        rows = table.assign(probability=scores[name])
        negatives[name] = _rows_of(rows, NEGATIVE)
        weights.append(negatives[name]["probability"].to_numpy(np.float64))
    sizes = [len(values) for values in weights]
    counts = [
        draw_weighted(weights, config.hard_negatives, np.random.default_rng((config.seed, _HARD, number)))
        for number in range(config.hard_sets)
    ]
    drawn = np.split(np.stack(counts, axis=1), np.cumsum(sizes)[:-1])
    return {
        name: _counted(table, times) for (name, table), times in zip(negatives.items(), drawn, strict=True)
    }


def draw_evenly(sizes: Sequence[int], wanted: int, rng: np.random.Generator) -> list[Rows]:
    """Rows of several tables, `wanted` in all, each row as likely and none twice; in order."""
    total = sum(sizes)
    chosen = np.sort(rng.choice(total, min(wanted, total), replace=False, shuffle=False))
    starts = np.cumsum([0, *sizes])
    parts = np.split(chosen, np.searchsorted(chosen, starts[1:-1]))
    return [part - start for part, start in zip(parts, starts[:-1], strict=True)]


def draw_weighted(weights: Sequence[npt.NDArray[np.float64]], wanted: int, rng: np.random.Generator) -> Rows:
    """How often each row of several tables, one after the other, comes in `wanted` draws with replacement."""
    every = np.concatenate(weights)
    if not np.isfinite(every).all() or (every < 0).any() or not every.sum() > 0:
        raise CandidateError(
            "the scores of the negatives are not probabilities, or all are 0",
            next_step="check the network that scored them",
        )
    edges = np.cumsum(every)
    drawn = np.searchsorted(edges, rng.random(wanted) * edges[-1], side="right")
    return np.bincount(drawn.clip(max=len(every) - 1), minlength=len(every))


def _negatives(labelled: Tables) -> dict[str, pd.DataFrame]:
    next_step = "check the tissue masks and the threshold of the candidates"
    return _labelled(labelled, NEGATIVE, "negative", next_step)


def _labelled(labelled: Tables, label: int, called: str, next_step: str) -> dict[str, pd.DataFrame]:
    """The rows of a label; none at all is an error."""
    found = {name: _rows_of(table, label) for name, table in labelled.items()}
    if not sum(map(len, found.values())):
        raise CandidateError(
            f"no {called} among the candidates of {len(labelled)} slides", next_step=next_step
        )
    return found


def _rows_of(table: pd.DataFrame, label: int) -> pd.DataFrame:
    return table[table["label"] == label].reset_index(drop=True)


def _taken(tables: Tables, rows: Sequence[Rows]) -> dict[str, pd.DataFrame]:
    return {
        name: table.iloc[chosen].reset_index(drop=True)
        for (name, table), chosen in zip(tables.items(), rows, strict=True)
    }


def _counted(table: pd.DataFrame, times: Rows) -> pd.DataFrame:
    """Rows that were drawn, and how often for each set."""
    counts = {hard_column(number): column.astype(np.int32) for number, column in enumerate(times.T)}
    return table.assign(**counts).iloc[np.flatnonzero(times.sum(axis=1))].reset_index(drop=True)
