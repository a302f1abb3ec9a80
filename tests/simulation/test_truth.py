import numpy as np
import pandas as pd
import pytest

from metaphase.counting.specimen import grade_of
from metaphase.simulation.cohort import GRADE_LIMITS, case_truth, hotspot_count
from metaphase.simulation.config import Case


def test_coordinates_obey_the_displacement_exactly(case: Case):
    truth = case_truth(case)
    back = case.displacement.phh3_to_he(truth[["x_phh3", "y_phh3"]].to_numpy())
    np.testing.assert_allclose(back, truth[["x_he", "y_he"]].to_numpy(), atol=1e-6)


def test_the_table_is_complete_and_ordered(case: Case):
    truth = case_truth(case)
    assert list(truth["id"]) == list(range(len(truth)))
    assert truth["y_he"].is_monotonic_increasing
    assert set(truth["category"]) == {"mitosis", "lookalike", "brown_nucleus", "artefact"}
    assert truth["x_he"].between(0, case.width).all()
    mitoses = truth[truth["category"] == "mitosis"]
    assert 0.6 < mitoses["phh3_positive"].mean() < 0.98
    assert mitoses.groupby("kind")["phh3_positive"].mean().idxmin() == "telophase"
    assert not truth.loc[truth["category"] != "mitosis", "atypical"].any()


def test_the_hotspot_is_the_fullest_circle():
    rng = np.random.default_rng(2)
    points = rng.uniform(0, 16_000, (300, 2))
    table = pd.DataFrame({"category": "mitosis", "x_he": points[:, 0], "y_he": points[:, 1]})
    radius_px = np.sqrt(2 / np.pi) * 4000
    apart = np.hypot(*(points[:, None] - points[None]).transpose(2, 0, 1))
    assert hotspot_count(table) == (apart <= radius_px).sum(axis=1).max()
    assert hotspot_count(table.iloc[:0]) == 0


@pytest.mark.parametrize(("count", "expected"), [(0, 1), (6, 1), (7, 2), (20, 2), (21, 3)])
def test_grades_follow_the_limits(count, expected):
    assert grade_of(count, *GRADE_LIMITS) == expected
