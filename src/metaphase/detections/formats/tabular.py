"""CSV and Parquet: the detection table itself."""

from __future__ import annotations

from pathlib import Path

from metaphase.detections.formats.contract import Format, ReadContext, never
from metaphase.detections.table import DetectionSet, detection_set
from metaphase.tables import TableError, read_table

SLIDE_COLUMNS = ("slide", "case", "image")
"""Columns that may name the slide, in order of preference."""


def read(path: Path, context: ReadContext) -> DetectionSet:
    """Columns x and y, and where given probability, label and one of slide, case, image.

    A table without such a column belongs to one slide, named after its file.
    """
    frame = read_table(path)
    lowered = [str(name).strip().lower() for name in frame.columns]
    if len(set(lowered)) < len(lowered):
        raise TableError("two columns differ only in case", path=path, next_step="rename one of them")
    frame.columns = lowered
    source = next((name for name in SLIDE_COLUMNS if name in frame.columns), None)
    if source is None:
        frame["slide"] = context.slide
        return detection_set(frame, (context.slide,), path)
    if source != "slide":
        frame = frame.rename(columns={source: "slide"})
    return detection_set(frame, (), path)


CSV = Format("csv", (".csv",), never, read)
PARQUET = Format("parquet", (".parquet",), never, read)
