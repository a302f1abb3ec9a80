"""Make slides from different laboratories look alike: fit on a slide, save, apply to any pixels.

Slides are described and mapped one by one in hue-saturation-density space (`colours`). Also the pixels of a
slide that this is fitted on, and pictures of what it does.

The map is evaluated at 86 levels a channel (every third) and interpolated in between, which differs
from the map itself by less than a grey level nearly everywhere (see docs/stain.md).
"""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from metaphase.base.arrays import RGB, Box
from metaphase.base.errors import UsageError
from metaphase.base.files import write_bytes
from metaphase.base.parallel import available_cores, ordered_map
from metaphase.images.stain.colours import (
    GLASS_DENSITY,
    METHOD,
    TRANSFORM_FORMAT,
    Floats,
    HsdColours,
    TooLittleTissueError,
    is_tissue,
    read_colours,
    to_density,
    write_colours,
)
from metaphase.images.stain.deconvolution import HE_RESIDUAL, StainMatrix, stain_pictures
from metaphase.slides.contract import Slide
from metaphase.slides.opening import SlideSource
from metaphase.slides.writer import PyramidFormat, write_pyramid

# ---- one lookup a pixel ----

LEVELS = 256
STEP = 3
BLOCK_PIXELS = 1 << 18
"""Pixels looked up at a time: index and result stay in the cache."""


class LookupTable:
    """A colour map, ready to be applied to any number of pixels from any number of threads."""

    def __init__(self, colour_map: Callable[[Floats], Floats]) -> None:
        axis = np.arange(0, LEVELS, STEP, dtype=np.float32)
        blue, green, red = np.meshgrid(axis, axis, axis, indexing="ij")
        colours = np.stack([red, green, blue], axis=-1)
        planes = [colour_map(plane.reshape(-1, 3)).reshape(plane.shape) for plane in colours]
        self._packed = _expand(np.stack(planes).astype(np.float32, copy=False))

    def apply(self, pixels: RGB, threads: int = 1) -> RGB:
        """Map uint8 pixels (..., 3); the result is a new array."""
        flat = np.ascontiguousarray(pixels).reshape(-1, 3)
        result = np.empty_like(flat)
        starts = range(0, len(flat), BLOCK_PIXELS)

        def look_up(start: int) -> None:
            """Three bytes make an index, the entry found there has the new three."""
            block = slice(start, start + BLOCK_PIXELS)
            padded = cv2.cvtColor(flat[block][None], cv2.COLOR_RGB2RGBA).view("<u4").ravel()
            index = np.bitwise_and(padded, 0xFFFFFF).astype(np.intp)
            mapped = self._packed.take(index, mode="wrap")  # never out of range: this mode saves the check
            cv2.cvtColor(mapped.view(np.uint8).reshape(1, -1, 4), cv2.COLOR_RGBA2RGB, dst=result[block][None])

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(look_up, starts))
        return result.reshape(pixels.shape)


def _expand(nodes: Floats) -> npt.NDArray[np.uint32]:
    """Interpolate the nodes to all colours: four bytes each, at index red + 256 green + 65,536 blue."""
    packed = np.zeros((LEVELS, LEVELS, LEVELS, 4), np.uint8)
    planes = [_finer(_finer(node).swapaxes(0, 1)).swapaxes(0, 1) + np.float32(0.5) for node in nodes]
    for blue in range(LEVELS):
        below, part = divmod(blue, STEP)
        above = min(below + 1, len(planes) - 1)
        np.copyto(
            packed[blue, ..., :3],
            planes[below] * np.float32(1 - part / STEP) + planes[above] * np.float32(part / STEP),
            casting="unsafe",
        )
    return packed.view("<u4").ravel()


def _finer(nodes: Floats) -> Floats:
    """Interpolate along the first axis, from every third level to all 256."""
    levels = np.empty((LEVELS, *nodes.shape[1:]), np.float32)
    step = np.diff(nodes, axis=0) / np.float32(STEP)
    levels[::STEP] = nodes
    for part in range(1, STEP):
        levels[part::STEP] = nodes[:-1] + step * np.float32(part)
    return levels


# ---- a fitted standardisation ----


@dataclass(frozen=True)
class StainTransform:
    """The way from one slide's colours to a template's."""

    source: HsdColours
    template: HsdColours

    @cached_property
    def table(self) -> LookupTable:
        """The lookup table; made on first use, which takes about a second."""
        return LookupTable(partial(self.source.towards, self.template))

    def apply(self, image: RGB, threads: int = 1) -> RGB:
        """The standardised image, uint8 (..., 3)."""
        return self.table.apply(image, threads)

    def save(self, path: str | Path) -> None:
        """Write as JSON."""
        write_colours(path, TRANSFORM_FORMAT, {"method": METHOD, **asdict(self)})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote."""

        def stated(data: dict[str, Any]) -> list[Any]:
            if data["method"] != METHOD:
                raise ValueError(f"its method is {data['method']!r}")
            return [data["source"], data["template"]]

        return cls(*read_colours(path, TRANSFORM_FORMAT, stated))


class StandardisedSlide(Slide):
    """Another slide's pixels with their colours mapped as they are read; nothing is written."""

    def __init__(self, slide: Slide, transform: StainTransform) -> None:
        super().__init__(slide.info)
        self._slide, self._table = slide, transform.table

    def _decode(self, level: int, box: Box) -> RGB:
        return self._table.apply(self._slide.read_level(level, box))

    def close(self) -> None:
        """Release the slide beneath."""
        self._slide.close()


@dataclass(frozen=True)
class StandardisedSource(SlideSource):
    """A slide that is seen in the colours of a template."""

    transform: StainTransform = field(kw_only=True)

    def open(self) -> Slide:
        """Open the slide; close it when done."""
        return StandardisedSlide(super().open(), replace(self.transform))  # whose table goes with the slide

    def account(self) -> dict[str, Any]:
        """That of the slide as it is, and how its colours are mapped."""
        return super().account() | {"colours": asdict(self.transform)}


# ---- a fair sample of a slide's pixels ----


FIELDS, FIELD_PX, FIELD_MPP = 40, 256, 0.5
"""Fields read at random positions with tissue; nuclei must be seen, details need not."""
OVERVIEW_PX = 1024
"""Longest side of the overview in which tissue and glass are sought."""


def sample_slide(slide: Slide, seed: int = 0) -> RGB:
    """Pixels (n, 3) of a slide's tissue at high resolution and of its glass."""
    overview = slide.thumbnail(min(OVERVIEW_PX, max(slide.bounds.width, slide.bounds.height)))
    density = to_density(overview.astype(np.float32))
    rows, columns = np.nonzero(is_tissue(density))
    if len(rows) == 0:
        raise TooLittleTissueError(
            "no stained tissue is visible",
            path=slide.info.path,
            next_step="check that this is a stained slide",
        )
    scale = slide.bounds.width / overview.shape[1], slide.bounds.height / overview.shape[0]
    positions = np.column_stack([columns + 0.5, rows + 0.5]) * scale
    # Level-0 pixels a sampled pixel; a slide that is coarser, or states no resolution, is taken as it is.
    zoom = 1.0 if slide.info.resolution is None else max(1.0, FIELD_MPP / slide.mpp)
    bounds, side = slide.bounds, max(1, round(FIELD_PX * zoom))
    across = bounds.width // side + 1
    column, row = (positions // side).astype(int).T
    cells = np.random.default_rng(seed).permutation(np.unique(row * across + column))[:FIELDS]
    samples = []
    for cell in cells.tolist():  # of a grid, hence without overlap
        box = Box(bounds.x + cell % across * side, bounds.y + cell // across * side, side, side)
        box = box.intersection(bounds)
        width, height = (max(1, int(side / zoom)) for side in (box.width, box.height))
        field = slide.read(box.x, box.y, width, height, FIELD_MPP) if zoom > 1 else slide.read_level(0, box)
        samples.append(field.reshape(-1, 3))
    glass = overview[density.mean(axis=-1) < GLASS_DENSITY]
    return np.concatenate([*samples, glass])


# ---- pictures of a whole slide, and files ----

PICTURE_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
PICTURE_PX = 2048
"""Longest side of the picture of a stain."""
JPEG_QUALITY = 95


def write_picture(path: str | Path, rgb: RGB) -> None:
    """Write uint8 (h, w, 3) as PNG or JPEG, as the name says."""
    suffix = Path(path).suffix.lower()
    if suffix not in PICTURE_FORMATS:
        raise UsageError(
            f"{path}: there is no picture format {suffix!r}",
            next_step=f"choose from {', '.join(PICTURE_FORMATS)}",
        )
    buffer = io.BytesIO()
    Image.fromarray(rgb).save(buffer, format=PICTURE_FORMATS[suffix], quality=JPEG_QUALITY)
    write_bytes(path, buffer.getvalue())


def write_stain_pictures(slide: Slide, folder: Path, matrix: StainMatrix = HE_RESIDUAL) -> list[Path]:
    """Write one PNG a stain, `<slide>-<stain>.png`, and return their paths."""
    paths = []
    whole = slide.thumbnail(min(PICTURE_PX, max(slide.bounds.width, slide.bounds.height)))
    for name, picture in stain_pictures(whole, matrix).items():
        path = folder / f"{Path(slide.name).stem}-{name}.png"
        write_picture(path, picture)
        paths.append(path)
    return paths


# ---- standardise files ----

SLIDE_SUFFIXES = (".tif", ".tiff")
MAX_PICTURE_PX = 400_000_000


def fit_slide(slide: Slide, template: HsdColours | None = None) -> StainTransform:
    """The transform of a slide, fitted on its own tissue; without a template, to the default one."""
    return StainTransform(colours_of(slide), template or HsdColours.default())


def colours_of(slide: Slide) -> HsdColours:
    """A slide's own colours, for a transform or a template; too little tissue is an error."""
    try:
        return HsdColours.of(sample_slide(slide))
    except TooLittleTissueError as error:
        raise TooLittleTissueError(error.problem, path=slide.info.path, next_step=error.next_step) from error


def standardise_slide(slide: Slide, transform: StainTransform, output: Path) -> None:
    """Write the standardised slide: a pyramid (.tif), a plain picture (.png, .jpg) or the transform (.json).

    Level-0 coordinates stay as they are. Tiles are read, mapped and written as they come.
    """
    suffix, whole, threads = output.suffix.lower(), Box(0, 0, slide.width, slide.height), available_cores()
    if suffix == ".json":
        transform.save(output)
    elif suffix in SLIDE_SUFFIXES:
        table, form = transform.table, PyramidFormat(slide.mpp, quality=90)
        boxes = whole.tiles(form.tile_px)
        tiles = ordered_map(
            lambda box: table.apply(slide.read_level(0, box)), boxes, threads=threads, ahead=2 * threads
        )
        write_pyramid(output, tiles, slide.width, slide.height, form)
    elif suffix in PICTURE_FORMATS:
        if whole.area > MAX_PICTURE_PX:
            raise UsageError(
                f"{slide.width} x {slide.height} pixels are too many for one picture",
                next_step=f"write a pyramid: {output.with_suffix('.tif').name}",
            )
        write_picture(output, transform.apply(slide.read_level(0, whole), threads))
    else:
        known = ", ".join((*SLIDE_SUFFIXES, *PICTURE_FORMATS, ".json"))
        raise UsageError(f"{output}: there is no format {suffix!r}", next_step=f"choose from {known}")
