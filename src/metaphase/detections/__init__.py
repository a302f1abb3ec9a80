"""The detection table, the formats it is read from and written to, and matching it with truth."""

from metaphase.detections.files import (
    FORMATS,
    Conversion,
    convert_detections,
    detection_files,
    format_of,
    format_titles,
    joined,
    known_formats,
    read_detections,
    write_detections,
)
from metaphase.detections.formats.contract import Format, ReadContext, WriteContext
from metaphase.detections.matching import Method, match, pairs_within
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
    "Conversion",
    "DetectionSet",
    "Format",
    "Method",
    "ReadContext",
    "WriteContext",
    "common_label",
    "convert_detections",
    "detection_files",
    "detection_set",
    "format_of",
    "format_titles",
    "joined",
    "known_formats",
    "match",
    "pairs_within",
    "read_detections",
    "write_detections",
]
