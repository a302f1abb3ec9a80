"""The scripts for QuPath, as far as that goes without QuPath: what they call, and what they carry."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import metaphase as mp
from metaphase.base.settings import qupath_scripts
from metaphase.cli.main import app
from metaphase.detections.formats.contract import HOTSPOT, NAMES
from metaphase.detections.table import BELOW, LOOKALIKE, MITOSIS
from metaphase.reports.record import summary_schema
from tests.analysis.conftest import he_slide, model

__all__ = ["he_slide", "model"]
OBJECT_TYPES = {"annotation", "detection", "cell", "tile", "tmaCore", "root"}
"""Those of QuPath's PathObjectTypeAdapters; any other becomes an annotation."""


def check_object(feature: dict[str, Any]) -> None:
    """What QuPath 0.4 to 0.6 reads of a feature, member by member, after its PathObjectTypeAdapters."""
    assert feature["type"] == "Feature"
    assert str(uuid.UUID(feature["id"])) == feature["id"]
    assert feature["geometry"]["type"] in ("Point", "MultiPoint", "Polygon", "MultiPolygon", "LineString")
    ring = feature["geometry"]["coordinates"][0]
    assert ring[0] == ring[-1]
    properties = feature["properties"]
    assert properties["objectType"] in OBJECT_TYPES
    assert isinstance(properties["classification"]["name"], str)
    assert [type(part) for part in properties["classification"]["color"]] == [int, int, int]
    assert all(type(value) in (int, float) for value in properties.get("measurements", {}).values())
    assert all(isinstance(value, str) for value in properties.get("metadata", {}).values())


def test_they_are_copied(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["qupath", "-o", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in qupath_scripts().values()}


@pytest.mark.parametrize("name", sorted(qupath_scripts()))
def test_they_call_commands_that_exist(name: str) -> None:
    script = qupath_scripts()[name].read_text(encoding="utf-8")
    calls = re.findall(r'\["(detect|review)"(?:, "(import|apply)")?(.*?)\](?: \+ options)?\n?', script)
    assert calls
    root: Any = typer.main.get_command(app)
    for command, inner, rest in calls:
        found = root.commands[command].commands[inner] if inner else root.commands[command]
        known = {name for parameter in found.params for name in parameter.opts}
        assert set(re.findall(r'"(-[-\w]+)"', rest)) <= known
    (classes,) = re.findall(r"def classes = (\[.*?\])", script)
    assert json.loads(classes) == [NAMES[MITOSIS], NAMES[BELOW], NAMES[LOOKALIKE]]
    for opening, closing in ("()", "[]", "{}"):
        assert script.count(opening) == script.count(closing)


@pytest.mark.parametrize("name", sorted(qupath_scripts()))
def test_what_they_print_of_a_result_is_in_the_record(name: str) -> None:
    script = qupath_scripts()[name].read_text(encoding="utf-8")
    known = {"folder", *summary_schema()["properties"]}
    assert set(re.findall(r"(?<!\")summary\.(\w+)", script)) <= known
    inner = summary_schema()["$defs"]["MitoticScore"]["properties"]
    assert set(re.findall(r"summary\.scores\[0\]\.(\w+)", script)) <= set(inner)


def test_objects_go_to_qupath_and_come_back(he_slide: Path, model: Path, tmp_path: Path) -> None:
    """Without QuPath in the middle: a mitosis is deleted, one gets another class, and one is added."""
    config = mp.DetectionConfig(threshold=0.9)
    result = mp.detect(he_slide, tmp_path, model=model, tissue="whole", config=config)
    objects = json.loads((result.folder / "detections.geojson").read_text())
    assert len(objects["features"]) > 2
    for feature in objects["features"]:
        check_object(feature)
    _deleted, changed, *rest, circle = objects["features"]
    assert circle["properties"]["classification"]["name"] == HOTSPOT
    changed["properties"]["classification"]["name"] = NAMES[LOOKALIKE]
    ring = [[5.0, 5.0], [15.0, 5.0], [15.0, 15.0], [5.0, 15.0], [5.0, 5.0]]
    drawn = {"objectType": "annotation", "classification": {"name": NAMES[MITOSIS], "color": [1, 2, 3]}}
    added = {"type": "Feature", "id": str(uuid.uuid4()), "properties": drawn,
             "geometry": {"type": "Polygon", "coordinates": [ring]}}  # fmt: skip
    edited = result.folder / "qupath-edited.geojson"
    edited.write_text(json.dumps({"type": "FeatureCollection", "features": [changed, *rest, circle, added]}))
    call = ["review", "import", str(result.folder), "--from", str(edited), "--observer", "me", "--json"]
    (taken,) = json.loads(CliRunner().invoke(app, call).stdout)
    assert (taken["added"], taken["rejected"], taken["mitoses"]) == (1, 2, len(rest) + 1)
    assert CliRunner().invoke(app, ["review", "apply", str(result.folder)]).exit_code == 0
    assert len(mp.load_result(result.folder).summary["review"]) > 0
