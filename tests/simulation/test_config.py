import pytest

from metaphase.base.errors import UsageError
from metaphase.base.settings import settings_of
from metaphase.simulation.config import LABORATORIES, SimulationConfig, cohort_cases


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"width": 0}, "width"),
        ({"height": -5}, "height"),
        ({"width": 10**7}, "width"),
        ({"width": 512.5}, "width"),
        ({"cases": 0}, "cases"),
        ({"cases": True}, "cases"),
        ({"centres": 99}, "centres"),
        ({"cases": 2, "centres": 3}, "centres"),
        ({"seed": -1}, "seed"),
        ({"workers": 0}, "workers"),
        ({"mitoses_per_mm2": [-1, 5]}, "mitoses_per_mm2"),
        ({"mitoses_per_mm2": [9, 5]}, "mitoses_per_mm2"),
        ({"mitoses_per_mm2": 5}, "mitoses_per_mm2"),
        ({"mitoses_per_mm2": [1, 2, 3]}, "mitoses_per_mm2"),
        ({"mitoses_per_mm2": ["a", 5]}, "mitoses_per_mm2"),
        ({"artefacts_per_mitosis": -0.1}, "artefacts_per_mitosis"),
        ({"lookalikes_per_mm2": float("nan")}, "lookalikes_per_mm2"),
        ({"missed_telophases": 1.5}, "missed_telophases"),
        ({"lookalikes_per_mm2": 10**400}, "lookalikes_per_mm2 is 10{99}. Give a finite number"),
        ({"max_shift_um": "far"}, "max_shift_um"),
        ({"wdith": 512}, "wdith"),
    ],
)
def test_impossible_settings_are_refused_by_name(settings, named):
    with pytest.raises(UsageError, match=named):
        settings_of(SimulationConfig, settings)


def test_settings_come_from_a_toml_table():
    config = settings_of(SimulationConfig, {"cases": 3, "mitoses_per_mm2": [10, 20.5], "width": 1024})
    assert (config.cases, config.width, config.mitoses_per_mm2) == (3, 1024, (10, 20.5))


def test_other_laboratories_are_only_for_testing():
    cases = cohort_cases(SimulationConfig(cases=12, centres=4))
    assert {case.centre for case in cases} == {0, 1, 2, 3}
    assert {case.split for case in cases if case.centre} == {"test"}
    assert {"train", "validation"} <= {case.split for case in cases if not case.centre}
    assert sum(case.centre == 0 for case in cases) == 6


def test_every_centre_has_a_case_even_when_few():
    cases = cohort_cases(SimulationConfig(cases=5, centres=5))
    assert sorted(case.centre for case in cases) == [0, 1, 2, 3, 4]


def test_rates_spread_over_the_asked_range():
    rates = [case.mitoses_per_mm2 for case in cohort_cases(SimulationConfig(cases=20, centres=1))]
    assert all(4 <= rate <= 100 for rate in rates)
    assert min(rates) < 6
    assert max(rates) > 65


def test_small_slides_are_not_shifted_away():
    for case in cohort_cases(SimulationConfig(cases=6, centres=1, width=1000, height=2000)):
        assert abs(case.displacement.shift_x) <= 80
        assert abs(case.displacement.shift_y) <= 80


def test_a_case_depends_on_seed_and_index_only():
    many, few = (cohort_cases(SimulationConfig(cases=n, centres=1)) for n in (5, 2))
    assert [case.seed for case in many[:2]] == [case.seed for case in few]
    assert len({case.seed for case in many}) == 5


def test_laboratories_are_plausible_and_differ():
    assert len({laboratory.name for laboratory in LABORATORIES}) == len(LABORATORIES)
    for laboratory in LABORATORIES:
        for vector in (laboratory.haematoxylin, laboratory.eosin, laboratory.counterstain, laboratory.dab):
            assert sum(v * v for v in vector) == pytest.approx(1, abs=0.03)
        assert laboratory.haematoxylin[0] > laboratory.eosin[0]
