"""Data sets kept as SlideRunner databases: CCMCT, CMC, TUPAC alternative labels."""

from __future__ import annotations

import re
from pathlib import Path

from metaphase.base.cautions import Caution
from metaphase.base.tables import TableError, named
from metaphase.detections import LOOKALIKE, MITOSIS, read_detections
from metaphase.detections.formats.sliderunner import SLIDERUNNER, slide_sizes
from metaphase.evaluation.datasets.contract import (
    Collector,
    Dataset,
    images_below,
    images_by_stem,
    number_rows,
)

# ---- TUPAC16: regions with mitoses (auxiliary) ----

MPP = 0.25
"""As published for all regions."""
TUMOUR = "human breast cancer"
SLIDE_CENTRE = "TCGA"
_REGION = re.compile(r"(?:^|/)(\d\d)/(\d\d)$")
_SLIDE = "TUPAC-TR-{:03}"


def read_auxiliary(folder: Path) -> Dataset:
    """`NN/MM.csv` with a line `row,column` for each mitosis, and images `NN/MM.tif`, in any subfolders.

    A region without a file has no mitosis. Files below a folder named nonmitoses hold look-alikes.
    """
    collector = Collector("tupac-aux/")
    for name, path in images_below(folder).items():
        if region := _REGION.search(name):
            _note_region(collector, region, path)
    if not collector.rows:
        collector.warnings.append(
            Caution("no-region-images", "no region images were found: regions without mitoses are not known")
        )
    for path in sorted(folder.rglob("*.csv")):
        region = _REGION.search(path.with_suffix("").as_posix())
        if region:
            _note_region(collector, region, None)
            _note_points(collector, region, path)
    return collector.dataset(folder)


def read_alternative(folder: Path) -> Dataset:
    """The alternative labels of Bertram et al. 2020: the CSV files, or one SlideRunner database."""
    if folder.is_dir() and any(folder.rglob("[0-9][0-9]/[0-9][0-9].csv")):
        return read_auxiliary(folder)
    return read_databases(folder, "tupac-alternative/", tumour=TUMOUR)


def read_slides(folder: Path) -> Dataset:
    """`training_ground_truth.csv`: line N is the grade and the proliferation score of `TUPAC-TR-N.svs`."""
    tables = sorted(folder.rglob("training_ground_truth*.csv"))
    if not tables:
        raise TableError("no training_ground_truth.csv", path=folder, next_step="put it beside the slides")
    slides = {path.stem: path for path in sorted(folder.rglob("TUPAC-TR-*.svs"))}
    collector = Collector("")
    for number, values in enumerate(number_rows(tables[0]), start=1):
        name = _SLIDE.format(number)
        if len(values) < 2:
            raise TableError(f"line {number} has one number", path=tables[0], next_step="check the file")
        if slides and name not in slides:
            continue
        collector.image(
            name,
            slides.get(name),
            centre=SLIDE_CENTRE,
            tumour=TUMOUR,
            split="train",
            grade=values[0],
            proliferation=values[1],
        )
    absent = len(number_rows(tables[0])) - len(collector.rows)
    if absent:
        collector.warnings.append(
            Caution(
                "slides-left-out", f"{absent} slides of the ground truth are not on disk and are left out"
            )
        )
    if not slides:
        collector.warnings.append(Caution("no-slides", "no slide was found: the manifest names cases only"))
    return collector.dataset(folder)


def _note_region(collector: Collector, region: re.Match[str], path: Path | None) -> None:
    case, _ = region.groups()
    centre, scanner = _centre(int(case))
    collector.image(
        "/".join(region.groups()),
        path,
        patient=case,
        centre=centre,
        scanner=scanner,
        tumour=TUMOUR,
        mpp=MPP,
    )


def _note_points(collector: Collector, region: re.Match[str], path: Path) -> None:
    label = LOOKALIKE if any("nonmitos" in part.lower() for part in path.parts) else MITOSIS
    for numbers in number_rows(path):
        if len(numbers) < 2:
            raise TableError("a line has one number", path=path, next_step="lines are row,column")
        row, column = numbers[:2]
        collector.point("/".join(region.groups()), column, row, label)


def _centre(case: int) -> tuple[str, str]:
    """Cases 1 to 23 are those of AMIDA13, the others come from two more hospitals."""
    if case <= 23:
        return "UMC Utrecht", "Aperio ScanScope XT"
    return ("centre 2" if case <= 48 else "centre 3"), "Leica SCN400"


# ---- data sets kept as SlideRunner databases ----


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
        collector.warnings.append(
            Caution("no-slides", "no slide was found beside the database", "give --mpp")
        )
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
