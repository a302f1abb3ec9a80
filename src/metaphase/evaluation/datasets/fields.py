"""Data sets of plain images: complete fields, and crops around figures."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from metaphase.base.cautions import Caution
from metaphase.base.tables import TableError, read_table, require_columns
from metaphase.detections import LOOKALIKE, MITOSIS, common_label
from metaphase.detections.formats.contract import load_json
from metaphase.evaluation.cohort import slide_geometry
from metaphase.evaluation.datasets.contract import (
    Collector,
    Dataset,
    centre_of_pixels,
    images_by_stem,
    number_rows,
    read_points_csv,
)

# ---- data sets of separate fields of view ----

TUMOUR = "human breast cancer"
POINT_TABLES = ("mitoses.csv", "painted.csv", "labels.csv")
"""Names of a single table of all points, in the simple layout."""
_ICPR_NAME = re.compile(r"^([AHM]\d\d)_\d\d")
_ICPR_SCANNERS = {"A": ("Aperio XT", 0.2456), "H": ("Hamamatsu NanoZoomer 2.0-HT", 0.2275)}
_BRECAHAD_NAME = re.compile(r"^(Case_\d+)")


def read_icpr2012(folder: Path) -> Dataset:
    """One CSV an image, a line the pixels `x1,y1,x2,y2,...` of one mitosis; or the simple layout."""
    return _read_fields(folder, "icpr2012/", _icpr_facts)


def read_midesec(folder: Path) -> Dataset:
    """One CSV an image, a line the place or the pixels of one mitosis; or the simple layout.

    The data set states no resolution beyond "40x", and not which fields come from one patient.
    """
    dataset = _read_fields(folder, "midesec/", lambda _: {"tumour": TUMOUR, "centre": "MiDeSeC"})
    text = "fields count as patients of their own, since nothing tells them apart: intervals are too narrow"
    doubt = Caution("fields-as-patients", text)
    return replace(dataset, warnings=(*dataset.warnings, doubt))


def read_points(folder: Path) -> Dataset:
    """Any folder of images with one CSV of `image, x, y, label`."""
    tables = sorted(folder.glob("*.csv"))
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
    for path in sorted(folder.rglob("*.tif*")):
        if path.parent.name.lower() == "x40":
            collector.image(path.stem, path, **_icpr_facts(path.stem))
    for path in sorted(folder.rglob("*_mitosis.csv")):
        stem, label = _atypia_label(path.stem)
        collector.image(stem, None, **_icpr_facts(stem))
        for x, y, *confidence in number_rows(path):
            collector.point(stem, x, y, label, confidence=confidence[0] if confidence else None)
    return collector.dataset(folder)


def read_brecahad(folder: Path) -> Dataset:
    """`groundTruth/Case_N-MM.json` with places as shares of the width and height of `images/Case_N-MM.tif`.

    Mitoses stay mitoses; apoptotic bodies are look-alikes; other classes keep their names.
    """
    images = images_by_stem(folder)
    collector = Collector("brecahad/")
    for path in sorted(folder.rglob("Case_*.json")):
        if path.stem not in images:
            raise TableError("its image is not there", path=path, next_step="unpack the folder images too")
        size = slide_geometry(images[path.stem])
        case = _BRECAHAD_NAME.match(path.stem)
        facts = {"tumour": TUMOUR, "centre": "Calgary", "width": size["width"], "height": size["height"]}
        collector.image(path.stem, images[path.stem], patient=case.group(1) if case else None, **facts)
        _note_shares(collector, path, size)
    return collector.dataset(folder)


def _read_fields(folder: Path, prefix: str, facts: Any) -> Dataset:
    collector = Collector(prefix)
    if _single_table(folder, collector, facts):
        return collector.dataset(folder)
    images = images_by_stem(folder)
    for stem, path in images.items():
        collector.image(stem, path, **facts(stem))
    for path in sorted(folder.rglob("*.csv")):
        collector.image(path.stem, images.get(path.stem), **facts(path.stem))
        for numbers in number_rows(path):
            collector.point(path.stem, *centre_of_pixels(numbers, path), MITOSIS)
    return collector.dataset(folder)


def _single_table(folder: Path, collector: Collector, facts: Any) -> bool:
    """Read the simple layout if the folder has it."""
    table = next((folder / name for name in POINT_TABLES if (folder / name).is_file()), None)
    if table is not None:
        read_points_csv(collector, folder, table, facts)
    return table is not None


def _icpr_facts(stem: str) -> dict[str, Any]:
    name = _ICPR_NAME.match(stem)
    facts: dict[str, Any] = {"tumour": TUMOUR, "centre": "Pitié-Salpêtrière", "patient": stem}
    if name:
        facts["patient"] = name.group(1)[1:]
        if name.group(1)[0] in _ICPR_SCANNERS:
            facts["scanner"], facts["mpp"] = _ICPR_SCANNERS[name.group(1)[0]]
    return facts


def _atypia_label(stem: str) -> tuple[str, str]:
    if stem.endswith("_not_mitosis"):
        return stem.removesuffix("_not_mitosis"), LOOKALIKE
    return stem.removesuffix("_mitosis"), MITOSIS


def _note_shares(collector: Collector, path: Path, size: dict[str, float]) -> None:
    try:
        for name, places in load_json(path).items():
            label = LOOKALIKE if name.lower().startswith("apopto") else common_label(name)
            for place in places:
                x, y = (place["x"], place["y"]) if isinstance(place, dict) else place[:2]
                if not (0 <= float(x) <= 1 and 0 <= float(y) <= 1):
                    raise ValueError(f"{x}, {y} are no shares of the image")
                collector.point(path.stem, float(x) * size["width"], float(y) * size["height"], label)
    except (AttributeError, KeyError, TypeError, IndexError, ValueError) as error:
        raise TableError(
            f"is not of BreCaHAD's form ({error})", path=path, next_step="compare it with the published file"
        ) from error


# ---- collections of small crops with the object in the middle ----

MPP = 0.25
"""Both collections are at about 0.25 um/px."""


def read_midog_crops(folder: Path) -> Dataset:
    """`patches.csv` with `image, slide, tumor, scanner, origin`: each crop shows a mitosis in its middle."""
    table = folder / "patches.csv"
    frame = read_table(table)
    require_columns(frame, ("image", "slide", "tumor", "scanner", "origin"), table)
    images = images_by_stem(folder)
    side = _side(images, folder)
    collector = Collector("midog-crop/", patients="midog/")
    columns = ("image", "slide", "tumor", "scanner", "origin")
    for image, slide, tumour, scanner, origin in zip(*(frame[name] for name in columns), strict=True):
        stem = Path(image).stem
        if stem not in images:
            raise TableError(f"image {image} is not there", path=table, next_step="restore the image")
        facts = {"scanner": scanner, "centre": origin, "tumour": tumour}
        collector.image(
            stem, images[stem], patient=Path(slide).stem, mpp=MPP, width=side, height=side, **facts
        )
        collector.point(stem, side / 2, side / 2, MITOSIS)
    return collector.dataset(folder)


def read_tupac_crops(folder: Path) -> Dataset:
    """Crops `case_region_number.jpg`, each with a look-alike in its middle."""
    images = images_by_stem(folder)
    side = _side(images, folder)
    collector = Collector("tupac-crop/", patients="tupac-aux/")
    for stem, path in images.items():
        collector.image(stem, path, patient=stem.split("_")[0], mpp=MPP, width=side, height=side)
        collector.point(stem, side / 2, side / 2, LOOKALIKE)
    return collector.dataset(folder)


def _side(images: dict[str, Path], folder: Path) -> float:
    """The side of the crops, from the first one."""
    if not images:
        raise TableError("holds no image", path=folder, next_step="check the folder")
    first = next(iter(images.values()))
    side = slide_geometry(first).get("width")
    if side is None:
        raise TableError("cannot be opened", path=first, next_step="copy the image again")
    return side
