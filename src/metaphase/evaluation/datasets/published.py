"""Published data sets as they lie on disk: TUPAC16, MIDOG, fields of other collections, SlideRunner's."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from metaphase.base.errors import ResultWarning, ResultWarnings
from metaphase.base.foreign import files_in, parsing
from metaphase.base.tables import (
    IDENTIFIERS,
    MANIFEST_COLUMNS,
    WHOLE_SLIDE,
    TableError,
    named,
    natural,
    read_table,
    require_columns,
    tails,
    without_suffix,
)
from metaphase.detections.files import read_detections
from metaphase.detections.formats.contract import load_json
from metaphase.detections.formats.sliderunner import SLIDERUNNER, folders, listed_slides
from metaphase.detections.table import LOOKALIKE, MITOSIS, DetectionSet, common_label, detection_set
from metaphase.evaluation.comparison import slide_geometry
from metaphase.slides.opening import SUFFIXES

# ---- what every adapter gives, and the reading that several layouts share ----

Facts = Callable[[str], Mapping[str, Any]]
"""Tells about an image what the data set does not."""
EXTRA_COLUMNS = ("patient", "scanner", "tumour", "mpp", "width", "height", "grade", "proliferation")


@dataclass(frozen=True)
class Dataset:
    """A published data set in the common form."""

    manifest: pd.DataFrame
    """One row an image, as in the cohort manifest."""
    truth: DetectionSet
    """Points under the case of their image; of labelled images, those without points are covered too."""
    warnings: ResultWarnings = ()


@dataclass
class Collector:
    """Gathers images and points while an adapter walks its folder."""

    prefix: str
    """Put before every name, so that cases of different data sets never collide."""
    patients: str = ""
    """Put before every patient; the prefix, unless other data sets show the same patients."""
    labelled: bool = True
    """Whether an image without points is one without mitoses."""
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    points: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[ResultWarning] = field(default_factory=list)

    def image(self, name: str, path: Path | None, *, patient: str | None = None, **facts: Any) -> None:
        """Note an image; a later call for the same name changes nothing."""
        assert facts.keys() <= {*MANIFEST_COLUMNS, *EXTRA_COLUMNS}, facts.keys()
        row = {"case": self.prefix + name, "he": "" if path is None else str(path.resolve())}
        row["patient"] = (self.patients or self.prefix) + (patient or name)
        self.rows.setdefault(name, row | facts)

    def point(self, name: str, x: float, y: float, label: str, **facts: Any) -> None:
        """Note a point of an image."""
        self.points.append({"slide": self.prefix + name, "x": x, "y": y, "label": label} | facts)

    def warn(self, code: str, text: str, next_step: str = "") -> None:
        """Note what to beware of."""
        self.warnings.append(ResultWarning(code, text, next_step))

    def dataset(self, source: Path) -> Dataset:
        """All that was gathered, in order of the images' names."""
        if not self.rows:
            raise TableError("holds no image of this data set", path=source, next_step="check the folder")
        rows = [self.rows[name] for name in sorted(self.rows, key=natural)]
        manifest = pd.DataFrame(rows).reindex(columns=[*MANIFEST_COLUMNS, *EXTRA_COLUMNS])
        text = [name for name in manifest.columns if name in IDENTIFIERS or name in MANIFEST_COLUMNS]
        manifest[text] = manifest[text].astype(object).where(manifest[text].notna(), "")
        table = pd.DataFrame(self.points, columns=None if self.points else ["slide", "x", "y", "label"])
        truth = detection_set(table, tuple(manifest["case"]) if self.labelled else (), source)
        return Dataset(manifest, truth, tuple(self.warnings))


def images_below(folder: Path) -> dict[str, Path]:
    """Every image below the folder by its path relative to it, without suffix."""
    paths = [path for path in files_in(folder, "**/*") if path.suffix.lower() in SUFFIXES]
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


def read_points_csv(collector: Collector, folder: Path, table: Path, facts: Facts) -> None:
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
        collector.warn("no-slides", "no slide was found beside the database", "give --mpp")
    if doubtful:
        text = f"several files could be {named(doubtful)}, so none was used"
        collector.warn("doubtful-slides", text, "keep one of them beside the database")
    return collector.dataset(path)


def note_points(collector: Collector, path: Path, names: Mapping[str, str]) -> int:
    """Note the points of a database under the names of its slides; says how many are on slides without."""
    found = read_detections(path)
    known = found.table[found.table["slide"].isin(list(names))]
    for slide, x, y, label in known[["slide", "x", "y", "label"]].itertuples(index=False, name=None):
        collector.point(names[slide], x, y, label)
    collector.warnings.extend(found.warnings)
    return len(found.table) - len(known)


def only_database(folder: Path) -> Path:
    """The database given itself, or the only one below the folder.

    The published variants (MEL, HEAEL, ODAEL) differ in their labels, so that one must be chosen.
    """
    found = [path for path in files_in(folder, "**/*") if path.suffix.lower() in SLIDERUNNER.suffixes]
    return _only(folder, found, "databases", "name the database itself")


def _only(folder: Path, found: list[Path], what: str, advice: str) -> Path:
    """The file that was given, or the only one that was found in the folder."""
    if folder.is_file():
        return folder
    if len(found) != 1:
        names = f": {named(path.name for path in found)}" if found else ""
        raise TableError(
            f"holds {len(found)} {what}{names}", path=folder, next_step=f"{advice} instead of its folder"
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


# ---- TUPAC16 ----

MPP = 0.25
"""As published for all regions."""
TUMOUR = "human breast cancer"
SLIDE_LABORATORY = "TCGA"
AUXILIARY, ALTERNATIVE = "tupac-aux/", "tupac-alternative/"
"""Before the cases of the original and of the alternative labels; the patients are those of the first."""
AUXILIARY_TEST = "tupac-aux-test/"
_TEST_IMAGES = re.compile("mitoses.test", re.IGNORECASE)
"""The folder of the test regions, which have the same names as those of training."""
PAPER_CASES = range(24, 74)
"""TUPAC-aux-train of the paper: 50 cases of two hospitals, one region each; cases 1 to 23 are AMIDA13's."""
_REGION = re.compile(r"(?:^|/)(\d\d)/(\d\d)$")
_STITCHED = re.compile(r"(?:^|/)(\d\d)(_stitched\d*)?$")
"""All regions of one case in one image; a case with one region only may lie alone under its number."""


# ---- regions with mitoses (auxiliary) ----


def read_auxiliary(folder: Path) -> Dataset:
    """`NN/MM.csv` with a line `row,column` for each mitosis, and images `NN/MM.tif`, in any subfolders.

    A region without a file has no mitosis. Files below a folder named nonmitoses hold look-alikes.
    """
    collector = Collector(AUXILIARY)
    _note_images(collector, folder)
    if not collector.rows:
        text = "no region images were found: regions without mitoses are not known"
        collector.warn("no-region-images", text)
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
        warnings.append(ResultWarning("cases-missing", text, "unpack the other parts too"))
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


def read_auxiliary_test(folder: Path) -> Dataset:
    """The test regions `mitoses-test-image-data/NN/01.tif`, whose truth is not public."""
    collector = Collector(AUXILIARY_TEST, labelled=False)
    _note_images(collector, folder, test=True)
    return collector.dataset(folder)


def _note_images(collector: Collector, folder: Path, *, test: bool = False) -> None:
    unknown = {"laboratory": "", "scanner": ""} if test else {}
    for name, path in images_below(folder).items():
        region = _REGION.search(name)
        if region and test == bool(_TEST_IMAGES.search(str(path))):
            _note_region(collector, "/".join(region.groups()), path, **unknown)


def _note_files(collector: Collector, folder: Path) -> None:
    seen: dict[tuple[str, str], Path] = {}
    for path in files_in(folder, "**/*.csv"):
        region = _REGION.search(path.with_suffix("").as_posix())
        if not region:
            continue
        name = "/".join(region.groups())
        label = LOOKALIKE if any("nonmitos" in part.lower() for part in path.parts) else MITOSIS
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
    for position, image in images_below(beside(folder)).items():
        if _TEST_IMAGES.search(str(image)):
            continue
        images.setdefault(_region_name(position) or position, image)
    slides = listed_slides(path)
    names: dict[str, str] = {}
    for row in slides.to_dict("records"):
        name = _region_name(without_suffix("/".join((*folders(row["directory"]), row["filename"]))))
        if name is None or name in names.values():
            problem = "is there twice" if name else "is neither a region NN/MM.tif nor an NN_stitched1.tif"
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
    facts = {"laboratory": centre, "scanner": scanner, "tumour": TUMOUR, "mpp": MPP} | facts
    collector.image(name, path, patient=case, **facts)


def _centre(case: int) -> tuple[str, str]:
    """Cases 1 to 23 are those of AMIDA13, the others come from two more hospitals."""
    if case not in PAPER_CASES:
        return "UMC Utrecht", "Aperio ScanScope XT"
    return ("centre 2" if case <= 48 else "centre 3"), "Leica SCN400"


# ---- whole slides with grade and proliferation score ----


def read_slides(folder: Path) -> Dataset:
    """`TUPAC-TR-N.svs`, whose grade and proliferation score are line N of `training_ground_truth.csv`, and
    `TUPAC-TE-N.svs`, whose truth is not public; where there is a `testing_ground_truth.csv`, it is read."""
    collector = Collector("", labelled=False)
    absent = _note_slides(collector, folder, "TR", "train") + _note_slides(collector, folder, "TE", "test")
    if absent:
        text = f"{absent} slides of the ground truth are not on disk and are left out"
        collector.warn("slides-left-out", text)
    if not any(row["he"] for row in collector.rows.values()):
        collector.warn("no-slides", "no slide was found: the manifest names cases only")
    return collector.dataset(folder)


def _note_slides(collector: Collector, folder: Path, part: str, split: str) -> int:
    """Note the slides of a split; says how many of its truth are not on disk, where others are."""
    slides = {path.stem: path for path in files_in(folder, f"**/TUPAC-{part}-*.svs")}
    tables = files_in(folder, f"**/{split}ing_ground_truth*.csv")
    if slides and not tables and split == "train":
        raise TableError("no training_ground_truth.csv", path=folder, next_step="put it beside the slides")
    truths = {
        f"TUPAC-{part}-{number:03}": values
        for table in tables[:1]
        for number, values in enumerate(number_rows(table), start=1)
    }
    short = [name for name, values in truths.items() if len(values) < 2]
    if short:
        raise TableError(f"the line of {short[0]} has one number", path=tables[0], next_step="check the file")
    names = slides.keys() & truths.keys() if slides and truths else slides.keys() | truths.keys()
    for name in names:
        facts: dict[str, Any] = {"laboratory": SLIDE_LABORATORY, "tumour": TUMOUR, "split": split}
        facts |= zip(("grade", "proliferation"), truths.get(name, ()), strict=False)
        collector.image(name, slides.get(name), **facts)
    return len(truths.keys() - names)


def read_paper(folder: Path) -> Dataset:
    """All of TUPAC that the paper uses, in one manifest: slides of the splits train and test, regions of the
    splits aux-train and aux-test."""
    parts = [("", read_slides(folder)), ("aux-train", read_paper_auxiliary(folder))]
    if any(_TEST_IMAGES.search(str(path)) for path in images_below(folder).values()):
        parts.append(("aux-test", read_auxiliary_test(folder)))
    manifests = [
        part.manifest.assign(split=split, tissue=WHOLE_SLIDE) if split else part.manifest
        for split, part in parts
    ]
    warnings = tuple(warning for _, part in parts for warning in part.warnings)
    return Dataset(pd.concat(manifests, ignore_index=True), parts[1][1].truth, warnings)


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
UNLABELLED = range(151, 201)
"""Images published without labels: they are not images without mitoses."""


def read_midog(folder: Path) -> Dataset:
    """`MIDOG*.json` or a SlideRunner database (or the file itself), and the images it names."""
    found = files_in(folder, "**/MIDOG*.json") or files_in(folder, "**/MIDOG*.sqlite")
    path = _only(folder, found, "files MIDOG*.json or MIDOG*.sqlite", "name the file itself")
    images = images_by_stem(beside(folder))
    collector = Collector("midog/")
    if path.suffix.lower() in SLIDERUNNER.suffixes:
        slides = listed_slides(path).rename(columns={"filename": "file_name"}).to_dict("records")
        names = {slide["slide"]: _note_image(collector, slide, images) for slide in slides}
        labelled = {slide: name for slide, name in names.items() if name is not None}
        skipped = note_points(collector, path, labelled)
        return _finished(collector, path, len(names) - len(labelled), skipped)
    content, skipped = load_json(path), 0
    advice = "it needs images, categories and annotations with image_id and bbox"
    with parsing(path, "is not of MIDOG's form", next_step=advice, error=TableError):
        names = {image["id"]: _note_image(collector, image, images) for image in content["images"]}
        classes = {entry["id"]: common_label(str(entry["name"])) for entry in content["categories"]}
        for annotation in content["annotations"]:
            x1, y1, x2, y2 = map(float, annotation["bbox"])
            if x2 <= x1 or y2 <= y1:
                raise TableError(
                    f"box {annotation['bbox']} is not a pair of corners x1, y1, x2, y2",
                    path=path,
                    next_step="read it as COCO instead (x, y, width, height)",
                )
            if (name := names[annotation["image_id"]]) is None:
                skipped += 1
            else:
                collector.point(name, (x1 + x2) / 2, (y1 + y2) / 2, classes[annotation["category_id"]])
    return _finished(collector, path, list(names.values()).count(None), skipped)


def _finished(collector: Collector, path: Path, unlabelled: int, skipped: int) -> Dataset:
    if unlabelled:
        collector.warn("unlabelled-images", f"{unlabelled} images published without labels are left out")
    if skipped:
        collector.warn("annotations-left-out", f"{skipped} annotations of images left out are left out too")
    return collector.dataset(path)


def _note_image(collector: Collector, image: Mapping[Any, Any], images: dict[str, Path]) -> str | None:
    stem = Path(str(image["file_name"])).stem
    number = int(stem) if stem.isdigit() else 0
    if number in UNLABELLED:
        return None
    domain = next((domain for domain in _DOMAINS if 0 < number <= domain[0]), (0, "", "", ""))
    collector.image(
        stem,
        images.get(stem),
        laboratory=domain[3],
        scanner=domain[2],
        tumour=image.get("tumor_type") or domain[1],
        width=image.get("width"),
        height=image.get("height"),
    )
    return stem


# ---- data sets of separate fields of view ----

POINT_TABLES = ("mitoses.csv", "painted.csv", "labels.csv")
"""Names of a single table of all points, in the simple layout."""
_ICPR_NAME = re.compile(r"([AHM])(\d\d)_\d\d")
_ICPR_SCANNERS = {
    "A": {"scanner": "Aperio XT", "mpp": 0.2456},
    "H": {"scanner": "Hamamatsu NanoZoomer 2.0-HT", "mpp": 0.2275},
}


def read_icpr2012(folder: Path) -> Dataset:
    """One CSV an image, a line the pixels `x1,y1,x2,y2,...` of one mitosis; or the simple layout."""
    return _read_fields(Collector("icpr2012/"), folder, _icpr_facts)


def read_midesec(folder: Path) -> Dataset:
    """One CSV an image, a line the place or the pixels of one mitosis; or the simple layout.

    The data set states no resolution beyond "40x", and not which fields come from one patient.
    """
    collector = Collector("midesec/")
    text = "each field counts as a patient, because nothing states the patients: intervals are too narrow"
    collector.warn("fields-as-patients", text)
    return _read_fields(collector, folder, lambda _: {"tumour": TUMOUR, "laboratory": "MiDeSeC"})


def read_points(folder: Path) -> Dataset:
    """Any folder of images with one CSV of `image, x, y, label`."""
    tables = files_in(folder, "*.csv")
    if len(tables) != 1:
        raise TableError(f"holds {len(tables)} CSV files", path=folder, next_step="keep one table of points")
    collector = Collector(f"{folder.name}/")
    read_points_csv(collector, folder, tables[0], lambda _: {})
    return collector.dataset(folder)


def read_atypia14(folder: Path) -> Dataset:
    """`*_mitosis.csv` and `*_not_mitosis.csv` with `x,y,confidence`, and the frames in folders `x40`."""
    collector = Collector("mitos-atypia14/")
    if _single_table(folder, collector, _icpr_facts):
        return collector.dataset(folder)
    for path in files_in(folder, "**/*.tif*"):
        if path.parent.name.lower() == "x40":
            collector.image(path.stem, path, **_icpr_facts(path.stem))
    for path in files_in(folder, "**/*_mitosis.csv"):
        stem = path.stem.removesuffix("_mitosis")
        label = LOOKALIKE if stem.endswith("_not") else MITOSIS
        stem = stem.removesuffix("_not")
        collector.image(stem, None, **_icpr_facts(stem))
        for x, y, *confidence in number_rows(path):
            collector.point(stem, x, y, label, confidence=confidence[0] if confidence else None)
    return collector.dataset(folder)


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
        case = re.match(r"Case_\d+", path.stem)
        facts = {"tumour": TUMOUR, "laboratory": "Calgary", "width": size["width"], "height": size["height"]}
        collector.image(path.stem, images[path.stem], patient=case[0] if case else None, **facts)
        advice = "compare it with the published file"
        with parsing(path, "is not of BreCaHAD's form", next_step=advice, error=TableError):
            for name, positions in load_json(path).items():
                label = LOOKALIKE if name.lower().startswith("apopto") else common_label(name)
                for position in positions:
                    shares = (position["x"], position["y"]) if isinstance(position, dict) else position[:2]
                    x, y = map(float, shares)
                    if not (0 <= x <= 1 and 0 <= y <= 1):
                        raise ValueError(f"{x}, {y} are not shares of the image")
                    collector.point(path.stem, x * size["width"], y * size["height"], label)
    return collector.dataset(folder)


def _read_fields(collector: Collector, folder: Path, facts: Facts) -> Dataset:
    if _single_table(folder, collector, facts):
        return collector.dataset(folder)
    images = images_by_stem(folder)
    for stem, path in images.items():
        collector.image(stem, path, **facts(stem))
    for path in files_in(folder, "**/*.csv"):
        collector.image(path.stem, images.get(path.stem), **facts(path.stem))
        for numbers in number_rows(path):
            collector.point(path.stem, *centre_of_pixels(numbers, path), MITOSIS)
    return collector.dataset(folder)


def _single_table(folder: Path, collector: Collector, facts: Facts) -> bool:
    """Read the simple layout if the folder has it."""
    table = next((folder / name for name in POINT_TABLES if (folder / name).is_file()), None)
    if table is not None:
        read_points_csv(collector, folder, table, facts)
    return table is not None


def _icpr_facts(stem: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"tumour": TUMOUR, "laboratory": "Pitié-Salpêtrière", "patient": stem}
    if name := _ICPR_NAME.match(stem):
        scanner, facts["patient"] = name.groups()
        facts |= _ICPR_SCANNERS.get(scanner, {})
    return facts
