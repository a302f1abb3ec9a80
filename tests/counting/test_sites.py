"""What a laboratory's profile says to the count of one of its slides."""

from __future__ import annotations

from datetime import date

import numpy as np

from metaphase.counting.likely import SHAPES
from metaphase.counting.sites import SiteProfile


def test_a_slide_is_placed_among_the_others_of_its_laboratory() -> None:
    """Its own answers tell about it by themselves; what its shape was must not count twice."""
    shapes = {name: [-0.01 * number] * len(SHAPES) for number, name in enumerate(("a", "b", "c"))}
    profile = SiteProfile(
        name="ours", made=date(2026, 1, 1), model="m", searched_with={}, slides=tuple(shapes), area_mm2=30.0,
        answers=3, observers=("Anna",), design={}, error={"missed": 0.1, "false_alarms": 0.05},
        deltas={"mitoses": 0.2, "count": 0.4}, precision={}, sure=(12, 9), shapes=shapes,
        answered={"b": [(10.0, 20.0, 1.0), (30.0, 40.0, 0.0)], "c": [(1.0, 2.0, 1.0)]},
    )  # fmt: skip
    of_b, elsewhere = profile.knowledge("b"), profile.knowledge("new")
    assert [each[0] for each in of_b.shapes] == [0.0, -0.02]
    assert of_b.own_answers.tolist() == [[10.0, 20.0, 1.0], [30.0, 40.0, 0.0]]
    assert len(elsewhere.shapes) == 3
    assert elsewhere.own_answers.shape == (0, 3)
    for known in (of_b, elsewhere):
        assert (known.answers, known.sure) == (3, (12, 9))
        assert (known.error.missed, known.error.false_alarms) == (0.1, 0.05)
    assert np.isfinite(of_b.shapes).all()
