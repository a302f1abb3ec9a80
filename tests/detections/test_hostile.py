"""Tables and annotations of others that are broken on purpose."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from metaphase.base.tables import TableError
from metaphase.detections.files import read_detections, write_detections
from metaphase.detections.table import detection_set

SOUND = {"slide": ["a", "b"], "x": [1.0, 2.0], "y": [3.0, 4.0], "probability": [0.5, 0.9], "label": ["m"] * 2}


def feature(geometry: Any, probability: Any = 0.9) -> dict[str, Any]:
    measurements = {"probability": probability}
    return {"type": "Feature", "geometry": geometry, "properties": {"measurements": measurements}}


POINT = {"type": "Point", "coordinates": [1, 2]}
BROKEN: list[Any] = [
    {"type": "FeatureCollection", "features": [feature({"type": "Point", "coordinates": [10**400, 2]})]},
    {"type": "FeatureCollection", "features": [feature({"type": "Point", "coordinates": ["a", None]})]},
    {"type": "FeatureCollection", "features": [feature(POINT) | {"properties": 5}]},
    {"type": "FeatureCollection", "features": [feature(POINT) | {"properties": {"childObjects": 5}}]},
    {"type": "FeatureCollection", "features": [feature(POINT, math.nan)]},
    {"type": "FeatureCollection", "features": [feature(POINT, True)]},
    {
        "type": "FeatureCollection",
        "features": [feature(POINT) | {"properties": {"measurements": {"a": "\ud800"}}}],
    },
    {"type": "Multiple points", "points": 5},
    {"type": "Multiple points", "points": [{"point": [10**400, 1, 0]}]},
    {"type": "Multiple points", "points": [{"point": [True, 1, 0]}]},
    {"type": "Multiple points", "points": [[]]},
    {"images": 5, "annotations": []},
    {"images": [{"id": [], "file_name": "a"}], "annotations": []},
    {"images": [{"id": 1, "file_name": "a"}], "annotations": [{"image_id": 1, "bbox": [1, 2, None, 4]}]},
    {"images": [{"id": 1, "file_name": "a"}], "annotations": [{"image_id": 1, "bbox": [10**400, 2, 3, 4]}]},
    {"images": [{"id": 1}], "annotations": []},
]


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_members_of_another_kind_are_an_error_that_names_the_file(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    with pytest.raises(TableError, match=r"a\.json"):
        read_detections(path, mpp=0.25)


@pytest.mark.parametrize("column", ["x", "y", "probability"])
@pytest.mark.parametrize(
    "values", [[True, False], [b"1", b"2"], pd.to_datetime(["2020-01-01"] * 2), [math.inf] * 2]
)
def test_truths_bytes_times_and_infinity_are_no_places(tmp_path: Path, column: str, values: Any) -> None:
    path = tmp_path / "a.parquet"
    pd.DataFrame(SOUND | {column: values}).to_parquet(path)
    with pytest.raises(TableError):
        read_detections(path)


@pytest.mark.parametrize("coding", ["klingon", "rot13", "utf-16"])
def test_annotations_in_a_coding_that_nobody_knows_are_an_error(tmp_path: Path, coding: str) -> None:
    path = tmp_path / "a.xml"
    path.write_text(f'<?xml version="1.0" encoding="{coding}"?><ASAP_Annotations/>')
    with pytest.raises(TableError, match=r"a\.xml: its content cannot be understood"):
        read_detections(path)


def database(path: Path) -> Path:
    write_detections(detection_set(pd.DataFrame(SOUND)), path)
    return path


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE Annotations_coordinates SET coordinateX = 'text'",
        "UPDATE Annotations_coordinates SET coordinateX = x'ff'",
        "UPDATE Annotations_coordinates SET coordinateX = 9e999",
        "DROP TABLE Annotations_coordinates; CREATE VIEW Annotations_coordinates AS WITH RECURSIVE "
        "c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT 1 AS annoId, n AS coordinateX, "
        "n AS coordinateY FROM c",
    ],
)
def test_databases_with_odd_cells_or_without_an_end_are_an_error(tmp_path: Path, change: str) -> None:
    path = database(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(change)
        connection.commit()
    with pytest.raises(TableError):
        read_detections(path)


def test_names_in_a_database_that_are_no_text_stay_readable(tmp_path: Path) -> None:
    path = database(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE Slides SET filename = CAST(x'61ff' AS TEXT) WHERE uid = 1")
        connection.commit()
    assert read_detections(path).slides == ("a\\xff", "b")


def test_a_packed_file_does_not_unpack_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaphase.detections.formats.contract.MOST_UNPACKED", 1000)
    path = tmp_path / "a.geojson.gz"
    path.write_bytes(gzip.compress(b" " * 10_000_000))
    with pytest.raises(TableError, match="unpacks to more"):
        read_detections(path)


def test_a_table_has_no_more_rows_than_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaphase.base.tables.MOST_ROWS", 10)
    path = tmp_path / "a.parquet"
    rows = 100_000
    pd.DataFrame({"slide": ["a"] * rows, "x": [1.0] * rows, "y": [2.0] * rows}).to_parquet(path)
    with pytest.raises(TableError, match="states 100,000 rows"):
        read_detections(path)


@pytest.mark.parametrize("stated", ["5", "[" * 5000, '{"operating_points": 5}'])
def test_odd_remarks_of_a_table_are_no_traceback(tmp_path: Path, stated: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table(SOUND).replace_schema_metadata({b"PANDAS_ATTRS": stated.encode()})
    parquet.write_table(table, tmp_path / "a.parquet")
    with contextlib.suppress(TableError):
        assert len(read_detections(tmp_path / "a.parquet").table) == 2
