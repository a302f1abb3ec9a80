"""What published data sets have in common: images in folders with CSV files, and SlideRunner databases."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from metaphase.base.errors import ResultWarning, ResultWarnings
from metaphase.base.foreign import files_in
from metaphase.base.tables import (
    MANIFEST_COLUMNS,
    TableError,
    named,
    natural,
    read_table,
    require_columns,
    without_suffix,
)
from metaphase.detections.files import read_detections
from metaphase.detections.formats.sliderunner import SLIDERUNNER, folders, listed_slides
from metaphase.detections.table import LOOKALIKE, MITOSIS, DetectionSet, detection_set
from metaphase.slides.opening import SUFFIXES

# ---- what every reader gives ----

Facts = dict[str, Any]
"""Values of manifest columns of an image."""
TEXT_COLUMNS = [*MANIFEST_COLUMNS, "patient", "scanner", "tumour"]
NUMBER_COLUMNS = ["mpp", "width", "height", "grade", "proliferation"]


@dataclass(frozen=True)
class Dataset:
    """A published data set in the common form."""

    manifest: pd.DataFrame
    """One row an image, as in the cohort manifest."""
    truth: DetectionSet
    """Points under the case of their image; of labelled images, those without points are covered too."""
    warnings: ResultWarnings = ()

    def warned(self, code: str, text: str, next_step: str = "") -> Dataset:
        """The same with one more warning."""
        return replace(self, warnings=(*self.warnings, ResultWarning(code, text, next_step)))

    def of_cases(self, cases: Collection[str]) -> Dataset:
        """The images of some cases, and their points."""
        manifest = self.manifest[self.manifest["case"].isin(cases)].reset_index(drop=True)
        points = self.truth.table[self.truth.table["slide"].isin(cases)].reset_index(drop=True)
        truth = replace(self.truth, table=points, slides=tuple(manifest["case"]))
        return replace(self, manifest=manifest, truth=truth)


@dataclass
class Collector:
    """Gathers images and points while a reader walks its folder."""

    prefix: str
    """Put before every name, so that cases of different data sets never collide."""
    patients: str = ""
    """Put before every patient; the prefix, unless another data set shows the same patients."""
    images: dict[str, Facts] = field(default_factory=dict)
    points: list[Facts] = field(default_factory=list)

    def image(self, name: str, path: Path | None, **facts: Any) -> None:
        """Add an image; a later call for the same name changes nothing."""
        facts["patient"] = (self.patients or self.prefix) + (facts.get("patient") or name)
        file = "" if path is None else str(path.resolve())
        self.images.setdefault(name, {"case": self.prefix + name, "he": file} | facts)

    def point(self, name: str, label: str, **values: Any) -> None:
        """Add a point of an image: `x`, `y`, and what else is known."""
        self.points.append({"slide": self.prefix + name, "label": label} | values)

    def dataset(self, source: Path, *, labelled: bool = True) -> Dataset:
        """All images in order of their names; `labelled` ones without points have no mitoses."""
        if not self.images:
            raise TableError("holds no image of this data set", path=source, next_step="check the folder")
        rows = [self.images[name] for name in sorted(self.images, key=natural)]
        manifest = pd.DataFrame(rows).reindex(columns=[*TEXT_COLUMNS, *NUMBER_COLUMNS])
        text = manifest[TEXT_COLUMNS].astype(object)
        manifest[TEXT_COLUMNS] = text.where(text.notna(), "")
        points = pd.DataFrame(self.points, columns=None if self.points else ["slide", "x", "y", "label"])
        return Dataset(manifest, detection_set(points, tuple(manifest["case"]) if labelled else (), source))


def image_files(folder: Path) -> list[Path]:
    """Every image below the folder."""
    return [path for path in files_in(folder, "**/*") if path.suffix.lower() in SUFFIXES]


def images_by_stem(folder: Path) -> dict[str, Path]:
    """Every image below the folder by its stem; of several, the first in alphabetical order."""
    return {path.stem: path for path in reversed(image_files(folder))}


def number_rows(path: Path) -> list[list[float]]:
    """The numbers of each line; empty lines and a heading are passed over."""
    rows = []
    for index, line in enumerate(path.read_text(encoding="utf-8-sig", errors="replace").splitlines()):
        try:
            numbers = [float(cell) for cell in re.split(r"[,;\s]+", line) if cell]
        except ValueError as error:
            if index == 0:
                continue
            raise TableError(
                f"line {index + 1} holds more than numbers: {line[:60]!r}",
                path=path,
                next_step="compare it with the published file",
            ) from error
        if numbers:
            rows.append(numbers)
    return rows


# ---- images in folders, with a CSV file each or one for all ----

POINT_TABLES = ("mitoses.csv", "painted.csv", "labels.csv")
"""Names of a single table of all points, in the simple layout."""
_LOOKALIKES = re.compile("nonmitos|_not_mitosis$", re.IGNORECASE)
"""In the path of a file of look-alikes."""
_STEM = r"/([^/]+)$"


@dataclass(frozen=True)
class Layout:
    """Images below a folder, and for each a CSV file with a line for each object."""

    prefix: str
    facts: Callable[[str], Facts]
    """What the files do not say about an image."""
    images: str = _STEM
    """Pattern in the path of an image without suffix; its groups make the image's name."""
    tables: str | None = _STEM
    """The same for its CSV file; None where the truth is not public."""
    columns: tuple[str, ...] = ()
    """What the numbers of a line are. Without, they are x1, y1, x2, y2, ... of an object's pixels."""
    patients: str = ""
    """Prefix of the patients, where another data set shows the same ones."""

    def position(self, numbers: list[float], path: Path) -> Facts:
        """The position that a line of a file gives, and what else its columns say."""
        if len(numbers) < 2 or (not self.columns and len(numbers) % 2):
            raise TableError(
                f"a line has {len(numbers)} numbers, not pairs of x and y",
                path=path,
                next_step="compare it with the published file",
            )
        if self.columns:
            return dict(zip(self.columns, numbers, strict=False))
        return {"x": np.mean(numbers[::2]), "y": np.mean(numbers[1::2])}


def read_layout(folder: Path, layout: Layout) -> Dataset:
    """Read images and tables of a layout, in any subfolders."""
    collector = Collector(layout.prefix, layout.patients)
    for path in image_files(folder):
        if name := name_in(path, layout.images):
            collector.image(name, path, **layout.facts(name))
    tables: dict[tuple[str, str], Path] = {}
    for path in files_in(folder, "**/*.csv") if layout.tables else ():
        name = name_in(path, layout.tables or "")
        if not name:
            continue
        label = LOOKALIKE if _LOOKALIKES.search(path.with_suffix("").as_posix()) else MITOSIS
        other = tables.setdefault((name, label), path)
        if other is not path:
            raise TableError(
                f"{name} has labels here and in {other}",
                path=path,
                next_step="keep one set of labels in the folder",
            )
        collector.image(name, None, **layout.facts(name))
        for numbers in number_rows(path):
            collector.point(name, label, **layout.position(numbers, path))
    return collector.dataset(folder, labelled=layout.tables is not None)


def name_in(path: Path, pattern: str) -> str:
    """The groups of a pattern in a path without suffix, joined by slashes; empty where it does not match."""
    match = re.search(pattern, f"/{path.with_suffix('').as_posix()}", re.IGNORECASE)
    return "/".join(match.groups()) if match else ""


def read_fields(folder: Path, layout: Layout) -> Dataset:
    """Read the simple layout where the folder has it, else a file for each image."""
    table = next((folder / name for name in POINT_TABLES if (folder / name).is_file()), None)
    return read_layout(folder, layout) if table is None else _read_points(folder, table, layout)


def read_points(folder: Path) -> Dataset:
    """Any folder of images with one CSV of `image, x, y, label`."""
    table = only_file(
        folder, files_in(folder, "*.csv"), "CSV files", "keep one table of points in the folder"
    )
    return _read_points(folder, table, Layout(f"{folder.name}/", lambda _: {}))


def _read_points(folder: Path, table: Path, layout: Layout) -> Dataset:
    """The simple layout: one CSV with `image, x, y, label`; images without rows have no findings."""
    frame = read_table(table)
    require_columns(frame, ("image", "x", "y", "label"), table)
    collector = Collector(layout.prefix)
    for stem, path in images_by_stem(folder).items():
        collector.image(stem, path, **layout.facts(stem))
    known = [name for name in ("x", "y", "confidence", "radius_um") if name in frame.columns]
    for row in frame.to_dict("records"):
        stem = Path(str(row["image"])).stem
        if stem not in collector.images:
            raise TableError(f"image {row['image']} is not there", path=table, next_step="restore the image")
        collector.point(stem, row["label"], **{name: row[name] for name in known})
    return collector.dataset(folder)


def only_file(folder: Path, files: list[Path], what: str, next_step: str) -> Path:
    """The file that was given, or the only one that is in the folder."""
    if folder.is_file():
        return folder
    if len(files) != 1:
        names = f": {named(path.name for path in files)}" if files else ""
        raise TableError(f"holds {len(files)} {what}{names}", path=folder, next_step=next_step)
    return files[0]


# ---- SlideRunner databases: CCMCT, CMC, and anybody's own ----

Description = tuple[str, Path | None, Facts]
"""Name of an image, its file, and what is known about it."""


def read_sliderunner(folder: Path, prefix: str = "", **facts: str) -> Dataset:
    """Any SlideRunner database and its slides; without a prefix, cases are named after the database."""
    path = only_database(folder)
    files = image_files(beside(folder))
    slides = listed_slides(path)["slide"]
    repeated = slides.map(without_suffix).duplicated().any()
    doubtful = []

    def describe(row: Mapping[Any, Any]) -> Description:
        images = _nearest(files, row)
        if len(images) > 1:
            doubtful.append(row["slide"])
        name = row["slide"] if repeated else without_suffix(row["slide"])
        return name, images[0] if len(images) == 1 else None, dict(facts)

    dataset = read_database(path, Collector(prefix or f"{path.stem}/"), describe)
    if not files:
        dataset = dataset.warned("no-slides", "no slide was found beside the database", "give --mpp")
    if doubtful:
        text = f"several files could be {named(doubtful)}, so none was used"
        dataset = dataset.warned("doubtful-slides", text, "keep one of them beside the database")
    return dataset


def _nearest(files: list[Path], row: Mapping[Any, Any]) -> list[Path]:
    """The images that may be a slide of a database: those whose folders agree with its own the furthest."""
    end = f"/{without_suffix(row['slide'])}"
    directory = folders(row["directory"])[::-1]

    def agreement(path: Path) -> tuple[int, bool]:
        parts = path.resolve().parent.parts[::-1]
        same = [ours == theirs for ours, theirs in zip(parts, directory, strict=False)]
        return [*same, False].index(False), path.name == row["filename"]

    candidates = [path for path in files if without_suffix(path.resolve().as_posix()).endswith(end)]
    best = max(map(agreement, candidates), default=None)
    return [path for path in candidates if agreement(path) == best]


def read_database(
    path: Path, collector: Collector, describe: Callable[[Mapping[Any, Any]], Description]
) -> Dataset:
    """All slides of a database, as a function describes them, with their points."""
    names = {}
    for row in listed_slides(path).to_dict("records"):
        name, image, facts = describe(row)
        names[row["slide"]] = name
        size = {"width": row["width"] or None, "height": row["height"] or None}
        collector.image(name, image, **size, **facts)
    points = read_detections(path)
    for slide, x, y, label in points.table[["slide", "x", "y", "label"]].itertuples(index=False, name=None):
        collector.point(names[slide], label, x=x, y=y)
    return replace(collector.dataset(path), warnings=points.warnings)


def only_database(folder: Path) -> Path:
    """The database given itself, or the only one below the folder.

    The published variants (MEL, HEAEL, ODAEL) differ in their labels, so that one must be chosen.
    """
    databases = [path for path in files_in(folder, "**/*") if path.suffix.lower() in SLIDERUNNER.suffixes]
    return only_file(folder, databases, "databases", "name the database itself instead of its folder")


def beside(folder: Path) -> Path:
    """Where the slides of a database lie: in the folder that was named, or beside the file that was."""
    return folder.parent if folder.is_file() else folder
