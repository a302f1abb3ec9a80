"""AnnotationStores: what TIAToolbox writes is read, and what is written it reads, with nothing lost."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from recipes.desks.tiatoolbox import PYTHON

from metaphase.base.errors import UsageError
from metaphase.base.tables import TableError
from metaphase.detections.files import format_of, read_detections, write_detections
from metaphase.detections.table import detection_set
from tests.detections.sets import provenance_set

STORE = """
import json, sqlite3, sys
from shapely.geometry import Point, Polygon
from tiatoolbox.annotation.storage import Annotation, SQLiteStore
if not hasattr(sqlite3.Connection, "enable_load_extension"):  # which it calls only to list options
    options = sqlite3.connect(":memory:").execute("pragma compile_options").fetchall()
    SQLiteStore.compile_options = staticmethod(lambda: [name for name, in options])
"""
THEIRS = """
rows = json.load(open(sys.argv[2]))
store = SQLiteStore(sys.argv[1])
shape = lambda x, y, r: Polygon([(x-r, y-r), (x+r, y-r), (x+r, y+r), (x-r, y+r)]) if r else Point(x, y)
store.append_many([Annotation(shape(x, y, r), properties) for x, y, r, properties in rows])
store.close()
"""
OURS = """
store = SQLiteStore(sys.argv[1])
told = [(a.geometry.x, a.geometry.y, a.properties) for a in store.values()]
inside = len(store.query((0, 0, 50_000, 50_000)))
sure = len(store.query(where="props['probability'] >= 0.5"))
store.close()
json.dump([told, inside, sure], open(sys.argv[2], "w"))
"""


def in_tiatoolbox(code: str, *files: Path) -> None:
    if not PYTHON.is_file():
        pytest.skip("no environment with TIAToolbox: python -m recipes.desks.tiatoolbox")
    subprocess.run([PYTHON, "-I", "-c", STORE + code, *files], check=True)


@pytest.mark.slow
def test_what_tiatoolbox_writes_is_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    positions = rng.uniform(0, 1e5, (10_000, 2)).tolist()
    rows: list[tuple[float, float, float, dict[str, Any]]] = [
        (x, y, 0, {"type": "Mitotic_Figure", "probability": float(p), "note": f"n{i}", "parts": [i, 1]})
        for i, ((x, y), p) in enumerate(zip(positions, rng.random(10_000), strict=True))
    ]
    rows += [(500, 600, 7, {"type": "stroma", "prob": 0.25}), (900, 800, 5, {})]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    in_tiatoolbox(THEIRS, tmp_path / "a.db", tmp_path / "rows.json")
    found = read_detections(tmp_path / "a.db")
    table = found.table
    assert found.slides == ("a",)
    assert table[["x", "y"]].to_numpy().tolist() == [[x, y] for x, y, _, _ in rows]
    stated = [known.get("probability", known.get("prob", 1.0)) for *_, known in rows]
    assert table["probability"].tolist() == stated
    assert table["label"].tolist() == ["mitosis"] * 10_000 + ["stroma", "unclassified"]
    assert table["note"].tolist()[:10_000] == [known["note"] for *_, known in rows[:10_000]]
    assert [json.loads(text) for text in table["parts"][:10_000]] == [[i, 1] for i in range(10_000)]
    assert [one.text for one in found.warnings] == [
        "a.db: 1 of 10002 points have no probability and count as certain",
        "a.db: 2 outlines (their centres are kept) left out",
    ]


@pytest.mark.slow
def test_tiatoolbox_reads_what_is_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.uniform(0, 1e5, (5000, 2)), columns=["x", "y"])
    frame = frame.assign(slide="a", probability=rng.random(5000), label="mitosis", rank=range(5000))
    write_detections(detection_set(frame), tmp_path / "a.tiatoolbox.db")
    in_tiatoolbox(OURS, tmp_path / "a.tiatoolbox.db", tmp_path / "told.json")
    told, inside, sure = json.loads((tmp_path / "told.json").read_text())
    wanted = [
        [row.x, row.y, {"type": "mitotic figure", "probability": row.probability, "rank": row.rank}]
        for row in frame.itertuples()
    ]
    assert told == wanted
    assert inside == ((frame["x"] <= 5e4) & (frame["y"] <= 5e4)).sum()
    assert sure == (frame["probability"] >= 0.5).sum()
    again = read_detections(tmp_path / "a.tiatoolbox.db").table  # which TIAToolbox has opened and closed
    names = ["x", "y", "probability", "rank"]
    pd.testing.assert_frame_equal(again[names], frame[names])


def test_a_store_says_what_it_is(tmp_path: Path) -> None:
    """`.db` is SlideRunner's ending, too: files say which they are, and a new one needs a word."""
    points = detection_set(pd.DataFrame({"slide": ["a"], "x": [1.5], "y": [2.5], "type": ["odd"]}))
    with pytest.raises(
        UsageError, match=r"fits several formats\. Give --to with one of sliderunner, tiatoolbox"
    ):
        write_detections(points, tmp_path / "a.db")
    for name in ("sliderunner", "tiatoolbox"):
        write_detections(points, tmp_path / "a.db", name)
        assert format_of(tmp_path / "a.db").name == name
        assert read_detections(tmp_path / "a.db").slides == ("a",)
    assert write_detections(provenance_set(), tmp_path / "many", "tiatoolbox")[0].name == "a.svs.db"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE annotations SET properties = '[1]'", "no JSON object"),
        ("UPDATE annotations SET properties = 'x'", "Expecting value"),
        ("UPDATE annotations SET properties = NULL", "AnnotationStore"),
        ("UPDATE annotations SET cx = 'far'", "could not convert string to float: 'far'"),
        ("UPDATE annotations SET cx = 9e999", "inf is not a finite number"),
        ("""UPDATE annotations SET properties = '{"prob": NaN}'""", "a probability is missing or NaN"),
        ("""UPDATE annotations SET properties = '{"score": 7}'""", "probability 7 is not between 0 and 1"),
    ],
)
def test_a_broken_store_is_refused(change: str, message: str, tmp_path: Path) -> None:
    points = detection_set(pd.DataFrame({"slide": ["a"], "x": [1], "y": [2]}))
    write_detections(points, tmp_path / "a.db", "tiatoolbox")
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute(change)
        connection.commit()
    with pytest.raises(TableError, match=f"(?s)a.db.*{message}"):
        read_detections(tmp_path / "a.db")
