"""Whether a DICOM object is what the standard demands, by highdicom's tables of it and by dciodvfy."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from highdicom._standard_utils import get_iod_module_map, get_module_attribute_map, get_sop_class_iod_map
from pydicom import Dataset

MANDATORY = "M"
BY_VALUE_TYPE = "sr-document-content"
"""What it demands hangs on each item's value type, which the tables do not say: its template is parsed."""
GROUPS = ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence")
"""A functional group is in one of the two."""
OF_PATIENTS = ("PlanePositionSequence", "PlaneOrientationSequence")
"""Groups of the patient's coordinates: slides have `PlanePositionSlideSequence`, `ImageOrientationSlide`."""


def faults(dataset: Dataset) -> list[str]:
    """Attributes of mandatory modules that are missing, or empty where they may not be."""
    modules = get_iod_module_map()[get_sop_class_iod_map()[str(dataset.SOPClassUID)]]
    demanded = [
        module["key"] for module in modules if module["usage"] == MANDATORY and module["key"] != BY_VALUE_TYPE
    ]
    return [
        f"{module}: {fault}"
        for module in demanded
        for attribute in get_module_attribute_map()[module]
        for fault in _missing([dataset], attribute)
    ]


def _missing(items: list[Dataset], attribute: dict[str, Any]) -> list[str]:
    path = attribute["path"]
    if path and path[0] in GROUPS and len(path) == 1:
        there = [group for item in items for key in GROUPS for group in item.get(key) or []]
        has = any(attribute["keyword"] in group for group in there) or attribute["keyword"] in OF_PATIENTS
        return [] if has or attribute["type"] not in ("1", "2") else [attribute["keyword"]]
    for keyword in path:
        items = [inner for item in items for inner in item.get(keyword) or []]
    found, kind = [], attribute["type"]
    for item in items:
        where = "/".join([*attribute["path"], attribute["keyword"]])
        if kind in ("1", "2") and attribute["keyword"] not in item:
            found.append(f"{where} is missing")
        elif kind == "1" and item[attribute["keyword"]].is_empty:
            found.append(f"{where} is empty")
    return found


# ---- dciodvfy of dicom3tools ----

DCIODVFY = shutil.which("dciodvfy")
FALSE_ALARMS = (
    "Error - Only valid for AnnotationCoordinateType of 3D - attribute <CommonZCoordinateValue> = <>",
)
"""Said of every 2D annotation, which does not have that attribute (version of 2022-06-18)."""


def objections(path: Path) -> list[str]:
    """The errors that dciodvfy finds in a file."""
    assert DCIODVFY is not None
    done = subprocess.run([DCIODVFY, str(path)], capture_output=True, text=True, check=False)
    said = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    assert len(said) > 0, "it names the kind of object, at least"
    return [line for line in said if line.startswith("Error") and line not in FALSE_ALARMS]
