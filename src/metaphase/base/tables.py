"""Tables on disk (CSV, Parquet), the cohort manifest that all stages share, and names that match slides."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pyarrow import parquet

from metaphase.base.arrays import BELIEVABLE_MPP
from metaphase.base.errors import MetaphaseError, UsageError
from metaphase.base.files import atomic_path, stated_path, stored_path
from metaphase.base.foreign import (
    RAISE_LIMITS,
    finite,
    folder_key,
    folder_name,
    parse_json,
    parsing,
    raised,
    read_bytes,
)
from metaphase.base.later import pandas as pd
from metaphase.base.remote import is_url, location

MANIFEST_COLUMNS = ("case", "he", "phh3", "laboratory", "split")
"""The columns of every manifest; `case` names the slide, the paths may be empty."""
FINITE = (-1e9, 1e9)
MANIFEST_NUMBERS = ("repeat", "grade", "proliferation", "mpp", "phh3_mpp", "width", "height", "area_mm2")
"""Optional manifest columns that hold numbers; `width` and `height` are level-0 pixels."""
IDENTIFIERS = (
    "case",
    "slide",
    "image",
    "item",
    "patient",
    "laboratory",
    "split",
    "kind",
    "scanner",
    "tumour",
    "label",
)
"""Columns that are names whatever they look like: case `01` is not the number 1."""
NO_VALUE = ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None"]
"""What stands for a missing value ..."""
VERBATIM = ("case", "slide", "image", "item", "label")
"""... but in these columns: a slide may be called `NA`."""
NAMED_AT_MOST = 5
MOST_ROWS = 1_000_000
"""A Parquet table may have so many rows, or one for each of its bytes: repeated values take no room."""
MANIFEST_FILES = ("he", "phh3", "tissue", "regions")
"""Columns of manifests that name files."""
WHOLE_SLIDE = "whole"
"""What the column tissue says of a slide that is to be searched everywhere."""


class TableError(MetaphaseError):
    """A table cannot be read, lacks a column, or holds a value that makes no sense."""


def read_table(path: str | Path) -> pd.DataFrame:
    """Read a CSV or Parquet table; identifier columns are text, empty CSV cells are missing values."""
    path, data = location(path), read_bytes(path, TableError)
    size, source, advice = len(data), BytesIO(data), "give a CSV or Parquet file"
    with parsing(path, "cannot be read as a table", next_step=advice, error=TableError):
        if path.suffix.lower() != ".parquet":
            return _read_csv(path, source)
        rows = parquet.read_metadata(source).num_rows
        if rows > raised(max(MOST_ROWS, size)):
            raise TableError(f"states {rows:,} rows in {size:,} bytes", path=path, next_step=RAISE_LIMITS)
        frame = pd.read_parquet(source, page_checksum_verification=True)
        for name, value in frame.attrs.items():
            frame.attrs[name] = Remark(value) if isinstance(value, dict) else value
        return frame


def _read_csv(path: Path, source: BytesIO) -> pd.DataFrame:
    """Columns end at commas, or at semicolons as spreadsheets write them beside decimal commas."""
    parted = delimiter_of(source.readline().decode("utf-8", "replace"))
    source.seek(0)
    form: dict[str, Any] = {"sep": parted, "decimal": "," if parted == ";" else ".", "skipinitialspace": True}
    try:
        header = pd.read_csv(source, nrows=1, header=None, dtype=str, keep_default_na=False, **form)
    except pd.errors.EmptyDataError as error:
        raise TableError("is empty, without a header", path=path, next_step="write the header") from error
    written = [name for name in header.iloc[0] if name]
    if twice := [name for name in written if written.count(name) > 1]:
        raise TableError(f"has two columns {twice[0]!r}", path=path, next_step="rename or remove one of them")
    source.seek(0)
    columns = pd.read_csv(source, nrows=0, **form).columns
    names = [name for name in columns if name.strip().lower() in IDENTIFIERS]
    missing = {name: [""] if name.strip().lower() in VERBATIM else NO_VALUE for name in columns}
    source.seek(0)
    frame: pd.DataFrame = pd.read_csv(
        source,
        dtype=dict.fromkeys(names, str),
        **form,
        keep_default_na=False,
        na_values=missing,
    )
    texts = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    for name in texts:
        frame[name] = frame[name].map(text_of_cell, na_action="ignore")
    frame.columns = pd.Index([text_of_cell(name) for name in frame.columns])
    return frame


def delimiter_of(header: str) -> str:
    """What parts the columns of a CSV table, by its first line.

    >>> delimiter_of("case;x;y"), delimiter_of("case,x,y"), delimiter_of("case")
    (';', ',', ',')
    """
    return ";" if ";" in header and "," not in header else ","


class Remark(dict[str, Any]):
    """What the maker of a table says about it, in `DataFrame.attrs`; not to be changed.

    Tables made of it share it: pandas copies all that attributes hold, each time that it makes a column.
    """

    def __deepcopy__(self, _memo: dict[int, Any]) -> Remark:
        return self


def write_table(path: str | Path, frame: pd.DataFrame) -> None:
    """Write a table whole or not at all, as Parquet or CSV by its suffix.

    Text of a CSV is written so that it reads back as it is, and that a spreadsheet takes none of it for a
    formula.
    """
    with atomic_path(path) as temporary:
        if temporary.suffix.lower() == ".parquet":
            frame.to_parquet(temporary, index=False, write_page_checksum=True)
            return
        texts = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
        safe = frame.copy()
        for name in texts:
            safe[name] = frame[name].map(_as_cell, na_action="ignore")
        safe.columns = pd.Index([_as_cell(name) for name in frame.columns])
        cells = (cell for name in texts for cell in frame[name] if isinstance(cell, str))
        odd = any(cell.startswith(" ") or "\r" in cell for cell in cells)  # unquoted, these would be lost
        quoting: Literal[0, 2] = 2 if odd else 0  # all text, or what needs it
        safe.to_csv(temporary, index=False, lineterminator="\n", quoting=quoting, errors="backslashreplace")


_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NEGATIVE = re.compile(r"-\d+(\.\d+)?(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def _as_cell(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets an apostrophe; `text_of_cell` takes it away."""
    formula = isinstance(value, str) and _FORMULA.match(value) and not _NEGATIVE.fullmatch(value)
    return f"'{value}" if formula else value


def text_of_cell(value: Any) -> Any:
    """A cell of a CSV as it was before it was written.

    >>> [_as_cell(name) for name in ("=1+2", "+49", "-inf", "-7")]
    ["'=1+2", "'+49", "'-inf", '-7']
    >>> [text_of_cell(_as_cell(name)) for name in ("=1+2", "'=x", "+49", "-7", "'a")]
    ['=1+2', "'=x", '+49', '-7', "'a"]
    """
    escaped = isinstance(value, str) and value.startswith("'") and _FORMULA.match(value)
    return value[1:] if escaped else value


def table_attributes(path: str | Path) -> dict[str, Any]:
    """What the maker of a Parquet table said about it (`DataFrame.attrs`); nothing of any other file."""
    path = Path(path)
    if path.suffix.lower() != ".parquet" or not path.is_file():
        return {}
    try:
        metadata = parquet.read_schema(path).metadata or {}
        attributes = parse_json(metadata.get(b"PANDAS_ATTRS", b"{}"))
    except (OSError, ValueError):
        return {}
    return attributes if isinstance(attributes, dict) else {}


def require_columns(frame: pd.DataFrame, columns: Iterable[str], path: str | Path | None = None) -> None:
    """Refuse a table that lacks one of `columns`."""
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise TableError(
            f"the table has no column {', '.join(missing)} (it has {', '.join(map(str, frame.columns))})",
            path=path,
            next_step="rename or add the column",
        )


def require_numbers(frame: pd.DataFrame, columns: Iterable[str], path: str | Path | None = None) -> None:
    """Refuse text, truths, times and bytes where numbers belong, and name the first such cell."""
    for name in columns:
        if name not in frame.columns or _is_numeric(frame[name]):
            continue
        bad = frame[name].notna().to_numpy() & ~np.array([_is_number(cell) for cell in frame[name]], bool)
        if bad.any():
            raise TableError(
                f"column {name} holds {str(frame[name].iloc[bad.argmax()])[:40]!r}, which is not a number",
                path=path,
                next_step="correct the cell, or leave it empty where nothing is known",
            )


def numbers_of(column: pd.Series[Any]) -> pd.Series[float]:
    """A column that `require_numbers` has passed, as floats; NaN where it has no value."""
    if _is_numeric(column):
        return column.astype(float)
    return column.map(float, na_action="ignore").astype(float)


def _is_numeric(column: pd.Series[Any]) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _is_number(cell: Any) -> bool:
    """Whether a cell of a column of mixed things is a number, which may stand there as text."""
    try:
        finite(cell.item() if isinstance(cell, np.generic) else cell)
    except ValueError:
        return str(cell).strip().lower().lstrip("+-") in ("inf", "infinity", "nan")
    return True


def read_manifest(path: str | Path) -> pd.DataFrame:
    """Read a cohort manifest: one row a slide, named by its unique `case`.

    `patient` (which slides belong together) defaults to the case itself. Relative slide paths are taken from
    the manifest's folder. Empty names are empty text, missing numbers are NaN.
    """
    path = location(path)
    frame = read_table(path)
    require_columns(frame, ("case",), path)
    require_numbers(frame, MANIFEST_NUMBERS, path)
    frame = frame.reindex(columns=[*dict.fromkeys((*MANIFEST_COLUMNS, *frame.columns))])
    for name in {*MANIFEST_FILES} & set(frame.columns):
        frame[name] = [
            str(path.parent / stated_path(value, path.parent))
            if value and value != WHOLE_SLIDE and not is_url(value)
            else value
            for value in as_text(frame[name])
        ]
    for name in {*MANIFEST_COLUMNS, *IDENTIFIERS} & set(frame.columns):
        frame[name] = as_text(frame[name])
    for name in set(MANIFEST_NUMBERS) & set(frame.columns):
        frame[name] = numbers_of(frame[name])
        low, high = BELIEVABLE_MPP if name.endswith("mpp") else FINITE
        odd = ~frame[name].between(low, high) & frame[name].notna()
        if odd.any():
            case, value = frame["case"][odd].iloc[0], frame[name][odd].iloc[0]
            advice = f"give a number from {low:g} to {high:g}, or leave the cell empty"
            raise TableError(f"{name} of {case} is {value:g}", path=path, next_step=advice)
    if (frame["case"] == "").any():
        row = int((frame["case"] == "").to_numpy().argmax())
        raise TableError(f"row {row + 1} has no case", path=path, next_step="give every row a case")
    repeated = frame["case"][frame["case"].map(folder_key).duplicated(keep=False)]
    if len(repeated):
        raise TableError(
            f"the manifest names these cases more than once: {named(repeated)}",
            path=path,
            next_step="give each case one row, and names that differ by more than upper case; use the column "
            "patient for slides that belong together",
        )
    if "patient" not in frame.columns:
        frame["patient"] = frame["case"]
    return frame


def write_manifest(path: Path, frame: pd.DataFrame) -> None:
    """Write a manifest whose slides are found by their paths from here, also where both move together."""
    columns = [name for name in MANIFEST_FILES if name in frame]
    seen = {
        name: [
            stored_path(value, path.parent) if value and value != WHOLE_SLIDE else value
            for value in as_text(frame[name])
        ]
        for name in columns
    }
    write_table(path, frame.assign(**seen))


def case_folder(workspace: str | Path, case: str) -> Path:
    """The folder of a case; a case that is a path is a `UsageError`."""
    if case in ("", ".", "..") or not {"/", "\\", "\0"}.isdisjoint(case):
        raise UsageError(
            f"the case {case[:60]!r} cannot name a folder",
            next_step="use letters, digits, dots, - and _ in `case`",
        )
    return Path(workspace) / folder_name(case)


def flat_case(case: str) -> str:
    """A case of a data set as its folder of results is called.

    >>> flat_case("tupac-aux/05/01")
    'tupac-aux-05-01'
    """
    return case if {"", ".", ".."} & set(case.split("/")) else case.replace("/", "-")


def as_text(column: pd.Series[Any]) -> pd.Series[str]:
    """A column as text, empty where it has no value."""
    return column.astype(object).where(column.notna(), "").astype(str)


def stated_number(row: Mapping[Any, Any], name: str) -> float | None:
    """The number that a row of a table states, or None where the column or the value is missing.

    >>> [stated_number(row, "mpp") for row in ({"mpp": 0.25}, {"mpp": float("nan")}, {})]
    [0.25, None, None]
    """
    value = row.get(name)
    return None if value is None or pd.isna(value) else float(value)


def phh3_mpp(row: Mapping[Any, Any]) -> float | None:
    """The resolution that a manifest's row gives its PHH3 slide: its own, or that of the pair."""
    return stated_number(row, "phh3_mpp") or stated_number(row, "mpp")


def natural(name: str) -> list[Any]:
    """Sort key under which 9 comes before 10.

    >>> sorted(["a10", "a9", "a1²"], key=natural)
    ['a1²', 'a9', 'a10']
    """
    parts = re.split(r"(\d{1,300})", name)  # digits are every second one; int reads no more than 4300
    return [int(part) if number % 2 else part for number, part in enumerate(parts)]


def tails(path: str) -> list[str]:
    """A path and its ends, longest first, whatever system it comes from.

    >>> tails("part_1/05/01.tif")
    ['part_1/05/01.tif', '05/01.tif', '01.tif']
    """
    parts = [part for part in re.split(r"[/\\\\]", path) if part]
    return list(dict.fromkeys((path, *("/".join(parts[start:]) for start in range(len(parts))))))


def without_suffix(path: str) -> str:
    """A path or its end without the suffix of the file."""
    return path.removesuffix(Path(path).suffix)


def slide_names(path: str) -> list[str]:
    """What a slide may be called, best first: its path and the ends of it, each also without suffix.

    >>> slide_names("05/01.tif")
    ['05/01.tif', '05/01', '01.tif', '01']
    """
    return [name for tail in tails(path) for name in (tail, without_suffix(tail)) if name]


def rows_by_name(manifest: pd.DataFrame) -> dict[str, list[int]]:
    """The rows of a manifest that each name of a slide may mean.

    A slide goes by its case, by the names of its H&E file, by what the folder of either is called, and by
    the end of its case from two parts on (`05/01` of `tupac-aux/05/01`). A case means its own row only, and
    files come before the ends of cases.
    """
    ends, files = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for row, (case, he) in enumerate(zip(manifest["case"], manifest["he"], strict=True)):
        for name in (folder_name(flat_case(case)), *tails(case)[:-1]):
            ends[name].append(row)
        for name in dict.fromkeys((*slide_names(he), folder_name(without_suffix(tails(he)[-1])))):
            files[name].append(row)
    cases = {case: [row] for row, case in enumerate(manifest["case"])}
    return ends | files | {folder_name(case): rows for case, rows in cases.items()} | cases


def rows_of_slide(slide: str, names: Mapping[str, list[int]]) -> list[int]:
    """The rows that a slide may be, by the best of its names that `rows_by_name` knows."""
    return next((names[name] for name in slide_names(slide) if name in names), [])


def named(names: Iterable[object]) -> str:
    """A few names for a message, and how many more there are."""
    found = [str(name) for name in dict.fromkeys(names)]
    more = f" and {len(found) - NAMED_AT_MOST} more" if len(found) > NAMED_AT_MOST else ""
    return ", ".join(found[:NAMED_AT_MOST]) + more
