"""Matching against brute force: every assignment of small random cases."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaphase.detections.matching import NOBODY, match, pairs_within

COORDINATES = st.integers(0, 12).map(float)
RADIUS = 3.0


@st.composite
def scenes(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Up to six detections with probabilities (ties included), up to five truths, crowded."""
    points = st.lists(st.tuples(COORDINATES, COORDINATES), max_size=6)
    detections = np.array(draw(points), float).reshape(-1, 2)
    truths = np.array(draw(st.lists(st.tuples(COORDINATES, COORDINATES), max_size=5)), float).reshape(-1, 2)
    levels = st.sampled_from([0.1, 0.4, 0.5, 0.8, 0.9])
    probability = np.array([draw(levels) for _ in detections], float)
    return detections, probability, truths


def largest(detections: np.ndarray, truths: np.ndarray) -> tuple[int, float]:
    """Most matches, and the least total distance with that many, over all one-to-one assignments."""
    best = (0, 0.0)
    slots = [*range(len(truths)), *[NOBODY] * len(detections)]
    for chosen in set(permutations(slots, len(detections))):
        pairs = [(d, t) for d, t in enumerate(chosen) if t != NOBODY]
        lengths = [float(np.linalg.norm(detections[d] - truths[t])) for d, t in pairs]
        if all(length <= RADIUS for length in lengths):
            best = min(best, (-len(pairs), sum(lengths)))
    return -best[0], best[1]


@given(scenes())
def test_optimal_equals_brute_force_at_every_threshold(
    scene: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    detections, probability, truths = (part[:4] for part in scene)
    matched = match(detections, probability, truths, RADIUS, "optimal")
    for threshold in np.unique(probability):
        kept = probability >= threshold
        assert (matched[kept] != NOBODY).sum() == largest(detections[kept], truths)[0]


@given(scenes())
def test_optimal_has_the_least_distance_when_all_detections_can_match(
    scene: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    detections, probability, truths = (part[:4] for part in scene)
    matched = match(detections, probability, truths, RADIUS, "optimal")
    found = matched != NOBODY
    if found.all() and len(detections):
        total = np.linalg.norm(detections - truths[matched], axis=1).sum()
        assert total == pytest.approx(largest(detections, truths)[1])


@given(scenes(), st.sampled_from(["greedy", "optimal"]))
def test_matches_are_one_to_one_and_near(
    scene: tuple[np.ndarray, np.ndarray, np.ndarray], method: str
) -> None:
    detections, probability, truths = scene
    matched = match(detections, probability, truths, RADIUS, method)
    found = matched[matched != NOBODY]
    assert len(set(found.tolist())) == len(found)
    assert (np.linalg.norm(detections[matched != NOBODY] - truths[found], axis=1) <= RADIUS).all()


@given(scenes(), st.sampled_from(["greedy", "optimal"]))
def test_one_pass_gives_the_count_at_every_threshold(
    scene: tuple[np.ndarray, np.ndarray, np.ndarray], method: str
) -> None:
    detections, probability, truths = scene
    matched = match(detections, probability, truths, RADIUS, method)
    for threshold in np.unique(probability):
        kept = probability >= threshold
        alone = match(detections[kept], probability[kept], truths, RADIUS, method)
        assert (matched[kept] != NOBODY).sum() == (alone != NOBODY).sum()


@given(scenes())
def test_greedy_gives_each_detection_the_nearest_truth_left(
    scene: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    detections, _, truths = scene
    probability = np.linspace(0.9, 0.1, len(detections))
    free = list(range(len(truths)))
    expected = []
    for position in detections:
        near = [(float(np.linalg.norm(position - truths[t])), t) for t in free]
        near = [entry for entry in near if entry[0] <= RADIUS]
        expected.append(min(near)[1] if near else NOBODY)
        free = [t for t in free if t != expected[-1]]
    assert match(detections, probability, truths, RADIUS).tolist() == expected


@given(scenes())
def test_optimal_never_finds_fewer_than_greedy(scene: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    detections, probability, truths = scene
    greedy, optimal = (
        (match(detections, probability, truths, RADIUS, method) != NOBODY).sum()
        for method in ("greedy", "optimal")
    )
    assert optimal >= greedy


def test_optimal_beats_greedy_where_the_first_takes_the_only_truth_of_the_second() -> None:
    detections, truths = np.array([[0.0, 0], [4, 0]]), np.array([[1.0, 0], [-2, 0]])
    probability = np.array([0.9, 0.8])
    assert match(detections, probability, truths, RADIUS).tolist() == [0, NOBODY]
    assert match(detections, probability, truths, RADIUS, "optimal").tolist() == [1, 0]


def test_the_radius_itself_belongs_to_the_match() -> None:
    one = np.array([[0.0, 0.0]])
    assert match(one, np.ones(1), np.array([[7.5, 0.0]]), 7.5).tolist() == [0]
    assert match(one, np.ones(1), np.array([[7.5001, 0.0]]), 7.5).tolist() == [NOBODY]
    assert len(pairs_within(np.zeros((0, 2)), one, 1.0)) == 0
