"""Published data sets as users have them on disk, each as one cohort manifest and one truth table."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from metaphase.base.errors import ResultWarning, ResultWarnings, UsageError
from metaphase.base.files import write_text
from metaphase.base.foreign import parsing
from metaphase.base.tables import TableError, named, read_manifest, read_table, require_columns, write_table
from metaphase.detections.table import detection_set
from metaphase.evaluation.comparison import fill_geometry
from metaphase.evaluation.datasets.contract import Adapter, Dataset, read_ccmct, read_cmc, read_sliderunner
from metaphase.evaluation.datasets.published import (
    read_alternative,
    read_atypia14,
    read_auxiliary,
    read_brecahad,
    read_icpr2012,
    read_midesec,
    read_midog,
    read_paper_auxiliary,
    read_points,
    read_slides,
)
from metaphase.version import __version__

# ---- cohorts made by `metaphase simulate` ----


def read_simulated(folder: Path) -> Dataset:
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


# ---- `metaphase data import`: any known data set as one manifest and one truth table ----

ADAPTERS: tuple[Adapter, ...] = (
    Adapter("tupac", "training_ground_truth.csv, TUPAC-TR-*.svs", read_slides),
    Adapter("tupac-aux", "NN/MM.csv (row,column), NN/MM.tif", read_auxiliary),
    Adapter("tupac-aux-paper", "the same; only the paper's 50 cases, 24 to 73", read_paper_auxiliary),
    Adapter("tupac-alternative", "NN/MM.csv below (non)mitoses folders, or SQLite", read_alternative),
    Adapter("midog", "MIDOG*.json, or MIDOG*.sqlite, NNN.tiff", read_midog),
    Adapter("icpr2012", "one CSV per image, one line of x1,y1,x2,y2,... per mitosis", read_icpr2012),
    Adapter("mitos-atypia14", "*_mitosis.csv, *_not_mitosis.csv, frames/x40/*.tiff", read_atypia14),
    Adapter("midesec", "mitoses.csv (image,x,y,label), or one CSV per image", read_midesec),
    Adapter("brecahad", "groundTruth/Case_*.json, images/Case_*.tif", read_brecahad),
    Adapter("ccmct", "a SlideRunner SQLite database, slides", read_ccmct),
    Adapter("cmc", "a SlideRunner SQLite database, slides", read_cmc),
    Adapter("sliderunner", "any SlideRunner SQLite database, slides", read_sliderunner),
    Adapter("simulated", "manifest.csv, CASE/truth.csv", read_simulated),
    Adapter("points", "one CSV (image,x,y,label), images", read_points),
)


@dataclass(frozen=True)
class ImportedDataset:
    """What was imported, and where it lies."""

    dataset: Dataset
    manifest_path: Path
    truth_path: Path
    labels: dict[str, int]
    """Points of each label."""
    warnings: ResultWarnings


def import_dataset(
    name: str, folder: str | Path, output: str | Path, *, mpp: float | None = None
) -> ImportedDataset:
    """Read data set `name` as it lies in `folder` and write `manifest.csv` and `truth.csv` to `output`.

    `mpp` is used for images whose resolution neither the data set nor the file states.
    """
    dataset = read_dataset(name, folder)
    manifest, warnings = _with_geometry(dataset.manifest, mpp, folder)
    dataset = replace(dataset, manifest=manifest, warnings=(*dataset.warnings, *warnings))
    output = Path(output)
    labels = {str(label): int(count) for label, count in dataset.truth.table["label"].value_counts().items()}
    write_table(output / "truth.csv", _with_empty_images(dataset))
    write_table(output / "manifest.csv", manifest.dropna(axis=1, how="all"))
    record = {"dataset": name, "source": str(folder), "images": len(manifest), "points": labels}
    record |= {"warnings": [warning.to_dict() for warning in dataset.warnings], "metaphase": __version__}
    write_text(output / "import.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    return ImportedDataset(dataset, output / "manifest.csv", output / "truth.csv", labels, dataset.warnings)


def read_dataset(name: str, folder: str | Path) -> Dataset:
    """Read data set `name` without writing anything."""
    adapter = next((adapter for adapter in ADAPTERS if adapter.name == name), None)
    if adapter is None:
        known = ", ".join(adapter.name for adapter in ADAPTERS)
        raise UsageError(f"data set {name!r} is unknown", next_step=f"choose one of {known}")
    if not Path(folder).exists():
        raise TableError("no such folder", path=folder, next_step="check the path")
    advice = "compare the files with those that `metaphase data list` names"
    with parsing(folder, "is not as it was published", next_step=advice, error=TableError):
        return adapter.read(Path(folder))


def _with_geometry(
    manifest: pd.DataFrame, mpp: float | None, source: str | Path
) -> tuple[pd.DataFrame, list[ResultWarning]]:
    """Complete size and resolution from the image files; what stays unknown is reported."""
    manifest = fill_geometry(manifest, source)
    if mpp is not None:
        manifest["mpp"] = manifest["mpp"].fillna(mpp)
    unknown = manifest["case"][manifest["mpp"].isna()]
    if not len(unknown):
        return manifest, []
    text = f"the resolution of {named(unknown)} is not stated"
    return manifest, [ResultWarning("no-mpp", text, "give --mpp here or when evaluating")]


def _with_empty_images(dataset: Dataset) -> pd.DataFrame:
    """The truth with a row without position for every image in which there is nothing."""
    table = dataset.truth.table
    filled = set(table["slide"])
    empty = [case for case in dataset.manifest["case"] if case not in filled]
    table = table.drop(columns="probability")
    if not empty:
        return table
    return pd.concat([table, pd.DataFrame({"slide": empty})], ignore_index=True)
