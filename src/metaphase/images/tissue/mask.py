"""The tissue mask: its area and outline, its files, its picture."""

from __future__ import annotations

import io
import json
import math
import uuid
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import shapely
from PIL import Image, PngImagePlugin

from metaphase.base.arrays import RGB, Box, Mask
from metaphase.base.cautions import Caution, Cautions
from metaphase.base.errors import UsageError
from metaphase.base.files import write_bytes
from metaphase.base.foreign import check_plain, finite, parse_json, parsing
from metaphase.slides import MaskGrid, Slide
from metaphase.slides.damage import check_png

# ---- a tissue mask that knows where on the slide it lies ----

CLASS_NAME = "Tissue"
CLASS_COLOUR = (0, 160, 70)
ID_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "tissue.metaphase")
PNG_KEY = "metaphase-tissue"
LEAST_SCALE = 0.05
"""A mask is coarser than its slide; what is so much finer was not made for it."""
MOST = 1e9
"""No slide has so many pixels a side, nor micrometres."""


@dataclass(frozen=True, eq=False)
class TissueMask:
    """Where a slide has tissue.

    Column i of `mask` covers level-0 columns `x + i * scale` to `x + (i + 1) * scale`, and rows likewise; the
    last row and column may reach beyond the slide by a part of a pixel.
    """

    mask: Mask
    """(height, width), true where there is tissue."""
    mpp: float
    """Micrometres per pixel of the mask."""
    x: float
    """Level-0 position of the mask's left edge."""
    y: float
    """Level-0 position of the mask's top edge."""
    scale: float
    """Level-0 pixels per pixel of the mask."""

    def __post_init__(self) -> None:
        if self.mask.ndim != 2 or self.mask.dtype != np.bool_:
            raise UsageError(
                f"an array of shape {self.mask.shape} and type {self.mask.dtype} is not a mask",
                next_step="give (height, width) bool",
            )
        numbers = (self.mpp, self.scale, self.x, self.y)
        if not all(abs(number) <= MOST for number in numbers) or self.mpp <= 0 or self.scale < LEAST_SCALE:
            raise UsageError(
                f"a mask at ({self.x}, {self.y}) with {self.mpp} um/px and scale {self.scale} makes no sense",
                next_step=f"give numbers up to {MOST:g}, a resolution above 0, a scale above {LEAST_SCALE:g}",
            )

    @property
    def is_empty(self) -> bool:
        """Whether no tissue was found: a valid result, but one to tell the user about."""
        return not self.mask.any()

    @property
    def area_mm2(self) -> float:
        """Area of the tissue in mm2, holes not counted."""
        return float(np.count_nonzero(self.mask)) * self.mpp**2 / 1e6

    @property
    def warnings(self) -> Cautions:
        """What a user should know before relying on the mask."""
        if not self.is_empty:
            return ()
        doubt = "no tissue found: is the slide blank, or its stain very pale?"
        advice = "look at the slide; if it does hold tissue, give a mask of your own with --tissue"
        return (Caution("no-tissue", doubt, advice),)

    def contains(self, points: npt.NDArray[np.float64]) -> Mask:
        """Whether each level-0 point (n, 2) lies on tissue."""
        return self.grid.contains(points)

    def without(self, boxes: Iterable[Box]) -> TissueMask:
        """The tissue that none of these boxes of level-0 pixels touches."""
        mask = self.mask.copy()
        for box in boxes:
            left, top = (
                (corner - first) / self.scale for corner, first in ((box.x, self.x), (box.y, self.y))
            )
            right, bottom = left + box.width / self.scale, top + box.height / self.scale
            rows, columns = (
                slice(max(0, math.floor(a)), max(0, math.ceil(b))) for a, b in ((top, bottom), (left, right))
            )
            mask[rows, columns] = False
        return replace(self, mask=mask)

    @property
    def grid(self) -> MaskGrid:
        """The form in which tile plans take a mask."""
        return MaskGrid(self.mask, self.x, self.y, self.scale)

    def polygons(self, tolerance_px: float = 0.0) -> tuple[shapely.Polygon, ...]:
        """Outlines in level-0 pixels with their holes, along the pixel edges of the mask, one for each piece.

        With a tolerance, corners are left out as long as the outline moves by at most so many mask pixels.
        """
        outline = shapely.normalize(shapely.union_all(_runs(self.mask)))  # rings then start at a true corner
        outline = shapely.simplify(outline, tolerance_px)
        placed = shapely.transform(outline, lambda corners: corners * self.scale + (self.x, self.y))
        return tuple(part for part in shapely.get_parts(placed) if part.area > 0)

    def to_geojson(self, tolerance_px: float = 1.0) -> str:
        """A GeoJSON FeatureCollection for QuPath: one annotation of class Tissue for each piece."""
        features = [_feature(polygon) for polygon in self.polygons(tolerance_px)]
        return json.dumps({"type": "FeatureCollection", "features": features})

    def to_png(self) -> bytes:
        """A grey PNG, 255 on tissue and 0 elsewhere, that carries its place on the slide as text."""
        place = {"mpp": self.mpp, "x": self.x, "y": self.y, "scale": self.scale}
        text = PngImagePlugin.PngInfo()
        text.add_text(PNG_KEY, json.dumps(place))
        data = io.BytesIO()
        Image.fromarray(self.mask.astype(np.uint8) * np.uint8(255)).save(data, "PNG", pnginfo=text)
        return data.getvalue()


def load_tissue(path: str | Path) -> TissueMask:
    """Read a mask back from the PNG that `TissueMask.to_png` made."""
    check_plain(path)
    with (
        parsing(path, "not a tissue mask of metaphase", next_step="make it with metaphase tissue"),
        warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning),
        Image.open(path, formats=["PNG"]) as image,
    ):
        check_png(Path(path))
        place = parse_json(image.info[PNG_KEY])
        numbers = {name: finite(place[name]) for name in ("mpp", "x", "y", "scale")}
        return TissueMask(np.asarray(image) > 0, **numbers)


def _runs(mask: Mask) -> list[shapely.Polygon]:
    """The mask as boxes one pixel high, one for each run of true pixels in a row."""
    steps = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(steps == 1)
    _, ends = np.nonzero(steps == -1)
    return list(shapely.box(starts, rows, ends, rows + 1))


def _feature(polygon: shapely.Polygon) -> dict[str, object]:
    geometry = json.loads(shapely.to_geojson(shapely.transform(polygon, lambda corners: corners.round(2))))
    return {
        "type": "Feature",
        "id": str(uuid.uuid5(ID_NAMESPACE, json.dumps(geometry))),
        "geometry": geometry,
        "properties": {
            "objectType": "annotation",
            "classification": {"name": CLASS_NAME, "color": list(CLASS_COLOUR)},
        },
    }


# ---- a picture of the slide with its tissue outlined ----

OUTLINE = (0, 200, 80)
DIMMING = 0.65
"""Brightness left where there is no tissue."""


def draw_overlay(slide: Slide, tissue: TissueMask, max_side: int = 1600) -> RGB:
    """A thumbnail of the slide, dimmed outside the tissue, with a line around it."""
    picture = slide.thumbnail(max_side)
    per_level0 = np.array(picture.shape[1::-1]) / (slide.bounds.width, slide.bounds.height)
    inside = np.zeros(picture.shape[:2], np.uint8)
    rings = [
        np.rint((np.asarray(ring.coords) - (slide.bounds.x, slide.bounds.y)) * per_level0).astype(np.int32)
        for polygon in tissue.polygons()
        for ring in (polygon.exterior, *polygon.interiors)
    ]
    cv2.fillPoly(inside, rings, 1)
    drawn = np.where(inside[..., None] > 0, picture, picture * DIMMING).astype(np.uint8)
    thickness = max(1, round(max(picture.shape) / 500))
    return np.asarray(cv2.polylines(drawn, rings, True, OUTLINE, thickness, cv2.LINE_AA), np.uint8)


def save_overlay(slide: Slide, tissue: TissueMask, folder: str | Path, stem: str) -> Path:
    """Write the picture of `draw_overlay` as `<stem>.tissue.jpg` into `folder`, whole or not at all."""
    path = Path(folder) / f"{stem}.tissue.jpg"
    data = io.BytesIO()
    Image.fromarray(draw_overlay(slide, tissue)).save(data, "JPEG", quality=85)
    write_bytes(path, data.getvalue())
    return path
