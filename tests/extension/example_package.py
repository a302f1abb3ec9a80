"""A package of somebody else: slides in .npy files, detections as JSON lines and as ImageScope's XML, whose
ending is ASAP's as well, and a network with pooling.

Its `pyproject.toml` would say:

    [project.entry-points."metaphase.slides"]
    npy = "example_package:NPY"
    [project.entry-points."metaphase.formats"]
    lines = "example_package:LINES"
    imagescope = "example_package:IMAGESCOPE"
    [project.entry-points."metaphase.networks"]
    pooling = "example_package:build"
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pandas as pd
from torch import nn

from metaphase.base.arrays import Box
from metaphase.detections.formats.contract import Context, Format
from metaphase.detections.table import DetectionSet, detection_set
from metaphase.networks.cards import NetworkSpec
from metaphase.slides.contract import Level, Resolution, Slide, SlideBackend, SlideInfo


class NpySlide(Slide):
    """An array (height, width, 3) of uint8 that stays on the disk, always at 0.25 um/px."""

    def __init__(self, path: Path, mpp: float | None) -> None:
        self._pixels = np.load(path, mmap_mode="r")
        height, width = self._pixels.shape[:2]
        resolution = Resolution(mpp or 0.25, "metadata" if mpp is None else "flag")
        bounds = Box(0, 0, width, height)
        super().__init__(SlideInfo((Level(width, height, 1.0),), resolution, "npy", "npy", bounds, path=path))

    def _decode(self, level: int, box: Box) -> np.ndarray:  # noqa: ARG002
        return np.array(self._pixels[box.y : box.bottom, box.x : box.right])


def read_lines(path: Path, context: Context) -> DetectionSet:
    """One detection a line."""
    found = pd.DataFrame([json.loads(line) for line in path.read_text().splitlines()])
    return detection_set(found.assign(slide=context.slide), (context.slide,), path)


def write_lines(detections: DetectionSet, path: Path, context: Context) -> None:
    """The same."""
    rows = detections.table[["x", "y", "probability", "label"]].to_dict("records")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_imagescope(path: Path, context: Context) -> DetectionSet:
    """Every vertex of every region, as Aperio's ImageScope writes points."""
    corners = ET.parse(path).getroot().iterfind("Annotation/Regions/Region/Vertices/Vertex")
    rows = [
        {"x": float(one.get("X", "")), "y": float(one.get("Y", "")), "slide": context.slide}
        for one in corners
    ]
    return detection_set(pd.DataFrame(rows, columns=["slide", "x", "y"]), (context.slide,), path)


def write_imagescope(detections: DetectionSet, path: Path, context: Context) -> None:
    """A region for each point."""
    root = ET.Element("Annotations")
    regions = ET.SubElement(ET.SubElement(root, "Annotation"), "Regions")
    for x, y in detections.table[["x", "y"]].to_numpy():
        corners = ET.SubElement(ET.SubElement(regions, "Region"), "Vertices")
        ET.SubElement(corners, "Vertex", {"X": str(x), "Y": str(y)})
    ET.ElementTree(root).write(path)


def build(spec: NetworkSpec) -> nn.Module:
    """Convolutions and pooling that see 97 px and answer every 4."""
    width = max(1, round(8 * spec.gamma))
    return nn.Sequential(
        nn.Conv2d(3, width, 6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, width, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2, 22),
    )  # fmt: skip


NPY = SlideBackend(lambda path: path.suffix == ".npy", NpySlide)
LINES = Format("lines", (".jsonl",), read_lines, write_lines, one_slide=True)
IMAGESCOPE = Format(
    "imagescope", (".xml",), read_imagescope, write_imagescope, one_slide=True,
    title="ImageScope XML", recognises=lambda path: "<Annotations" in path.read_text(),
)  # fmt: skip
