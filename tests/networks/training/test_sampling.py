"""Batches are balanced and reproducible; splits do not leak."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import precision_recall_curve

from metaphase.base.errors import TrainingError
from metaphase.networks.training.data import balanced_batches, check_disjoint, split_cases
from metaphase.networks.training.progress import best_f1

label_lists = st.lists(st.integers(0, 1), min_size=4, max_size=80).filter(
    lambda labels: 0 < sum(labels) < len(labels)
)


@given(labels=label_lists, half=st.integers(1, 8), seed=st.integers(0, 9), epoch=st.integers(0, 3))
def test_every_batch_is_half_and_half(labels: list[int], half: int, seed: int, epoch: int) -> None:
    array = np.array(labels)
    batches = balanced_batches(array, 2 * half, seed=seed, epoch=epoch)
    assert batches.shape == (max(1, len(labels) // (2 * half)), 2 * half)
    assert (array[batches].sum(axis=1) == half).all()
    np.testing.assert_array_equal(batches, balanced_batches(array, 2 * half, seed=seed, epoch=epoch))


@given(labels=label_lists, seed=st.integers(0, 9))
def test_no_patch_comes_twice_before_all_came_once(labels: list[int], seed: int) -> None:
    array = np.array(labels)
    batches = balanced_batches(array, 2, seed=seed, epoch=0, samples=300)
    for label in (0, 1):
        shown = batches[array[batches] == label]
        counts = np.bincount(shown, minlength=len(array))[array == label]
        assert counts.max() - counts.min() <= 1


def test_epochs_differ() -> None:
    labels = np.arange(100) % 2
    first, second = (balanced_batches(labels, 10, seed=0, epoch=epoch) for epoch in (0, 1))
    assert (first != second).any()


@pytest.mark.parametrize(("labels", "missing"), [([0, 0], "positive"), ([1, 1], "negative")])
def test_empty_class(labels: list[int], missing: str) -> None:
    with pytest.raises(TrainingError, match=f"no {missing} patches"):
        balanced_batches(np.array(labels), 2, seed=0, epoch=0)


def test_slide_on_both_sides_is_refused() -> None:
    with pytest.raises(TrainingError, match="slide b is in train and in validation"):
        check_disjoint("slide", train=pd.Series(["a", "b"]), validation=pd.Series(["b", "c"]))
    check_disjoint("slide", train=pd.Series(["a", "a"]), validation=pd.Series(["c"]))


@given(seed=st.integers(0, 99))
def test_splits_by_case_cover_and_do_not_overlap(seed: int) -> None:
    cases = [f"case{i}" for i in range(18)] * 3
    splits = split_cases(cases, counts={"train": 11, "validation": 3, "test": 4}, seed=seed)
    assert [len(part) for part in splits.values()] == [11, 3, 4]
    assert sorted(case for part in splits.values() for case in part) == sorted(set(cases))


def test_too_few_cases() -> None:
    with pytest.raises(TrainingError, match="3 cases cannot be split"):
        split_cases(["a", "b", "c"], counts={"train": 2, "validation": 2}, seed=0)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 1)), min_size=1, max_size=60))
def test_best_f1_equals_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    probabilities, labels = np.array([p / 20 for p, _ in pairs]), np.array([label for _, label in pairs])
    ours = best_f1(probabilities, labels)
    if not labels.any():
        assert ours.f1 == 0
        return
    precision, recall, _ = precision_recall_curve(labels, probabilities)
    total = np.maximum(precision + recall, 1e-12)
    assert ours.f1 == pytest.approx((2 * precision * recall / total).max())
    called = probabilities >= ours.threshold
    assert ours.precision == pytest.approx((labels[called] == 1).mean())
