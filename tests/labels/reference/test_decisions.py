"""People's decisions replace the automatic ones, and only where they were made."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from metaphase.base.tables import write_table
from metaphase.labels.reference import (
    ReferenceStandardError,
    apply_decisions,
    decide,
    read_decisions,
    read_reference,
    write_reference,
)
from tests.labels.reference.test_table import MPP, placed


@pytest.fixture
def table() -> pd.DataFrame:
    """Accepted, refused, accepted, and one without a position."""
    lost = {"registration": "failed", "problem": "failed", "x": float("nan"), "y": float("nan")}
    return decide(placed({}, {"contrast": 0.5}, {}, lost), MPP)


def decision(row: int, what: str, when: str = "2026-01-01T10:00", **changes: object) -> dict[str, object]:
    positions = {"case": "one", "x": 1000.0 * row, "y": 100.0, "x_phh3": 90.0, "y_phh3": 95.0}
    return {**positions, "decision": what, "observer": "Anna", "time": when, **changes}


def test_decisions_change_what_is_accepted_and_say_who(table: pd.DataFrame) -> None:
    given = pd.DataFrame([decision(0, "reject"), decision(1, "accept", observer="Ben")])
    done = apply_decisions(table, given)
    assert done.table["accepted"].tolist() == [False, True, True, False]
    assert done.table["automatic"].tolist() == [True, False, True, False]
    assert done.table["observer"].tolist() == ["Anna", "Ben", "", ""]
    assert (done.reviewed, done.changed, done.stale) == (2, 2, 0)
    again = apply_decisions(done.table, given)
    pd.testing.assert_frame_equal(again.table, done.table)
    back = apply_decisions(done.table, given.iloc[:0])
    pd.testing.assert_frame_equal(back.table, table)


def test_the_latest_of_several_counts(table: pd.DataFrame) -> None:
    late, early = decision(0, "accept", "2026-02-01"), decision(0, "reject", "2026-01-01", observer="Ben")
    done = apply_decisions(table, pd.DataFrame([late, early]))
    assert done.table["accepted"][0]
    assert (done.table["observer"][0], done.reviewed, done.changed) == ("Anna", 1, 0)


def test_decisions_about_other_places_do_nothing(table: pd.DataFrame) -> None:
    moved = decision(0, "reject", x=30.0)
    other = decision(0, "reject", case="two")
    close = decision(2, "reject", x=2001.5)
    done = apply_decisions(table, pd.DataFrame([moved, other, close]))
    assert (done.stale, done.reviewed) == (2, 1)
    assert done.table["accepted"].tolist() == [True, False, False, False]


def test_files_keep_everything(table: pd.DataFrame, tmp_path: Path) -> None:
    given = pd.DataFrame([decision(0, "reject", case="01"), decision(1, "accept")])
    write_table(tmp_path / "d.csv", given)
    pd.testing.assert_frame_equal(read_decisions(tmp_path / "d.csv"), given[list(given)], check_dtype=False)
    done = apply_decisions(table, given).table
    write_reference(tmp_path, done, shapes=True)
    for name in ("reference.parquet", "reference.csv"):
        pd.testing.assert_frame_equal(read_reference(tmp_path / name), done, check_dtype=False)


def test_a_word_that_is_no_decision_is_named(tmp_path: Path) -> None:
    pd.DataFrame([decision(0, "accept"), decision(1, "perhaps")]).to_csv(tmp_path / "d.csv", index=False)
    with pytest.raises(ReferenceStandardError, match="row 2 decides 'perhaps'"):
        read_decisions(tmp_path / "d.csv")
