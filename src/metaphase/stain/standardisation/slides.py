"""Standardise files: fit on a slide, write a slide, a picture or the transform."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from metaphase.errors import UsageError
from metaphase.geometry import Box
from metaphase.parallel import available_cores, ordered_map
from metaphase.slides import RGB, PyramidFormat, Slide, write_pyramid
from metaphase.stain.errors import TooLittleTissueError
from metaphase.stain.pictures import PICTURE_SUFFIXES, write_picture
from metaphase.stain.standardisation.sampling import SAMPLING, SamplingConfig, sample_slide
from metaphase.stain.standardisation.transform import Template, Transform

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
