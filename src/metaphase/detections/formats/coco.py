"""COCO JSON: many slides a file, boxes as [x, y, width, height] in level-0 pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from metaphase.base.arrays import Floats
from metaphase.base.foreign import finite, parsing
from metaphase.base.tables import TableError, named
from metaphase.detections.formats.contract import (
    MARKER_UM,
    PLACE_DECIMALS,
    Format,
    ReadContext,
    Row,
    WriteContext,
    found_in,
    load_json,
    name_of,
    ordered,
    save_json,
    stated_probability,
)
from metaphase.detections.table import COLUMNS, MITOSIS, DetectionSet


def read(path: Path, context: ReadContext) -> DetectionSet:  # noqa: ARG001 -- COCO names its slides itself
    """Annotations by the centre of their boxes, `score` as probability; all images listed are covered."""
    content = load_json(path)
    form = "it needs images, and annotations with image_id and bbox [x, y, width, height]"
    with parsing(path, "holds an entry that is not of the COCO form", next_step=form, error=TableError):
        images = {image["id"]: image for image in content["images"]}
        classes = {category["id"]: str(category["name"]) for category in content.get("categories", [])}
        rows = [_row(annotation, images, classes, path) for annotation in content["annotations"]]
        boxes = np.array([annotation["bbox"] for annotation in content["annotations"]], float).reshape(-1, 4)
        _refuse_corners(boxes, [images[one["image_id"]] for one in content["annotations"]], path)
    slides = tuple(str(image["file_name"]) for image in images.values())
    if len(set(slides)) < len(slides):
        raise TableError(
            f"two images are called {named(slide for slide in slides if slides.count(slide) > 1)}",
            path=path,
            next_step="give every image a file_name of its own, with its folder",
        )
    return found_in(path, rows, slides)


def write(detections: DetectionSet, path: Path, context: WriteContext) -> None:
    """Boxes of 12.5 um around the points, as MIDOG's; ids count from 1, `score` is the probability.

    A box at the border of a slide reaches beyond it, so that its centre stays the point.
    """
    table = detections.table
    image_ids = {slide: number for number, slide in enumerate(detections.slides, start=1)}
    category_ids = {label: number for number, label in enumerate(ordered(table["label"].unique()), start=1)}
    sides = {slide: MARKER_UM / context.mpp_of(slide, path, "a box") for slide in table["slide"].unique()}
    rows = zip(*(table[name] for name in COLUMNS), strict=True)
    annotations = [
        {"id": number, "image_id": image_ids[slide], "category_id": category_ids[label]}
        | _box(x, y, round(sides[slide], PLACE_DECIMALS))
        | {"iscrowd": 0, "score": probability}
        for number, (slide, x, y, probability, label) in enumerate(rows, start=1)
    ]
    content = {
        "info": {"description": "detections of metaphase"},
        "images": [
            {"id": number, "file_name": slide}
            | dict(zip(("width", "height"), context.sizes.get(slide, ()), strict=False))
            for slide, number in image_ids.items()
        ],
        "categories": [{"id": number, "name": name_of(label)} for label, number in category_ids.items()],
        "annotations": annotations,
    }
    save_json(path, content)


def _box(x: float, y: float, side: float) -> dict[str, Any]:
    left, top = round(x - side / 2, PLACE_DECIMALS), round(y - side / 2, PLACE_DECIMALS)
    return {"bbox": [left, top, side, side], "area": round(side * side, PLACE_DECIMALS)}


def _row(annotation: dict[str, Any], images: dict[Any, Any], classes: dict[Any, str], path: Path) -> Row:
    x, y, width, height = (finite(value) for value in annotation["bbox"])
    if min(width, height) < 0:
        raise ValueError(f"a box of {width:g} x {height:g} px")
    label = classes.get(annotation.get("category_id"), MITOSIS)
    slide = str(images[annotation["image_id"]]["file_name"])
    probability = stated_probability(annotation.get("score"), path)
    return slide, x + width / 2, y + height / 2, probability, label


def _refuse_corners(boxes: Floats, images: list[Any], path: Path) -> None:
    """MIDOG's files look like COCO and hold corners; read as sizes, such boxes reach past the image."""
    if not len(boxes) or not all("width" in image and "height" in image for image in images):
        return
    limits = np.array([(image["width"], image["height"]) for image in images], float)
    outside = ((boxes[:, :2] + boxes[:, 2:]) > limits * 1.01).any(axis=1).mean()
    corners = (boxes[:, 2:] > boxes[:, :2]).all(axis=1).mean()
    if outside > 0.1 and corners > 0.99:
        raise TableError(
            f"{outside:.0%} of its boxes reach beyond their images: they look like corners x1, y1, x2, y2, "
            "as in MIDOG's files, and not like COCO's x, y, width, height",
            path=path,
            next_step="import MIDOG with `metaphase data import midog`, or convert the boxes",
        )


COCO = Format(
    "coco",
    (".json",),
    lambda content: isinstance(content, dict) and {"images", "annotations"} <= content.keys(),
    read,
    write,
    title="COCO JSON",
)
