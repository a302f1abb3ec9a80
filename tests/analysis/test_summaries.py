"""`summary.json` and its published JSON Schema; `tests/cli/test_four_routes.py` checks real ones by it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from metaphase.analysis.record import SCHEMA as SCHEMA_VERSION
from metaphase.analysis.record import load_result, write_stored
from metaphase.networks.detector import load_detector
from metaphase.reports.record import summary_schema
from tests.analysis.test_detection import detected

TYPES = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict,
    "null": type(None),
}  # fmt: skip
SCHEMA = summary_schema()


def check_summary(summary: Mapping[str, Any]) -> None:
    """Every value is of its type, every required key is there, and no key lacks a description."""
    problems = list(problems_of(summary, SCHEMA, "summary"))
    assert not problems, problems


def problems_of(value: Any, schema: Mapping[str, Any], where: str) -> Iterator[str]:
    """What of a value the schema does not allow."""
    if "$ref" in schema:
        yield from problems_of(value, SCHEMA["$defs"][schema["$ref"].rsplit("/", 1)[1]], where)
    elif "anyOf" in schema:
        yield from min((list(problems_of(value, one, where)) for one in schema["anyOf"]), key=len)
    elif "type" not in schema:
        return
    elif not isinstance(value, TYPES[schema["type"]]) or isinstance(value, bool) != (
        schema["type"] == "boolean"
    ):
        yield f"{where}: {value!r} is no {schema['type']}"
    elif value not in schema.get("enum", [value]):
        yield f"{where}: {value!r}"
    elif isinstance(value, list):
        kinds = schema.get("prefixItems") or [schema["items"]] * len(value)
        for number, (one, kind) in enumerate(zip(value, kinds, strict=True)):
            yield from problems_of(one, kind, f"{where}[{number}]")
    elif isinstance(value, dict):
        yield from _of_object(value, schema, where)


def _of_object(value: dict[str, Any], schema: Mapping[str, Any], where: str) -> Iterator[str]:
    others = schema.get("additionalProperties")
    known = schema.get("properties") or dict.fromkeys(value, others if isinstance(others, dict) else {})
    for key in schema.get("required", ()):
        if key not in value:
            yield f"{where}: no {key}"
    for key, one in value.items():
        if key in known:
            yield from problems_of(one, known[key], f"{where}.{key}")
        else:
            yield f"{where}: {key} is not described"


def test_every_key_is_described() -> None:
    parts = {"summary": SCHEMA, **SCHEMA["$defs"]}
    keys = [(name, key, one) for name, part in parts.items() for key, one in part["properties"].items()]
    assert not [(name, key) for name, key, one in keys if not one.get("description")]
    assert len(keys) > 100


def test_a_summary_is_concise_and_follows_its_schema(he_slide: Path, model: Path, tmp_path: Path) -> None:
    """What belongs to the model's card stays there: cases, data, failures."""
    outcome = detected(he_slide, tmp_path, load_detector([model]))
    path = outcome.folder / "summary.json"
    summary = json.loads(path.read_text())
    check_summary(summary)
    assert summary["schema"] == SCHEMA_VERSION
    assert not {"cases", "patients"} & summary["operating_points"]["count"].keys()
    assert not {"data", "known_failures", "thresholds"} & summary["model"].keys()
    summary["model"] |= {"data": [{"name": "as summaries of earlier versions have it"}]}
    write_stored(path, summary)
    assert load_result(outcome.folder).count == summary["count"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"told": 5}, "summary: told is not described"),
        ({"count": "12"}, "summary.count: '12' is no integer"),
        ({"kind": "guessed"}, "summary.kind: 'guessed'"),
    ],
)
def test_the_check_can_fail(change: dict[str, Any], problem: str) -> None:
    assert problem in set(problems_of({"mpp": 0.25, **change}, SCHEMA, "summary"))
