"""Which candidates each network learns from: pure draws over the labelled candidates of many slides.

A set is a table a slide, of the rows whose patches are to be cut. Draws with replacement do not repeat rows:
columns `hard_0`, `hard_1`, ... say how often each was drawn, so that a patch is stored once for all sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from metaphase.base.arrays import Floats32, Integers
from metaphase.labels.mining.candidates import CandidateError
from metaphase.labels.mining.config import SetConfig
from metaphase.labels.mining.labelling import NEGATIVE, POSITIVE

Tables = Mapping[str, pd.DataFrame]
"""A table for each slide, by its name; the order of the slides is part of the draw."""

_EASY, _HARD, _VALIDATION = 0, 1, 2
"""Purposes: each has its own random numbers."""


def hard_column(number: int) -> str:
    """Column of an index that says how often a patch is in difficult set `number`."""
    return f"hard_{number}"


def positives(labelled: Tables) -> dict[str, pd.DataFrame]:
    """All positives; none at all is an error."""
    next_step = "check that the reference standard names these slides and holds mitoses"
    return _labelled(labelled, POSITIVE, "positive", next_step)


@dataclass(frozen=True)
class Part:
    """Slides whose negatives are drawn together, and their share of all negatives drawn."""

    slides: tuple[str, ...]
    share: float


def whole(labelled: Tables) -> list[Part]:
    """All slides as one part."""
    return [Part(tuple(labelled), 1.0)]


def parts_by_centre(
    labelled: Tables, centres: Mapping[str, str], repeats: Mapping[str, int], balance: float
) -> list[Part]:
    """Each centre with its share of the negatives: `balance` times its share of the positives, and the rest
    by the square root of its candidates, lest a small one without positives drown. One part with everything
    where nothing is to be balanced."""
    if balance == 0:
        return whole(labelled)
    names = sorted({centres[slide] for slide in labelled})
    slides = {name: tuple(slide for slide in labelled if centres[slide] == name) for name in names}
    rows = [
        (
            sum(repeats[slide] * _count(labelled[slide], POSITIVE) for slide in slides[name]),
            sum(_count(labelled[slide], NEGATIVE) for slide in slides[name]),
        )
        for name in names
    ]
    counts = np.array(rows, np.float64)
    counts[:, 1] **= 0.5
    wanted, there = counts.T / counts.sum(axis=0).clip(min=1)[:, None]
    shares = np.where(there > 0, balance * wanted + (1 - balance) * there, 0.0)
    return [
        Part(slides[name], float(share)) for name, share in zip(names, shares / shares.sum(), strict=True)
    ]


def easy_negatives(
    labelled: Tables, config: SetConfig, parts: Sequence[Part] | None = None
) -> dict[str, pd.DataFrame]:
    """Negatives of the easy set: every negative of a part is as likely; all, where there are fewer."""
    negatives = _negatives(labelled)
    rng = np.random.default_rng((config.seed, _EASY))
    drawn: dict[str, pd.DataFrame] = {}
    for part in parts or whole(labelled):
        tables = {name: negatives[name] for name in part.slides}
        wanted = round(part.share * config.easy_negatives)
        drawn |= _taken(tables, draw_evenly([len(table) for table in tables.values()], wanted, rng))
    return {name: drawn[name] for name in labelled}


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
    labelled: Tables,
    probabilities: Mapping[str, Floats32],
    config: SetConfig,
    parts: Sequence[Part] | None = None,
) -> dict[str, pd.DataFrame]:
    """Negatives of the difficult sets, drawn with replacement, in proportion to their probability in a part.

    `probabilities` has a value for each row of each table. Rows drawn for any set come with their counts.
    """
    negatives, found = {}, {}
    for name, table in labelled.items():
        if len(probabilities[name]) != len(table):
            raise CandidateError(
                f"slide {name} has {len(table):,} candidates and {len(probabilities[name]):,} probabilities",
                next_step="ask the network again",
            )
        rows = table.assign(probability=probabilities[name])
        negatives[name] = _rows_of(rows, NEGATIVE)
        found[name] = negatives[name]["probability"].to_numpy(np.float64)
    weights = _weights(found, parts or whole(labelled), config.even_share)
    sizes = [len(values) for values in weights]
    counts = [
        draw_weighted(weights, config.hard_negatives, np.random.default_rng((config.seed, _HARD, number)))
        for number in range(config.hard_sets)
    ]
    drawn = np.split(np.stack(counts, axis=1), np.cumsum(sizes)[:-1])
    return {
        name: _counted(table, times) for (name, table), times in zip(negatives.items(), drawn, strict=True)
    }


def draw_evenly(sizes: Sequence[int], wanted: int, rng: np.random.Generator) -> list[Integers]:
    """Rows of several tables, `wanted` in all, each row as likely and none twice; in order."""
    total = sum(sizes)
    chosen = np.sort(rng.choice(total, min(wanted, total), replace=False, shuffle=False))
    starts = np.cumsum([0, *sizes])
    parts = np.split(chosen, np.searchsorted(chosen, starts[1:-1]))
    return [part - start for part, start in zip(parts, starts[:-1], strict=True)]


def draw_weighted(
    weights: Sequence[npt.NDArray[np.float64]], wanted: int, rng: np.random.Generator
) -> Integers:
    """How often each row of several tables, one after the other, comes in `wanted` draws with replacement."""
    every = np.concatenate(weights)
    if not np.isfinite(every).all() or (every < 0).any() or not every.sum() > 0:
        raise CandidateError(
            "the probabilities of the negatives are not probabilities, or all are 0",
            next_step="check the network that was asked",
        )
    edges = np.cumsum(every)
    drawn = np.searchsorted(edges, rng.random(wanted) * edges[-1], side="right")
    return np.bincount(drawn.clip(max=len(every) - 1), minlength=len(every))


def _weights(
    probabilities: Mapping[str, npt.NDArray[np.float64]], parts: Sequence[Part], even_share: float
) -> list[npt.NDArray[np.float64]]:
    """Odds of each row, slide by slide: by probability, and for `even_share` of the draws all alike."""
    odds: dict[str, npt.NDArray[np.float64]] = {}
    for part in parts:
        count = sum(len(probabilities[name]) for name in part.slides)
        total = sum(float(probabilities[name].sum()) for name in part.slides)
        for name in part.slides:
            by_probability = (1 - even_share) * probabilities[name] / (total or 1.0)
            odds[name] = part.share * (by_probability + even_share / max(1, count))
    return [odds[name] for name in probabilities]


def _count(table: pd.DataFrame, label: int) -> int:
    return int((table["label"] == label).sum())


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


def _taken(tables: Tables, rows: Sequence[Integers]) -> dict[str, pd.DataFrame]:
    return {
        name: table.iloc[chosen].reset_index(drop=True)
        for (name, table), chosen in zip(tables.items(), rows, strict=True)
    }


def _counted(table: pd.DataFrame, times: Integers) -> pd.DataFrame:
    """Rows that were drawn, and how often for each set."""
    counts = {hard_column(number): column.astype(np.int32) for number, column in enumerate(times.T)}
    return table.assign(**counts).iloc[np.flatnonzero(times.sum(axis=1))].reset_index(drop=True)
