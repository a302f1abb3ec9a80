"""A gallery of augmentations: one column a letter, the last one all together."""

from __future__ import annotations

from dataclasses import field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont
from pydantic import PositiveInt

from metaphase.base.arrays import RGB
from metaphase.base.settings import settings
from metaphase.images.stain.augmentation import LETTERS, Augmentation, AugmentationConfig
from metaphase.images.stain.deconvolution import WHITE, rgb_uint8, to_uint8
from metaphase.images.stain.standardisation import write_picture
from metaphase.slides.contract import WORKING_MPP, Slide, read_resampled

GAP_PX = 4
HEAD_PX = 22
PATCH_PX = 128
ROWS = 5


@settings
class GalleryConfig:
    """What the gallery shows."""

    letters: str = "RSECHBG"
    """Letters, one column each: R S E C H B G."""
    rows: PositiveInt = 5
    """Random versions of the patch in each column."""
    seed: int = 0
    """The same seed gives the same gallery."""
    augmentation: AugmentationConfig = field(default_factory=AugmentationConfig)
    """Ranges of the random numbers."""


GALLERY = GalleryConfig()


def gallery(patch: npt.NDArray[np.generic], config: GalleryConfig = GALLERY) -> RGB:
    """Augmented versions of one patch (h, w, 3) under column titles, the patch itself at the left.

    There is a column for each letter, and one for all of them, each of random versions.
    """
    rows, size = config.rows, config.augmentation.size_px
    batch = torch.from_numpy(rgb_uint8(patch)[None].repeat(rows, axis=0))
    titles = ["", *config.letters, config.letters]
    columns = [_augmented(batch, letters, config.seed, config.augmentation) for letters in titles]
    columns[0][1:] = WHITE  # the plain crop once is enough
    sheet = np.full((HEAD_PX + rows * (size + GAP_PX), len(columns) * (size + GAP_PX), 3), WHITE, np.uint8)
    for x, column in enumerate(columns):
        for y, picture in enumerate(column):
            top, left = HEAD_PX + y * (size + GAP_PX), x * (size + GAP_PX)
            sheet[top : top + size, left : left + size] = picture
    image = Image.fromarray(sheet)
    pen = ImageDraw.Draw(image)
    for i, title in enumerate(["original", *titles[1:]]):
        text = f"{title} {LETTERS[title].split(' ')[0].rstrip(',')}" if title in LETTERS else title
        pen.text((i * (size + GAP_PX) + 2, 3), text, fill=(0, 0, 0), font=ImageFont.load_default(13))
    return np.asarray(image)


def write_gallery(
    slide: Slide,
    output: str | Path,
    at: tuple[float, float] | None = None,
    config: GalleryConfig = GALLERY,
) -> None:
    """Write the gallery of the patch around level-0 `at` (default: the middle of the slide).

    The patch is read at 0.25 um/px where the slide states its resolution, else at level 0.
    """
    bounds = slide.bounds
    x, y = at or (bounds.x + bounds.width / 2, bounds.y + bounds.height / 2)
    scale = 1.0 if slide.info.resolution is None else WORKING_MPP / slide.mpp
    left, top = x - PATCH_PX / 2 * scale, y - PATCH_PX / 2 * scale
    if scale == 1.0:
        left, top = round(left), round(top)
    patch = read_resampled(slide, left, top, PATCH_PX, PATCH_PX, scale)
    write_picture(output, gallery(patch, config))


def _augmented(batch: torch.Tensor, letters: str, seed: int, config: AugmentationConfig) -> RGB:
    """(rows, size, size, 3). Only the column of all letters is shifted."""
    ranges = config if len(letters) > 1 else replace(config, translation_px=0)
    augmented = Augmentation(letters, ranges)(batch, torch.Generator().manual_seed(seed))
    return to_uint8(augmented.permute(0, 2, 3, 1).numpy())
