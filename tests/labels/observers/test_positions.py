"""From answers about positions to a table: votes, additions, moves, and what a new search leaves of them."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from metaphase.base.errors import UsageError
from metaphase.labels.observers.positions import (
    MACHINE,
    REVIEWED,
    REVIEWERS,
    PositionLog,
    Reviewed,
    moved_to,
    position_name,
    reviewed_detections,
)
from metaphase.labels.observers.store import Given

MPP, THRESHOLD = 0.25, 0.5
CANDIDATES = pd.DataFrame(
    {"x": [100.0, 500.04, 900.0], "y": [100.0, 300.0, 700.0], "probability": [0.9, 0.6, 0.3]}
)


def given(observer: str, x: float, y: float, answer: str) -> Given:
    return Given(observer, position_name(x, y), answer, 1.0, "2026-01-01T00:00:00.000+00:00")


def reviewed(*answers: Given) -> Reviewed:
    return reviewed_detections("s", CANDIDATES, answers, mpp=MPP, threshold=THRESHOLD)


def test_nobody_changes_nothing() -> None:
    table = reviewed().table
    assert table["probability"].tolist() == CANDIDATES["probability"].tolist()
    assert (table["label"] == "mitosis").all()
    assert (table[REVIEWED] == "").all()
    assert reviewed().shares == ()


def test_verdicts_become_certain_or_look_alikes_and_an_unsure_one_changes_nothing() -> None:
    done = reviewed(
        given("Anna", 100, 100, "not"),
        given("Anna", 500.04, 300, "unsure"),
        given("Anna", 900, 700, "mitosis"),
        given("Anna", 2000, 2000, "mitosis"),
    )
    rows = done.table
    assert rows["label"].tolist() == ["lookalike", "mitosis", "mitosis", "mitosis"]
    assert rows["probability"].tolist() == [0.9, 0.6, 1.0, 1.0]
    np.testing.assert_array_equal(rows[MACHINE], [0.9, 0.6, 0.3, np.nan])
    assert len(done.mitoses) == 3
    (share,) = done.shares
    assert (share.counted, share.of, share.below, share.added, share.rejected) == (2, 2, 1, 1, 1)


def test_a_tie_leaves_the_machine_s_word_and_a_majority_does_not() -> None:
    tie = [given("Anna", 100, 100, "not"), given("Ben", 100, 100, "mitosis")]
    table = reviewed(*tie).table
    assert (table.loc[0, "label"], table.loc[0, "probability"], table.loc[0, REVIEWED]) == (
        "mitosis",
        0.9,
        "unsure",
    )
    assert table.loc[0, REVIEWERS] == "Anna; Ben"
    assert reviewed(*tie, given("Cem", 100, 100, "not")).table.loc[0, "label"] == "lookalike"


def test_places_that_moved_a_little_keep_their_answers_and_lost_ones_stay_mitoses() -> None:
    table = reviewed(given("Anna", 110, 100, "not"), given("Anna", 130, 100, "mitosis")).table
    assert table.loc[0, "label"] == "lookalike"  # 10 px are 2.5 um
    assert table.loc[3, ["x", "probability"]].tolist() == [130, 1.0]
    assert len(reviewed(given("Anna", 3000, 100, "not")).table) == 3


def test_two_observers_add_one_mitosis_and_a_third_rejects_it() -> None:
    added = [given("Anna", 2000, 2000, "mitosis"), given("Ben", 2006, 2000, "mitosis")]
    table = reviewed(*added).table
    assert len(table) == 4
    assert table.loc[3, REVIEWERS] == "Anna; Ben"
    assert len(reviewed(given("Cem", 2000, 2000, "not"), added[0]).table) == 3


def test_a_moved_one_is_a_mitosis_elsewhere() -> None:
    row = reviewed(given("Anna", 900, 700, moved_to(912.5, 690))).table.loc[2]
    assert (row["x"], row["y"], row["probability"], row[REVIEWED]) == (912.5, 690, 1.0, "mitosis")


def test_the_log_takes_places_and_verdicts_only_and_is_its_owner_s(tmp_path: Path) -> None:
    with PositionLog(tmp_path, 100, 200) as log:
        log.record("Anna", position_name(1, 2), "mitosis")
        log.record("Anna", position_name(1, 2), moved_to(3, 4))
        for item, answer in (
            ("1 2", "mitosis"),
            ("<b>", "not"),
            ("1.0 2.0", "perhaps"),
            ("1.0 2.0", "moved 1"),
            (position_name(-1, 2), "mitosis"),
            (position_name(101, 2), "not"),
            (position_name(1, 201), "unsure"),
            (position_name(1, 2), moved_to(1e8, 2)),
        ):
            with pytest.raises(UsageError):
                log.record("Anna", item, answer)
        assert [one.answer for one in log.current()] == [moved_to(3, 4)]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {0o600}
