"""What a laboratory's profile says to the count of one of its slides."""

from __future__ import annotations

from datetime import date

import numpy as np
import pytest

from metaphase.counting.likely import LEVELS, SHAPES, ObserverError
from metaphase.counting.sites import SiteProfile, precision_by_design


def test_a_slide_is_placed_among_the_others_of_its_laboratory() -> None:
    """Its own answers tell about it by themselves; what its shape was must not count twice."""
    shapes = {
        name: [-0.01 * number] * len(LEVELS) * len(SHAPES) for number, name in enumerate(("a", "b", "c"))
    }
    profile = SiteProfile(
        name="ours", made=date(2026, 1, 1), model="m", searched_with={}, slides=tuple(shapes), area_mm2=30.0,
        answers=3, observers=("Anna",), design={}, error={"missed": 0.1, "false_alarms": 0.05},
        deltas={"mitoses": 0.2, "count": 0.4}, precision={}, sure=(12, 9), shapes=shapes,
        answered={"b": [(10.0, 20.0, 1.0), (30.0, 40.0, 0.0)], "c": [(1.0, 2.0, 1.0)]},
    )  # fmt: skip
    of_b, elsewhere = profile.knowledge("b"), profile.knowledge("new")
    assert [each[0, 0] for each in of_b.shapes] == [0.0, -0.02]
    assert of_b.own_answers.tolist() == [[10.0, 20.0, 1.0], [30.0, 40.0, 0.0]]
    assert len(elsewhere.shapes) == 3
    assert elsewhere.own_answers.shape == (0, 3)
    for known in (of_b, elsewhere):
        assert (known.answers, known.sure) == (3 - len(known.own_answers), (12, 9))
        assert (known.error.missed, known.error.false_alarms) == (0.1, 0.05)
    assert np.isfinite(of_b.shapes).all()


def test_what_is_known_of_an_observer_corrects_the_precision() -> None:
    answer, inclusion, chosen = np.repeat([1.0, 0.0], [60, 40]), np.ones(100), np.ones(100, bool)
    plain, corrected = (
        precision_by_design(answer, inclusion, chosen, ObserverError(missed, 0.0)) for missed in (0.0, 0.3)
    )
    assert plain is not None
    assert corrected is not None
    assert plain.value == pytest.approx(0.6)
    assert corrected.value == pytest.approx(0.6 / 0.7)
