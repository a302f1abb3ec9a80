"""Data sets kept as SlideRunner databases: CCMCT, CMC, TUPAC alternative labels."""

from __future__ import annotations

from pathlib import Path

from metaphase.detections import read_detections
from metaphase.detections.formats.sliderunner import SLIDERUNNER, slide_sizes
from metaphase.evaluation.datasets.contract import Collector, Dataset, images_by_stem
from metaphase.tables import TableError, named


def read_ccmct(folder: Path) -> Dataset:
    """Canine cutaneous mast cell tumour: one SQLite database and the slides."""
    return read_databases(folder, "ccmct/", tumour="canine cutaneous mast cell tumour")


def read_cmc(folder: Path) -> Dataset:
    """Canine mammary carcinoma: one SQLite database and the slides."""
    return read_databases(folder, "cmc/", tumour="canine mammary carcinoma")


def read_databases(folder: Path, prefix: str, tumour: str) -> Dataset:
    """A database given itself, or the only one below the folder, with the slides found beside it.

    The published variants (MEL, HEAEL, ODAEL) differ in their labels, so that one must be chosen.
    """
    path = _database(folder)
    images = images_by_stem(path.parent if folder.is_file() else folder)
    collector = Collector(prefix)
    sizes = slide_sizes(path)
    for name, width, height in zip(sizes["filename"], sizes["width"], sizes["height"], strict=True):
        stem = Path(name).stem
        collector.image(stem, images.get(stem), tumour=tumour, width=width or None, height=height or None)
    found = read_detections(path).table
    for slide, x, y, label in zip(found["slide"], found["x"], found["y"], found["label"], strict=True):
        collector.point(Path(slide).stem, x, y, label)
    if not images:
        collector.warnings.append("no slide was found beside the database: give --mpp")
    return collector.dataset(path)


def _database(folder: Path) -> Path:
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
