"""Files as other programs write them give exactly the points they show, and say what is left out."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from metaphase.base.tables import TableError
from metaphase.detections.files import convert_detections, joined, read_detections, write_detections
from metaphase.detections.table import DetectionSet, detection_set
from tests.detections.published import (
    AREA,
    CIRCLE,
    IMAGE,
    OLD,
    POLYGON,
    SQUARE,
    Drawn,
    drawing,
    feature,
    shape,
    write_asap,
    write_database,
    write_geojson,
)


def points(found: DetectionSet) -> list[list[Any]]:
    return found.table[["x", "y", "label"]].to_numpy().tolist()


def left_out(found: DetectionSet) -> list[str]:
    return [warning.text for warning in found.warnings if warning.code == "objects-left-out"]


# ---- SlideRunner ----


def test_sliderunner_annotations_of_every_kind(tmp_path: Path) -> None:
    drawn = [
        Drawn(1, [(10, 20)]),
        Drawn(1, [(100, 200), (150, 250)], 2, AREA),
        Drawn(1, [(0, 0), (40, 0), (40, 20), (0, 20)], 2, POLYGON),
        Drawn(1, [(10.5, 10.5), (20.5, 30.5)], 1, CIRCLE),
        Drawn(1, [(5, 5)], deleted=1),
        Drawn(1, [(6, 6)], deleted=None),
        Drawn(1, [(7, 7)], agreed=0),
        Drawn(1, [(8, 8)], agreed=None, note="seen twice, p=0.25"),
        Drawn(1, [(9, 9)], agreed=99),
        Drawn(1, [], 1, IMAGE),
        Drawn(1, [(None, None)]),
        Drawn(7, [(1, 1)]),
    ]
    path = write_database(tmp_path / "d.sqlite", [("a.svs", None), ("b.svs", "")], drawn)
    found = read_detections(path)
    assert found.slides == ("a.svs", "b.svs")
    assert points(found) == [
        [10, 20, "mitosis"],
        [125, 225, "lookalike"],
        [20, 10, "lookalike"],
        [15.5, 20.5, "mitosis"],
        [6, 6, "mitosis"],
        [7, 7, "unclassified"],
        [8, 8, "unclassified"],
        [9, 9, "unclassified"],
    ]
    assert found.table["probability"].tolist() == [1, 1, 1, 1, 1, 1, 0.25, 1]
    assert left_out(found) == [
        "d.sqlite: 2 annotations without coordinates left out",
        "d.sqlite: 1 annotations of slides that it does not list left out",
    ]


def test_sliderunner_of_the_first_version_and_without_annotations(tmp_path: Path) -> None:
    path = write_database(tmp_path / "d.sqlite", [("a.svs", "x")], [Drawn(1, [(1, 2)])], columns=OLD)
    assert points(read_detections(path)) == [[1, 2, "mitosis"]]
    empty = read_detections(write_database(tmp_path / "e.sqlite", [("a.svs", "x")], []))
    assert (empty.slides, len(empty.table), left_out(empty)) == (("a.svs",), 0, [])


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Mitotic figure", "mitosis"),
        ("mitotic figure (MF)", "mitosis"),
        ("Non-Mitotic cell", "lookalike"),
        ("Mitotic figure look-alike", "lookalike"),
        ("hard negative look-alikes", "lookalike"),
        ("Eosinophilic granulocyte", "eosinophilic granulocyte"),
        (None, "unclassified"),
    ],
)
def test_sliderunner_class_names(tmp_path: Path, name: str | None, label: str) -> None:
    path = write_database(tmp_path / "d.sqlite", [("a.svs", None)], [Drawn(1, [(1, 2)])], [name])
    assert points(read_detections(path)) == [[1, 2, label]]


@pytest.mark.parametrize(
    ("slides", "names"),
    [
        ([("001.tiff", "/data/MIDOG"), ("002.tiff", "/data/MIDOG")], ["001.tiff", "002.tiff"]),
        ([("01.tif", "/d/part_1/05"), ("01.tif", "/d/part_1/06"), ("67.tif", "/d/part_1/05")],
         ["05/01.tif", "06/01.tif", "67.tif"]),
        ([("01.tif", "D:\\tupac\\05\\"), ("01.tif", "tupac/06/")], ["05/01.tif", "06/01.tif"]),
        ([("01.tif", "/d/part_1/05"), ("01.tif", "/d/part_2/05")], ["part_1/05/01.tif", "part_2/05/01.tif"]),
        ([("01.tif", None), ("01.tif", "05")], ["01.tif", "05/01.tif"]),
    ],
)  # fmt: skip
def test_sliderunner_slides_of_the_same_file_name_are_told_apart_by_their_folders(
    tmp_path: Path, slides: list[tuple[str, str | None]], names: list[str]
) -> None:
    drawn = [Drawn(number, [(number, 0)]) for number in range(1, len(slides) + 1)]
    found = read_detections(write_database(tmp_path / "d.sqlite", slides, drawn))
    assert list(found.slides) == names
    assert found.table[["slide", "x"]].to_numpy().tolist() == [[n, i + 1] for i, n in enumerate(names)]


@pytest.mark.parametrize(
    ("slides", "message"),
    [
        ([("01.tif", "/d/05"), ("01.tif", "/d/05/")], "more than one slide d/05/01.tif.*directories"),
        ([("01.tif", None), ("01.tif", "")], "more than one slide 01.tif.*Give them different directories"),
        ([("05/01.tif", None), ("01.tif", "05"), ("01.tif", "06")], "more than one slide 05/01.tif"),
        ([(None, "/d/05")], "slide 1 has no file name"),
    ],
)
def test_sliderunner_slides_that_nothing_tells_apart_are_refused(
    tmp_path: Path, slides: list[tuple[str | None, str | None]], message: str
) -> None:
    path = write_database(tmp_path / "d.sqlite", slides, [Drawn(1, [(1, 1)])])
    with pytest.raises(TableError, match=message) as caught:
        read_detections(path)
    assert "d.sqlite" in str(caught.value)


@pytest.mark.parametrize(
    "slides",
    [
        ["05/01.tif", "06/01.tif", "24/67.tif", "a.svs"],
        ["part_1/05/01.tif", "part_2/05/01.tif", "01.tif"],
        ["x//01.tif", "05/01.tif", "C:\\s\\01.tif", "/"],
    ],
)
def test_sliderunner_gives_slides_in_folders_back(tmp_path: Path, slides: list[str]) -> None:
    table = pd.DataFrame({"slide": slides, "x": range(len(slides)), "y": 1})
    write_detections(detection_set(table), tmp_path / "d.sqlite")
    found = read_detections(tmp_path / "d.sqlite")
    assert list(found.slides) == slides
    assert found.table["slide"].tolist() == slides


# ---- QuPath ----

OBJECTS = [
    feature(
        "annotation",
        shape("Point", [3, 4], plane={"c": -1, "z": 2, "t": 0}),
        name="my first",
        isLocked=True,
        classification={"name": "Mitosis", "color": [200, 0, 0]},
        measurements={"Probability": 0.75, "Area µm^2": float("nan")},
        metadata={"observer": "A"},
    ),
    feature(
        "detection",
        shape("Polygon", SQUARE, isEllipse=True),
        classification={"names": ["Tumor", "Non-mitotic"], "color": [0, 0, 200]},
        measurements=[{"name": "probability", "value": 0.5}],
    ),
    feature("cell", shape("Polygon", SQUARE), classification={"name": "mitotic figure", "colorRGB": -377282})
    | {"nucleusGeometry": shape("Polygon", [[[1, 1], [2, 1], [2, 2], [1, 1]]])},
    feature("cell", shape("Polygon", SQUARE)),
    feature("tile", shape("Polygon", SQUARE), classification=None),
    feature("annotation", shape("MultiPoint", [[1, 1], [2, 2], [3, 3]])),
    feature("annotation", shape("MultiPolygon", [SQUARE, [[[20, 0], [30, 0], [30, 10], [20, 10], [20, 0]]]])),
    feature(
        "annotation", shape("Polygon", [*SQUARE, [[4, 4], [6, 4], [6, 6], [4, 6], [4, 4]]]), color=[1, 2, 3]
    ),
    feature("annotation", shape("LineString", [[0, 0], [8, 4]]), classification="Mitosis"),
    feature(None, shape("Point", [9, 9]), classification={"name": "Ignore*"}),
]
POINTS = [
    [3, 4, "mitosis"],
    [5, 5, "lookalike"],
    [5, 5, "mitosis"],
    [5, 5, "unclassified"],
    [5, 5, "unclassified"],
    [1, 1, "mitosis"],
    [2, 2, "mitosis"],
    [3, 3, "mitosis"],
    [5, 5, "mitosis"],
    [25, 5, "mitosis"],
    [5, 5, "mitosis"],
    [4, 2, "mitosis"],
    [9, 9, "ignore"],
]  # fmt: skip


@pytest.mark.parametrize("content", [{"type": "FeatureCollection", "features": OBJECTS}, OBJECTS])
def test_qupath_objects_of_every_kind(tmp_path: Path, content: Any) -> None:
    found = read_detections(write_geojson(tmp_path / "s.geojson", content))
    assert points(found) == POINTS
    assert found.table["probability"].tolist()[:3] == [0.75, 0.5, 1]
    assert found.table["observer"].tolist()[0] == "A"
    assert left_out(found) == []


def test_qupath_a_single_object_and_a_bare_shape(tmp_path: Path) -> None:
    assert points(read_detections(write_geojson(tmp_path / "s.geojson", OBJECTS[0]))) == POINTS[:1]
    bare = read_detections(write_geojson(tmp_path / "s.geojson", shape("Point", [1, 2])))
    assert points(bare) == [[1, 2, "mitosis"]]


def test_qupath_objects_inside_others_are_read(tmp_path: Path) -> None:
    spot = feature("detection", shape("Point", [1, 2]), classification={"name": "Mitosis"})
    region = feature("annotation", shape("Polygon", SQUARE), spot, spot, classification={"name": "Tumor"})
    core = feature("tmaCore", shape("Polygon", SQUARE), region, isMissing=False)
    nothing = feature("annotation", None)
    found = read_detections(write_geojson(tmp_path / "s.geojson", [core, nothing]))
    assert points(found) == [[5, 5, "tumor"], [1, 2, "mitosis"], [1, 2, "mitosis"]]
    assert left_out(found) == [
        "s.geojson: 1 objects that frame others (TMA cores) left out",
        "s.geojson: 1 objects without a shape left out",
    ]


def test_qupath_compressed(tmp_path: Path) -> None:
    text = json.dumps(OBJECTS[:1])
    with zipfile.ZipFile(tmp_path / "fall 1.zip", "w") as archive:
        archive.writestr("fall 1.geojson", text)
    (tmp_path / "b.geojson.gz").write_bytes(gzip.compress(text.encode()))
    with zipfile.ZipFile(tmp_path / "pictures.zip", "w") as archive:
        archive.writestr("a.png", b"")
    found = read_detections(tmp_path)
    assert found.slides == ("b", "fall 1")
    assert points(found) == POINTS[:1] * 2
    with pytest.raises(TableError, match=r"pictures.zip: cannot be read as JSON"):
        read_detections(tmp_path / "pictures.zip")
    (tmp_path / "b.geojson.gz").write_bytes(gzip.compress(text.encode())[:30])
    with pytest.raises(TableError, match=r"b.geojson.gz: cannot be read as JSON"):
        read_detections(tmp_path / "b.geojson.gz")


@pytest.mark.parametrize(
    "geometry", [shape("Point", []), shape("Point", [float("nan"), float("nan")]), shape("Circle", [1, 2])]
)
def test_qupath_shapes_that_are_none_are_refused(tmp_path: Path, geometry: Any) -> None:
    path = write_geojson(tmp_path / "s.geojson", [feature("annotation", geometry)])
    with pytest.raises(TableError, match=r"s.geojson: holds a feature that is not GeoJSON"):
        read_detections(path)


# ---- ASAP ----


def test_asap_shapes_are_read_by_their_centre(tmp_path: Path) -> None:
    shapes = (
        drawing("Dot", "Mitosis", (1.5, 2.5)),
        drawing("PointSet", "Non-mitotic", (3, 4), (5, 6)),
        drawing("Polygon", "None", (0, 0), (6, 0), (0, 6)),
        drawing("Rectangle", "Mitosis", (0, 0), (10, 0), (10, 20), (0, 20)),
        drawing("Spline", "Mitosis", (1, 1), (3, 5)),
        drawing("Measurement", "Mitosis", (0, 0), (9, 9)),
        drawing("Polygon", "Mitosis"),
        drawing("None", "Mitosis", (1, 1)),
    )
    found = read_detections(
        write_asap(tmp_path / "s.xml", shapes, {"Mitosis": "None", "Non-mitotic": "None"})
    )
    assert points(found) == [
        [1.5, 2.5, "mitosis"],
        [3, 4, "lookalike"],
        [5, 6, "lookalike"],
        [2, 2, "mitosis"],
        [5, 10, "mitosis"],
        [2, 3, "mitosis"],
    ]
    assert left_out(found) == [
        "s.xml: 1 annotations of the type Measurement left out",
        "s.xml: 1 annotations without coordinates left out",
        "s.xml: 1 annotations of the type None left out",
    ]


def test_asap_groups_within_groups(tmp_path: Path) -> None:
    groups = {"Mitosis": "None", "prophase": "Mitosis", "look-alike": "Mitosis", "stroma": "tissue"}
    groups |= {"tissue": "stroma"}
    shapes = [drawing("Dot", group, (n, n)) for n, group in enumerate([*groups, "None", ""])]
    found = read_detections(write_asap(tmp_path / "s.xml", shapes, groups))
    labels = ["mitosis", "mitosis", "lookalike", "stroma", "tissue", "mitosis", "mitosis"]
    assert found.table["label"].tolist() == labels


def test_asap_coordinates_out_of_order(tmp_path: Path) -> None:
    """Taken as they stand, the corners would make a bow tie with another centre."""
    positions = ((0, 0), (10, 10), (10, 0), (2, 10))
    shapes = [drawing("Polygon", "None", *positions, orders=(0, 2, 1, 3))]
    found = read_detections(write_asap(tmp_path / "s.xml", shapes)).table
    assert found[["x", "y"]].to_numpy().tolist() == [
        [pytest.approx(5.481, abs=1e-3), pytest.approx(4.815, abs=1e-3)]
    ]


@pytest.mark.parametrize("value", ["12,5", "nan", "inf", ""])
def test_asap_places_that_are_no_numbers_are_refused(tmp_path: Path, value: str) -> None:
    path = write_asap(tmp_path / "s.xml", [drawing("Dot", "None", (value, 1))])  # type: ignore[arg-type]
    with pytest.raises(TableError, match=r"s.xml: its content cannot be understood"):
        read_detections(path)


# ---- what was left out is said wherever the points go ----


def test_what_was_left_out_goes_with_the_points(tmp_path: Path) -> None:
    write_asap(tmp_path / "a.xml", [drawing("Dot", "None", (1, 1)), drawing("Measurement", "None", (1, 1))])
    write_asap(tmp_path / "b.xml", [drawing("Measurement", "None", (1, 1))])
    parts = [read_detections(tmp_path / name) for name in ("a.xml", "b.xml")]
    both = [f"{name}.xml: 1 annotations of the type Measurement left out" for name in "ab"]
    assert left_out(joined(parts, "x")) == left_out(read_detections(tmp_path)) == both
    found, _ = convert_detections([tmp_path], tmp_path / "out.csv")
    assert [warning.text for warning in found.warnings] == both
