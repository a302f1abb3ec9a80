"""The decision about each point: complete, explained, and one point a figure."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import pdist

from metaphase.base.errors import UsageError
from metaphase.labels.reference import CAUSES, COLUMNS, PLACED_COLUMNS, ReferenceConfig, decide

MPP = 0.25
GOOD = {
    "case": "one", "x": 100.0, "y": 100.0, "contrast": 2.0, "probability": 0.9, "confidence": 0.95,
    "method": "measured", "shift_x_um": 0.1, "shift_y_um": 0.0, "peak": 0.7, "peak_ratio": 3.0,
    "registration": "reliable", "x_phh3": 90.0, "y_phh3": 95.0, "candidate": "7", "problem": "",
}  # fmt: skip


def placed(*rows: dict[str, object]) -> pd.DataFrame:
    """Good points far apart, except for what each row says."""
    table = pd.DataFrame(
        [{**GOOD, "x": 1000.0 * n, "candidate": str(n), **row} for n, row in enumerate(rows)]
    )
    return table[[*PLACED_COLUMNS, "problem"]]


@pytest.mark.parametrize(
    ("row", "cause", "words"),
    [
        ({}, "", ""),
        ({"method": "rejected", "problem": "no clear match"}, "registration", "no clear match"),
        ({"registration": "failed", "problem": "the registration failed: x"}, "registration", "failed: x"),
        ({"registration": "doubtful"}, "doubtful", "doubtful"),
        ({"probability": 0.2}, "probability", "0.20 is below 0.5"),
        ({"confidence": 0.3}, "confidence", "0.30 is below 0.5"),
        ({"contrast": 0.9}, "invisible", "nothing dark"),
        ({"contrast": np.nan}, "invisible", "nothing dark"),
    ],
)
def test_each_condition_refuses_with_its_reason(row: dict[str, object], cause: str, words: str) -> None:
    table = decide(placed({}, row, {}), MPP, ReferenceConfig(min_probability=0.5))
    assert table["cause"].tolist() == ["", cause, ""]
    assert table["accepted"].tolist() == [True, cause == "", True]
    assert words in table["reason"][1]
    assert tuple(table.columns) == COLUMNS


def test_conditions_can_be_waived() -> None:
    rows = placed({"contrast": 0.5}, {"registration": "doubtful"})
    table = decide(rows, MPP, ReferenceConfig(require_visible=False, accept_doubtful=True))
    assert table["accepted"].all()
    assert table["visible"].tolist() == [False, True]


def test_the_paper_keeps_every_point_that_has_a_position() -> None:
    rows = placed(
        {"method": "rejected", "problem": "no clear match"},
        {"registration": "doubtful", "confidence": 0.0, "contrast": np.nan, "probability": 0.0},
        {"x": 1010.0},
        {"x": float("nan"), "registration": "failed", "problem": "the registration failed: x"},
    )
    table = decide(rows, MPP, ReferenceConfig(keep="all", min_probability=0.5))
    assert table["accepted"].tolist() == [True, True, True, False]
    assert table["reason"][3] == "the registration failed: x"


def test_the_more_probable_of_two_close_points_stands_for_both() -> None:
    close = {"x": 5000.0, "candidate": "weak"}, {"x": 5020.0, "probability": 0.99, "candidate": "strong"}
    invisible = {"x": 5010.0, "probability": 1.0, "contrast": 0.1}
    table = decide(placed(*close, invisible, {}), MPP)
    assert table["accepted"].tolist() == [False, True, False, True]
    assert table["reason"][0] == "the same figure as strong"
    assert table["cause"].tolist() == ["double", "", "invisible", ""]


points = st.fixed_dictionaries(
    {
        "x": st.floats(0, 300) | st.just(float("nan")),
        "y": st.floats(0, 300),
        "probability": st.floats(0, 1),
        "confidence": st.floats(0, 1),
        "contrast": st.floats(0, 3),
        "method": st.sampled_from(["measured", "consensus", "rejected"]),
        "registration": st.sampled_from(["reliable", "doubtful", "failed"]),
    }
)


@given(st.lists(points, max_size=12), st.floats(0, 20))
def test_nothing_is_lost_and_everything_explained(rows: list[dict[str, object]], apart_um: float) -> None:
    for row in rows:
        bad = row["registration"] == "failed" or row["method"] == "rejected"
        row["problem"] = "no match" if bad else ""
        row["x"] = row["x"] if bad else np.nan_to_num(row["x"])
    table = placed(*rows) if rows else placed({}).iloc[:0]
    decided = decide(table, MPP, ReferenceConfig(min_distance_um=apart_um))
    pd.testing.assert_frame_equal(decided[list(PLACED_COLUMNS)], table[list(PLACED_COLUMNS)])
    assert ((decided["cause"] == "") == decided["accepted"]).all()
    assert ((decided["reason"] == "") == decided["accepted"]).all()
    assert set(decided["cause"]) <= {"", *CAUSES}
    kept = decided.loc[decided["accepted"], ["x", "y"]].to_numpy(float)
    assert np.isfinite(kept).all()
    if len(kept) > 1 and apart_um > 0:
        assert pdist(kept).min() > apart_um / MPP
    doubles = decided["cause"] == "double"
    assert not doubles.any() or len(kept)


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in ({"min_confidence": 1.5}, {"min_probability": -0.1}, {"min_distance_um": float("nan")}):
        with pytest.raises(UsageError):
            ReferenceConfig(**wrong)
