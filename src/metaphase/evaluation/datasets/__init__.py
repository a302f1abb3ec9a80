"""Published data sets as users have them on disk, each as one cohort manifest and one truth table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pandas as pd

from metaphase.base.errors import UsageError
from metaphase.base.files import write_text
from metaphase.base.foreign import parsing
from metaphase.base.tables import (
    TableError,
    named,
    read_manifest,
    read_table,
    require_columns,
    write_manifest,
    write_table,
)
from metaphase.detections.table import detection_set
from metaphase.evaluation.comparison import fill_geometry
from metaphase.evaluation.datasets.layouts import (
    Dataset,
    read_fields,
    read_layout,
    read_points,
    read_sliderunner,
)
from metaphase.evaluation.datasets.published import (
    ATYPIA14,
    AUXILIARY_TEST,
    ICPR2012,
    read_alternative,
    read_auxiliary,
    read_brecahad,
    read_midesec,
    read_midog,
    read_paper,
    read_paper_auxiliary,
    read_slides,
)
from metaphase.version import __version__

# ---- cohorts made by `metaphase simulate` ----


def read_simulated(folder: Path) -> Dataset:
    """`manifest.csv`, and for each case `truth.csv` with `category, x_he, y_he`."""
    manifest = read_manifest(folder / "manifest.csv")
    columns = {"category": "label", "x_he": "x", "y_he": "y"}
    parts = []
    for case in manifest["case"]:
        path = folder / case / "truth.csv"
        frame = read_table(path)
        require_columns(frame, columns, path)
        parts.append(frame[[*columns]].rename(columns=columns).assign(slide=case))
    truth = detection_set(pd.concat(parts, ignore_index=True), tuple(manifest["case"]), folder)
    return Dataset(manifest, truth)


# ---- `metaphase data import`: any known data set as one manifest and one truth table ----

_MAST_CELL, _MAMMARY = "canine cutaneous mast cell tumour", "canine mammary carcinoma"
ADAPTERS: dict[str, tuple[str, Callable[[Path], Dataset]]] = {
    "tupac": ("training_ground_truth.csv, TUPAC-TR-*.svs, TUPAC-TE-*.svs", read_slides),
    "tupac-aux": ("NN/MM.csv (row,column), NN/MM.tif", read_auxiliary),
    "tupac-aux-paper": ("the same; only the paper's 50 cases, 24 to 73", read_paper_auxiliary),
    "tupac-aux-test": ("mitoses-test-image-data/NN/01.tif", partial(read_layout, layout=AUXILIARY_TEST)),
    "tupac-paper": ("all of these, as the paper uses them, in one manifest", read_paper),
    "tupac-alternative": ("NN/MM.csv below (non)mitoses folders, or SQLite", read_alternative),
    "midog": ("MIDOG*.json, or MIDOG*.sqlite, NNN.tiff", read_midog),
    "icpr2012": (
        "one CSV per image, one line of x1,y1,x2,y2,... per mitosis",
        partial(read_fields, layout=ICPR2012),
    ),
    "mitos-atypia14": (
        "*_mitosis.csv, *_not_mitosis.csv, frames/x40/*.tiff",
        partial(read_fields, layout=ATYPIA14),
    ),
    "midesec": ("mitoses.csv (image,x,y,label), or one CSV per image", read_midesec),
    "brecahad": ("groundTruth/Case_*.json, images/Case_*.tif", read_brecahad),
    "ccmct": (
        "a SlideRunner SQLite database, slides",
        partial(read_sliderunner, prefix="ccmct/", tumour=_MAST_CELL),
    ),
    "cmc": (
        "a SlideRunner SQLite database, slides",
        partial(read_sliderunner, prefix="cmc/", tumour=_MAMMARY),
    ),
    "sliderunner": ("any SlideRunner SQLite database, slides", read_sliderunner),
    "simulated": ("manifest.csv, CASE/truth.csv", read_simulated),
    "points": ("one CSV (image,x,y,label), images", read_points),
}
"""The files that each data set is expected to have, for messages and `--help`, and what reads them."""


@dataclass(frozen=True)
class ImportedDataset:
    """What was imported, and where it lies."""

    dataset: Dataset
    manifest_path: Path
    truth_path: Path
    labels: dict[str, int]
    """Points of each label."""


def import_dataset(name: str, folder: Path, output: Path, *, mpp: float | None = None) -> ImportedDataset:
    """Read data set `name` as it lies in `folder` and write `manifest.csv` and `truth.csv` to `output`.

    `mpp` is used for images whose resolution neither the data set nor the file states.
    """
    dataset = read_dataset(name, folder)
    manifest = fill_geometry(dataset.manifest, folder)
    if mpp is not None:
        manifest["mpp"] = manifest["mpp"].fillna(mpp)
    dataset = replace(dataset, manifest=manifest)
    unknown = manifest["case"][manifest["mpp"].isna()]
    if len(unknown):
        text = f"the resolution of {named(unknown)} is not stated"
        dataset = dataset.warned("no-mpp", text, "give --mpp here or when evaluating")
    table = dataset.truth.table.drop(columns="probability")
    labels = {str(label): int(count) for label, count in table["label"].value_counts().items()}
    empty = pd.DataFrame({"slide": dataset.truth.slides})
    empty = empty[~empty["slide"].isin(table["slide"])]
    if len(empty):  # a row without position for every labelled image in which there is nothing
        table = pd.concat([table, empty], ignore_index=True)
    write_table(output / "truth.csv", table)
    write_manifest(output / "manifest.csv", manifest.dropna(axis=1, how="all"))
    record = {"dataset": name, "source": str(folder), "images": len(manifest), "points": labels}
    record |= {"warnings": [warning.to_dict() for warning in dataset.warnings], "metaphase": __version__}
    write_text(output / "import.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    return ImportedDataset(dataset, output / "manifest.csv", output / "truth.csv", labels)


def read_dataset(name: str, folder: Path) -> Dataset:
    """Read data set `name` without writing anything."""
    if name not in ADAPTERS:
        raise UsageError(f"data set {name!r} is unknown", next_step=f"choose one of {', '.join(ADAPTERS)}")
    if not folder.exists():
        raise TableError("no such folder", path=folder, next_step="check the path")
    advice = "compare the files with those that `metaphase data list` names"
    with parsing(folder, "is not as it was published", next_step=advice, error=TableError):
        return ADAPTERS[name][1](folder)
