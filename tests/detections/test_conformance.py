"""Written files as other programs want them, by their documents, schemas and source."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
import uuid
import xml.dom.minidom
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pydicom
import pytest
import shapely
from hypothesis import given

from metaphase.base.tables import TableError
from metaphase.detections.files import FORMATS, read_detections, write_detections
from metaphase.detections.table import DetectionSet, detection_set
from tests.detections.sets import detection_sets, provenance_set
from tests.examples import FEW
from tests.slides.dicoms import write_plain
from tests.slides.images import blob_image

SLIDERUNNER_COLUMNS = {
    "Slides": "uid filename width height EXACTUSER directory uuid exactImageID",
    "Annotations": "uid slide guid lastModified deleted type agreedClass description",
    "Annotations_coordinates": "uid coordinateX coordinateY coordinateZ slide annoId orderIdx",
    "Annotations_label": "uid person class exact_id annoId",
    "Classes": "uid name color",
    "Persons": "uid name isExactUser",
    "Log": "uid dateTime labelId",
}


def written(name: str, tmp_path: Path, detections: DetectionSet | None = None) -> list[Any]:
    """The parsed JSON files of a set, one a slide."""
    files = write_detections(detections or provenance_set(), tmp_path / name, name, mpp=0.25)
    return [json.loads(path.read_text(encoding="utf-8")) for path in files]


COUNTED, BELOW = "mitotic figure", "mitotic figure: below count threshold"


def classes_in(path: Path) -> list[str]:
    """The class of each point as other programs see it."""
    if path.suffix == ".geojson":
        features = json.loads(path.read_text())["features"]
        return [one["properties"]["classification"]["name"] for one in features]
    if path.suffix == ".xml":
        drawings = xml.dom.minidom.parse(str(path)).getElementsByTagName("Annotation")
        return [one.getAttribute("PartOfGroup") for one in drawings]
    if path.suffix == ".sqlite":
        with closing(sqlite3.connect(path)) as connection:
            query = "SELECT c.name FROM Annotations a JOIN Classes c ON c.uid = a.agreedClass ORDER BY a.uid"
            return [name for (name,) in connection.execute(query)]
    if path.suffix == ".db":
        with closing(sqlite3.connect(path)) as connection:
            query = "SELECT properties ->> 'type' FROM annotations ORDER BY id"
            return [name for (name,) in connection.execute(query)]
    if path.suffix == ".dcm":
        groups = pydicom.dcmread(path).AnnotationGroupSequence
        return [one.AnnotationGroupLabel for one in groups for _ in range(one.NumberOfAnnotations)]
    content = json.loads(path.read_text())
    names = {one["id"]: one["name"] for one in content.get("categories", [])}
    return [names[one["category_id"]] for one in content.get("annotations", [])] or [
        one["name"] for one in content["points"]
    ]


@pytest.mark.parametrize("name", [known.name for known in FORMATS if not known.all_columns])
def test_what_does_not_count_has_a_class_of_its_own(name: str, tmp_path: Path) -> None:
    positions = {"slide": "s", "x": [10.0, 20.0, 30.0], "y": 5.0, "probability": [0.9, 0.5, 0.4]}
    table = pd.DataFrame(
        positions | {"label": ["mitosis", "mitosis", "lookalike"], "counted": [True, False, False]}
    )
    sources = {"s": write_plain(tmp_path / "slide.dcm", blob_image())}
    (path,) = write_detections(DetectionSet(table, ("s",)), tmp_path / "o", name, mpp=0.25, sources=sources)
    assert classes_in(path) == [COUNTED, BELOW, "non-mitotic figure"]
    found = read_detections(path, mpp=0.25).table
    assert found["label"].tolist() == ["mitosis", "mitosis", "lookalike"]
    assert found["counted"].tolist() == [True, False, False]


@given(detections=detection_sets())
@FEW
def test_qupath_objects(detections: DetectionSet, tmp_path_factory: pytest.TempPathFactory) -> None:
    collections = written("qupath", tmp_path_factory.mktemp("q"), detections)
    features = [feature for content in collections for feature in content["features"]]
    assert all(content["type"] == "FeatureCollection" for content in collections)
    assert len({feature["id"] for feature in features}) == len(features) == len(detections.table)
    for feature in features:
        assert feature["type"] == "Feature"
        assert uuid.UUID(feature["id"]).version == 5
        ring = shapely.geometry.shape(feature["geometry"])
        assert ring.is_valid
        assert ring.exterior.is_ccw
        properties = feature["properties"]
        assert properties["objectType"] == "detection"
        assert len(properties["classification"]["color"]) == 3
        assert all(isinstance(value, float | int) for value in properties["measurements"].values())
        assert all(isinstance(value, str) for value in properties.get("metadata", {}).values())


def test_qupath_draws_a_circle_of_the_size_of_a_mitosis(tmp_path: Path) -> None:
    points = detection_set(pd.DataFrame({"slide": ["s"], "x": [1000.0], "y": [2000.0]}))
    for mpp, width in ((0.25, 50), (0.5, 25), (None, 50)):
        write_detections(points, tmp_path / "s.geojson", mpp=mpp)
        (feature,) = json.loads((tmp_path / "s.geojson").read_text())["features"]
        assert feature["geometry"]["isEllipse"] is True
        bounds = shapely.geometry.shape(feature["geometry"]).bounds
        assert bounds == (1000 - width / 2, 2000 - width / 2, 1000 + width / 2, 2000 + width / 2)


def test_asap_structure(tmp_path: Path) -> None:
    files = write_detections(provenance_set(), tmp_path, "asap")
    root = xml.dom.minidom.parse(str(files[0])).documentElement
    assert root.tagName == "ASAP_Annotations"
    assert [node.tagName for node in root.childNodes if node.nodeType == node.ELEMENT_NODE] == [
        "Annotations",
        "AnnotationGroups",
    ]
    groups = {group.getAttribute("Name") for group in root.getElementsByTagName("Group")}
    drawings = root.getElementsByTagName("Annotation")
    assert len(drawings) == 2
    for drawing in drawings:
        assert drawing.getAttribute("Type") == "Dot"
        assert drawing.getAttribute("PartOfGroup") in groups  # else ASAP refuses the whole file
        assert re.fullmatch("#[0-9a-f]{6}", drawing.getAttribute("Color"))
        (position,) = drawing.getElementsByTagName("Coordinate")
        assert position.getAttribute("Order") == "0"
        assert float(position.getAttribute("X")) > 0
        assert float(position.getAttribute("Y")) > 0
    empty = xml.dom.minidom.parse(str(files[1])).documentElement
    assert not empty.getElementsByTagName("Annotation")


def test_grand_challenge_schema(tmp_path: Path) -> None:
    """The platform refuses keys that it does not know."""
    for content in written("grand-challenge", tmp_path):
        assert set(content) == {"type", "name", "points", "version"}
        assert content["type"] == "Multiple points"
        assert content["version"] == {"major": 1, "minor": 0}
        for point in content["points"]:
            assert set(point) == {"name", "point", "probability"}
            assert point["name"] in ("mitotic figure", "non-mitotic figure")
            assert len(point["point"]) == 3
            assert all(isinstance(value, float | int) for value in point["point"])
            assert 0 <= point["probability"] <= 1
    assert content["points"][0]["point"] == [25.0, 0.00125, 0]


def test_coco_fields(tmp_path: Path) -> None:
    sizes = {"a.svs": (900, 800)}
    write_detections(
        provenance_set(), tmp_path / "d.json", "coco", mpp={"a.svs": 0.25, "b.svs": 0.5}, sizes=sizes
    )
    content = json.loads((tmp_path / "d.json").read_text(encoding="utf-8"))
    assert content["images"] == [
        {"id": 1, "file_name": "a.svs", "width": 900, "height": 800},
        {"id": 2, "file_name": "leer – 空.svs"},
        {"id": 3, "file_name": "b.svs"},
    ]
    assert content["categories"] == [
        {"id": 1, "name": "mitotic figure"},
        {"id": 2, "name": "non-mitotic figure"},
    ]
    annotations = content["annotations"]
    assert [annotation["id"] for annotation in annotations] == [1, 2, 3]
    assert all(
        set(annotation) == {"id", "image_id", "category_id", "bbox", "area", "iscrowd", "score"}
        for annotation in annotations
    )
    assert annotations[0] == {
        "id": 1, "image_id": 1, "category_id": 1, "bbox": [-23.5, -21.75, 50, 50], "area": 2500,
        "iscrowd": 0, "score": 0,
    }  # fmt: skip
    assert annotations[2]["bbox"] == [1e5 - 12.5, -7.5, 25, 25]


def test_coco_in_pycocotools(tmp_path: Path) -> None:
    coco = pytest.importorskip("pycocotools.coco", reason="pycocotools is not installed")
    write_detections(provenance_set(), tmp_path / "d.json", "coco", mpp=0.25)
    truth = coco.COCO(str(tmp_path / "d.json"))
    assert (truth.getImgIds(), truth.getCatIds(catNms=["mitotic figure"])) == ([1, 2, 3], [1])
    keys = ("image_id", "category_id", "bbox", "score")
    results = [{key: one[key] for key in keys} for one in truth.loadAnns(truth.getAnnIds())]
    assert len(truth.loadRes(results).getAnnIds()) == 3


def test_sliderunner_tables(tmp_path: Path) -> None:
    write_detections(provenance_set(), tmp_path / "d.sqlite", sizes={"a.svs": (900, 800)})
    with closing(sqlite3.connect(tmp_path / "d.sqlite")) as connection:
        for name, columns in SLIDERUNNER_COLUMNS.items():
            found = {row[1] for row in connection.execute(f"PRAGMA table_info({name})")}
            assert found == set(columns.split())
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        rows = connection.execute(
            "SELECT s.filename, s.width, a.type, a.deleted, c.name, c.color, p.coordinateX, p.coordinateY,"
            " p.coordinateZ, p.orderIdx, n.name, a.description"
            " FROM Annotations a JOIN Slides s ON s.uid = a.slide JOIN Annotations_coordinates p"
            " ON p.annoId = a.uid AND p.slide = s.uid JOIN Annotations_label l ON l.annoId = a.uid"
            " JOIN Classes c ON c.uid = l.class AND c.uid = a.agreedClass JOIN Persons n ON n.uid = l.person"
        ).fetchall()
    assert rows == [
        ("a.svs", 900, 1, 0, "mitotic figure", "#dc1e28", 2, 3, 0, 1, "metaphase", "p=0"),
        ("a.svs", 900, 1, 0, "non-mitotic figure", "#1e6edc", 2, 4, 0, 1, "metaphase", "p=1"),
        ("b.svs", None, 1, 0, "mitotic figure", "#dc1e28", 100000, 5, 0, 1, "metaphase", "p=0.875"),
    ]


def test_sliderunner_opens_and_edits_it(tmp_path: Path) -> None:
    access = pytest.importorskip("SlideRunner_dataAccess.database", reason="SlideRunner is not installed")
    write_detections(provenance_set(), tmp_path / "d.sqlite")
    opened = access.Database().open(str(tmp_path / "d.sqlite"))
    assert [name for _, name in opened.listOfSlides()] == ["a.svs", "leer – 空.svs", "b.svs"]
    opened.loadIntoMemory(1)
    assert [(spot.x1, spot.y1, spot.agreedLabel()) for spot in opened.annotations.values()] == [
        (2, 3, 1),
        (2, 4, 2),
    ]
    opened.insertNewSpotAnnotation(50, 60, 2, 1, 1)
    opened.db.close()
    found = read_detections(tmp_path / "d.sqlite").table
    assert found["slide"].tolist() == ["a.svs", "a.svs", "b.svs", "leer – 空.svs"]


def test_csv_in_the_standard_library(tmp_path: Path) -> None:
    write_detections(provenance_set(), tmp_path / "d.csv")
    with (tmp_path / "d.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["slide"], row["x"], row["label"]) for row in rows] == [
        ("a.svs", "1.5", "mitosis"),
        ("a.svs", "2.5", "lookalike"),
        ("b.svs", "100000.0", "mitosis"),
        ("leer – 空.svs", "", ""),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<Annotations><Annotation/></Annotations>", "begins with Annotations, not with ASAP_Annotations"),
        ("<ASAP_Annotations><Annotations>", "no element found"),
        (
            '<ASAP_Annotations><Annotations><Annotation Type="Dot"><Coordinates><Coordinate X="1"/>'
            "</Coordinates></Annotation></Annotations></ASAP_Annotations>",
            "'Y'",
        ),
    ],
)
def test_other_xml_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "s.xml").write_text(text)
    with pytest.raises(TableError, match=message) as caught:
        read_detections(tmp_path / "s.xml")
    assert "s.xml: its content cannot be understood" in str(caught.value)
