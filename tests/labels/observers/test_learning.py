"""The learning curve grows where labels teach something, is flat where they do not, and knows too few."""

from __future__ import annotations

import numpy as np

from metaphase.labels.observers.consensus import CurvePoint, LearningCurve, learning_curve


def test_easy_labels_are_soon_enough() -> None:
    rng = np.random.default_rng(0)
    labels = rng.random(400) < 0.4
    features = rng.normal(size=(400, 3)) + 4 * labels[:, None] * [1, 0, 0]
    curve = learning_curve(features, labels, [f"p{number % 5}" for number in range(400)])
    assert curve is not None
    assert curve.points[-1].f1 > 0.93
    assert curve.enough
    assert "enough" in str(curve)
    assert [point.low <= point.f1 <= point.high for point in curve.points] == [True] * 4


def test_what_cannot_be_learnt_is_never_enough() -> None:
    rng = np.random.default_rng(1)
    labels = rng.random(400) < 0.4
    curve = learning_curve(rng.normal(size=(400, 3)), labels, [f"p{number % 5}" for number in range(400)])
    assert curve is not None
    assert not curve.enough


def test_many_features_need_many_labels() -> None:
    rng = np.random.default_rng(2)
    features = rng.normal(size=(600, 40))
    labels = features[:, :20].sum(axis=1) > 0
    patients = [f"p{number % 6}" for number in range(600)]
    few = learning_curve(features[:120], labels[:120], patients[:120])
    many = learning_curve(features, labels, patients)
    assert few is not None
    assert many is not None
    assert few.gain > 0.02
    assert many.points[-1].f1 > few.points[-1].f1


def test_too_little_says_nothing() -> None:
    features, labels = np.zeros((50, 2)), np.arange(50) < 10
    assert learning_curve(features, labels, ["a", "b"] * 25) is None
    assert learning_curve(np.zeros((80, 2)), np.arange(80) < 40, ["a"] * 80) is None


def test_the_gain_is_that_of_the_last_doubling() -> None:
    points = tuple(CurvePoint(n, f1, f1, f1) for n, f1 in ((25, 0.5), (50, 0.7), (75, 0.8), (100, 0.85)))
    assert round(LearningCurve(points).gain, 3) == 0.15
