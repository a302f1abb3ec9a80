"""Similarities, fields and transforms: exact inverses, faithful files."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import BSpline

from metaphase.base.errors import MetaphaseError
from metaphase.labels.registration.similarity import Similarity, fit_robustly, fit_similarity
from metaphase.labels.registration.transform import (
    MAX_STRETCH,
    LocalField,
    Transform,
    TransformError,
    fit_field,
    load_transform,
    map_geojson,
    save_transform,
)
from tests.examples import FEW

similarities = st.builds(
    Similarity,
    scale=st.floats(0.5, 2),
    rotation_rad=st.floats(-3.1, 3.1),
    shift_x_um=st.floats(-5000, 5000),
    shift_y_um=st.floats(-5000, 5000),
    mirrored=st.booleans(),
)


@st.composite
def transforms(draw: st.DrawFn) -> Transform:
    """Any transform whose field is as steep as a fitted one may be."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    rows, columns = draw(st.integers(4, 9)), draw(st.integers(4, 9))
    spacing = draw(st.floats(50, 500))
    rough = LocalField(0.0, 100.0, spacing, rng.normal(size=(rows, columns, 2)))
    tamed = rough.coefficients * MAX_STRETCH / rough.stretch
    field = draw(st.sampled_from([None, LocalField(0.0, 100.0, spacing, tamed)]))
    return Transform(0.25, draw(st.floats(0.2, 1)), draw(similarities), field)


@given(transforms(), st.integers(0, 1000))
def test_both_ways_lead_back_to_a_hundredth_of_a_micrometre(transform: Transform, seed: int) -> None:
    points = np.random.default_rng(seed).uniform(-1000, 20_000, (20, 2))
    back = transform.he_to_phh3(transform.phh3_to_he(points))
    assert np.abs(back - points).max() * transform.phh3_mpp < 0.01
    there = transform.phh3_to_he(transform.he_to_phh3(points))
    assert np.abs(there - points).max() * transform.he_mpp < 0.01


@given(transforms())
def test_files_keep_every_bit(transform: Transform) -> None:
    with TemporaryDirectory() as folder:
        save_transform(Path(folder) / "t.json", transform)
        again = load_transform(Path(folder) / "t.json")
    points = np.random.default_rng(0).uniform(0, 9000, (10, 2))
    assert np.array_equal(transform.phh3_to_he(points), again.phh3_to_he(points))


def test_transform_files(tmp_path: Path) -> None:
    save_transform(tmp_path / "t.json", Transform(0.25, 0.5, Similarity()), verdict="fine")
    assert load_transform(tmp_path / "t.json").phh3_to_he([[10, 20]]).tolist() == [[20, 40]]
    for wrong in ("", "[]", "{}", '{"format": "metaphase-transform", "version": 99}'):
        (tmp_path / "wrong.json").write_text(wrong)
        with pytest.raises(TransformError, match=r"wrong\.json"):
            load_transform(tmp_path / "wrong.json")


STEEP = (99 * np.eye(8).reshape(4, 8, 2)).tolist()


def broken(**changes: Any) -> dict[str, Any]:
    field = LocalField(0.0, 0.0, 100.0, np.zeros((4, 4, 2)))
    return {**Transform(0.25, 0.25, Similarity(), field).to_json(), **changes}


@pytest.mark.parametrize(
    "record",
    [
        broken(he_mpp=0),
        broken(phh3_mpp=float("nan")),
        broken(similarity={"scale": -1}),
        broken(similarity={"turn": 1}),
        broken(field={"x_um": 0, "y_um": 0, "spacing_um": 0, "coefficients": np.zeros((4, 4, 2)).tolist()}),
        broken(field={"x_um": 0, "y_um": 0, "spacing_um": 9, "coefficients": [[1, 2], [3, 4]]}),
        broken(
            field={
                "x_um": 0,
                "y_um": 0,
                "spacing_um": 1,
                "coefficients": (np.eye(8).reshape(4, 8, 2) * 99).tolist(),
            }
        ),
    ],
)
def test_records_that_make_no_transform_are_refused(record: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(record))
    with pytest.raises(TransformError, match=r"t\.json"):
        load_transform(tmp_path / "t.json")


@given(similarities, similarities.filter(lambda s: not s.mirrored))
def test_composition(second: Similarity, first: Similarity) -> None:
    points = np.random.default_rng(0).uniform(-100, 100, (5, 2))
    assert second.after(first).apply(points) == pytest.approx(second.apply(first.apply(points)), abs=1e-6)
    assert second.invert(second.apply(points)) == pytest.approx(points, abs=1e-6)


def test_fit_equals_linear_least_squares() -> None:
    """x' = a x - b y + c, y' = b x + a y + d, solved as it stands."""
    rng = np.random.default_rng(4)
    source = rng.uniform(0, 1000, (12, 2))
    target = Similarity(1.02, 0.03, 50, -20).apply(source) + rng.normal(0, 2, (12, 2))
    (x, y), one, zero = source.T, np.ones(12), np.zeros(12)
    rows = np.vstack([np.stack([x, -y, one, zero], axis=1), np.stack([y, x, zero, one], axis=1)])
    a, b, c, d = np.linalg.lstsq(rows, target.T.ravel(), rcond=None)[0]
    ours = fit_similarity(source, target, np.ones(12))
    assert ours.matrix == pytest.approx(np.array([[a, -b], [b, a]]))
    assert ours.shift_um == pytest.approx([c, d])


@given(st.booleans(), st.integers(0, 100))
def test_robust_fit_ignores_a_third_of_outliers(mirrored: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    true = Similarity(0.99, -0.02, 30, 40, mirrored)
    source = rng.uniform(0, 2000, (15, 2))
    target = true.apply(source)
    target[:5] += rng.uniform(20, 60, (5, 2)) * rng.choice([-1, 1], (5, 2))
    fitted = fit_robustly(source, target, np.ones(15), 4.0, mirrored=mirrored)
    assert np.abs(fitted.apply(source) - true.apply(source)).max() < 0.1


def test_field_is_the_b_spline_of_scipy() -> None:
    coefficients = np.random.default_rng(0).normal(size=(4, 9, 2))
    coefficients[:] = coefficients[:1]  # constant along y: a spline of x alone
    field = LocalField(100.0, 0.0, 50.0, coefficients)
    x = np.linspace(100, 400, 33)
    spline = BSpline(100 + 50.0 * np.arange(-3, 10), coefficients[0], 3)
    assert field.at(np.stack([x, x * 0 + 20], axis=1)) == pytest.approx(spline(x))


@FEW
@given(st.integers(0, 50))
def test_fitted_fields_follow_smooth_motion_and_not_outliers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    positions = rng.uniform(0, 2000, (200, 2))
    motion = 3 * np.stack([np.sin(positions[:, 1] / 300), np.cos(positions[:, 0] / 400)], axis=1)
    measured = motion + rng.normal(0, 0.2, motion.shape)
    wrong = rng.permutation(200)[:10]
    measured[wrong] += rng.uniform(8, 18, (10, 2))
    field = fit_field(positions, measured, np.ones(200), 150.0, 4.0)
    assert field.stretch <= MAX_STRETCH
    assert np.median(np.linalg.norm(field.at(positions) - motion, axis=1)) < 0.4


def test_wild_measurements_still_give_a_field_that_does_not_fold() -> None:
    rng = np.random.default_rng(0)
    field = fit_field(rng.uniform(0, 300, (50, 2)), rng.uniform(-40, 40, (50, 2)), np.ones(50), 20.0, 1000.0)
    assert field.stretch <= MAX_STRETCH


POLYGON = {"type": "Polygon", "coordinates": [[[0, 0], [10, 0], [10, 10], [0, 0]]]}


@given(transforms())
def test_geojson_goes_there_and_back(transform: Transform) -> None:
    content = {
        "type": "FeatureCollection",
        "bbox": [0, 0, 1, 1],
        "features": [
            {
                "type": "Feature",
                "id": "a",
                "geometry": POLYGON,
                "nucleusGeometry": POLYGON,
                "properties": {"k": 1},
            },
            {"type": "Feature", "geometry": {"type": "Point", "coordinates": [3, 4, 5]}, "properties": None},
            {"type": "Feature", "geometry": None, "properties": {}},
            {"type": "Feature", "geometry": {"type": "GeometryCollection", "geometries": [POLYGON]}},
        ],
    }
    there = map_geojson(content, transform, to="he")
    point = there["features"][1]["geometry"]["coordinates"]
    assert point[:2] == pytest.approx(transform.phh3_to_he([[3, 4]])[0])
    assert (point[2], there["features"][0]["id"], "bbox" in there) == (5, "a", False)
    back = map_geojson(there["features"], transform, to="phh3")
    corners = np.array(back[0]["nucleusGeometry"]["coordinates"])
    assert corners == pytest.approx(np.array(POLYGON["coordinates"], float), abs=0.05)
    assert content["features"][0]["geometry"] is POLYGON
    assert POLYGON["coordinates"][0][1] == [10, 0]


@pytest.mark.parametrize("wrong", [{"a": 1}, [3], "text", {"features": 3}, {"coordinates": [["x", "y"]]}])
def test_other_json_is_not_mapped(wrong: Any) -> None:
    with pytest.raises(MetaphaseError):
        map_geojson(wrong, Transform(0.25, 0.25, Similarity()))
