"""Rotation, mirroring, scaling, deformation, shift and crop as one resampling."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from metaphase.stain.augmentation.draws import Draw


def pixel_places(size_px: int) -> Tensor:
    """(2, size, size): x and y of each pixel of a patch, from the patch's centre."""
    axis = torch.arange(size_px, dtype=torch.float32) - (size_px - 1) / 2
    return torch.stack([axis.expand(size_px, size_px), axis[:, None].expand(size_px, size_px)])


def resample(batch: Tensor, places: Tensor, drawn: Draw) -> Tensor:
    """Sample (n, 3, h, w) at `places` (n or 1, 2, size, size), turned and shifted as drawn.

    Bilinear; beyond its edges a patch continues as its mirror image.
    """
    height, width = batch.shape[-2:]
    size = places.shape[-1]
    flat = places.flatten(2).expand(len(batch), 2, size * size)
    x, y = torch.baddbmm(drawn.shift_px[..., None], _turns(drawn), flat).unbind(1)
    grid = torch.stack([_normalised(x, width, size), _normalised(y, height, size)], dim=-1)
    return functional.grid_sample(
        batch,
        grid.view(-1, size, size, 2),
        mode="bilinear",
        padding_mode="reflection",
        align_corners=False,
    )


def _turns(drawn: Draw) -> Tensor:
    """(n, 2, 2), from output to input: rotation times mirroring over scale."""
    cosine, sine = drawn.angle.cos(), drawn.angle.sin()
    rotation = torch.stack([torch.stack([cosine, -sine], -1), torch.stack([sine, cosine], -1)], -2)
    return rotation * drawn.flip[:, None] / drawn.scale[:, None, None]


def _normalised(place: Tensor, side: int, size: int) -> Tensor:
    """Pixels from the centre to the -1 ... 1 of `grid_sample`.

    Where an odd number of pixels is cut off, the crop's centre is half a pixel up and left.
    """
    return (place - 0.5 * ((side - size) % 2)) * (2 / side)
