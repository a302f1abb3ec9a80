"""A gallery of augmentations: one column a letter, the last one all together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from metaphase.base.arrays import RGB
from metaphase.images.stain.augmentation import LETTERS, Augmentation, AugmentationConfig
from metaphase.images.stain.deconvolution import WHITE, to_uint8

GAP_PX = 4
HEAD_PX = 22


def gallery(patch: RGB, letters: str, ranges: AugmentationConfig, rows: int = 5, seed: int = 0) -> RGB:
    """Augmented versions of one patch (h, w, 3) under column titles, the patch itself at the left.

    There is a column for each letter, and one for all of them, each of random versions.
    """
    size = ranges.size_px
    batch = torch.from_numpy(patch[None].repeat(rows, axis=0))
    titles = ["", *letters, letters]
    columns = [_augmented(batch, title, seed, ranges) for title in titles]
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


def _augmented(batch: torch.Tensor, letters: str, seed: int, config: AugmentationConfig) -> RGB:
    """(rows, size, size, 3). Only the column of all letters is shifted."""
    ranges = config if len(letters) > 1 else replace(config, translation_px=0)
    augmented = Augmentation(letters, ranges)(batch, torch.Generator().manual_seed(seed))
    return to_uint8(augmented.permute(0, 2, 3, 1).numpy())
