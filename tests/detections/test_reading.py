"""Formats: files written to their published descriptions give the same table."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest

from metaphase.base.errors import OutputError
from metaphase.base.tables import TableError
from metaphase.detections.files import read_detections
from metaphase.detections.table import common_label

NEGATIVE_BOX = """
{"images": [{"id": 1, "file_name": "a"}], "annotations": [{"image_id": 1, "bbox": [5, 5, -4, 4]}]}
"""
SLIDERUNNER_SCHEMA = """
CREATE TABLE Slides (uid INTEGER PRIMARY KEY, filename TEXT, width INTEGER, height INTEGER, directory TEXT);
CREATE TABLE Classes (uid INTEGER PRIMARY KEY, name TEXT, color TEXT);
CREATE TABLE Annotations (uid INTEGER PRIMARY KEY, slide INTEGER, guid TEXT, lastModified REAL,
    deleted INTEGER DEFAULT 0, type INTEGER, agreedClass INTEGER);
CREATE TABLE Annotations_coordinates (uid INTEGER PRIMARY KEY, coordinateX INTEGER, coordinateY INTEGER,
    slide INTEGER, annoId INTEGER, orderIdx INTEGER);
"""


def write_sliderunner(path: Path) -> Path:
    """A database with a spot, a box, a deleted and an undecided annotation, and a slide without any."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SLIDERUNNER_SCHEMA)
        connection.executemany(
            "INSERT INTO Slides VALUES (?,?,?,?,?)", [(1, "a.svs", 900, 800, ""), (2, "b.svs", 900, 800, "")]
        )
        connection.executemany(
            "INSERT INTO Classes VALUES (?,?,?)", [(1, "Mitotic figure", ""), (2, "Mitosis look-alike", "")]
        )
        connection.executemany(
            "INSERT INTO Annotations(uid, slide, deleted, type, agreedClass) VALUES (?,?,?,?,?)",
            [(1, 1, 0, 1, 1), (2, 1, 0, 2, 2), (3, 1, 1, 1, 1), (4, 1, 0, 1, None)],
        )
        connection.executemany(
            "INSERT INTO Annotations_coordinates(coordinateX, coordinateY, slide, annoId, orderIdx)"
            " VALUES (?,?,?,?,?)",
            [(10, 20, 1, 1, 1), (100, 200, 1, 2, 1), (150, 250, 1, 2, 2), (5, 5, 1, 3, 1), (7, 7, 1, 4, 1)],
        )
        connection.commit()
    return path


def test_sliderunner_gives_centres_and_agreed_classes(tmp_path: Path) -> None:
    found = read_detections(write_sliderunner(tmp_path / "d.sqlite"))
    assert found.slides == ("a.svs", "b.svs")
    assert found.table[["x", "y", "label"]].to_numpy().tolist() == [
        [10, 20, "mitosis"],
        [125, 225, "lookalike"],
        [7, 7, "unclassified"],
    ]


def test_csv_keeps_leading_zeros_and_notes_slides_without_findings(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("Slide,X,Y,Probability\n01,5,6,0.5\n02,,,\n")
    found = read_detections(tmp_path / "d.csv")
    assert found.slides == ("01", "02")
    assert found.table.to_dict("records") == [
        {"slide": "01", "x": 5.0, "y": 6.0, "probability": 0.5, "label": "mitosis"}
    ]


def test_parquet_and_csv_agree(tmp_path: Path) -> None:
    frame = pd.DataFrame({"slide": ["s", "t"], "x": [1.5, 2], "y": [3.0, 4], "probability": [0.25, 1]})
    frame.to_parquet(tmp_path / "d.parquet")
    frame.to_csv(tmp_path / "d.csv", index=False)
    one, two = (read_detections(tmp_path / name) for name in ("d.parquet", "d.csv"))
    pd.testing.assert_frame_equal(one.table, two.table, check_dtype=False)
    assert one.slides == two.slides == ("s", "t")


@pytest.mark.parametrize("collection", [True, False])
def test_qupath_geojson_old_and_new_measurements(tmp_path: Path, collection: bool) -> None:
    square = [[[0, 0], [10, 0], [10, 10], [0, 10], [0, 0]]]
    features = [
        {
            "type": "Feature",
            "id": "7f0e1a3e-0c1d-4e53-9d57-5a3f6c3b1a01",
            "geometry": {"type": "Point", "coordinates": [3, 4]},
            "properties": {"classification": {"name": "Mitosis"}, "measurements": {"Probability": 0.75}},
        },
        {
            "type": "Feature",
            "geometry": {"type": "Polygon", "coordinates": square},
            "properties": {
                "classification": {"names": ["Non-mitotic"]},
                "measurements": [{"name": "probability", "value": 0.5}],
            },
        },
    ]
    content = {"type": "FeatureCollection", "features": features} if collection else features
    (tmp_path / "slide 1.geojson").write_text(json.dumps(content))
    table = read_detections(tmp_path / "slide 1.geojson").table
    assert table.to_numpy().tolist() == [
        ["slide 1", 3, 4, 0.75, "mitosis"],
        ["slide 1", 5, 5, 0.5, "lookalike"],
    ]


def test_grand_challenge_points_are_millimetres(tmp_path: Path) -> None:
    point = {"point": [0.25, 0.5, 0], "probability": 0.9, "name": "mitotic figure"}
    content = {"type": "Multiple points", "points": [point], "version": {"major": 1, "minor": 0}}
    (tmp_path / "s.json").write_text(json.dumps(content))
    table = read_detections(tmp_path / "s.json", mpp=0.25).table
    assert table[["x", "y"]].to_numpy().tolist() == [[1000, 2000]]
    with pytest.raises(OutputError, match="--mpp"):
        read_detections(tmp_path / "s.json")


def coco(boxes: list[list[float]]) -> str:
    images = [{"id": 1, "file_name": "a.tif", "width": 1000, "height": 1000}, {"id": 2, "file_name": "b.tif"}]
    images[1] |= {"width": 1000, "height": 1000}
    annotations = [{"image_id": 1, "category_id": 1, "bbox": box, "score": 0.5} for box in boxes]
    return json.dumps(
        {"images": images, "categories": [{"id": 1, "name": "mitotic figure"}], "annotations": annotations}
    )


def test_coco_centres_and_empty_images(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(coco([[10, 20, 50, 50]]))
    found = read_detections(tmp_path / "c.json")
    assert found.slides == ("a.tif", "b.tif")
    assert found.table[["x", "y", "probability"]].to_numpy().tolist() == [[35, 45, 0.5]]


def test_corners_in_a_coco_file_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(coco([[600, 700, 650, 750], [100, 100, 150, 150]]))
    with pytest.raises(TableError, match="corners x1, y1, x2, y2"):
        read_detections(tmp_path / "c.json")


def test_coco_images_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(coco([[10, 20, 50, 50]]).replace("b.tif", "a.tif"))
    with pytest.raises(TableError, match=r"two images are called a.tif. Give every image"):
        read_detections(tmp_path / "c.json")


def test_a_folder_has_one_file_a_slide_and_empty_files_count(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("x,y\n")
    found = read_detections(tmp_path)
    assert found.slides == ("a", "b")
    assert found.table["slide"].tolist() == ["a"]
    (tmp_path / "c.csv").write_text("slide,x,y\na,5,5\n")
    with pytest.raises(TableError, match="slide a is in"):
        read_detections(tmp_path)


@pytest.mark.parametrize(
    "name", ["score", "Confidence", "prob", "conf", "detection_score", "Detection Score"]
)
def test_what_programs_call_the_probability_is_one_and_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "d.csv").write_text(f"x,y,{name}\n1,2,0.1\n3,4,0.9\n")
    found = read_detections(tmp_path / "d.csv")
    assert found.table["probability"].tolist() == [0.1, 0.9]
    assert [warning.code for warning in found.warnings] == ["probability"]


def test_points_that_may_have_another_probability_are_not_certain_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("x,y,likelihood,cells\n0.1,0.2,0.1,7\n0.3,0.4,0.2,8\n")
    (warning,) = read_detections(tmp_path / "d.csv").warnings
    assert "has no column probability, and all points are certain" in warning.text
    assert "if likelihood is their probability" in warning.next_step


def test_a_table_may_come_from_a_spreadsheet_with_decimal_commas(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text(
        "\ufeffslide;x;y;probability\n01;1,5;2;0,25\n02;3;4;1\n", encoding="utf-8"
    )
    table = read_detections(tmp_path / "d.csv").table
    assert table[["slide", "x", "y", "probability"]].to_numpy().tolist() == [
        ["01", 1.5, 2, 0.25],
        ["02", 3, 4, 1],
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("d.csv", "", "empty"),
        ("d.csv", "slide,x\na,1\n", "no column y"),
        ("d.csv", "slide,x,y\na,one,2\n", "'one', which is not a number"),
        ("d.csv", "slide,x,y\na,1,\n", "no finite position"),
        ("d.csv", "slide,x,y\n,1,2\n", "name no slide"),
        ("d.csv", "slide,x,y,probability\na,1,2,97\n", "not between 0 and 1"),
        ("d.csv", "slide,x,y,x\na,1,2,3\n", "two columns 'x'"),
        ("d.csv", "slide,x,y\na,1_000,2\n", "'1_000', which is not a number"),
        ("d.csv", "slide,x,y,score,confidence\na,1,2,0.5,0.5\n", "score and confidence may both"),
        ("d.json", "{", "cannot be read as JSON"),
        ("d.json", NEGATIVE_BOX, "a box of -4 x 4 px"),
        ("d.json", "{}", "no known format"),
        ("d.xyz", "", "no known format"),
        ("d.sqlite", "not a database, though long enough to be looked at", "not a SlideRunner database"),
        ("d.geojson", '[{"type": "Feature"}]', "not GeoJSON"),
    ],
)
def test_bad_files_are_named_with_the_reason(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(TableError, match=message) as caught:
        read_detections(tmp_path / name)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Mitotic figure", "mitosis"),
        ("mitosis", "mitosis"),
        ("mitotic_figure", "mitosis"),
        ("non-mitotic figure", "lookalike"),
        ("not mitotic figure", "lookalike"),
        ("hard negative", "lookalike"),
        ("Mitosis look-alike", "lookalike"),
        ("NonMitosis", "lookalike"),
        ("Ignore*", "ignore"),
        ("Tumor cell", "tumor cell"),
    ],
)
def test_labels_of_other_tools(name: str, label: str) -> None:
    assert common_label(name) == label


NAN = float("nan")


@pytest.mark.parametrize("kind", ["coco", "grand-challenge"])
def test_a_point_without_a_place_is_no_slide_without_findings(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "points.json"
    if kind == "coco":
        content = {
            "images": [{"id": 1, "file_name": "a.svs"}],
            "categories": [{"id": 1, "name": "mitotic figure"}],
            "annotations": [
                {"id": 1, "image_id": 1, "category_id": 1, "bbox": [float("nan")] * 2 + [50, 50]}
            ],
        }
    else:
        points = [{"point": [NAN, NAN, 0.25], "probability": 0.9, "name": "mitotic figure"}]
        content = {"type": "Multiple points", "version": {"major": 1, "minor": 0}, "points": points}
    path.write_text(json.dumps(content))
    with pytest.raises(TableError, match=r"no finite position|nan"):
        read_detections(path, mpp=0.25)


def test_objects_without_a_probability_among_others_are_told(tmp_path: Path) -> None:
    objects = [
        {"type": "Feature", "geometry": {"type": "Point", "coordinates": [x, 1]},
         "properties": {"measurements": measured}}
        for x, measured in ((1, {"probability": 0.3}), (2, {}))
    ]  # fmt: skip
    (tmp_path / "s.geojson").write_text(json.dumps(objects))
    found = read_detections(tmp_path / "s.geojson")
    assert found.table["probability"].tolist() == [0.3, 1.0]
    assert [one.text for one in found.warnings] == [
        "s.geojson: 1 of 2 points have no probability and count as certain"
    ]


@pytest.mark.parametrize("name", ["None", "NA", "null", "nan", "N/A"])
def test_a_slide_may_be_called_what_others_take_for_nothing(tmp_path: Path, name: str) -> None:
    path = tmp_path / "points.csv"
    path.write_text(f"slide,x,y,probability,label\n{name},1,2,0.5,mitosis\nb,NaN,NA,,\n")
    found = read_detections(path)
    assert found.slides == (name, "b")
    assert found.table["slide"].tolist() == [name]
    path.write_text(f"slide,x,y,label\na,1,2,mitosis\na,3,4,{name}\n")
    with pytest.raises(TableError, match=f"the label in row 2 is '{name}'"):
        read_detections(path)


@pytest.mark.parametrize("value", ["NaN", "Infinity", '"high"', "true", "[1]"])
@pytest.mark.parametrize("kind", ["qupath", "coco", "grand-challenge"])
def test_a_probability_that_is_no_number_is_no_certainty(tmp_path: Path, kind: str, value: str) -> None:
    shape = '{"type": "Point", "coordinates": [1, 1]}'
    content = {
        "qupath": f'[{{"type": "Feature", "geometry": {shape}, "properties": {{"measurements": '
        f'{{"probability": {value}}}}}}}]',
        "coco": '{"images": [{"id": 1, "file_name": "a"}], "categories": [], "annotations": '
        f'[{{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 5, 5], "score": {value}}}]}}',
        "grand-challenge": '{"type": "Multiple points", "version": {"major": 1, "minor": 0}, "points": '
        f'[{{"name": "m", "point": [1, 1, 0], "probability": {value}}}]}}',
    }[kind]
    path = tmp_path / ("a.geojson" if kind == "qupath" else "a.json")
    path.write_text(content)
    with pytest.raises(TableError, match="a probability is"):
        read_detections(path, mpp=0.25)
