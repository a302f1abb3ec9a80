"""Regions: what lies in them, their files, what is mended or refused, and the count in them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as some
from shapely.geometry.base import BaseGeometry

from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.counting.clinical import count_slide
from metaphase.counting.hotspot import busiest_circle
from metaphase.counting.region_files import read_regions, write_regions
from metaphase.counting.regions import Place, Region, Scope, on_slide, region_of
from metaphase.counting.specimen import CountConfig
from metaphase.images.tissue.finding import TissueMask

MPP, SIDE = 0.5, 20_000
CONFIG = CountConfig(threshold=0.5)
TISSUE = TissueMask(np.ones((500, 500), bool), MPP * SIDE / 500, 0.0, 0.0, SIDE / 500)


def blob(random: np.random.Generator, corners: int, reach: float) -> BaseGeometry:
    """A star around a random middle, with a hole."""
    angles = np.sort(random.uniform(0, 2 * np.pi, corners))
    around = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    middle = random.uniform(0.2 * SIDE, 0.8 * SIDE, 2)
    outer = middle + around * random.uniform(0.4, 1, (corners, 1)) * reach
    shape = shapely.Polygon(outer, [middle + around[::3] * 0.2 * reach] if corners >= 9 else [])
    return shapely.make_valid(shape, method="structure")  # a hole may cross the star's dents


def outlined(seed: int, number: int, corners: int = 40) -> Scope:
    random = np.random.default_rng(seed)
    regions = []
    for one in range(number):
        shape = shapely.union(blob(random, corners, 4000), blob(random, corners, 2500))
        kind: Any = "include" if random.random() < 0.5 else "exclude"
        regions.append(region_of(kind, f"part {one}", shape))
    return Scope(regions=tuple(regions))


def by_shapely(scope: Scope, points: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which points count, by shapely alone."""
    held = {"include": np.zeros(len(points), bool), "exclude": np.zeros(len(points), bool)}
    for one in scope.regions:
        held[one.kind] |= shapely.contains_xy(one.shape, points)
    anywhere = not any(one.kind == "include" for one in scope.regions)
    return (held["include"] | anywhere) & ~held["exclude"]


def off_edges(scope: Scope, points: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    lines = shapely.union_all([one.shape.boundary for one in scope.regions])
    return points[shapely.distance(lines, shapely.points(points)) > 1e-6] if scope.regions else points


@given(some.integers(0, 10**6), some.integers(0, 5), some.sampled_from([3, 9, 40]))
def test_what_counts_is_what_shapely_says_after_each_region(seed: int, number: int, corners: int) -> None:
    scope = outlined(seed, number, corners)
    random = np.random.default_rng(seed)
    points = random.uniform(0, SIDE, (2000, 2))
    points[:500] = points[:500].round(-2)  # many at the height of each other, and of corners
    points = off_edges(scope, points)
    table = pd.DataFrame(
        {"x": points[:, 0], "y": points[:, 1], "probability": random.uniform(0, 1, len(points))}
    )
    distinct = table.drop_duplicates(["x", "y"]) if len(table) else table
    for upto in range(number + 1):
        part = Scope(regions=scope.regions[:upto])
        np.testing.assert_array_equal(part.holds(points), by_shapely(part, points))
        best = table.sort_values("probability").drop_duplicates(["x", "y"], keep="last")
        counted = by_shapely(part, best[["x", "y"]].to_numpy()) & (best["probability"] >= 0.5).to_numpy()
        assert len(distinct) == len(best)
        count = count_slide(table, mpp=MPP, tissue=TISSUE, config=CONFIG, scope=part)
        assert count.counted == counted.sum()
        circle = np.array([count.hotspot.x, count.hotspot.y])
        near = np.hypot(*(best[["x", "y"]].to_numpy() - circle).T) <= count.hotspot.radius_px * (1 + 1e-9)
        small = count.area_mm2 < 2
        assert count.count == (counted.sum() if small else (counted & near).sum())
        shape = part.shape(1.0)
        if counted.any() and shape is not None:  # the middle lies where figures count
            assert shapely.distance(shape, shapely.Point(circle)) < 1e-6


def test_the_counted_area_is_the_tissue_in_the_regions() -> None:
    for seed in range(5):
        scope = outlined(seed, 4)
        shape = scope.shape(1.0)
        assert shape is not None
        area_mm2 = shapely.intersection(shape, shapely.box(0, 0, SIDE, SIDE)).area * MPP**2 / 1e6
        edge_mm2 = shape.length * MPP * TISSUE.mpp / 1e6  # pixels on the edge, at most
        assert abs(scope.tissue(TISSUE).area_mm2 - area_mm2) < edge_mm2
        centres = (np.stack(np.meshgrid(*[np.arange(500) + 0.5] * 2), -1) * TISSUE.scale).reshape(-1, 2)
        np.testing.assert_array_equal(scope.tissue(TISSUE).mask.ravel(), scope.holds(centres))


def test_the_middle_of_the_busiest_circle_stays_in_a_narrow_region() -> None:
    random = np.random.default_rng(3)
    points = random.uniform(0, 4000, (400, 2))
    ring = shapely.Point(2000, 2000).buffer(1500).difference(shapely.Point(2000, 2000).buffer(1450))
    points = points[shapely.contains_xy(ring, points)]
    x, y, best = busiest_circle(points, 700.0, ring)
    assert shapely.contains_xy(ring, x, y)
    steps = np.stack(np.meshgrid(*[np.arange(400, 3600, 10.0)] * 2), -1).reshape(-1, 2)
    steps = steps[shapely.contains_xy(ring, steps)]
    away = np.hypot(*(steps[:, None] - points).transpose(2, 0, 1))
    assert best >= (away <= 700).sum(axis=1).max()
    assert best == (np.hypot(*(points - (x, y)).T) <= 700).sum()


def test_another_place_and_ten_fields_are_counted_instead_of_the_densest_circle() -> None:
    random = np.random.default_rng(1)
    points = random.uniform(0, SIDE, (3000, 2))
    table = pd.DataFrame({"x": points[:, 0], "y": points[:, 1], "probability": 0.9})
    about: Any = {"mpp": MPP, "tissue": TISSUE, "config": CONFIG}
    circle = count_slide(table, **about, scope=Scope(place=Place(x=9000, y=9000)))
    shape = shapely.Point(9000, 9000).buffer(CONFIG.radius_um / MPP, quad_segs=500)
    assert circle.count == shapely.contains_xy(shape, points).sum()
    assert circle.counted_mm2 == pytest.approx(2, rel=0.02)
    fields = count_slide(table, **about, scope=Scope(place=Place(x=9000, y=9000, field_diameter_mm=0.69)))
    shapes = [shapely.Point(x, y).buffer(r, quad_segs=500) for x, y, r in fields.hotspot.fields]
    assert len(shapes) == 10
    assert shapely.union_all(shapes).area == pytest.approx(sum(one.area for one in shapes), rel=1e-6)
    assert fields.count == shapely.contains_xy(shapely.union_all(shapes), points).sum()
    assert fields.counted_mm2 == pytest.approx(10 * math.pi * 0.345**2, rel=0.02)
    assert fields.score.most == (13, 27)  # as the rule states them for ten fields of 0.69 mm
    assert fields.per_10_fields == pytest.approx(fields.count, rel=0.02)


@pytest.mark.parametrize("number", [0, 5])
def test_a_chosen_place_with_little_tissue_warns_whatever_it_holds(number: int) -> None:
    table = pd.DataFrame({"x": np.arange(number) * 9.0, "y": 9.0, "probability": 0.9})
    for place in (Place(x=0, y=0), Place(x=0, y=0, field_diameter_mm=0.4)):
        count = count_slide(table, mpp=MPP, tissue=TISSUE, config=CONFIG, scope=Scope(place=place))
        assert [one.code for one in count.warnings] == ["hotspot-off-tissue"]


def test_files_come_back_byte_for_byte(tmp_path: Path) -> None:
    for ending in ("geojson", "xml"):
        for seed in range(6):
            first, again = tmp_path / f"one.{ending}", tmp_path / f"again.{ending}"
            regions = outlined(seed, 4).regions
            write_regions(regions, first)
            read = read_regions(first)
            assert [one.model_copy(update={"filed": False}) for one in read] == list(regions)
            write_regions(read, again)
            assert first.read_bytes() == again.read_bytes()


def feature(label: Any, coordinates: Any, kind: str = "Polygon", **more: Any) -> dict[str, Any]:
    properties = {"objectType": "annotation"} | ({"classification": {"name": label}} if label else {})
    return {
        "type": "Feature",
        "geometry": {"type": kind, "coordinates": coordinates},
        "properties": properties,
    } | more


def file_with(tmp_path: Path, *features: dict[str, Any]) -> Path:
    path = tmp_path / "regions.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return path


BOX = [[10, 10], [200, 10], [200, 100], [10, 100], [10, 10]]
KNOT = [[10, 10], [200, 100], [200, 10], [10, 100], [10, 10]]


def test_classes_say_which_is_which_and_crossings_are_mended(tmp_path: Path) -> None:
    path = file_with(
        tmp_path,
        feature("Tumor", [BOX[:-1]]),  # an open ring is closed
        feature("Exclude: follicle", [KNOT]),
        feature("necrosis", [[BOX], [[[300, 300], [400, 300], [400, 400], [300, 300]]]], "MultiPolygon"),
        feature("Hotspot", [BOX]),
    )
    tumour, follicle, necrosis = read_regions(path)
    assert (tumour.kind, tumour.name, len(tumour.polygons)) == ("include", "tumour", 1)
    assert tumour.note == ""
    assert (follicle.kind, follicle.name) == ("exclude", "follicle")
    assert "crossed itself" in follicle.note
    assert len(follicle.polygons) == 2
    assert follicle.shape.is_valid
    assert (necrosis.kind, len(necrosis.polygons)) == ("exclude", 2)
    cut = on_slide(tumour, 100, 80)
    assert cut.shape.bounds == (10, 10, 100, 80)
    assert "cut" in cut.note
    assert cut.id == tumour.id


@pytest.mark.parametrize(
    ("features", "said"),
    [
        ([feature("follicle", [BOX])], "class 'follicle'"),
        ([feature("", [BOX])], "class ''"),
        ([feature("tumour", [[[10, 10], [20, 10], [30, 10], [10, 10]]])], "has no area"),
        ([feature("tumour", [[[10, 10], [20, 10]]])], "cannot be read|not GeoJSON"),
        ([feature("tumour", [[[10, 10], [20, "a"], [30, 30], [10, 10]]])], "GeoJSON|number"),
        ([feature("tumour", [10, 10], "Point")], "holds no polygon"),
        ([], "holds no polygon"),
        ([feature("tumour", [BOX]), feature("tumour", [BOX])], "twice"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_file(tmp_path: Path, features: Any, said: str) -> None:
    path = file_with(tmp_path, *features)
    with pytest.raises(MetaphaseError, match=said) as caught:
        read_regions(path)
    assert str(path) in str(caught.value)
    assert caught.value.next_step


def test_a_region_of_another_slide_is_refused() -> None:
    region = region_of("include", "tumour", shapely.box(5000, 5000, 6000, 6000))
    with pytest.raises(UsageError, match="not on the slide of 4000 x 4000 px"):
        on_slide(region, 4000, 4000)
    with pytest.raises(ValueError, match="id"):
        Region(id="x", kind="include", name="a", polygons=())
