"""What napari shows of slides, their results and anybody's detections; `napari.yaml` names the reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metaphase.analysis.record import SlideResult, load_result
from metaphase.base.arrays import RGB, Box
from metaphase.base.errors import MetaphaseError
from metaphase.detections.files import read_detections, result_folders
from metaphase.detections.formats.contract import MARKER_UM, hex_colour
from metaphase.detections.table import COUNTED, SUMMARY
from metaphase.slides.contract import Slide
from metaphase.slides.opening import open_slide

Layer = tuple[Any, dict[str, Any], str]
"""What napari takes: data, arguments of the layer, and its kind."""
CIRCLE = "#005ac8"
TISSUE = "#00a046"
DETECTIONS = (".parquet", ".geojson", ".db", ".sqlite")
"""Endings of files that are no slides."""
MARKER_PX = 50.0
"""Width of a point where the resolution is unknown."""


def reader(path: str | list[str]) -> Callable[[Any], list[Layer]] | None:
    """What reads a path for napari; None for what is neither a slide, nor results, nor detections."""
    paths = [Path(each) for each in ([path] if isinstance(path, str) else path)]
    known = all(each.is_file() or result_folders(each) for each in paths)
    return (lambda _: [layer for each in paths for layer in layers_of(each)]) if known else None


def layers_of(path: Path) -> Iterator[Layer]:
    """The layers of results of `metaphase detect`, of a slide, or of a file of detections."""
    folder = path.parent if path.name == SUMMARY else path
    if folder.is_dir():
        for slide_folder in result_folders(folder):
            yield from _result_layers(load_result(slide_folder))
    elif path.suffix.lower() in DETECTIONS:
        found = read_detections(path)
        for name in found.slides:
            yield _points(name, found.table[found.table["slide"] == name], 1.0, MARKER_PX)
    else:
        yield image_layer(open_slide(path))


def _result_layers(result: SlideResult) -> Iterator[Layer]:
    with suppress(MetaphaseError):  # results of a slide that has moved still show
        yield image_layer(result.source.open())
    mpp, spot = result.mpp, result.record.hotspot
    shape = {"scale": (mpp, mpp), "face_color": "transparent", "edge_width": 4 / mpp}
    outlines = [np.array(polygon.exterior.coords)[:, ::-1] for polygon in result.tissue.polygons(1.0)]
    yield (
        outlines,
        shape | {"name": f"{result.name}: tissue", "shape_type": "polygon", "edge_color": TISSUE},
        "shapes",
    )
    square = np.array([(-1, -1), (-1, 1), (1, 1), (1, -1)])
    corners = [square * radius + (y, x) for x, y, radius in spot.circles]
    circle = {"name": f"{result.name}: hotspot", "shape_type": "ellipse", "edge_color": CIRCLE}
    yield corners, shape | circle, "shapes"
    yield _points(result.name, result.table, mpp, MARKER_UM / mpp)


def _points(name: str, table: Any, mpp: float, size: float) -> Layer:
    """Detections with all their columns; those that are no mitosis or do not count are fainter."""
    counted = table[COUNTED].to_numpy(bool) if COUNTED in table else np.ones(len(table), bool)
    shown = {
        "name": f"{name}: detections",
        "scale": (mpp, mpp),
        "size": size,
        "face_color": "transparent",
        "border_width": 0.08,
        "border_color": [hex_colour(label) for label in table["label"]],
        "symbol": ["o" if one else "disc" for one in counted],
        "features": table.drop(columns=["x", "y"]).reset_index(drop=True),
    }
    return table[["y", "x"]].to_numpy(float), shown, "points"


@dataclass(frozen=True)
class LevelPixels:
    """One level of a slide as an array of which only the part that is asked for is read."""

    slide: Slide
    level: int
    dtype = np.dtype(np.uint8)
    ndim = 3

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        here = self.slide.levels[self.level]
        return here.height, here.width, 3

    def __getitem__(self, key: slice | tuple[slice, ...]) -> RGB:
        """Pixels by slices, as of an array."""
        key = key if isinstance(key, tuple) else (key,)
        rows, columns, channels = (*key, *[slice(None)] * 3)[:3]
        (top, bottom, down), (left, right, along) = (
            part.indices(side) for part, side in zip((rows, columns), self.shape[:2], strict=True)
        )
        if bottom <= top or right <= left:
            return np.zeros((max(0, bottom - top), max(0, right - left), 3), np.uint8)[..., channels]
        pixels = self.slide.read_level(self.level, Box(left, top, right - left, bottom - top))
        return pixels[::down, ::along, channels]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> RGB:
        return self[:, :, :].astype(dtype or self.dtype)


def image_layer(slide: Slide) -> Layer:
    """All levels of a slide, in micrometres where the resolution is known."""
    mpp = slide.info.resolution.mpp if slide.info.resolution else 1.0
    name = slide.info.path.name if slide.info.path else "slide"
    levels = [LevelPixels(slide, number) for number in range(len(slide.levels))]
    shown = {"name": name, "rgb": True, "multiscale": True, "scale": (mpp, mpp)}
    return levels, shown, "image"
