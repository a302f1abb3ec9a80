"""COCO JSON: many slides a file, boxes as [x, y, width, height] in level-0 pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from metaphase.base.arrays import Floats
from metaphase.base.foreign import finite
from metaphase.base.tables import TableError, named
from metaphase.detections.formats.contract import (
    MARKER_UM,
    POSITION_DECIMALS,
    Context,
    Format,
    class_numbers,
    found_in,
    load_json,
    name_of,
    save_json,
    stated_probability,
)
from metaphase.detections.table import COLUMNS, MITOSIS, DetectionSet


def read(path: Path, context: Context) -> DetectionSet:  # noqa: ARG001 -- COCO names its slides itself
    """Annotations by the centre of their boxes, `score` as probability; all images listed are covered."""
    content = load_json(path)
    images = {image["id"]: image for image in content["images"]}
    classes = {category["id"]: str(category["name"]) for category in content.get("categories", [])}
    rows, boxes, shown = [], [], []
    for annotation in content["annotations"]:
        image = images[annotation["image_id"]]
        x, y, width, height = box = [finite(value) for value in annotation["bbox"]]
        if min(width, height) < 0:
            raise ValueError(f"a box of {width:g} x {height:g} px")
        probability = stated_probability(annotation.get("score"), path)
        label = classes.get(annotation.get("category_id"), MITOSIS)
        rows.append((str(image["file_name"]), x + width / 2, y + height / 2, probability, label))
        boxes.append(box)
        shown.append(image)
    _refuse_corners(np.array(boxes), shown, path)
    slides = tuple(str(image["file_name"]) for image in images.values())
    if len(set(slides)) < len(slides):
        raise TableError(
            f"two images are called {named(slide for slide in slides if slides.count(slide) > 1)}",
            path=path,
            next_step="give every image a file_name of its own, with its folder",
        )
    return found_in(path, rows, slides)


def write(detections: DetectionSet, path: Path, context: Context) -> None:
    """Boxes of 12.5 um around the points, as MIDOG's; ids count from 1, `score` is the probability.

    A box at the border of a slide reaches beyond it, so that its centre stays the point.
    """
    table = detections.table
    image_ids = {slide: number for number, slide in enumerate(detections.slides, start=1)}
    category_ids = class_numbers(table["label"].unique())
    sides = {
        slide: round(MARKER_UM / context.mpp_of(slide, path, "a box"), POSITION_DECIMALS)
        for slide in table["slide"].unique()
    }
    annotations = []
    rows = zip(*(table[name] for name in COLUMNS), strict=True)
    for number, (slide, x, y, probability, label) in enumerate(rows, start=1):
        side = sides[slide]
        left, top = (round(middle - side / 2, POSITION_DECIMALS) for middle in (x, y))
        annotations.append(
            {
                "id": number,
                "image_id": image_ids[slide],
                "category_id": category_ids[label],
                "bbox": [left, top, side, side],
                "area": round(side * side, POSITION_DECIMALS),
                "iscrowd": 0,
                "score": probability,
            }
        )
    images = [
        {"id": number, "file_name": slide}
        | dict(zip(("width", "height"), context.sizes.get(slide, ()), strict=False))
        for slide, number in image_ids.items()
    ]
    categories = [{"id": number, "name": name_of(label)} for label, number in category_ids.items()]
    info = {"description": "detections of metaphase"}
    save_json(path, {"info": info, "images": images, "categories": categories, "annotations": annotations})


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
    read,
    write,
    "it needs images, and annotations with image_id and bbox [x, y, width, height]",
    title="COCO JSON",
    holds=lambda content: isinstance(content, dict) and {"images", "annotations"} <= content.keys(),
)
