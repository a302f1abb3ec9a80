"""The threshold for several laboratories: against brute force, and what must not matter to it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from metaphase.evaluation.marks import Marked
from metaphase.evaluation.metrics import best_threshold, curve
from metaphase.evaluation.operating_points import threshold_of_several
from tests.evaluation.test_metrics import marked_of, marks

NOTHING = marked_of([], [], [], [0])


def expected_f1(threshold: float, fields: Marked, crops: list[Marked], others: list[Marked]) -> float:
    """The rule as it is told, for one threshold."""

    def hits(part: Marked, slide: int) -> int:
        return int((part.found & (part.slide == slide) & (part.probability >= threshold)).sum())

    groups = [(sum(hits(fields, slide) for slide in range(len(fields.cases))), int(fields.truths.sum()))]
    groups += [(hits(part, slide), int(there)) for part in crops for slide, there in enumerate(part.truths)]
    recalls = [found / there for found, there in groups if there]
    false = sum(int((~part.found & (part.probability >= threshold)).sum()) for part in (fields, *others))
    area = sum(float(part.area_mm2.sum()) for part in (fields, *others))
    there = float(fields.truths.sum() / fields.area_mm2.sum())
    if not there:
        return math.nan
    counted = float(np.mean(recalls)) * there
    below = counted + false / area + there
    return 2 * counted / below if below else math.nan


@given(marks(), st.lists(marks(), max_size=2), st.lists(marks(), max_size=2))
def test_no_threshold_is_better(fields: Marked, crops: list[Marked], others: list[Marked]) -> None:
    threshold, f1 = threshold_of_several(fields, crops, others)
    if not any(len(part.probability) for part in (fields, *crops)):
        assert math.isnan(f1), "nothing was found where mitoses are"
        return
    every = np.unique(np.concatenate([part.probability for part in (fields, *crops, *others)]))
    values = [expected_f1(float(each), fields, crops, others) for each in every]
    defined = [value for value in values if not math.isnan(value)]
    assert math.isnan(f1) == (not defined)
    if not defined:
        return
    assert f1 == pytest.approx(expected_f1(threshold, fields, crops, others))
    assert f1 == pytest.approx(max(defined))


@given(marks())
def test_one_laboratory_alone_has_its_best_threshold(fields: Marked) -> None:
    assume(fields.truths.sum() > 0)
    assert threshold_of_several(fields) == pytest.approx(best_threshold(curve(fields)), nan_ok=True)


@given(marks(), st.lists(marks(), min_size=2, max_size=3))
def test_order_does_not_matter(fields: Marked, parts: list[Marked]) -> None:
    turned = list(reversed(parts))
    chosen = np.arange(len(fields.cases))[::-1]
    backwards = replace(
        fields,
        slide=chosen[fields.slide],
        truths=fields.truths[chosen],
        area_mm2=fields.area_mm2[chosen],
    )
    first = threshold_of_several(fields, parts, parts)
    assert threshold_of_several(backwards, turned, turned) == pytest.approx(first, nan_ok=True)


def test_crops_of_a_paler_laboratory_lower_the_threshold() -> None:
    fields = marked_of([0.9, 0.8, 0.5, 0.4], [True, True, False, True], [0, 0, 0, 0], [0])
    pale = marked_of([0.45, 0.42, 0.41], [True, True, True], [0, 0, 0], [0])
    assert threshold_of_several(fields)[0] == 0.4
    strict = replace(fields, found=np.array([True, True, False, False]), truths=np.array([2]))
    assert threshold_of_several(strict)[0] == 0.8
    assert threshold_of_several(strict, [pale])[0] == 0.41


def test_false_detections_elsewhere_raise_the_threshold() -> None:
    fields = marked_of([0.9, 0.6], [True, True], [0, 0], [0])
    noisy = marked_of([0.7] * 9, [False] * 9, [0] * 9, [0])
    assert threshold_of_several(fields)[0] == 0.6
    assert threshold_of_several(fields, others=[noisy])[0] == 0.9


def test_without_detections_or_mitoses_there_is_no_threshold() -> None:
    found = marked_of([0.9], [True], [0], [0])
    for fields, crops in ((NOTHING, NOTHING), (NOTHING, found), (marked_of([], [], [], [3]), NOTHING)):
        assert all(map(math.isnan, threshold_of_several(fields, [crops])))


def test_crops_without_mitoses_say_nothing() -> None:
    fields = marked_of([0.9, 0.6, 0.5], [True, False, True], [0, 0, 0], [1])
    empty = marked_of([0.7], [False], [0], [0])
    assert threshold_of_several(fields, [empty]) == threshold_of_several(fields)
