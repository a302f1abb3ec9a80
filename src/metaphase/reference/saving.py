"""Writing a reference standard and reading it back."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from metaphase.artifacts import write_text
from metaphase.reference.table import COLUMNS
from metaphase.registration import points_geojson
from metaphase.tables import as_text, read_table, require_columns, require_numbers, write_table

TABLE, SHEET, SHAPES = "reference.parquet", "reference.csv", "reference.geojson"
TEXTS = ("case", "cause", "reason", "method", "registration", "candidate", "reviewer", "reviewed")
TRUTHS = ("accepted", "visible", "automatic")


def write_reference(folder: str | Path, table: pd.DataFrame, *, shapes: bool = False) -> None:
    """Write the table as Parquet and CSV; with `shapes` (one slide), accepted points for QuPath as well."""
    folder = Path(folder)
    if shapes:
        named = table.assign(slide=table["case"], label="mitosis")
        write_text(folder / SHAPES, json.dumps(points_geojson(named)))
    write_table(folder / SHEET, table)
    write_table(folder / TABLE, table)


def read_reference(path: str | Path) -> pd.DataFrame:
    """A reference standard from its file, or from the folder that holds it."""
    path = Path(path)
    path = path / TABLE if path.is_dir() else path
    table = read_table(path)
    require_columns(table, COLUMNS, path)
    require_numbers(table, ("x", "y", "contrast", "probability", "confidence"), path)
    texts = {name: as_text(table[name]) for name in TEXTS}
    truths = {name: table[name].astype(bool) for name in TRUTHS}
    return table.assign(**texts, **truths)[list(COLUMNS)]


def empty_reference() -> pd.DataFrame:
    """A table without rows, its columns of the usual types."""
    kinds = dict.fromkeys(TEXTS, object) | dict.fromkeys(TRUTHS, bool)
    return pd.DataFrame({name: pd.Series(dtype=kinds.get(name, float)) for name in COLUMNS})
