"""Merging against counting by hand; kappas against scikit-learn and their definitions."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from metaphase.base.errors import UsageError
from metaphase.labels.observers.consensus import (
    cohen_kappa,
    count_votes,
    fleiss_kappa,
    merge_answers,
    pairwise_kappas,
    winners,
)
from metaphase.labels.observers.project import DEFAULT_ANSWERS, Item, Project, Settings
from metaphase.labels.observers.store import Given

ANSWERS = ("mitosis", "not", "artefact", "unsure")


def sheets(answers: tuple[str, ...], fewest: int) -> st.SearchStrategy[list[list[str]]]:
    """Tables of answers, a row an item and a column an observer."""
    return st.integers(fewest, 5).flatmap(
        lambda observers: st.lists(
            st.lists(st.sampled_from(answers), min_size=observers, max_size=observers),
            min_size=1,
            max_size=12,
        )
    )


def project_of(count: int, settings: Settings | None = None) -> Project:
    items = [Item(f"i{n}", Path("s.tif"), 1.0 * n, 2.0, "c", None, n) for n in range(count)]
    return Project(Path("nowhere"), settings or Settings(), tuple(items))


POOLED = Settings(
    answers=tuple(
        one.model_copy(update={"counts_as": "not"}) if one.name == "artefact" else one
        for one in DEFAULT_ANSWERS
    )
)
"""What is asked for CNN2."""


def given_of(sheet: list[list[str]]) -> list[Given]:
    cells = [(f"o{o}", f"i{i}", answer) for i, row in enumerate(sheet) for o, answer in enumerate(row)]
    return [Given(observer, item, answer, 1.0, "t") for observer, item, answer in cells if answer]


@given(sheets(("", *ANSWERS), 1), st.integers(1, 4))
def test_merging_equals_counting_by_hand(sheet: list[list[str]], agree: int) -> None:
    answers = given_of(sheet)
    if agree > len({one.observer for one in answers}):
        with pytest.raises(UsageError):
            merge_answers(project_of(len(sheet)), answers, agree)
        return
    merged = merge_answers(project_of(len(sheet)), answers, agree)
    assert list(merged.labels["item"]) == [f"i{n}" for n in range(len(sheet))]
    divided = set()
    for position, row in enumerate(sheet):
        votes = Counter(answer for answer in row if answer)
        most = max(votes.values(), default=0)
        best = [answer for answer, count in votes.items() if count == most and count >= agree]
        found = merged.labels.iloc[position]
        assert found["label"] == (best[0] if len(best) == 1 else "")
        assert found["agreed"] == (len(best) == 1)
        assert [found[f"votes_{answer}"] for answer in ANSWERS] == [votes[answer] for answer in ANSWERS]
        if len(votes) > 1:
            divided.add(f"i{position}")
    assert set(merged.disagreements["item"]) == divided


@given(st.lists(st.tuples(st.sampled_from(ANSWERS), st.sampled_from(ANSWERS)), min_size=1, max_size=40))
def test_cohen_equals_scikit_learn(pairs: list[tuple[str, str]]) -> None:
    one, two = ([pair[side] for pair in pairs] for side in (0, 1))
    if len({*one, *two}) == 1:
        assert np.isnan(cohen_kappa(one, two).value)
    else:
        assert cohen_kappa(one, two).value == pytest.approx(cohen_kappa_score(one, two), abs=1e-12)


def fleiss_by_pairs(sheet: list[list[str]]) -> float:
    """Agreement of all pairs of answers to an item, against that of all answers drawn at random."""
    alike = [np.mean([a == b for a, b in combinations(row, 2)]) for row in sheet]
    pool = [answer for row in sheet for answer in row]
    chance = np.mean([[a == b for a in pool] for b in pool])
    return float((np.mean(alike) - chance) / (1 - chance))


@given(sheets(ANSWERS, 2))
def test_fleiss_equals_its_definition(sheet: list[list[str]]) -> None:
    value = fleiss_kappa(count_votes(pd.DataFrame(sheet), ANSWERS)).value
    if len({answer for row in sheet for answer in row}) == 1:
        assert np.isnan(value)
    else:
        assert value == pytest.approx(fleiss_by_pairs(sheet), abs=1e-12)


def test_fleiss_of_the_textbook() -> None:
    """Fleiss' own kind of table, 10 items by 14 observers; 0.210 is the value printed with it."""
    table = [[0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1]]
    table += [[7, 7, 0, 0, 0], [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7]]
    assert fleiss_kappa(np.array(table)).value == pytest.approx(0.210, abs=5e-4)


def test_kappa_of_nothing_is_undefined() -> None:
    assert np.isnan(cohen_kappa([], [])).all()
    assert np.isnan(fleiss_kappa(np.zeros((0, 4), np.int64))).all()
    assert np.isnan(fleiss_kappa(np.array([[1, 0], [0, 1]]))).all()  # one observer


def test_pairs_use_only_what_both_answered() -> None:
    sheet = pd.DataFrame({"A": ["x", "y", "x", ""], "B": ["x", "x", "y", "y"], "C": ["", "", "", "x"]})
    pairs = pairwise_kappas(sheet).set_index(["observer", "other"])
    assert pairs.loc[("A", "B"), "items"] == 3
    assert pairs.loc[("A", "B"), "alike"] == pytest.approx(1 / 3)
    assert pairs.loc[("A", "C"), "items"] == 0
    assert np.isnan(pairs.loc[("A", "C"), "kappa"])


def test_three_of_four_as_in_the_paper() -> None:
    votes = np.array([[3, 1, 0, 0], [2, 2, 0, 0], [0, 4, 0, 0], [2, 1, 1, 0]])
    assert winners(votes, 3).tolist() == [0, -1, 1, -1]


def test_a_tie_has_no_label_even_when_enough_agree() -> None:
    assert winners(np.array([[2, 2, 0]]), 2).tolist() == [-1]


def test_the_most_divided_come_first() -> None:
    sheet = [["not"] * 4, ["not", "not", "not", "mitosis"], ["not", "not", "mitosis", "mitosis"]]
    assert list(merge_answers(project_of(3), given_of(sheet)).disagreements["item"]) == ["i2", "i1"]


def test_fleiss_counts_complete_items_only_and_speed_is_reported() -> None:
    sheet = [["not", "not"], ["mitosis", "not"], ["mitosis", "mitosis"], ["unsure", ""]]
    merged = merge_answers(project_of(4), given_of(sheet), 2, {"o0": 5})
    assert merged.complete == 3
    assert merged.fleiss.value == pytest.approx(fleiss_by_pairs(sheet[:3]))
    row = merged.observers.set_index("observer").loc["o0"]
    assert (row["answers"], row["seconds"], row["per_hour"], row["changes"]) == (4, 1.0, 3600.0, 5)


@pytest.mark.parametrize(
    ("votes", "alone", "together"),
    [
        ("nn aa", "", "not"),
        ("m nn a", "", "not"),
        ("mm nn", "", ""),
        ("mm n a", "", ""),
        ("mmm n", "mitosis", "mitosis"),
        ("mmm a", "mitosis", "mitosis"),
        ("n aaa", "artefact", "artefact"),
        ("m n a u", "", ""),
        ("uuu n", "unsure", "unsure"),
    ],
)
def test_votes_of_four_for_mitosis_or_not(votes: str, alone: str, together: str) -> None:
    """Of the paper, *not* has artefacts, too; what three call an artefact stays known as one."""
    row = [next(name for name in ANSWERS if name[0] == vote) for vote in votes.replace(" ", "")]
    for settings, label in ((Settings(), alone), (POOLED, together)):
        labels = merge_answers(project_of(1, settings), given_of([row]), 3).labels
        assert labels[["label", "agreed"]].to_numpy().tolist() == [[label, bool(label)]]
        assert labels["votes_artefact"].tolist() == [row.count("artefact")]


def test_kappas_of_the_pooled_question_are_those_of_two_answers() -> None:
    rng = np.random.default_rng(0)
    sheet = rng.choice(ANSWERS[:3], (60, 4)).tolist()
    binary = [[answer.replace("artefact", "not") for answer in row] for row in sheet]
    merged = merge_answers(project_of(60, POOLED), given_of(sheet))
    assert merged.fleiss.value == pytest.approx(fleiss_by_pairs(sheet))
    assert merged.pooled is not None
    assert merged.pooled.fleiss.value == pytest.approx(fleiss_by_pairs(binary))
    one, two = ([row[side] for row in binary] for side in (0, 1))
    assert merged.pooled.pairs["kappa"][0] == pytest.approx(cohen_kappa_score(one, two))
    assert merge_answers(project_of(60), given_of(sheet)).pooled is None


@pytest.mark.parametrize(
    ("sheet", "agree", "words"),
    [
        ([["", ""]], 1, "nobody has answered"),
        ([["not", "not"]], 3, "3 observers cannot agree: only 2 answered.*--agree to 2"),
        ([["not"]], 0, "agree is 0"),
    ],
)
def test_impossible_merges_say_why(sheet: list[list[str]], agree: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        merge_answers(project_of(1), given_of(sheet), agree)


def test_intervals_hold_their_kappas_and_shrink_with_items() -> None:
    rng = np.random.default_rng(0)
    first = rng.choice(["m", "n"], 2000)
    second = np.where(rng.random(2000) < 0.15, rng.choice(["m", "n"], 2000), first)
    widths = []
    for count in (50, 2000):
        kappa, low, high = cohen_kappa(first[:count], second[:count])
        assert low <= kappa <= high
        widths.append(high - low)
    assert widths[0] > 3 * widths[1]
    votes = np.stack(
        [(first == "m").astype(int) + (second == "m"), (first == "n").astype(int) + (second == "n")], 1
    )
    kappa, low, high = fleiss_kappa(votes)
    assert low <= kappa <= high
    resampled = [cohen_kappa(first[rows], second[rows]).value for rows in rng.integers(0, 2000, (300, 2000))]
    np.testing.assert_allclose(
        cohen_kappa(first, second)[1:], np.percentile(resampled, (2.5, 97.5)), atol=0.01
    )
