"""Names of slides as file names, and back; identities of detections that stay the same."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from urllib.parse import unquote

import pandas as pd

_UNSAFE = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|%]|^\.|[. ]$')
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "detections.metaphase")


def file_stem(slide: str) -> str:
    """A file name, without suffix, that any system accepts and that `slide_of_stem` turns back.

    >>> file_stem("centre 1/case 7.svs")
    'centre 1%2Fcase 7.svs'
    """
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", slide)


def slide_of_stem(stem: str) -> str:
    """The slide that a file is named after; a name that `file_stem` would not have given stays as it is.

    >>> slide_of_stem("centre 1%2Fcase 7.svs"), slide_of_stem("50%20 of all")
    ('centre 1/case 7.svs', '50%20 of all')
    """
    slide = unquote(stem)
    return slide if file_stem(slide) == stem else stem


def identities(table: pd.DataFrame) -> list[str]:
    """A UUID for each row from its slide, place and label, the same whenever the row is written again.

    Rows that agree in all of these are told apart by their order.
    """
    seen: Counter[str] = Counter()
    found = []
    for slide, x, y, label in zip(table["slide"], table["x"], table["y"], table["label"], strict=True):
        key = f"{slide}\n{label}\n{x:.3f} {y:.3f}"
        found.append(str(uuid.uuid5(_NAMESPACE, f"{key} {seen[key]}")))
        seen[key] += 1
    return found
