"""The detection table, the formats it is read from and written to, and matching it with truth."""

from metaphase.detections.conversion import Conversion, convert_detections
from metaphase.detections.formats.registry import FORMATS
from metaphase.detections.matching import Method, match, pairs_within
from metaphase.detections.reading import format_of, joined, read_detections
from metaphase.detections.table import (
    COLUMNS,
    IGNORE,
    LOOKALIKE,
    MITOSIS,
    DetectionSet,
    common_label,
    detection_set,
)
from metaphase.detections.writing import write_detections

__all__ = [
    "COLUMNS",
    "FORMATS",
    "IGNORE",
    "LOOKALIKE",
    "MITOSIS",
    "Conversion",
    "DetectionSet",
    "Method",
    "common_label",
    "convert_detections",
    "detection_set",
    "format_of",
    "joined",
    "match",
    "pairs_within",
    "read_detections",
    "write_detections",
]
