"""What every adapter gives, the reading that several layouts share, and SlideRunner databases."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from metaphase.base.errors import ResultWarning, ResultWarnings
from metaphase.base.tables import (
    IDENTIFIERS,
    MANIFEST_COLUMNS,
    TableError,
    named,
    natural,
    read_table,
    require_columns,
    tails,
    without_suffix,
)
from metaphase.detections.files import read_detections
from metaphase.detections.formats.sliderunner import SLIDERUNNER, folders, listed_slides
from metaphase.detections.table import DetectionSet, detection_set
from metaphase.slides.opening import SUFFIXES

EXTRA_COLUMNS = ("patient", "scanner", "tumour", "mpp", "width", "height", "grade", "proliferation")


@dataclass(frozen=True)
class Dataset:
    """A published data set in the common form."""

    manifest: pd.DataFrame
    """One row an image, as in the cohort manifest."""
    truth: DetectionSet
    """Points under the case of their image; images without points are covered too."""
    warnings: ResultWarnings = ()


@dataclass
class Collector:
    """Gathers images and points while an adapter walks its folder."""

    prefix: str
    """Put before every name, so that cases of different data sets never collide."""
    patients: str = ""
    """Put before every patient; the prefix, unless other data sets show the same patients."""
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    points: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[ResultWarning] = field(default_factory=list)

    def image(self, name: str, path: Path | None, *, patient: str | None = None, **facts: Any) -> None:
        """Note an image; a later call for the same name changes nothing."""
        row = {"case": self.prefix + name, "he": "" if path is None else str(path.resolve())}
        row["patient"] = (self.patients or self.prefix) + (patient or name)
        self.rows.setdefault(name, row | facts)

    def point(self, name: str, x: float, y: float, label: str, **facts: Any) -> None:
        """Note a point of an image."""
        self.points.append({"slide": self.prefix + name, "x": x, "y": y, "label": label} | facts)

    def dataset(self, source: Path) -> Dataset:
        """All that was gathered, in order of the images' names."""
        if not self.rows:
            raise TableError("holds no image of this data set", path=source, next_step="check the folder")
        rows = [self.rows[name] for name in sorted(self.rows, key=natural)]
        manifest = pd.DataFrame(rows).reindex(columns=[*MANIFEST_COLUMNS, *EXTRA_COLUMNS])
        text = [name for name in manifest.columns if name in IDENTIFIERS or name in MANIFEST_COLUMNS]
        manifest[text] = manifest[text].astype(object).where(manifest[text].notna(), "")
        table = (
            pd.DataFrame(self.points) if self.points else pd.DataFrame(columns=["slide", "x", "y", "label"])
        )
        truth = detection_set(table, tuple(manifest["case"]), source)
        return Dataset(manifest, truth, tuple(self.warnings))


def images_below(folder: Path) -> dict[str, Path]:
    """Every image below the folder by its path relative to it, without suffix."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}


def images_by_stem(folder: Path) -> dict[str, Path]:
    """Every image below the folder by its stem; of several, the first in alphabetical order."""
    found: dict[str, Path] = {}
    for path in images_below(folder).values():
        found.setdefault(path.stem, path)
    return found


def number_rows(path: Path) -> list[list[float]]:
    """The numbers of each line; empty lines and a heading are passed over."""
    rows = []
    for index, line in enumerate(path.read_text(encoding="utf-8-sig", errors="replace").splitlines()):
        cells = [cell for cell in re.split(r"[,;\s]+", line.strip()) if cell]
        try:
            numbers = [float(cell) for cell in cells]
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


def centre_of_pixels(numbers: Iterable[float], path: Path) -> tuple[float, float]:
    """The mean of x1, y1, x2, y2, ...: a point, corners of a box, an outline or all pixels of an object."""
    values = list(numbers)
    if len(values) < 2 or len(values) % 2:
        raise TableError(
            f"a line has {len(values)} numbers, not pairs of x and y", path=path, next_step="check the file"
        )
    return sum(values[::2]) / (len(values) // 2), sum(values[1::2]) / (len(values) // 2)


def read_points_csv(
    collector: Collector, folder: Path, table: Path, facts: Callable[[str], Mapping[str, Any]]
) -> None:
    """The simple layout: one CSV with `image, x, y, label` beside the images; `facts` tells about an image.

    Images without rows are fields without findings.
    """
    frame = read_table(table)
    require_columns(frame, ("image", "x", "y", "label"), table)
    images = images_by_stem(folder)
    for stem, path in images.items():
        collector.image(stem, path, **facts(stem))
    extra = [name for name in ("confidence", "radius_um") if name in frame.columns]
    for row in frame.to_dict("records"):
        stem = Path(str(row["image"])).stem
        if stem not in images:
            raise TableError(f"image {row['image']} is not there", path=table, next_step="restore the image")
        collector.point(stem, row["x"], row["y"], row["label"], **{name: row[name] for name in extra})


# ---- data sets kept as SlideRunner databases: CCMCT, CMC, and anybody's own ----


def read_sliderunner(folder: Path, prefix: str = "", **facts: str) -> Dataset:
    """Any SlideRunner database and the slides; without a prefix, cases are named after it and their files."""
    path = only_database(folder)
    collector = Collector(prefix or f"{path.stem}/")
    slides = listed_slides(path)
    stems = slides["slide"].map(without_suffix)
    names = dict(zip(slides["slide"], slides["slide"] if stems.duplicated().any() else stems, strict=True))
    images: dict[str, list[Path]] = defaultdict(list)  # under each end of their paths, without suffix
    for found in images_below(beside(folder)).values():
        for end in tails(without_suffix(found.resolve().as_posix())):
            images[end].append(found)
    doubtful = []
    for row in slides.to_dict("records"):
        slide = row["slide"]
        candidates = images.get(without_suffix(slide), [])
        chosen = _nearest(candidates, [*folders(row["directory"]), row["filename"]])
        if candidates and chosen is None:
            doubtful.append(slide)
        size = {"width": row["width"] or None, "height": row["height"] or None}
        collector.image(names[slide], chosen, **size, **facts)
    note_points(collector, path, names)
    if not images:
        text = "no slide was found beside the database"
        collector.warnings.append(ResultWarning("no-slides", text, "give --mpp"))
    if doubtful:
        text = f"several files could be {named(doubtful)}, so none was used"
        collector.warnings.append(
            ResultWarning("doubtful-slides", text, "keep one of them beside the database")
        )
    return collector.dataset(path)


def note_points(collector: Collector, path: Path, names: Mapping[str, str]) -> int:
    """Note the points of a database under the names of its slides; says how many are on slides without."""
    found = read_detections(path)
    columns = (found.table[name] for name in ("slide", "x", "y", "label"))
    noted = 0
    for slide, x, y, label in zip(*columns, strict=True):
        if slide in names:
            collector.point(names[slide], x, y, label)
            noted += 1
    collector.warnings.extend(found.warnings)
    return len(found.table) - noted


def only_database(folder: Path) -> Path:
    """The database given itself, or the only one below the folder.

    The published variants (MEL, HEAEL, ODAEL) differ in their labels, so that one must be chosen.
    """
    if folder.is_file():
        return folder
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SLIDERUNNER.suffixes)
    if len(found) != 1:
        raise TableError(
            f"holds {len(found)} databases" + (f": {named(path.name for path in found)}" if found else ""),
            path=folder,
            next_step="name the database itself instead of its folder",
        )
    return found[0]


def beside(folder: Path) -> Path:
    """Where the slides of a database lie: in the folder that was named, or beside the file that was."""
    return folder.parent if folder.is_file() else folder


def _nearest(candidates: list[Path], wanted: list[str]) -> Path | None:
    """The image whose path ends most like the wanted one; none where two do so equally."""

    def agreement(path: Path) -> tuple[int, bool]:
        ours, theirs = path.resolve().parent.parts[::-1], wanted[-2::-1]
        equal = [one == other for one, other in zip(ours, theirs, strict=False)]
        return [*equal, False].index(False), path.name == wanted[-1]

    ranked = sorted(candidates, key=agreement, reverse=True)
    if not ranked or (len(ranked) > 1 and agreement(ranked[0]) == agreement(ranked[1])):
        return None
    return ranked[0]
