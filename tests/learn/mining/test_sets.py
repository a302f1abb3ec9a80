"""Draws: how many, how likely, the same again."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaphase.learn.mining.candidates import CandidateError
from metaphase.learn.mining.sets import (
    POSITIVE,
    SetConfig,
    draw_evenly,
    draw_weighted,
    easy_negatives,
    hard_column,
    hard_negatives,
    validation_set,
    with_label,
)


def labelled(seed: int = 0, slides: int = 3, count: int = 200) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(seed)
    return {
        f"slide{number}": pd.DataFrame(
            {
                "x": rng.uniform(0, 1e4, count),
                "y": rng.uniform(0, 1e4, count),
                "label": rng.choice([-1, 0, 0, 0, 1], count).astype(np.int8),
            }
        )
        for number in range(slides)
    }


def counted(tables: dict[str, pd.DataFrame]) -> int:
    return sum(map(len, tables.values()))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(0, 120), st.integers(0, 99))
def test_even_draw_takes_rows_once(sizes: list[int], wanted: int, seed: int) -> None:
    rows = draw_evenly(sizes, wanted, np.random.default_rng(seed))
    assert sum(map(len, rows)) == min(wanted, sum(sizes))
    for part, size in zip(rows, sizes, strict=True):
        assert len(np.unique(part)) == len(part)
        assert ((part >= 0) & (part < size)).all()


def test_even_draw_is_even() -> None:
    hits = np.zeros(40)
    for seed in range(2000):
        first, second = draw_evenly([10, 30], 10, np.random.default_rng(seed))
        hits[first] += 1
        hits[10 + second] += 1
    assert abs(hits / 2000 - 0.25).max() < 0.05


def test_weighted_draw_follows_the_weights() -> None:
    weights = [np.array([0.0, 0.1, 0.4]), np.array([0.0, 0.5, 0.0])]
    counts = draw_weighted(weights, 100_000, np.random.default_rng(1))
    assert counts.sum() == 100_000
    np.testing.assert_allclose(counts / 100_000, np.concatenate(weights), atol=0.01)
    assert (counts[np.concatenate(weights) == 0] == 0).all()


@pytest.mark.parametrize("weight", [0.0, np.nan, -1.0])
def test_weights_that_are_none(weight: float) -> None:
    with pytest.raises(CandidateError, match="not probabilities, or all are 0"):
        draw_weighted([np.full(3, weight)], 5, np.random.default_rng(0))


def test_easy_set_is_reproducible_and_negative() -> None:
    tables = labelled()
    first, again = (easy_negatives(tables, SetConfig(easy_negatives=50, seed=4)) for _ in range(2))
    other = easy_negatives(tables, SetConfig(easy_negatives=50, seed=5))
    assert counted(first) == 50
    assert all((table["label"] == 0).all() for table in first.values())
    assert all(first[name].equals(again[name]) for name in tables)
    assert not all(first[name].equals(other[name]) for name in tables)


def test_hard_sets_hold_every_draw_once_stored() -> None:
    tables = {
        name: table.assign(probability=np.linspace(0, 1, len(table), dtype=np.float32))
        for name, table in labelled().items()
    }
    drawn = hard_negatives(tables, SetConfig(hard_negatives=300, hard_sets=4))
    names = [hard_column(number) for number in range(4)]
    every = pd.concat(drawn.values())
    assert every[names].sum().tolist() == [300] * 4
    assert (every[names].sum(axis=1) > 0).all()
    assert (every["label"] == 0).all()
    assert not every.duplicated(["x", "y"]).any()
    assert not every[names[0]].equals(every[names[1]])
    harder = every[names].sum(axis=1)
    assert np.corrcoef(harder, every["probability"])[0, 1] > 0.4


def test_hard_set_does_not_depend_on_how_many_there_are() -> None:
    tables = {name: table.assign(probability=np.float32(0.5)) for name, table in labelled().items()}
    few = hard_negatives(tables, SetConfig(hard_negatives=50, hard_sets=1))
    more = hard_negatives(tables, SetConfig(hard_negatives=50, hard_sets=3))
    for name in tables:
        chosen = more[name][more[name]["hard_0"] > 0]
        assert few[name]["x"].tolist() == chosen["x"].tolist()


def test_validation_set_has_shares_of_both_classes() -> None:
    tables = labelled(count=500)
    config = SetConfig(validation_positives=0.5, validation_negatives=0.1)
    drawn = pd.concat(validation_set(tables, config).values())
    every = pd.concat(tables.values())
    for label, share in ((1, 0.5), (0, 0.1)):
        assert (drawn["label"] == label).sum() == round(share * (every["label"] == label).sum())


def test_no_positives() -> None:
    tables = {name: table.assign(label=np.int8(0)) for name, table in labelled().items()}
    with pytest.raises(CandidateError, match="no positive among the candidates of 3 slides"):
        with_label(tables, POSITIVE)


def test_no_negatives() -> None:
    tables = {name: table.assign(label=np.int8(1)) for name, table in labelled().items()}
    with pytest.raises(CandidateError, match="no negative"):
        easy_negatives(tables, SetConfig())
