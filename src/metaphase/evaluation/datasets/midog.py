"""MIDOG 2021, 2022 and MIDOG++: one JSON that looks like COCO, with corners for sizes, or one database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metaphase.base.cautions import Caution
from metaphase.base.tables import TableError, named
from metaphase.detections import common_label
from metaphase.detections.formats.contract import load_json
from metaphase.detections.formats.sliderunner import SLIDERUNNER, listed_slides
from metaphase.evaluation.datasets.contract import Collector, Dataset, images_by_stem
from metaphase.evaluation.datasets.databases import note_points


@dataclass(frozen=True)
class _Domain:
    """Images of consecutive numbers from one laboratory and scanner."""

    last: int
    tumour: str
    scanner: str
    centre: str


_DOMAINS = (
    _Domain(50, "human breast cancer", "Hamamatsu XR", "UMC Utrecht"),
    _Domain(100, "human breast cancer", "Hamamatsu S360", "UMC Utrecht"),
    _Domain(150, "human breast cancer", "Aperio CS2", "UMC Utrecht"),
    _Domain(200, "human breast cancer", "Leica GT450", "UMC Utrecht"),
    _Domain(244, "canine lung cancer", "3D Histech", "VMU Vienna"),
    _Domain(299, "canine lymphoma", "3D Histech", "VMU Vienna"),
    _Domain(349, "canine cutaneous mast cell tumor", "Aperio CS2", "FU Berlin"),
    _Domain(404, "human neuroendocrine tumor", "Hamamatsu XR", "UMC Utrecht"),
    _Domain(489, "canine soft tissue sarcoma", "3D Histech", "AMC New York"),
    _Domain(504, "canine soft tissue sarcoma", "3D Histech", "VMU Vienna"),
    _Domain(553, "human melanoma", "Hamamatsu XR", "UMC Utrecht"),
)
UNLABELLED = range(151, 201)
"""Images published without labels: they are not images without mitoses."""


def read_midog(folder: Path) -> Dataset:
    """`MIDOG*.json` or a SlideRunner database (or the file itself), and the images it names."""
    path = _source(folder)
    images = images_by_stem(folder if folder.is_dir() else folder.parent)
    collector = Collector("midog/")
    if path.suffix.lower() in SLIDERUNNER.suffixes:
        slides = listed_slides(path).rename(columns={"filename": "file_name"}).to_dict("records")
        names = {slide["slide"]: _note_image(collector, slide, images) for slide in slides}
        labelled = {slide: name for slide, name in names.items() if name is not None}
        skipped = note_points(collector, path, labelled)
        return _finished(collector, path, len(names) - len(labelled), skipped)
    content = load_json(path)
    try:
        names = {image["id"]: _note_image(collector, image, images) for image in content["images"]}
        classes = {entry["id"]: common_label(str(entry["name"])) for entry in content["categories"]}
        skipped = _note_annotations(collector, content["annotations"], names, classes, path)
    except (KeyError, TypeError, ValueError) as error:
        raise TableError(
            f"is not of MIDOG's form ({error!r})",
            path=path,
            next_step="it needs images, categories and annotations with image_id and bbox",
        ) from error
    return _finished(collector, path, sum(name is None for name in names.values()), skipped)


def _finished(collector: Collector, path: Path, unlabelled: int, skipped: int) -> Dataset:
    if unlabelled:
        text = f"{unlabelled} images published without labels are left out"
        collector.warnings.append(Caution("unlabelled-images", text))
    if skipped:
        text = f"{skipped} annotations of images left out are left out too"
        collector.warnings.append(Caution("annotations-left-out", text))
    return collector.dataset(path)


def _source(folder: Path) -> Path:
    """The file given, or the only MIDOG*.json of the folder, or else its only MIDOG*.sqlite."""
    if folder.is_file():
        return folder
    found = sorted(folder.rglob("MIDOG*.json")) or sorted(folder.rglob("MIDOG*.sqlite"))
    if len(found) != 1:
        raise TableError(
            f"holds {len(found)} files MIDOG*.json or MIDOG*.sqlite"
            + (f": {named(path.name for path in found)}" if found else ""),
            path=folder,
            next_step="name the file itself instead of its folder",
        )
    return found[0]


def _note_image(collector: Collector, image: Mapping[Any, Any], images: dict[str, Path]) -> str | None:
    stem = Path(str(image["file_name"])).stem
    number = int(stem) if stem.isdigit() else 0
    if number in UNLABELLED:
        return None
    domain = next((domain for domain in _DOMAINS if 0 < number <= domain.last), None)
    collector.image(
        stem,
        images.get(stem),
        centre=domain.centre if domain else "",
        scanner=domain.scanner if domain else "",
        tumour=image.get("tumor_type") or (domain.tumour if domain else ""),
        width=image.get("width"),
        height=image.get("height"),
    )
    return stem


def _note_annotations(
    collector: Collector,
    annotations: list[dict[str, Any]],
    names: dict[Any, str | None],
    classes: dict[Any, str],
    path: Path,
) -> int:
    skipped = 0
    for annotation in annotations:
        name = names[annotation["image_id"]]
        x1, y1, x2, y2 = (float(value) for value in annotation["bbox"])
        if x2 <= x1 or y2 <= y1:
            raise TableError(
                f"box {annotation['bbox']} is no pair of corners x1, y1, x2, y2: this file has other boxes",
                path=path,
                next_step="read it as COCO instead (x, y, width, height)",
            )
        if name is None:
            skipped += 1
        else:
            collector.point(name, (x1 + x2) / 2, (y1 + y2) / 2, classes[annotation["category_id"]])
    return skipped
