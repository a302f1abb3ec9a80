"""Simulated observers make the errors they are said to make."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from metaphase.base.errors import UsageError
from metaphase.labels.observers.project import DEFAULT_ANSWERS
from metaphase.simulation.observers import (
    ARTEFACT,
    FOUR_OBSERVERS,
    MITOSIS,
    NOT,
    UNSURE,
    Observer,
    simulate_answers,
    true_labels,
)


def test_error_rates() -> None:
    truth = pd.Series(["mitosis"] * 20_000 + ["not"] * 20_000, index=[f"i{n}" for n in range(40_000)])
    observer = Observer("a", missed=0.2, false_alarms=0.1, careless=0.0, unsure=0.05, seconds=3.0)
    answers = simulate_answers(truth, [observer], seed=1)
    right = answers["answer"].to_numpy() == truth.to_numpy()
    assert right[:20_000].mean() == pytest.approx(0.8 * 0.95, abs=0.01)
    assert right[20_000:].mean() == pytest.approx(0.9 * 0.95, abs=0.01)
    assert answers["seconds"].median() == pytest.approx(3.0, rel=0.03)


def test_observers_err_independently() -> None:
    truth = pd.Series(["mitosis"] * 5000, index=[f"i{n}" for n in range(5000)])
    answers = simulate_answers(truth, FOUR_OBSERVERS)
    wrong = answers.pivot(index="item", columns="observer", values="answer") != "mitosis"
    assert wrong.corr().to_numpy()[~np.eye(4, dtype=bool)].max() < 0.06


def test_a_perfect_observer_says_the_truth() -> None:
    truth = pd.Series(["mitosis", "not", "artefact"], index=["a", "b", "c"])
    answers = simulate_answers(truth, [Observer("x", 0, 0, 0, 0)])
    assert answers["answer"].tolist() == truth.tolist()
    with pytest.raises(UsageError):
        Observer("x", missed=1.5)


def test_true_labels_come_from_the_nearest_stained_object() -> None:
    truth = pd.DataFrame(
        {
            "category": ["mitosis", "brown_nucleus", "mitosis", "artefact"],
            "phh3_positive": [True, True, False, True],
            "in_phh3": True,
            "x_phh3": [100.0, 300.0, 500.0, 700.0],
            "y_phh3": 100.0,
        }
    )
    candidates = pd.DataFrame({"x": [110.0, 305.0, 500.0, 700.0, 140.0], "y": 100.0})
    expected = ["mitosis", "not", "artefact", "artefact", "artefact"]
    assert true_labels(candidates, truth, mpp=0.25).tolist() == expected


def test_they_answer_in_the_words_of_the_labelling_page() -> None:
    assert tuple(answer.name for answer in DEFAULT_ANSWERS) == (MITOSIS, NOT, ARTEFACT, UNSURE)
