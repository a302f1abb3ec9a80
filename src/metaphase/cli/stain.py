"""`metaphase stain`: separate stains, vary them, align them between laboratories."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metaphase.base.errors import UsageError
from metaphase.cli.console import Mpp, Slide, say

if TYPE_CHECKING:
    from metaphase.base.arrays import Box
    from metaphase.images.stain.standardisation.transform import Template

stain = typer.Typer(help="Separate, vary and standardise stains.", no_args_is_help=True)


class Stains(StrEnum):
    """Which stains to separate."""

    he = "he"
    dab = "dab"
    hed = "hed"


class Method(StrEnum):
    """How to standardise."""

    hsd = "hsd"
    macenko = "macenko"
    reinhard = "reinhard"


Region = Annotated[
    str | None, typer.Option(help="Part of level 0 as X,Y,WIDTH,HEIGHT; by default the whole, reduced.")
]


@stain.command()
def deconvolve(
    slide: Slide,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the pictures.")],
    stains: Annotated[
        Stains, typer.Option(help="he: H, E, residual; dab: H, DAB, residual; hed: H, E, DAB.")
    ] = Stains.he,
    region: Region = None,
) -> None:
    """Write a picture of each stain of a slide or image."""
    from metaphase.images.stain.deconvolution import H_DAB_RESIDUAL, HE_RESIDUAL, HED
    from metaphase.images.stain.pictures import write_stain_pictures
    from metaphase.slides import open_slide

    matrix = {Stains.he: HE_RESIDUAL, Stains.dab: H_DAB_RESIDUAL, Stains.hed: HED}[stains]
    with open_slide(slide) as opened:
        for path in write_stain_pictures(opened, output, matrix, region=_box(region)):
            say(str(path))


@stain.command()
def augment(
    slide: Slide,
    output: Annotated[Path, typer.Option("-o", "--output", help="Picture to write (.png or .jpg).")],
    at: Annotated[
        str | None, typer.Option(help="Centre of the patch at level 0 as X,Y; by default the middle.")
    ] = None,
    recipe: Annotated[str, typer.Option(help="Letters, a column each: R S E C H B G.")] = "RSECHBG",
    rows: Annotated[int, typer.Option(help="Random versions a letter.")] = 5,
    seed: Annotated[int, typer.Option(help="The same seed gives the same picture.")] = 0,
    mpp: Mpp = None,
) -> None:
    """Write a gallery of augmented versions of one patch, like the paper's figure."""
    from metaphase.images.stain.gallery import GalleryConfig, write_gallery
    from metaphase.slides.opening import sources_with

    config = GalleryConfig(letters=recipe, rows=rows, seed=seed)
    place = _numbers(at, 2, "--at", "X,Y") if at else None
    with sources_with([slide], mpp)[0].open() as opened:
        write_gallery(opened, output, (place[0], place[1]) if place else None, config)
    say(str(output))


@stain.command()
def standardise(
    slide: Slide,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="A slide (.tif), a picture (.png, .jpg) or the transform (.json)."
        ),
    ],
    method: Annotated[Method, typer.Option(help="hsd is the one the paper uses.")] = Method.hsd,
    template: Annotated[
        Path | None,
        typer.Option(help="Slide, or saved template (.json), to look like; by default breast H&E."),
    ] = None,
    transform: Annotated[
        Path | None, typer.Option(help="Apply this saved transform instead of fitting one.")
    ] = None,
    mpp: Mpp = None,
    seed: Annotated[int, typer.Option(help="Of the sample of tissue that is fitted.")] = 0,
) -> None:
    """Give a slide the colours of another laboratory."""
    from metaphase.images.stain.standardisation.transform import StainTransform, fit_slide, standardise_slide
    from metaphase.slides.opening import sources_with

    with sources_with([slide], mpp)[0].open() as opened:
        if transform is not None:
            if template is not None:
                raise UsageError("--transform has a template of its own", next_step="leave --template out")
            chosen = StainTransform.load(transform)
        else:
            chosen = fit_slide(opened, method.value, _template(template, seed), seed=seed)
        standardise_slide(opened, chosen, output)
    say(str(output))


def _template(path: Path | None, seed: int) -> Template | None:
    from metaphase.images.stain.standardisation.transform import Template, template_of_slide
    from metaphase.slides import open_slide

    if path is None:
        return None
    if path.suffix == ".json":
        return Template.load(path)
    with open_slide(path) as reference:
        return template_of_slide(reference, seed=seed)


def _box(region: str | None) -> Box | None:
    from metaphase.base.arrays import Box

    if region is None:
        return None
    x, y, width, height = (int(value) for value in _numbers(region, 4, "--region", "X,Y,WIDTH,HEIGHT"))
    return Box(x, y, width, height)


def _numbers(text: str, count: int, option: str, form: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) != count or not all(map(math.isfinite, values)):
        raise UsageError(
            f"{option} {text!r} is not {form}", next_step=f"give {count} numbers with commas between"
        )
    return values
