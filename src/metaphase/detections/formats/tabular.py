"""CSV and Parquet: the detection table itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from metaphase.base.errors import ResultWarning, ResultWarnings
from metaphase.base.later import pandas as pd
from metaphase.base.tables import NO_VALUE, TableError, named, read_table, write_table
from metaphase.detections.formats.contract import Context, Format
from metaphase.detections.table import COLUMNS, DetectionSet, detection_set

SLIDE_COLUMNS = ("slide", "case", "image")
"""Columns that may name the slide, in order of preference."""
PROBABILITY = "probability"
ALIASES = ("score", "confidence", "prob", "conf", "detection_score", "detection score")
"""What programs call the probability of a detection."""


def read(path: Path, context: Context) -> DetectionSet:
    """Columns x and y, and where given probability (or an alias), label and one of slide, case, image.

    A table without such a column belongs to one slide, named after its file. A table with probabilities has
    one for every point.
    """
    frame = read_table(path)
    lowered = [str(name).strip().lower() for name in frame.columns]
    if len(set(lowered)) < len(lowered):
        raise TableError("two columns differ only in case", path=path, next_step="rename one of them")
    frame.columns = lowered
    frame, warnings = _with_probability(frame, path)
    if {"x", "y", "probability"} <= set(frame.columns):
        positions = frame["x"].notna() | frame["y"].notna()
        bad = (positions & frame["probability"].isna()).to_numpy()
        if bad.any():
            text = f"{bad.sum()} of {positions.sum()} points have no probability"
            raise TableError(
                f"{text}, first in row {bad.argmax() + 1}",
                path=path,
                next_step="fill the cells, or leave the column probability out where nothing is known",
            )
    if "label" in lowered:  # `NA` may be a missing label, hence a mitosis, or the word for none
        odd = frame["label"].isin([word for word in NO_VALUE if word]).to_numpy()
        if odd.any():
            raise TableError(
                f"the label in row {odd.argmax() + 1} is {frame['label'].iloc[odd.argmax()]!r}",
                path=path,
                next_step="name the class; an empty cell is a mitosis",
            )
    source = next((name for name in SLIDE_COLUMNS if name in frame.columns), None)
    if source is None:
        frame["slide"] = context.slide
    elif source != "slide":
        frame = frame.rename(columns={source: "slide"})
    detections = detection_set(frame, (context.slide,) if source is None else (), path, markers=True)
    return replace(detections, warnings=(*detections.warnings, *warnings))


def _with_probability(frame: pd.DataFrame, path: Path) -> tuple[pd.DataFrame, ResultWarnings]:
    """The table with what stands for its probability under that name; two such columns are refused."""
    if PROBABILITY in frame.columns:
        return frame, ()
    aliases = [name for name in ALIASES if name in frame.columns]
    if len(aliases) > 1:
        raise TableError(
            f"has no column {PROBABILITY}, and {' and '.join(aliases)} may both be one",
            path=path,
            next_step=f"rename one of them to {PROBABILITY}",
        )
    if aliases:
        text = f"{path.name}: its column {aliases[0]} is taken for the probability"
        advice = f"rename it to {PROBABILITY}, or otherwise if it is none"
        renamed = frame.rename(columns={aliases[0]: PROBABILITY})
        return renamed, (ResultWarning(PROBABILITY, text, advice),)
    numbers = frame.drop(columns=["x", "y"], errors="ignore").select_dtypes("number")
    like = [
        name for name in numbers if numbers[name].dropna().between(0, 1).all() and 0 < numbers[name].max() < 1
    ]
    text = f"{path.name}: it has no column {PROBABILITY}, and all points are certain"
    advice = f"if {named(like)} is their probability, call it so"
    return frame, (ResultWarning(PROBABILITY, text, advice),) if like else ()


def write(detections: DetectionSet, path: Path, context: Context) -> None:  # noqa: ARG001 -- it says all
    """All columns; a slide without points is a row that names it and leaves the rest empty."""
    table = detections.table
    extra = {name: _storable(table[name]) for name in table.columns if name not in COLUMNS}
    filled = table.assign(**extra).reset_index(drop=True)
    filled_slides = set(table["slide"])
    empty = [slide for slide in detections.slides if slide not in filled_slides]
    if empty:
        filled = filled.reindex(range(len(table) + len(empty)))
        filled["slide"] = [*table["slide"], *empty]
    filled.attrs = dict(table.attrs)
    write_table(path, filled)


def _storable(column: pd.Series[Any]) -> pd.Series[Any]:
    """Whole numbers and truths that may be missing; in a column of mixed things all become text."""
    if pd.api.types.is_bool_dtype(column):
        return column.astype("boolean")
    if pd.api.types.is_integer_dtype(column):
        return column.astype("Int64")
    return column.map(str, na_action="ignore") if pd.api.types.is_object_dtype(column) else column


CSV = Format("csv", (".csv",), read, write, title="CSV", all_columns=True)
PARQUET = Format("parquet", (".parquet",), read, write, title="Parquet", all_columns=True)
