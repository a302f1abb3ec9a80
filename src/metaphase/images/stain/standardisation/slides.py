"""Standardising whole slides: a sample to fit on, and the pixels written anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from metaphase.base.arrays import RGB
from metaphase.base.errors import UsageError
from metaphase.base.geometry import Box
from metaphase.base.parallel import available_cores, ordered_map
from metaphase.images.stain.pictures import PICTURE_SUFFIXES, write_picture
from metaphase.images.stain.pixels import TooLittleTissueError
from metaphase.images.stain.standardisation.methods import GLASS_DENSITY, is_tissue, to_density
from metaphase.images.stain.standardisation.transform import Template, Transform
from metaphase.slides import PyramidFormat, Slide, write_pyramid

# ---- a fair sample of a slide's pixels ----


@dataclass(frozen=True)
class SamplingConfig:
    """How much of a slide is looked at."""

    fields: int = 40
    """Fields read at random places with tissue."""
    field_px: int = 256
    """Side of a field."""
    mpp: float = 0.5
    """Resolution of the fields; nuclei must be seen, details need not."""
    thumbnail_px: int = 1024
    """Longest side of the overview in which tissue and glass are sought."""

    def __post_init__(self) -> None:
        if min(self.fields, self.field_px, self.thumbnail_px) < 1 or not self.mpp > 0:
            raise UsageError(f"{self} reads nothing", next_step="give numbers above 0")


SAMPLING = SamplingConfig()


def sample_slide(slide: Slide, config: SamplingConfig = SAMPLING, seed: int = 0) -> RGB:
    """Pixels (n, 3) of a slide's tissue at high resolution and of its glass."""
    overview = slide.thumbnail(min(config.thumbnail_px, max(slide.bounds.width, slide.bounds.height)))
    density = to_density(overview.astype(np.float32))
    rows, columns = np.nonzero(is_tissue(density))
    if len(rows) == 0:
        raise TooLittleTissueError(
            "no stained tissue is visible",
            path=slide.info.path,
            next_step="check that this is a stained slide",
        )
    scale = slide.bounds.width / overview.shape[1], slide.bounds.height / overview.shape[0]
    places = np.column_stack([columns + 0.5, rows + 0.5]) * scale
    fields = [_read(slide, box, config.mpp).reshape(-1, 3) for box in _choose(slide, places, config, seed)]
    glass = overview[density.mean(axis=-1) < GLASS_DENSITY]
    return np.concatenate([*fields, glass])


def _choose(slide: Slide, places: npt.NDArray[np.float64], config: SamplingConfig, seed: int) -> list[Box]:
    """Some level-0 boxes of a grid, hence without overlap, that hold `places` (x, y within the bounds)."""
    bounds = slide.bounds
    side = max(1, round(config.field_px * _zoom(slide, config.mpp)))
    columns = bounds.width // side + 1
    column, row = (places // side).astype(int).T
    cells = np.random.default_rng(seed).permutation(np.unique(row * columns + column))[: config.fields]
    boxes = (
        Box(bounds.x + int(cell % columns) * side, bounds.y + int(cell // columns) * side, side, side)
        for cell in cells
    )
    return [box.intersection(bounds) for box in boxes]


def _read(slide: Slide, box: Box, mpp: float) -> RGB:
    zoom = _zoom(slide, mpp)
    if zoom == 1:
        return slide.read_level(0, box)
    width, height = (max(1, int(side / zoom)) for side in (box.width, box.height))
    return slide.read(box.x, box.y, width, height, mpp)


def _zoom(slide: Slide, mpp: float) -> float:
    """Level-0 pixels a sampled pixel; a slide that is coarser, or states no resolution, is taken as it is."""
    return 1.0 if slide.info.resolution is None else max(1.0, mpp / slide.mpp)


# ---- standardise files ----

SLIDE_SUFFIXES = (".tif", ".tiff")
MAX_PICTURE_PX = 400_000_000


def fit_slide(
    slide: Slide,
    method: str = "hsd",
    template: Template | None = None,
    *,
    sampling: SamplingConfig = SAMPLING,
    seed: int = 0,
) -> Transform:
    """Fit a transform on a slide's own tissue; the error for too little names the slide."""
    with _naming(slide):
        return Transform.fit(sample_slide(slide, sampling, seed), method, template)


def template_of_slide(slide: Slide, *, sampling: SamplingConfig = SAMPLING, seed: int = 0) -> Template:
    """Take a slide as the reference that others shall look like."""
    with _naming(slide):
        return Template.of(sample_slide(slide, sampling, seed))


@contextmanager
def _naming(slide: Slide) -> Iterator[None]:
    """Let the error for too little tissue name the slide."""
    try:
        yield
    except TooLittleTissueError as error:
        raise TooLittleTissueError(error.problem, path=slide.info.path, next_step=error.next_step) from error


def standardise_slide(
    slide: Slide,
    transform: Transform,
    output: str | Path,
    *,
    tile_px: int = 512,
    quality: int = 90,
    threads: int | None = None,
) -> None:
    """Write the standardised slide: a pyramid (.tif), a plain picture (.png, .jpg) or the transform (.json).

    Level-0 coordinates stay as they are. Tiles are read, mapped and written as they come.
    """
    suffix = Path(output).suffix.lower()
    if suffix == ".json":
        transform.save(output)
    elif suffix in SLIDE_SUFFIXES:
        tiles = _standardised_tiles(slide, transform, tile_px, threads or available_cores())
        form = PyramidFormat(mpp=slide.mpp, tile_px=tile_px, quality=quality)
        write_pyramid(output, tiles, slide.width, slide.height, form, threads=threads)
    elif suffix in PICTURE_SUFFIXES:
        _check_picture_size(slide, output)
        whole = slide.read_level(0, Box(0, 0, slide.width, slide.height))
        write_picture(output, transform.apply(whole, threads or available_cores()))
    else:
        known = ", ".join((*SLIDE_SUFFIXES, *PICTURE_SUFFIXES, ".json"))
        raise UsageError(f"{output}: no format is called {suffix!r}", next_step=f"choose from {known}")


def _standardised_tiles(slide: Slide, transform: Transform, tile_px: int, threads: int) -> Iterator[RGB]:
    """Level-0 tiles, row by row."""
    table = transform.table
    boxes = (
        Box(x, y, min(tile_px, slide.width - x), min(tile_px, slide.height - y))
        for y in range(0, slide.height, tile_px)
        for x in range(0, slide.width, tile_px)
    )
    return ordered_map(
        lambda box: table.apply(slide.read_level(0, box)), boxes, threads=threads, ahead=2 * threads
    )


def _check_picture_size(slide: Slide, output: str | Path) -> None:
    if slide.width * slide.height > MAX_PICTURE_PX:
        raise UsageError(
            f"{slide.width} x {slide.height} pixels are too many for one picture",
            next_step=f"write a pyramid: {Path(output).with_suffix('.tif').name}",
        )
