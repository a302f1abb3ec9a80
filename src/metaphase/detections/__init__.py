"""The detection table, reading it from the formats people have, and matching it with truth."""

from metaphase.detections.matching import Method, match, pairs_within
from metaphase.detections.reading import FORMATS, format_of, read_detections
from metaphase.detections.table import (
    COLUMNS,
    IGNORE,
    LOOKALIKE,
    MITOSIS,
    DetectionSet,
    common_label,
    detection_set,
)

__all__ = [
    "COLUMNS",
    "FORMATS",
    "IGNORE",
    "LOOKALIKE",
    "MITOSIS",
    "DetectionSet",
    "Method",
    "common_label",
    "detection_set",
    "format_of",
    "match",
    "pairs_within",
    "read_detections",
]
