"""A package of somebody else: slides in .npy files, detections as JSON lines, and a network with pooling.

Its `pyproject.toml` would say:

    [project.entry-points."metaphase.slides"]
    npy = "example_package:NPY"
    [project.entry-points."metaphase.formats"]
    lines = "example_package:LINES"
    [project.entry-points."metaphase.networks"]
    pooling = "example_package:build"
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
from torch import nn

from metaphase.base.geometry import Box
from metaphase.detections import DetectionSet, Format, ReadContext, WriteContext, detection_set
from metaphase.networks.cards import NetworkSpec
from metaphase.slides import Level, Resolution, Slide, SlideBackend, SlideInfo


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


def read_lines(path: Path, context: ReadContext) -> DetectionSet:
    """One detection a line."""
    found = pd.DataFrame([json.loads(line) for line in path.read_text().splitlines()])
    return detection_set(found.assign(slide=context.slide), (context.slide,), path)


def write_lines(detections: DetectionSet, path: Path, context: WriteContext) -> None:
    """The same."""
    rows = detections.table[["x", "y", "probability", "label"]].to_dict("records")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def build(spec: NetworkSpec) -> nn.Module:
    """Convolutions and pooling that see 97 px and answer every 4."""
    width = max(1, round(8 * spec.gamma))
    return nn.Sequential(
        nn.Conv2d(3, width, 6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, width, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2, 22),
    )  # fmt: skip


NPY = SlideBackend(lambda path: path.suffix == ".npy", NpySlide)
LINES = Format("lines", (".jsonl",), lambda _: False, read_lines, write_lines, one_slide=True)
