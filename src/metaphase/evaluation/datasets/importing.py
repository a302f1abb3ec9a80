"""`metaphase data import`: any known data set as one manifest and one truth table."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from metaphase import __version__
from metaphase.artifacts import write_text
from metaphase.errors import UsageError
from metaphase.evaluation.cohort import fill_geometry
from metaphase.evaluation.datasets import crops, fields, midog, simulated, sliderunner, tupac
from metaphase.evaluation.datasets.contract import Adapter, Dataset
from metaphase.tables import TableError, named, write_table

ADAPTERS: tuple[Adapter, ...] = (
    Adapter("tupac", "training_ground_truth.csv, TUPAC-TR-*.svs", tupac.read_slides),
    Adapter("tupac-aux", "NN/MM.csv (row,column), NN/MM.tif", tupac.read_auxiliary),
    Adapter("tupac-alternative", "NN/MM.csv below (non)mitoses folders, or SQLite", tupac.read_alternative),
    Adapter("midog", "MIDOG*.json, NNN.tiff", midog.read),
    Adapter("icpr2012", "one CSV an image: x1,y1,x2,y2,... a mitosis", fields.read_icpr2012),
    Adapter("mitos-atypia14", "*_mitosis.csv, *_not_mitosis.csv, frames/x40/*.tiff", fields.read_atypia14),
    Adapter("midesec", "mitoses.csv (image,x,y,label), or one CSV an image", fields.read_midesec),
    Adapter("brecahad", "groundTruth/Case_*.json, images/Case_*.tif", fields.read_brecahad),
    Adapter("ccmct", "a SlideRunner SQLite database, slides", sliderunner.read_ccmct),
    Adapter("cmc", "a SlideRunner SQLite database, slides", sliderunner.read_cmc),
    Adapter("midog-crops", "patches.csv, crops", crops.read_midog_crops),
    Adapter("tupac-crops", "crops of look-alikes", crops.read_tupac_crops),
    Adapter("simulated", "manifest.csv, CASE/truth.csv", simulated.read),
    Adapter("points", "one CSV (image,x,y,label), images", fields.read_points),
)


@dataclass(frozen=True)
class ImportedDataset:
    """What was imported, and where it lies."""

    dataset: Dataset
    manifest_path: Path
    truth_path: Path
    labels: dict[str, int]
    """Points of each label."""
    warnings: tuple[str, ...]


def import_dataset(
    name: str, folder: str | Path, output: str | Path, *, mpp: float | None = None
) -> ImportedDataset:
    """Read data set `name` as it lies in `folder` and write `manifest.csv` and `truth.csv` to `output`.

    `mpp` is used for images whose resolution neither the data set nor the file states.
    """
    dataset = read_dataset(name, folder)
    manifest, doubts = _with_geometry(dataset.manifest, mpp)
    dataset = replace(dataset, manifest=manifest, warnings=(*dataset.warnings, *doubts))
    output = Path(output)
    labels = {str(label): int(count) for label, count in dataset.truth.table["label"].value_counts().items()}
    write_table(output / "truth.csv", _with_empty_images(dataset))
    write_table(output / "manifest.csv", manifest.dropna(axis=1, how="all"))
    record = {"dataset": name, "source": str(folder), "images": len(manifest), "points": labels}
    record |= {"warnings": list(dataset.warnings), "metaphase": __version__}
    write_text(output / "import.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    return ImportedDataset(dataset, output / "manifest.csv", output / "truth.csv", labels, dataset.warnings)


def read_dataset(name: str, folder: str | Path) -> Dataset:
    """Read data set `name` without writing anything."""
    adapter = next((adapter for adapter in ADAPTERS if adapter.name == name), None)
    if adapter is None:
        known = ", ".join(adapter.name for adapter in ADAPTERS)
        raise UsageError(f"data set {name!r} is unknown", next_step=f"known are {known}")
    if not Path(folder).exists():
        raise TableError("no such folder", path=folder, next_step="check the path")
    return adapter.read(Path(folder))


def _with_geometry(manifest: pd.DataFrame, mpp: float | None) -> tuple[pd.DataFrame, list[str]]:
    """Complete size and resolution from the image files; what stays unknown is reported."""
    manifest = fill_geometry(manifest)
    if mpp is not None:
        manifest["mpp"] = manifest["mpp"].fillna(mpp)
    unknown = manifest["case"][manifest["mpp"].isna()]
    if not len(unknown):
        return manifest, []
    return manifest, [f"the resolution of {named(unknown)} is not stated: give --mpp here or when evaluating"]


def _with_empty_images(dataset: Dataset) -> pd.DataFrame:
    """The truth with a row without place for every image in which there is nothing."""
    table = dataset.truth.table
    filled = set(table["slide"])
    empty = [case for case in dataset.manifest["case"] if case not in filled]
    table = table.drop(columns="probability")
    if not empty:
        return table
    return pd.concat([table, pd.DataFrame({"slide": empty})], ignore_index=True)
