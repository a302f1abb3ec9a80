"""Labels by distance from the reference standard."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial import cKDTree

from metaphase.learn.mining.candidates import CandidateError
from metaphase.learn.mining.sets import (
    FROM_REFERENCE,
    IGNORED,
    NEGATIVE,
    POSITIVE,
    LabelConfig,
    label_candidates,
)
from metaphase.slides.arrays import ArraySlide

SLIDE = ArraySlide(np.full((1000, 1000, 3), 200, np.uint8), mpp=0.25)


def positions(*points: tuple[float, float], **columns: object) -> pd.DataFrame:
    return pd.DataFrame(np.reshape(points, (-1, 2)), columns=["x", "y"], dtype=float).assign(**columns)


def candidates(*points: tuple[float, float]) -> pd.DataFrame:
    return positions(*points, intensity=np.float32(0.3))


def test_as_stated_all_within_d() -> None:
    table = candidates((500, 500), (600, 500), (600.1, 500), (900, 900))
    labelled = label_candidates(table, positions((500, 500)), SLIDE, LabelConfig(rule="stated"))
    assert labelled["label"].tolist() == [POSITIVE, POSITIVE, NEGATIVE, NEGATIVE]
    assert labelled["distance_um"].iloc[1] == 25


def test_nearest_is_positive_and_the_others_near_are_ignored() -> None:
    table = candidates((510, 500), (495, 500), (560, 500), (900, 900))
    labelled = label_candidates(table, positions((500, 500)), SLIDE)
    assert labelled["label"].tolist() == [IGNORED, POSITIVE, IGNORED, NEGATIVE]


def test_a_point_without_candidate_gets_its_own_patch() -> None:
    labelled = label_candidates(candidates((560, 500), (900, 900)), positions((500, 500)), SLIDE)
    assert labelled["label"].tolist() == [IGNORED, NEGATIVE, POSITIVE]
    own = labelled.iloc[-1]
    assert (own["x"], own["y"], own["source"]) == (500, 500, FROM_REFERENCE)


@given(st.integers(0, 2**32 - 1), st.integers(0, 60), st.integers(0, 20))
def test_every_point_has_one_positive_and_no_negative_near(seed: int, count: int, mitoses: int) -> None:
    rng = np.random.default_rng(seed)
    table = candidates(*map(tuple, rng.uniform(0, 1000, (count, 2))))
    reference = positions(*map(tuple, rng.uniform(0, 1000, (mitoses, 2))))
    labelled = label_candidates(table, reference, SLIDE)
    positive = labelled.loc[labelled["label"] == POSITIVE, ["x", "y"]].to_numpy()
    negative = labelled.loc[labelled["label"] == NEGATIVE, ["x", "y"]].to_numpy()
    assert len(positive) <= mitoses
    points = reference.to_numpy()
    if len(points):
        assert cKDTree(positive).query(points)[0].max() <= 30.0
    if len(points) and len(negative):
        assert cKDTree(points).query(negative)[0].min() > 100.0


def test_ignore_zones() -> None:
    reference = positions((100, 100), (500, 500), label=["ignore", "mitosis"])
    table = candidates((110, 100), (300, 300), (500, 500))
    wide = label_candidates(table, reference, SLIDE)
    narrow = label_candidates(table, reference, SLIDE, LabelConfig(ignore_um=1.0))
    assert wide["label"].tolist() == [IGNORED, NEGATIVE, POSITIVE]
    assert narrow["label"].tolist() == [NEGATIVE, NEGATIVE, POSITIVE]


def test_no_reference_makes_all_negative() -> None:
    labelled = label_candidates(candidates((5, 5), (9, 900)), positions(), SLIDE)
    assert labelled["label"].tolist() == [NEGATIVE, NEGATIVE]


def test_no_candidates_but_a_mitosis() -> None:
    labelled = label_candidates(candidates(), positions((500, 500)), SLIDE)
    assert labelled["label"].tolist() == [POSITIVE]


@pytest.mark.parametrize("point", [(1000.0, 5.0), (-1.0, 5.0), (5.0, float("nan"))])
def test_reference_outside_the_slide(point: tuple[float, float]) -> None:
    with pytest.raises(CandidateError, match=r"1 of 2 reference points lie outside the 1000 x 1000 px"):
        label_candidates(candidates((5, 5)), positions((5, 5), point), SLIDE)
