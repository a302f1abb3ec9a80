"""Cohorts made by `metaphase simulate`: exact truth, in the same form as real data."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from metaphase.detections import detection_set
from metaphase.evaluation.datasets.contract import Dataset
from metaphase.tables import read_manifest, read_table, require_columns


def read(folder: Path) -> Dataset:
    """`manifest.csv`, and for each case `truth.csv` with `category, x_he, y_he`."""
    manifest = read_manifest(folder / "manifest.csv")
    parts = [_case_truth(folder / case / "truth.csv", case) for case in manifest["case"]]
    truth = detection_set(pd.concat(parts, ignore_index=True), tuple(manifest["case"]), folder)
    return Dataset(manifest, truth)


def _case_truth(path: Path, case: str) -> pd.DataFrame:
    frame = read_table(path)
    require_columns(frame, ("category", "x_he", "y_he"), path)
    columns = {"x": frame["x_he"], "y": frame["y_he"], "label": frame["category"]}
    return pd.DataFrame({"slide": [case] * len(frame), **columns})
