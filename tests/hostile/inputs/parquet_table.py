"""Detections as Parquet with columns of odd types, or broken bytes."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

from tests.hostile.inputs.odd import any_of, bytes_changed
from tests.hostile.inputs.sound import COLUMNS, POINTS, on_table
from tests.hostile.trials import Attempt, must_refuse, right

SHARE = 7


def make(random: Random, folder: Path) -> Attempt:
    import pyarrow as pa
    from pyarrow import parquet

    columns: dict[str, Any] = {name: [row[i] for row in POINTS] for i, name in enumerate(COLUMNS)}
    arrays = {name: pa.array(values) for name, values in columns.items()}
    name = any_of(random, *COLUMNS)
    odd: list[tuple[Any, Any]] = [
        ([True, False, True], pa.bool_()),
        ([b"a", b"\xff", b""], pa.binary()),
        ([None] * 3, pa.null()),
        ([1, 2, 3], pa.timestamp("us")),
        ([1, 2, 3], pa.duration("s")),
        ([1, 2, 3], pa.date32()),
        ([[1], [2], []], pa.list_(pa.int64())),
        ([{"a": 1}] * 3, pa.struct([("a", pa.int64())])),
        ([2**63, 1, 2], pa.uint64()),
        ([math.nan, 1.0, 2.0], pa.float64()),
        ([math.inf, 1.0, 2.0], pa.float64()),
        (["x", "y", "z"], pa.string()),
        ([None, 0.5, 0.5], pa.float64()),
        ([0.5, 0.5, 0.5], pa.float16()),
        (["NA", "None", ""], pa.string()),
        (["1", "2", "3"], pa.string()),
        (["1", "2", "1"], pa.dictionary(pa.int8(), pa.string())),
    ]
    values, kind = any_of(random, *odd)
    try:
        arrays[name] = pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        import numpy as np

        arrays[name] = pa.array(np.array([0.5, 0.5, 0.5], np.float16))
    numeric = name in ("x", "y", "probability")
    wrong = numeric and str(kind).startswith(
        ("bool", "binary", "timestamp", "duration", "date", "list", "struct", "float64")
    )
    if kind == pa.null() or (name == "probability" and kind == pa.float64() and values[0] is None):
        wrong = False
    metadata = None
    if random.random() < 0.2:
        stated = any_of(
            random,
            '{"operating_points": 5}',
            "[" * 5000,
            "5",
            '{"operating_points": {"count": {"delta": NaN}}}',
            "\xff",
        )
        metadata = {b"PANDAS_ATTRS": stated.encode("latin-1")}
    if random.random() < 0.1:
        metadata = {
            b"pandas": any_of(random, b"{}", b"5", b"\xff", b'{"columns": 5, "index_columns": ["q"]}')
        }
    table = pa.table(arrays).replace_schema_metadata(metadata)
    parquet.write_table(table, folder / "points.parquet")
    if random.random() < 0.3:
        data = (folder / "points.parquet").read_bytes()
        (folder / "points.parquet").write_bytes(bytes_changed(random, data))
        return on_table(random, "points.parquet")
    return on_table(random, "points.parquet", must_refuse if wrong else right)
