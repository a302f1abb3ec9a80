"""TUPAC16: whole slides with grade and score, regions with mitoses, and the alternative labels of these."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from metaphase.base.cautions import Caution
from metaphase.base.tables import TableError, named, without_suffix
from metaphase.detections import LOOKALIKE, MITOSIS
from metaphase.detections.formats.sliderunner import folders, listed_slides
from metaphase.evaluation.datasets.contract import Collector, Dataset, images_below, number_rows
from metaphase.evaluation.datasets.databases import beside, note_points, only_database

MPP = 0.25
"""As published for all regions."""
TUMOUR = "human breast cancer"
SLIDE_CENTRE = "TCGA"
AUXILIARY, ALTERNATIVE = "tupac-aux/", "tupac-alternative/"
"""Before the cases of the original and of the alternative labels; the patients are those of the first."""
PAPER_CASES = range(24, 74)
"""TUPAC-aux-train of the paper: 50 cases of two hospitals, one region each; cases 1 to 23 are AMIDA13's."""
_REGION = re.compile(r"(?:^|/)(\d\d)/(\d\d)$")
_STITCHED = re.compile(r"(?:^|/)(\d\d)(_stitched\d*)?$")
"""All regions of one case in one image; a case with one region only may lie alone under its number."""
_SLIDE = "TUPAC-TR-{:03}"


# ---- regions with mitoses (auxiliary) ----


def read_auxiliary(folder: Path) -> Dataset:
    """`NN/MM.csv` with a line `row,column` for each mitosis, and images `NN/MM.tif`, in any subfolders.

    A region without a file has no mitosis. Files below a folder named nonmitoses hold look-alikes.
    """
    collector = Collector(AUXILIARY)
    _note_images(collector, folder)
    if not collector.rows:
        collector.warnings.append(
            Caution("no-region-images", "no region images were found: regions without mitoses are not known")
        )
    _note_files(collector, folder)
    return collector.dataset(folder)


def read_paper_auxiliary(folder: Path) -> Dataset:
    """The auxiliary regions on which the paper reports: `PAPER_CASES` only, named as in the whole set."""
    whole = read_auxiliary(folder)
    patients = {f"{AUXILIARY}{case:02}" for case in PAPER_CASES}
    manifest = whole.manifest[whole.manifest["patient"].isin(patients)].reset_index(drop=True)
    if not len(manifest):
        raise TableError("holds no case from 24 to 73", path=folder, next_step="unpack the other parts too")
    warnings = list(whole.warnings)
    missing = sorted(patients - set(manifest["patient"]))
    if missing:
        text = f"{len(missing)} of the paper's {len(patients)} cases are not there: {named(missing)}"
        warnings.append(Caution("cases-missing", text, "unpack the other parts too"))
    table = whole.truth.table
    kept = table[table["slide"].isin(manifest["case"])].reset_index(drop=True)
    truth = replace(whole.truth, table=kept, slides=tuple(manifest["case"]))
    return Dataset(manifest, truth, tuple(warnings))


def read_alternative(folder: Path) -> Dataset:
    """The alternative labels of Bertram et al. 2020: the CSV files, or one SlideRunner database.

    Their CSV files name every region, those without mitoses too.
    """
    collector = Collector(ALTERNATIVE, patients=AUXILIARY)
    if folder.is_dir() and any(folder.rglob("[0-9][0-9]/[0-9][0-9].csv")):
        _note_images(collector, folder)
        _note_files(collector, folder)
        return collector.dataset(folder)
    return _read_region_database(collector, folder)


def _note_images(collector: Collector, folder: Path) -> None:
    for name, path in images_below(folder).items():
        if region := _REGION.search(name):
            _note_region(collector, "/".join(region.groups()), path)


def _note_files(collector: Collector, folder: Path) -> None:
    seen: dict[tuple[str, str], Path] = {}
    for path in sorted(folder.rglob("*.csv")):
        region = _REGION.search(path.with_suffix("").as_posix())
        if not region:
            continue
        name, label = "/".join(region.groups()), _label_of(path)
        other = seen.setdefault((name, label), path)
        if other is not path:
            raise TableError(
                f"region {name} has labels here and in {other}",
                path=path,
                next_step="keep one set of labels in the folder",
            )
        _note_region(collector, name, None)
        for numbers in number_rows(path):
            if len(numbers) < 2:
                raise TableError("a line has one number", path=path, next_step="lines are row,column")
            row, column = numbers[:2]
            collector.point(name, column, row, label)


def _read_region_database(collector: Collector, folder: Path) -> Dataset:
    """Regions `NN/MM.tif` by directory and file, or all regions of a case stitched to `NN_stitched1.tif`."""
    path = only_database(folder)
    images: dict[str, Path] = {}
    for place, image in images_below(beside(folder)).items():
        images.setdefault(_region_name(place) or place, image)
    slides = listed_slides(path)
    names: dict[str, str] = {}
    for row in slides.to_dict("records"):
        name = _region_name(without_suffix("/".join((*folders(row["directory"]), row["filename"]))))
        if name is None or name in names.values():
            problem = "is there twice" if name else "is no region NN/MM.tif and no NN_stitched1.tif"
            raise TableError(
                f"slide {row['slide']} {problem}",
                path=path,
                next_step="read it with `metaphase data import sliderunner`",
            )
        names[row["slide"]] = name
        size = {"width": row["width"] or None, "height": row["height"] or None}
        _note_region(collector, name, images.get(name), **size)
    note_points(collector, path, names)
    return collector.dataset(path)


def _region_name(path: str) -> str | None:
    """`NN/MM`, or `NN_stitched1`; from case 24 on there is one region a case, which may be called `NN`."""
    if region := _REGION.search(path):
        return "/".join(region.groups())
    stitched = _STITCHED.search(path)
    if stitched is None or not (stitched[2] or int(stitched[1]) in PAPER_CASES):
        return None
    return stitched[1] + stitched[2] if stitched[2] else f"{stitched[1]}/01"


def _note_region(collector: Collector, name: str, path: Path | None, **facts: Any) -> None:
    case = name[:2]
    centre, scanner = _centre(int(case))
    facts |= {"centre": centre, "scanner": scanner, "tumour": TUMOUR, "mpp": MPP}
    collector.image(name, path, patient=case, **facts)


def _label_of(path: Path) -> str:
    return LOOKALIKE if any("nonmitos" in part.lower() for part in path.parts) else MITOSIS


def _centre(case: int) -> tuple[str, str]:
    """Cases 1 to 23 are those of AMIDA13, the others come from two more hospitals."""
    if case not in PAPER_CASES:
        return "UMC Utrecht", "Aperio ScanScope XT"
    return ("centre 2" if case <= 48 else "centre 3"), "Leica SCN400"


# ---- whole slides with grade and proliferation score ----


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
