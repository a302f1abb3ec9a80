"""Made-up seams: beyond a corner or an edge near its centre, a patch goes on as another one, or as glass.

Where mitoses come as small crops laid side by side, the tissue around a mitosis ends at a seam or at the edge
of the image, and its negatives, which lie beside it, have that close by. A network then tells them by it.
With seams in patches of both classes it has to look at the cell.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

LEAST_PX = 14.0
"""A seam is at least this far from the centre ..."""
FURTHEST = 0.6
"""... and at most this share of the patch's side: some fall outside, and then there is none."""
GLASS_SHARE = 0.5
"""Share of the seams behind which there is nothing."""
WHITE = 255


@torch.no_grad()
def with_seams(pixels: Tensor, share: float, generator: Generator) -> Tensor:
    """Patches (n, side, side, 3) of bytes, a share of which end at a vertical and a horizontal line, each at
    a place of its own; beyond these lie the pixels of another patch of the batch, or white."""
    count, side = pixels.shape[:2]
    unit = torch.rand((6, count), generator=generator, device=pixels.device)
    reach = LEAST_PX + unit[:2] * (FURTHEST * side - LEAST_PX)
    sign = torch.where(unit[2:4] < 0.5, -1.0, 1.0)
    place = torch.arange(side, device=pixels.device) - (side - 1) / 2
    beyond = sign[:, :, None] * place > reach[:, :, None]
    foreign = beyond[0][:, :, None] | beyond[1][:, None, :]
    foreign &= (unit[4] < share)[:, None, None]
    glass = (unit[5] < GLASS_SHARE)[:, None, None, None]
    order = torch.randperm(count, generator=generator, device=pixels.device)
    other = pixels[order].masked_fill_(glass, WHITE)
    return torch.where(foreign[..., None], other, pixels)
