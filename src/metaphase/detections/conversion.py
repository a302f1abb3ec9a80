"""From any format to any other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from metaphase.detections.formats.contract import Resolution
from metaphase.detections.reading import joined, read_detections
from metaphase.detections.table import DetectionSet
from metaphase.detections.writing import format_for, write_detections
from metaphase.errors import UsageError
from metaphase.tables import read_manifest


@dataclass(frozen=True)
class Conversion:
    """What was written."""

    detections: DetectionSet
    files: tuple[Path, ...]


def convert_detections(
    inputs: Sequence[str | Path],
    output: str | Path,
    format: str | None = None,  # noqa: A002 -- as in write_detections
    *,
    mpp: float | None = None,
    manifest: str | Path | None = None,
    threshold: float | None = None,
) -> Conversion:
    """Read files and folders of any format and write all their slides to `output`.

    `mpp` holds for all slides; else the manifest's columns mpp, width and height are used, for slides named
    by case, path, file name or stem. Points below `threshold` are left out, their slides are not.
    """
    _check(mpp, threshold)
    format_for(Path(output), format)
    stated, sizes = _stated(read_manifest(manifest)) if manifest is not None else ({}, {})
    resolution: Resolution = mpp if mpp is not None else stated
    found = joined([read_detections(path, mpp=resolution) for path in inputs], output)
    if threshold is not None:
        found = found.at_least(threshold)
    return Conversion(found, tuple(write_detections(found, output, format, mpp=resolution, sizes=sizes)))


def _check(mpp: float | None, threshold: float | None) -> None:
    if mpp is not None and not mpp > 0:
        raise UsageError(f"mpp is {mpp}", next_step="give micrometres per pixel, 0.25 for a usual 40x scan")
    if threshold is not None and not 0 <= threshold <= 1:
        raise UsageError(f"the threshold is {threshold}", next_step="give a probability from 0 to 1")


def _stated(manifest: pd.DataFrame) -> tuple[dict[str, float], dict[str, tuple[int, int]]]:
    """Resolution and size of the slides that have them, under every name they go by."""
    rows = _rows_by_name(manifest)
    mpp, width, height = (
        manifest[name].fillna(0).tolist() if name in manifest.columns else [0.0] * len(manifest)
        for name in ("mpp", "width", "height")
    )
    return (
        {name: float(mpp[row]) for name, row in rows.items() if mpp[row] > 0},
        {
            name: (int(width[row]), int(height[row]))
            for name, row in rows.items()
            if width[row] > 0 and height[row] > 0
        },
    )


def _rows_by_name(manifest: pd.DataFrame) -> dict[str, int]:
    """The row that each case, path, file name or stem means; a file name of several rows means none."""
    owners: dict[str, set[int]] = defaultdict(set)
    for row, he in enumerate(manifest["he"]):
        for name in (he, Path(he).name, Path(he).stem) if he else ():
            owners[name].add(row)
    files = {name: rows.pop() for name, rows in owners.items() if len(rows) == 1}
    return files | {case: row for row, case in enumerate(manifest["case"])}
