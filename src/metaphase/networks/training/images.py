"""Labelled images at one resolution: what both networks of a pair learn from, and are chosen on.

A whole slide gives pieces: all that hold a label, and others of its tissue as far as memory goes. Fields,
crops and images without mitoses are read whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import pandas as pd

from metaphase.base.arrays import RGB, Floats, Points
from metaphase.base.errors import TrainingError
from metaphase.base.parallel import available_cores, ordered_map
from metaphase.detections.table import IGNORE, LOOKALIKE, MITOSIS
from metaphase.images.tissue.finding import TissueMask, TissueSource
from metaphase.slides.contract import WORKING_MPP, Slide
from metaphase.slides.opening import SlideSource

Kind = Literal["", "slide", "field", "crop", "negatives", "corrected"]
KINDS: tuple[Kind, ...] = ("", "slide", "field", "crop", "negatives")
"""What an image shows: `slide`, tissue with all its mitoses labelled, of which pieces are taken; `field`, the
same as a whole; `crop`, little more than one figure; `negatives`, tissue without any mitosis but those to
ignore. Where nothing is said, large images are slides and others fields. Of a `corrected` slide only the
positions that somebody answered are labelled."""
MPP = WORKING_MPP
PIECE_PX, FIELD_PX = 1024, 4096
"""Side of the pieces of a slide; images up to the second are read whole."""
BEYOND_PX = 32
"""Labels so far outside a piece are still known to it."""
PAINTED_UM = 14.0
"""Nothing this near to a point to ignore counts."""
LEAST_FLOOR = 0.001
"""Lowest probability of a network that is looked at."""
LABELS = (MITOSIS, LOOKALIKE, IGNORE)


@dataclass(frozen=True, eq=False)
class ImageSource:
    """An image's file with what a manifest and a reference table say about it."""

    name: str
    slide: SlideSource
    laboratory: str
    patient: str
    split: str
    points: pd.DataFrame
    """x and y in level-0 pixels, label, and atypical (0, 1 or empty) where that is known."""
    kind: Kind = ""
    weight: float = 1.0
    """How often its laboratory is drawn, beside others."""
    tissue: TissueSource = field(default_factory=TissueSource)


@dataclass(frozen=True, eq=False)
class LabelledImage:
    """Pixels at `MPP` with their labelled points, in pixels."""

    name: str
    laboratory: str
    patient: str
    split: str
    kind: Kind
    pixels: RGB
    points: dict[str, Points]
    """(n, 2) x and y by label."""
    atypical: Floats
    """Of each mitosis: 1 where it is atypical, 0 where it is not, NaN where nobody said."""
    weight: float = 1.0

    @property
    def is_crop(self) -> bool:
        """Whether it shows little more than the figure in its middle."""
        return self.kind == "crop"

    @property
    def area_mm2(self) -> float:
        """Area of its pixels."""
        return float(self.pixels.shape[0] * self.pixels.shape[1] * (MPP / 1000) ** 2)

    def of(self, label: str) -> Points:
        """Points that have a label, an array (n, 2)."""
        return self.points.get(label, np.empty((0, 2)))


def by_laboratory(images: Sequence[LabelledImage]) -> dict[str, list[RGB]]:
    """Pixels of images by their laboratory's name."""
    pixels: dict[str, list[RGB]] = {}
    for image in sorted(images, key=lambda image: image.laboratory):
        pixels.setdefault(image.laboratory, []).append(image.pixels)
    return pixels


def read_images(sources: Sequence[ImageSource], memory_gb: float, seed: int = 0) -> list[LabelledImage]:
    """All images in their order; what whole images leave of the memory is shared by the slides' pieces."""
    threads = available_cores()
    left, read = memory_gb * 1e9, []
    for images in ordered_map(_whole, sources, threads=threads, ahead=4 * threads):
        left -= sum(image.pixels.nbytes for image in images)
        if left < 0:
            raise TrainingError(
                f"the images take more than {memory_gb:g} GB of memory",
                next_step="raise memory_gb, or name fewer images",
            )
        read.append(images)
    slides = [number for number, images in enumerate(read) if not images]
    most = int(left / max(1, len(slides)) / (3 * PIECE_PX**2))
    cut = partial(_pieces, sources, most, seed)
    for number, images in zip(slides, ordered_map(cut, slides, threads=threads, ahead=threads), strict=True):
        read[number] = images
    return [image for images in read for image in images]


def _whole(source: ImageSource) -> list[LabelledImage]:
    """An image that is read whole; nothing of one that gives pieces."""
    with source.slide.open() as slide:
        box, scale = slide.bounds, MPP / slide.mpp
        width, height = (max(1, int(side / scale + 1e-6)) for side in (box.width, box.height))
        large = source.kind in ("", "negatives") and width * height > FIELD_PX**2
        if source.kind in ("slide", "corrected") or large:
            return []
        return [_image(source, slide.read(box.x, box.y, width, height, MPP), (box.x, box.y), scale)]


def _pieces(sources: Sequence[ImageSource], most: int, seed: int, number: int) -> list[LabelledImage]:
    source = sources[number]
    with source.slide.open() as slide:
        return [
            _image(source, slide.read(x, y, PIECE_PX, PIECE_PX, MPP), (x, y), MPP / slide.mpp, f"@{piece}")
            for piece, (x, y) in enumerate(_corners(slide, source, most, seed + number))
        ]


def _corners(slide: Slide, source: ImageSource, most: int, seed: int) -> Points:
    """Level-0 corners of pieces: those that hold labels, then others on tissue in random order."""
    side = PIECE_PX * MPP / slide.mpp
    box = slide.bounds
    columns, rows = (math.ceil(length / side) for length in (box.width, box.height))
    grid = np.stack(np.meshgrid(np.arange(columns), np.arange(rows)), axis=-1).reshape(-1, 2)
    corners = np.array([box.x, box.y]) + side * grid
    tissue: TissueMask = source.tissue.of(slide)
    on_tissue = tissue.contains(corners + side / 2)
    cells = (source.points[["x", "y"]].to_numpy(np.float64) - (box.x, box.y)) // side
    labelled = (grid[:, None] == cells[None]).all(axis=2).any(axis=1)
    order = np.random.default_rng(seed).permutation(len(grid))
    others = order[(on_tissue & ~labelled & (source.kind != "corrected"))[order]]
    own = np.flatnonzero(labelled)
    if len(own) > most:
        raise TrainingError(
            f"the pieces with labels of slide {source.name} are {len(own)}, and memory allows {most}",
            path=source.slide.path,
            next_step="raise memory_gb, or name fewer slides",
        )
    return np.asarray(corners[np.concatenate([own, others[: most - len(own)]])], np.float64)


def _image(
    source: ImageSource, pixels: RGB, corner: tuple[float, float], scale: float, part: str = ""
) -> LabelledImage:
    table = source.points
    positions = (table[["x", "y"]].to_numpy(np.float64) - corner) / scale
    size = np.array(pixels.shape[1::-1])
    near = ((positions >= -BEYOND_PX) & (positions < size + BEYOND_PX)).all(axis=1)
    label = table["label"].to_numpy(str)
    flags = table["atypical"] if "atypical" in table.columns else pd.Series(np.nan, table.index)
    atypical = pd.to_numeric(flags, errors="coerce").to_numpy(np.float64)
    points = {name: positions[near & (label == name)] for name in LABELS}
    return LabelledImage(
        name=f"{source.name}{part}",
        laboratory=source.laboratory,
        patient=source.patient,
        split=source.split,
        kind=source.kind if source.kind in ("crop", "negatives", "corrected") else "field",
        pixels=pixels,
        points=points,
        atypical=atypical[near & (label == MITOSIS)],
        weight=source.weight,
    )
