import numpy as np
import pytest

from metaphase.base.arrays import Box
from metaphase.simulation.architecture import Architecture
from metaphase.simulation.cohort import case_truth
from metaphase.simulation.config import Case, SimulationConfig, cohort_cases
from metaphase.simulation.placement import (
    ARTEFACTS,
    CHUNK_PX,
    LARGEST_REACH_PX,
    LOOKALIKES,
    MITOSES,
    Kind,
    Placement,
    Thing,
    reach_px,
)


@pytest.fixture(scope="module")
def placement(case: Case) -> Placement:
    return Placement(case, Architecture(case))


def test_objects_do_not_depend_on_what_was_asked_before(case: Case, placement: Placement):
    fresh = Placement(case, Architecture(case))
    fresh.chunk(1, 1)
    np.testing.assert_array_equal(fresh.chunk(0, 1), placement.chunk(0, 1))


def test_a_small_box_holds_a_part_of_the_large_one(placement: Placement):
    large = placement.within(Box(300, 300, 1500, 1300))
    small = placement.within(Box(900, 800, 400, 400))
    x, y = large["x"], large["y"]
    inside = (x >= 900) & (x < 1300) & (y >= 800) & (y < 1200)
    np.testing.assert_array_equal(small, large[inside])


def test_objects_stay_in_their_chunk_and_in_tissue(placement: Placement):
    chunk = Box(CHUNK_PX, CHUNK_PX, CHUNK_PX, CHUNK_PX)
    objects = placement.chunk(1, 1)
    assert ((objects["x"] >= chunk.x) & (objects["x"] < chunk.right)).all()
    assert ((objects["y"] >= chunk.y) & (objects["y"] < chunk.bottom)).all()
    fields = placement.architecture.at(chunk, objects["x"], objects["y"])
    assert (fields.tissue > 0).all()


def test_nuclei_keep_their_distance(placement: Placement):
    cells = placement.chunk(1, 0)
    cells = cells[cells["kind"] == Kind.TUMOUR]
    position = np.stack([cells["x"], cells["y"]], axis=1)
    apart = np.hypot(*(position[:, None] - position[None]).transpose(2, 0, 1)) + 1e9 * np.eye(len(cells))
    assert len(cells) > 100
    assert (apart.min(axis=1) > 0.7 * 2 * cells["radius"].min()).mean() > 0.99


def test_nuclei_have_realistic_sizes(placement: Placement):
    cells = placement.within(Box(0, 0, 2600, 2200))
    diameter_um = cells["radius"][cells["kind"] == Kind.TUMOUR] * 0.5
    assert np.percentile(diameter_um, 2) > 5.5
    assert np.percentile(diameter_um, 98) < 15


def test_asked_rates_are_met():
    found = {}
    for rate in (60, 480):
        config = SimulationConfig(
            cases=3, centres=1, width=3072, height=3072, mitoses_per_mm2=(rate, rate), lookalikes_per_mm2=0
        )
        truths = [case_truth(case) for case in cohort_cases(config)]
        found[rate] = sum((truth["category"] == "mitosis").sum() for truth in truths)
    tissue_mm2 = 3 * (3.072 / 4) ** 2
    assert 0.3 * 60 < found[60] / tissue_mm2 < 1.1 * 60
    assert 6 < found[480] / found[60] < 10.5


def test_no_mitoses_where_none_are_asked_for():
    config = SimulationConfig(
        cases=1, centres=1, width=2000, height=2000, mitoses_per_mm2=(0, 0), lookalikes_per_mm2=0
    )
    assert case_truth(cohort_cases(config)[0]).empty


def test_all_kinds_occur(case: Case):
    kinds = set(case_truth(case)["kind"])
    expected = {kind.name.lower() for kind in (*MITOSES, *LOOKALIKES, *ARTEFACTS, Kind.BROWN_NUCLEUS)}
    assert expected - kinds <= {"ink"}


def test_no_picture_reaches_further_than_said(renderer, placement: Placement):
    objects = placement.within(Box(0, 0, 2600, 2200))
    assert reach_px(objects).max() <= LARGEST_REACH_PX
    for kind in np.unique(objects["kind"]):
        some = objects[objects["kind"] == kind][:6]
        for thing, reach in zip(map(Thing._make, some.tolist()), reach_px(some), strict=True):
            picture = np.abs(renderer.sprite(thing, "phh3")).max(axis=2)
            rows, columns = np.nonzero(picture > 0.02)
            half = picture.shape[0] / 2
            assert max(np.abs(rows + 0.5 - half).max(), np.abs(columns + 0.5 - half).max()) <= reach + 1
