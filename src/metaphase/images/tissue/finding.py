"""Where is tissue, in H&E and in immunohistochemistry: its mask, area, outline and files.

Stain shows in two ways: by colour, however smooth, and by darkness, if it has structure; shading has
neither. What is stained and not ink is joined to pieces, and pieces that look like dirt are dropped.
"""

from __future__ import annotations

import io
import json
import math
import uuid
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import imagecodecs
import numpy as np
import numpy.typing as npt
import shapely
from PIL import Image, PngImagePlugin
from pydantic import NonNegativeFloat, PositiveFloat

from metaphase.base.arrays import RGB, Box, Mask
from metaphase.base.errors import ResultWarning, ResultWarnings, SlideError, UsageError, require
from metaphase.base.files import write_bytes, write_text
from metaphase.base.foreign import check_plain, finite, parse_json, parsing
from metaphase.base.provenance import FileContent
from metaphase.base.settings import settings
from metaphase.base.tables import WHOLE_SLIDE
from metaphase.images.stain.deconvolution import is_grey
from metaphase.images.tissue.background import (
    GRAIN_UM,
    closed,
    eroded,
    find_ink,
    measure_appearance,
    opened,
    piece_areas,
    without_coreless_objects,
    without_small_holes,
    without_small_objects,
)
from metaphase.slides.contract import UNDECODABLE, Slide
from metaphase.slides.tiles import MaskGrid, plan_tiles, read_tiles

# ---- a tissue mask that knows where on the slide it lies ----

CLASSIFICATION = {"name": "Tissue", "color": [0, 160, 70]}
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
    def warnings(self) -> ResultWarnings:
        """What a user should know before relying on the mask."""
        if not self.is_empty:
            return ()
        warning = "no tissue found: is the slide blank, or its stain very pale?"
        advice = "look at the slide; if it does hold tissue, give a mask of your own with --tissue"
        return (ResultWarning("no-tissue", warning, advice),)

    def contains(self, points: npt.NDArray[np.float64]) -> Mask:
        """Whether each level-0 point (n, 2) lies on tissue."""
        return self.grid.contains(points)

    def without(self, boxes: Iterable[Box]) -> TissueMask:
        """The tissue that none of these boxes of level-0 pixels touches."""
        mask = self.mask.copy()
        for box in boxes:
            mask[self.grid.touched(np.array([(box.x, box.y), (box.right, box.bottom)]))] = False
        return replace(self, mask=mask)

    @property
    def grid(self) -> MaskGrid:
        """The form in which tile plans take a mask."""
        return MaskGrid(self.mask, self.x, self.y, self.scale)

    def polygons(self, tolerance_px: float = 0.0) -> tuple[shapely.Polygon, ...]:
        """Outlines in level-0 pixels with their holes, along the pixel edges of the mask, one for each piece.

        With a tolerance, corners are left out as long as the outline moves by at most so many mask pixels.
        """
        steps = np.diff(np.pad(self.mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
        rows, starts = np.nonzero(steps == 1)
        ends = np.nonzero(steps == -1)[1]
        runs = shapely.box(starts, rows, ends, rows + 1)  # of true pixels in a row
        outline = shapely.normalize(shapely.union_all(runs))  # rings then start at a true corner
        outline = shapely.simplify(outline, tolerance_px)
        placed = shapely.transform(outline, lambda corners: corners * self.scale + (self.x, self.y))
        return tuple(part for part in shapely.get_parts(placed) if part.area > 0)

    def to_geojson(self, tolerance_px: float = 1.0) -> str:
        """A GeoJSON FeatureCollection for QuPath: one annotation of class Tissue for each piece."""
        rounded = shapely.transform(self.polygons(tolerance_px), lambda corners: corners.round(2))
        features = [
            {
                "type": "Feature",
                "id": str(uuid.uuid5(ID_NAMESPACE, json.dumps(geometry))),
                "geometry": geometry,
                "properties": {"objectType": "annotation", "classification": CLASSIFICATION},
            }
            for geometry in map(json.loads, shapely.to_geojson(rounded))
        ]
        return json.dumps({"type": "FeatureCollection", "features": features})

    def to_png(self) -> bytes:
        """A grey PNG, 255 on tissue and 0 elsewhere, that carries its place on the slide as text."""
        position = {"mpp": self.mpp, "x": self.x, "y": self.y, "scale": self.scale}
        text = PngImagePlugin.PngInfo()
        text.add_text(PNG_KEY, json.dumps(position))
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
        imagecodecs.png_decode(Path(path).read_bytes())  # Pillow fills rows that are missing
        position = parse_json(image.info[PNG_KEY])
        numbers = {name: finite(position[name]) for name in ("mpp", "x", "y", "scale")}
        return TissueMask(np.asarray(image) > 0, **numbers)


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


# ---- what counts as tissue, in physical units ----


@settings
class TissueConfig:
    """Settings of the tissue mask. The defaults serve H&E and immunohistochemistry alike."""

    mpp: PositiveFloat = 8.0
    """Working resolution in um/px; 4 holds faint fat a little better than 8, at four times the memory."""

    min_colour: NonNegativeFloat = 0.025
    """Least difference of absorbance (natural log) between colour channels that counts as stain."""

    min_density: NonNegativeFloat = 0.02
    """Least mean absorbance (natural log), above the glass nearby, that counts as stain without colour."""

    bridge_um: NonNegativeFloat = 60.0
    """Gaps narrower than this are closed: clefts, and the torn walls of fat cells."""

    thread_um: NonNegativeFloat = 48.0
    """Grey lines thinner than this (coverslip edge, scratch, rim of a bubble) are not tissue."""

    min_object_um2: NonNegativeFloat = 20_000.0
    """Smaller pieces are dust or debris; 20,000 um2 is a disc 160 um across."""

    min_object_share: NonNegativeFloat = 0.25
    """A piece that fills this share of the image is no debris, however small the image."""

    min_hole_um2: NonNegativeFloat = 100_000.0
    """Smaller holes are filled: fat vacuoles, lumens; that is a disc 357 um across."""


# ---- tissue or not, from pixels alone ----

NOISE_FACTOR = 5.0
"""Stain stands out from the noise on glass by this many standard deviations."""
LEAST_DENSITY = 0.01
"""Colour without any darkening is not stain: JPEG spreads colour beyond the edge of tissue."""
LEAST_HUE = 0.12
"""Least colour, relative to the density: a tint of dark grey is not a stain."""
LEAST_GRAIN = 1.5
"""Least structure of grey stain (levels of 255); smooth grey is shading, or thin ink."""
SPECK_UM2 = 1500.0
"""Gaps are not bridged towards pieces smaller than this."""
LEAST_COLOURED_SHARE = 0.05
"""A piece with a smaller share of coloured pixels is grey."""
GREY_SIZE_FACTOR = 10.0
"""A grey piece must be this many times larger than a coloured one to be tissue."""


def segment_tissue(rgb: RGB, mpp: float, config: TissueConfig | None = None) -> Mask:
    """Where `rgb` (height, width, 3; `mpp` um/px) shows tissue, as a mask of the same height and width.

    A finer image is averaged down to the working resolution first; a coarser one is taken as it is.
    """
    config = config or TissueConfig()
    if rgb.ndim != 3 or rgb.shape[2] != 3 or rgb.dtype != np.uint8 or rgb.size == 0:
        raise UsageError(
            f"an array of shape {rgb.shape} and type {rgb.dtype} is not an image",
            next_step="give (height, width, 3) uint8 RGB",
        )
    require(0 < mpp < math.inf, "the resolution", mpp, "of um/px above 0")
    height, width = rgb.shape[:2]
    if (factor := config.mpp / mpp) > 1:
        small = (max(1, round(width / factor)), max(1, round(height / factor)))
        rgb = np.asarray(cv2.resize(rgb, small, interpolation=cv2.INTER_AREA), np.uint8)
    mask = _segment(rgb, max(config.mpp, mpp), config)
    return cv2.resize(mask.astype(np.uint8), (width, height), interpolation=cv2.INTER_NEAREST) > 0


def _segment(rgb: RGB, mpp: float, config: TissueConfig) -> Mask:
    look = measure_appearance(rgb, mpp)
    ink = find_ink(look.absorbance, mpp)
    density, noise = look.density, NOISE_FACTOR * look.noise
    least = np.maximum(max(config.min_colour, noise), LEAST_HUE * density)
    coloured = (look.colour > least) & (density > LEAST_DENSITY)
    structured = eroded(look.grain > max(LEAST_GRAIN, 2 * look.glass_grain), GRAIN_UM / 2 / mpp)
    stained = (coloured | ((density > max(config.min_density, noise)) & structured)) & ~ink
    walls = without_small_objects(stained, SPECK_UM2 / mpp**2)
    bridged = closed(walls, config.bridge_um / 2 / mpp) | stained
    tissue = without_small_holes(bridged, config.min_hole_um2 / mpp**2) & ~ink
    thick = opened(tissue, config.thread_um / 2 / mpp)
    tissue = without_coreless_objects(thick | (tissue & coloured), core=thick)
    labels, areas = piece_areas(tissue)
    grey = np.bincount(labels[coloured & tissue], minlength=len(areas)) < LEAST_COLOURED_SHARE * areas
    least_px = min(config.min_object_um2 / mpp**2, config.min_object_share * tissue.size)
    keep = areas >= np.where(grey, GREY_SIZE_FACTOR, 1.0) * least_px
    return np.asarray(keep[labels] & tissue, np.bool_)


# ---- from a slide to its tissue mask, and from the mask to files ----

BLOCK_PX = 256
"""Side of the blocks that are read, in pixels of the mask."""


WHOLE_PX = 1024
"""Fewest pixels along a side of the mask that stands for a whole slide, where the slide has as many ..."""
MASK_TOLERANCE_PX = 2.0
"""A mask reaches beyond its slide by no more of its pixels."""
MOST_WHOLE_CELLS = 16_000_000
"""... and it does not grow beyond this, as that of a long and thin scan would."""


def find_tissue(slide: Slide, config: TissueConfig | None = None) -> TissueMask:
    """Find the tissue on the part of the slide that the scanner filled.

    The slide is read block by block at the working resolution (or at its own, where that is coarser), and
    judged as a whole: what is glass shows only in the whole. Memory goes with the size of the mask, about
    45 bytes a pixel.
    """
    config = config or TissueConfig()
    mpp = max(config.mpp, slide.mpp)
    plan = plan_tiles(slide.bounds, slide.mpp, mpp=mpp, tile_px=BLOCK_PX)
    rgb = np.empty((plan.height, plan.width, 3), np.uint8)
    for tile, pixels in read_tiles(slide, plan):
        rgb[tile.core.slices] = pixels
    return TissueMask(segment_tissue(rgb, mpp, config), mpp, plan.x, plan.y, plan.scale)


SEARCH_WHOLE = (
    "look at it with `metaphase tissue`; --tissue whole (or `whole` in the manifest's column tissue) "
    "searches everything"
)

GREY, IN_COLOUR = "the picture is grey: stain tells tissue and mitoses", "scan or export it in colour"


@dataclass(frozen=True)
class TissueSource:
    """Where the tissue of a slide comes from: a mask somebody made, the whole slide, or what is found."""

    mask: Path | None = None
    whole: bool = False
    config: TissueConfig = field(default_factory=TissueConfig)
    """How it is found."""

    @classmethod
    def stated(cls, text: str) -> TissueSource:
        """As options and manifests say it: a mask's path, `whole`, or nothing where tissue is to be found."""
        if text == WHOLE_SLIDE:
            return cls(whole=True)
        return cls(mask=Path(text)) if text else cls()

    def account(self) -> Any:
        """What decides the mask: its bytes, or how it is made."""
        if self.whole:
            return WHOLE_SLIDE
        return {"mask": FileContent(self.mask)} if self.mask is not None else {"found": self.config}

    def of(self, slide: Slide) -> TissueMask:
        """The tissue of a slide; a slide without any is a `SlideError`."""
        if self.whole:
            return whole_slide(slide)
        tissue = find_tissue(slide, self.config) if self.mask is None else load_tissue(self.mask)
        rows, columns = tissue.mask.shape
        right, bottom = tissue.x + columns * tissue.scale, tissue.y + rows * tissue.scale
        beyond = max(-tissue.x, -tissue.y, right - slide.width, bottom - slide.height)
        if self.mask is not None and beyond > MASK_TOLERANCE_PX * tissue.scale:
            raise SlideError(
                f"is the mask of another slide: it covers pixels ({tissue.x:g}, {tissue.y:g}) to ({right:g}, "
                f"{bottom:g}), and {slide.name} has {slide.width} x {slide.height}",
                path=self.mask,
                next_step="make the mask of this slide with metaphase tissue",
            )
        if tissue.is_empty:
            damaged = {flaw.box for flaw in slide.flaws or () if flaw.kind == UNDECODABLE}
            grey = is_grey(slide.thumbnail())
            what, advice = (GREY, IN_COLOUR) if grey else ("no tissue was found", SEARCH_WHOLE)
            if damaged:
                what += f", and tiles cannot be decoded: {len(damaged)}"
                advice = "copy or export the slide again"
            raise SlideError(what, path=slide.info.path or slide.name, next_step=advice)
        return tissue


def whole_slide(slide: Slide) -> TissueMask:
    """All that the scanner filled, as a mask; its area is right to two thousandths."""
    box = slide.bounds
    fewest = math.ceil(math.sqrt(box.area / MOST_WHOLE_CELLS))
    scale = max(1, fewest, min(box.width, box.height) // WHOLE_PX)
    sides = (math.ceil(side / scale) for side in (box.height, box.width))
    return TissueMask(np.ones(tuple(sides), np.bool_), slide.mpp * scale, box.x, box.y, scale)


class TissueFiles(NamedTuple):
    """Where the forms of a mask were written."""

    png: Path
    geojson: Path


def save_tissue(tissue: TissueMask, folder: str | Path, stem: str) -> TissueFiles:
    """Write `<stem>.tissue.png` and `<stem>.tissue.geojson` into `folder`, each whole or not at all."""
    files = TissueFiles(*(Path(folder) / f"{stem}.tissue.{ending}" for ending in TissueFiles._fields))
    write_bytes(files.png, tissue.to_png())
    write_text(files.geojson, tissue.to_geojson())
    return files
