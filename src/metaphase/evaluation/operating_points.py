"""The operating points of a model card: what was tuned, on which cases, so that no test reuses them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.files import write_text
from metaphase.base.foreign import read_json
from metaphase.base.tables import TableError, named, table_attributes
from metaphase.detections.points import (
    SHARED_BY_POINTS,
    OperatingPoint,
    OperatingPoints,
    PointName,
    UsedPoints,
    plain_point,
    points_of,
    refuse_two_searches,
)
from metaphase.detections.table import OPERATING_POINTS, SUMMARY
from metaphase.evaluation.cohort import Cohort

SECTION = "thresholds"
TEST_SPLIT = "test"
OWN_FILES = ("search", "candidates", "detections")
"""Stems of the files with points that `metaphase detect` writes for a slide."""
_POINTS: TypeAdapter[dict[PointName, OperatingPoint]] = TypeAdapter(OperatingPoints)


def save_point(path: str | Path, point: OperatingPoint) -> None:
    """Put a point into the card's thresholds section; the rest of the card stays as it is.

    So do the numbers of its search that are not stated now. Points that would need two searches of a slide
    are refused.
    """
    path = Path(path)
    card = _load(path) if path.exists() else {}
    points = _points_in(card, path)
    if before := points.get(point.name):
        kept = {name: getattr(before, name) for name in SHARED_BY_POINTS if getattr(point, name) is None}
        point = point.model_copy(update=kept)
    points[point.name] = point
    try:
        refuse_two_searches(points)
    except ValueError as error:
        raise TableError(
            str(error),
            path=path,
            next_step="detect with the card's own --suppress-um and --smooth-um, or tune both points again",
        ) from error
    card[SECTION] = {name: plain_point(each) for name, each in points.items()}
    write_text(path, json.dumps(card, indent=2, ensure_ascii=False) + "\n")


def load_point(path: str | Path, name: PointName) -> OperatingPoint:
    """The point of that name in a card."""
    found = _points_in(_load(Path(path)), path).get(name)
    if found is None:
        raise TableError(
            f"the model card has no operating point for {name}",
            path=path,
            next_step=f"run `metaphase evaluate tune {name}` on a tuning set first",
        )
    return found


def load_points(path: str | Path) -> UsedPoints:
    """Both points of a card, complete; a card that holds none is an error."""
    points = _points_in(_load(Path(path)), path)
    if not points.keys() & {"mitoses", "count"}:
        raise TableError(
            "the model card has no operating point for mitoses or count",
            path=path,
            next_step="run `metaphase evaluate tune` on a tuning set first",
        )
    return points_of(points)


def _points_in(card: Mapping[str, Any], path: str | Path) -> dict[PointName, OperatingPoint]:
    try:
        return _POINTS.validate_python(card.get(SECTION, {}))
    except ValidationError as error:
        first = error.errors()[0]
        raise TableError(
            f"its operating points are no good ({'.'.join(map(str, first['loc']))}: {first['msg']})",
            path=path,
            next_step=f"correct the section {SECTION}, or tune again (`metaphase evaluate tune`)",
        ) from error


def stated_point(tables: Sequence[Path], name: PointName) -> tuple[str, OperatingPoint] | None:
    """The model and the operating point that results of `metaphase detect` carry; None where none does.

    A Parquet table carries them itself; of other files in the folder of a slide, its summary tells. Tables of
    different models or points, or of which only some state one, are refused.
    """
    found = {json.dumps(_stated_in(path, name), sort_keys=True) for path in tables}
    if len(found) > 1:
        told = "; ".join(sorted(_told(json.loads(one)) for one in found))
        raise UsageError(
            f"the tables were made at different operating points ({told})",
            path=tables[0],
            next_step="take them apart, or give one --threshold for all",
        )
    stated = json.loads(found.pop()) if found else None
    return None if stated is None else (stated["model"], OperatingPoint.model_validate(stated["point"]))


def _stated_in(table: Path, name: PointName) -> dict[str, Any] | None:
    stated: Any = stated_with(table)
    if stated is None and "operating_point" not in table_attributes(table):
        return None
    try:
        point = OperatingPoint.model_validate(stated[name] | {"name": name})
        return {"model": str(stated["model"]), "point": point.model_dump(mode="json") | {"name": name}}
    except (TypeError, KeyError, ValidationError) as error:
        raise TableError(
            f"states no operating point for {name} that can be read",
            path=table,
            next_step="run `metaphase detect` again, which costs seconds, or give --threshold",
        ) from error


def stated_with(table: Path) -> dict[str, Any] | None:
    """Model and operating points that a table carries, or the Parquet tables of its slide, or the summary."""
    beside = [table.parent / f"{stem}.parquet" for stem in OWN_FILES if table.stem in OWN_FILES]
    carried = (table_attributes(path).get(OPERATING_POINTS) for path in (table, *beside))
    return next(filter(None, carried), None) or summary_beside(table).get(OPERATING_POINTS)


def summary_beside(table: Path) -> dict[str, Any]:
    """What the summary of a slide's folder says about its own files; nothing about others."""
    if table.stem not in OWN_FILES:
        return {}
    try:
        return read_json(table.parent / SUMMARY, "no summary", next_step="")
    except MetaphaseError:
        return {}


def _told(stated: dict[str, Any] | None) -> str:
    if stated is None:
        return "none stated"
    return f"{stated['point']['delta']:g} of the model {stated['model']}"


def refuse_reuse(tuned: OperatingPoint, cohort: Cohort) -> None:
    """Refuse to test on slides or patients that a point was tuned on."""
    patients, cases = set(tuned.patients), set(tuned.cases)
    rows = zip(cohort.manifest["case"], cohort.manifest["patient"], strict=True)
    shared = [case for case, patient in rows if case in cases or patient in patients]
    if shared:
        raise UsageError(
            f"{len(shared)} slides were used to tune the operating point {tuned.name}: {named(shared)}",
            path=cohort.source,
            next_step="test on other patients, or choose a split with --split",
        )


def refuse_test_slides(cohort: Cohort) -> None:
    """Refuse to tune on slides that the manifest marks as test."""
    reserved = cohort.manifest["case"][cohort.manifest["split"].str.lower() == TEST_SPLIT]
    if len(reserved):
        raise UsageError(
            f"{len(reserved)} slides are marked as {TEST_SPLIT} and not for tuning: {named(reserved)}",
            path=cohort.source,
            next_step="choose the tuning slides with --split",
        )


def _load(path: Path) -> dict[str, Any]:
    return read_json(path, "no model card", next_step="give a JSON model card", error=TableError)
