"""From a drawn pair and its PHH3 mitoses to labels in H&E."""

from __future__ import annotations

import numpy as np
import pytest

from metaphase.labels.reference import PlacedPoints, decide, place_points
from tests.labels.reference.pairs import REGISTRATION, DrawnPair, detections, drawn_pair
from tests.labels.registration.slides import MPP

OUTSIDE = [[-40.0, 50.0], [5000.0, 100.0]]


@pytest.fixture(scope="module")
def pair() -> DrawnPair:
    return drawn_pair()


@pytest.fixture(scope="module")
def placement(pair: DrawnPair) -> PlacedPoints:
    """The mitoses, then positions where nothing is, then positions off the slide."""
    empty = pair.mitoses_phh3[:3] + np.array([35.0, 0.0])
    points = np.concatenate([pair.mitoses_phh3, empty, OUTSIDE])
    return place_points(pair.he, pair.phh3, detections(points), "one", registration=REGISTRATION)


def test_mitoses_are_accepted_at_their_true_place(pair: DrawnPair, placement: PlacedPoints) -> None:
    count = len(pair.mitoses_he)
    table = decide(placement.table, MPP)
    assert table["accepted"][:count].all()
    miss = np.linalg.norm(table[["x", "y"]].to_numpy()[:count] - pair.mitoses_he, axis=1) * MPP
    assert miss.max() < 1.0
    assert (table["candidate"] == [str(n) for n in range(len(table))]).all()
    assert (table["registration"] == "reliable").all()


def test_what_h_and_e_does_not_show_is_flagged_and_kept(pair: DrawnPair, placement: PlacedPoints) -> None:
    count = len(pair.mitoses_he)
    rows = decide(placement.table, MPP).iloc[count : count + 3]
    assert (rows["cause"] == "invisible").all()
    assert not rows["visible"].any()
    assert rows[["x", "y"]].notna().all(axis=None)


def test_points_off_the_slide_are_flagged_and_kept(placement: PlacedPoints) -> None:
    rows = decide(placement.table, MPP).tail(2)
    assert (rows["cause"] == "registration").all()
    assert rows["reason"].str.contains("outside the PHH3 slide").all()
    assert rows[["x_phh3", "y_phh3"]].to_numpy().tolist() == OUTSIDE


def test_no_mitoses_is_an_answer(pair: DrawnPair) -> None:
    none = place_points(pair.he, pair.phh3, detections([]), "one", registration=REGISTRATION)
    assert none.registration.verdict.status == "reliable"
    assert decide(none.table, MPP).empty


def test_slides_in_the_wrong_order_give_no_label(pair: DrawnPair) -> None:
    points = detections(pair.mitoses_he)
    wrong = place_points(pair.phh3, pair.he, points, "one", registration=REGISTRATION)
    table = decide(wrong.table, MPP)
    assert len(table) == len(pair.mitoses_he)
    assert (table["cause"] == "registration").all()
    assert table["reason"].str.contains("wrong order").all()
    assert table[["x", "y"]].isna().all(axis=None)
