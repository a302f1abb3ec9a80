"""Published data sets: TUPAC16, MIDOG, ICPR 2012, MITOS-ATYPIA-14, MiDeSeC, BreCaHAD."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from metaphase.base.foreign import files_in, parsing
from metaphase.base.tables import WHOLE_SLIDE, TableError, named, without_suffix
from metaphase.detections.formats.contract import load_json
from metaphase.detections.formats.sliderunner import SLIDERUNNER, folders
from metaphase.detections.table import LOOKALIKE, common_label
from metaphase.evaluation.comparison import slide_geometry
from metaphase.evaluation.datasets.layouts import (
    Collector,
    Dataset,
    Description,
    Facts,
    Layout,
    beside,
    image_files,
    images_by_stem,
    name_in,
    number_rows,
    only_database,
    only_file,
    read_database,
    read_fields,
    read_layout,
)

# ---- separate fields of view: ICPR 2012, MITOS-ATYPIA-14, MiDeSeC, BreCaHAD ----

TUMOUR = "human breast cancer"
_ICPR_SCANNERS = {
    "A": {"scanner": "Aperio XT", "mpp": 0.2456},
    "H": {"scanner": "Hamamatsu NanoZoomer 2.0-HT", "mpp": 0.2275},
}


def _icpr_facts(stem: str) -> Facts:
    facts: Facts = {"tumour": TUMOUR, "laboratory": "Pitié-Salpêtrière"}
    if name := re.match(r"([AHM])(\d\d)_\d\d", stem):
        facts |= {"patient": name[2]} | _ICPR_SCANNERS.get(name[1], {})
    return facts


ICPR2012 = Layout("icpr2012/", _icpr_facts)
ATYPIA14 = Layout(
    "mitos-atypia14/",
    _icpr_facts,
    images=r"/x40/([^/]+)$",
    tables=r"/([^/]+?)(?:_not)?_mitosis$",
    columns=("x", "y", "confidence"),
)
MIDESEC = Layout("midesec/", lambda _: {"tumour": TUMOUR, "laboratory": "MiDeSeC"})


def read_midesec(folder: Path) -> Dataset:
    """MiDeSeC, which states no resolution beyond "40x", and not which fields come from one patient."""
    text = "each field counts as a patient, because nothing states the patients: intervals are too narrow"
    return read_fields(folder, MIDESEC).warned("fields-as-patients", text)


def read_brecahad(folder: Path) -> Dataset:
    """`groundTruth/Case_N-MM.json` with positions as shares of the sides of `images/Case_N-MM.tif`.

    Mitoses stay mitoses; apoptotic bodies are look-alikes; other classes keep their names.
    """
    images = images_by_stem(folder)
    collector = Collector("brecahad/")
    for path in files_in(folder, "**/Case_*.json"):
        if path.stem not in images:
            raise TableError("its image is not there", path=path, next_step="unpack the folder images too")
        size = slide_geometry(images[path.stem])
        sides = {name: size[name] for name in ("width", "height")}
        case = path.stem.split("-")[0]
        collector.image(
            path.stem, images[path.stem], patient=case, tumour=TUMOUR, laboratory="Calgary", **sides
        )
        advice = "compare it with the published file"
        with parsing(path, "is not of BreCaHAD's form", next_step=advice, error=TableError):
            for name, positions in load_json(path).items():
                label = LOOKALIKE if name.lower().startswith("apopto") else common_label(name)
                for position in positions:
                    shares = (position["x"], position["y"]) if isinstance(position, dict) else position[:2]
                    x, y = map(float, shares)
                    if not (0 <= x <= 1 and 0 <= y <= 1):
                        raise ValueError(f"{x}, {y} are not shares of the image")
                    collector.point(path.stem, label, x=x * sides["width"], y=y * sides["height"])
    return collector.dataset(folder)


# ---- TUPAC16: regions with mitoses ----

_TEST_REGION = r"mitoses.test.*/(\d\d)/(\d\d)$"
"""Test regions have the same names as those of training, below a folder of this name."""
_REGION = r"^(?!.*mitoses.test).*/(\d\d)/(\d\d)$"
_STITCHED = re.compile(r"/(\d\d)(_stitched\d*)?$")
"""All regions of one case in one image; a case with one region only may lie alone under its number."""
REGION_MPP = 0.25
PAPER_CASES = range(24, 74)
"""TUPAC-aux-train of the paper: 50 cases of two hospitals, one region each; cases 1 to 23 are AMIDA13's."""


def _region_facts(name: str) -> Facts:
    case = int(name[:2])
    laboratory, scanner = "UMC Utrecht", "Aperio ScanScope XT"
    if case in PAPER_CASES:
        laboratory, scanner = ("centre 2" if case <= 48 else "centre 3"), "Leica SCN400"
    own = {"patient": name[:2], "laboratory": laboratory, "scanner": scanner}
    return own | {"tumour": TUMOUR, "mpp": REGION_MPP}


AUXILIARY = Layout("tupac-aux/", _region_facts, _REGION, _REGION, columns=("y", "x"))
ALTERNATIVE = replace(AUXILIARY, prefix="tupac-alternative/", patients=AUXILIARY.prefix)
AUXILIARY_TEST = Layout(
    "tupac-aux-test/",
    lambda name: {"patient": name[:2], "tumour": TUMOUR, "mpp": REGION_MPP},
    _TEST_REGION,
    tables=None,
)


def read_auxiliary(folder: Path) -> Dataset:
    """`NN/MM.csv` with a line `row,column` for each mitosis, and images `NN/MM.tif`, in any subfolders.

    A region without a file has no mitosis. Files below a folder named nonmitoses hold look-alikes.
    """
    dataset = read_layout(folder, AUXILIARY)
    if (dataset.manifest["he"] != "").any():
        return dataset
    text = "no region images were found: regions without mitoses are not known"
    return dataset.warned("no-region-images", text)


def read_paper_auxiliary(folder: Path) -> Dataset:
    """The auxiliary regions on which the paper reports: `PAPER_CASES` only, named as in the whole set."""
    whole = read_auxiliary(folder)
    patients = {f"{AUXILIARY.prefix}{case:02}" for case in PAPER_CASES}
    dataset = whole.of_cases(set(whole.manifest["case"][whole.manifest["patient"].isin(patients)]))
    missing = sorted(patients - set(dataset.manifest["patient"]))
    if len(missing) == len(patients):
        raise TableError("holds no case from 24 to 73", path=folder, next_step="unpack the other parts too")
    if not missing:
        return dataset
    text = f"{len(missing)} of the paper's {len(patients)} cases are not there: {named(missing)}"
    return dataset.warned("cases-missing", text, "unpack the other parts too")


def read_alternative(folder: Path) -> Dataset:
    """The alternative labels of Bertram et al. 2020: the CSV files, or one SlideRunner database.

    Their CSV files name every region, those without mitoses too. A database has regions `NN/MM.tif` by
    directory and file, or all regions of a case stitched to `NN_stitched1.tif`.
    """
    if folder.is_dir() and any(folder.rglob("[0-9][0-9]/[0-9][0-9].csv")):
        return read_layout(folder, ALTERNATIVE)
    path = only_database(folder)
    files = reversed(image_files(beside(folder)))
    images = {_region_in(file.with_suffix("").as_posix()): file for file in files}
    names: set[str] = set()

    def describe(row: Mapping[Any, Any]) -> Description:
        name = _region_in(without_suffix("/".join((*folders(row["directory"]), row["filename"]))))
        if not name or name in names:
            problem = "is there twice" if name else "is neither a region NN/MM.tif nor an NN_stitched1.tif"
            raise TableError(
                f"slide {row['slide']} {problem}",
                path=path,
                next_step="read it with `metaphase data import sliderunner`",
            )
        names.add(name)
        return name, images.get(name), _region_facts(name)

    return read_database(path, Collector(ALTERNATIVE.prefix, ALTERNATIVE.patients), describe)


def _region_in(path: str) -> str:
    """`NN/MM`, or `NN_stitched1`; from case 24 on there is one region a case, which may be called `NN`."""
    path = f"/{path}"
    if region := re.search(_REGION, path, re.IGNORECASE):
        return "/".join(region.groups())
    stitched = _STITCHED.search(path)
    if stitched is None or re.search("mitoses.test", path, re.IGNORECASE):
        return ""
    if stitched[2]:
        return stitched[1] + stitched[2]
    return f"{stitched[1]}/01" if int(stitched[1]) in PAPER_CASES else ""


# ---- TUPAC16: whole slides with grade and proliferation score ----


def read_slides(folder: Path) -> Dataset:
    """`TUPAC-TR-N.svs`, whose grade and proliferation score are line N of `training_ground_truth.csv`, and
    `TUPAC-TE-N.svs`, whose truth is not public; where there is a `testing_ground_truth.csv`, it is read."""
    collector = Collector("")
    absent = _note_slides(collector, folder, "TR", "train") + _note_slides(collector, folder, "TE", "test")
    dataset = collector.dataset(folder, labelled=False)
    if absent:
        text = f"{absent} slides of the ground truth are not on disk and are left out"
        dataset = dataset.warned("slides-left-out", text)
    if (dataset.manifest["he"] == "").all():
        dataset = dataset.warned("no-slides", "no slide was found: the manifest names cases only")
    return dataset


def _note_slides(collector: Collector, folder: Path, part: str, split: str) -> int:
    """Add the slides of a split; returns how many of its truth are not on disk, where others are."""
    slides = {path.stem: path for path in files_in(folder, f"**/TUPAC-{part}-*.svs")}
    tables = files_in(folder, f"**/{split}ing_ground_truth*.csv")
    if slides and not tables and split == "train":
        raise TableError("no training_ground_truth.csv", path=folder, next_step="put it beside the slides")
    lines = number_rows(tables[0]) if tables else []
    truths = {f"TUPAC-{part}-{number:03}": values for number, values in enumerate(lines, start=1)}
    for name, values in truths.items():
        if len(values) < 2:
            raise TableError(f"the line of {name} has one number", path=tables[0], next_step="check the file")
    names = slides.keys() & truths.keys() if slides and truths else slides.keys() | truths.keys()
    for name in names:
        known = dict(zip(("grade", "proliferation"), truths.get(name, ()), strict=False))
        collector.image(name, slides.get(name), laboratory="TCGA", tumour=TUMOUR, split=split, **known)
    return len(truths.keys() - names)


def read_paper(folder: Path) -> Dataset:
    """All of TUPAC that the paper uses, in one manifest: slides of the splits train and test, regions of the
    splits aux-train and aux-test."""
    slides, regions = read_slides(folder), read_paper_auxiliary(folder)
    manifests = [slides.manifest, regions.manifest.assign(split="aux-train", tissue=WHOLE_SLIDE)]
    if any(name_in(path, _TEST_REGION) for path in image_files(folder)):
        tested = read_layout(folder, AUXILIARY_TEST).manifest
        manifests.append(tested.assign(split="aux-test", tissue=WHOLE_SLIDE))
    warnings = (*slides.warnings, *regions.warnings)
    return Dataset(pd.concat(manifests, ignore_index=True), regions.truth, warnings)


# ---- MIDOG 2021, 2022 and MIDOG++: one JSON that looks like COCO, or one database ----


_DOMAINS = (
    (50, "human breast cancer", "Hamamatsu XR", "UMC Utrecht"),
    (100, "human breast cancer", "Hamamatsu S360", "UMC Utrecht"),
    (150, "human breast cancer", "Aperio CS2", "UMC Utrecht"),
    (200, "human breast cancer", "Leica GT450", "UMC Utrecht"),
    (244, "canine lung cancer", "3D Histech", "VMU Vienna"),
    (299, "canine lymphoma", "3D Histech", "VMU Vienna"),
    (349, "canine cutaneous mast cell tumor", "Aperio CS2", "FU Berlin"),
    (404, "human neuroendocrine tumor", "Hamamatsu XR", "UMC Utrecht"),
    (489, "canine soft tissue sarcoma", "3D Histech", "AMC New York"),
    (504, "canine soft tissue sarcoma", "3D Histech", "VMU Vienna"),
    (553, "human melanoma", "Hamamatsu XR", "UMC Utrecht"),
)
"""Images of consecutive numbers: the last, tumour, scanner and laboratory."""
UNLABELLED = {f"midog/{number}" for number in range(151, 201)}
"""Images published without labels: they are not images without mitoses."""


def read_midog(folder: Path) -> Dataset:
    """`MIDOG*.json` or a SlideRunner database (or the file itself), and the images it names."""
    files = files_in(folder, "**/MIDOG*.json") or files_in(folder, "**/MIDOG*.sqlite")
    what = "files MIDOG*.json or MIDOG*.sqlite"
    path = only_file(folder, files, what, "name the file itself instead of its folder")
    images = images_by_stem(beside(folder))
    collector = Collector("midog/")

    def describe(image: Mapping[Any, Any]) -> Description:
        stem = Path(str(image.get("file_name") or image["filename"])).stem
        number = int(stem) if stem.isdigit() else 0
        domain = next((domain for domain in _DOMAINS if 0 < number <= domain[0]), (0, "", "", ""))
        facts = {
            "tumour": image.get("tumor_type") or domain[1],
            "scanner": domain[2],
            "laboratory": domain[3],
        }
        return stem, images.get(stem), facts

    if path.suffix.lower() in SLIDERUNNER.suffixes:
        everything = read_database(path, collector, describe)
    else:
        advice = "it needs images, categories and annotations with image_id and bbox"
        with parsing(path, "is not of MIDOG's form", next_step=advice, error=TableError):
            _note_boxes(collector, path, describe)
        everything = collector.dataset(path)
    dataset = everything.of_cases(set(everything.manifest["case"]) - UNLABELLED)
    if left_out := len(everything.manifest) - len(dataset.manifest):
        text = f"{left_out} images published without labels are left out"
        dataset = dataset.warned("unlabelled-images", text)
    if left_out := len(everything.truth.table) - len(dataset.truth.table):
        text = f"{left_out} annotations of images left out are left out too"
        dataset = dataset.warned("annotations-left-out", text)
    return dataset


def _note_boxes(
    collector: Collector, path: Path, describe: Callable[[Mapping[Any, Any]], Description]
) -> None:
    """The images of MIDOG's JSON, and the middle of each box."""
    content, names = load_json(path), {}
    for image in content["images"]:
        names[image["id"]], file, facts = describe(image)
        size = {"width": image.get("width"), "height": image.get("height")}
        collector.image(names[image["id"]], file, **size, **facts)
    classes = {entry["id"]: common_label(str(entry["name"])) for entry in content["categories"]}
    for annotation in content["annotations"]:
        x1, y1, x2, y2 = map(float, annotation["bbox"])
        if x2 <= x1 or y2 <= y1:
            raise TableError(
                f"box {annotation['bbox']} is not a pair of corners x1, y1, x2, y2",
                path=path,
                next_step="read it as COCO instead (x, y, width, height)",
            )
        label = classes[annotation["category_id"]]
        collector.point(names[annotation["image_id"]], label, x=(x1 + x2) / 2, y=(y1 + y2) / 2)
