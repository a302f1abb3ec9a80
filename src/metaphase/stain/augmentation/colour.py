"""Stain and colour: pixel by pixel, in place where a fresh tensor allows it."""

from __future__ import annotations

import torch
from torch import Tensor

GREY = (0.299, 0.587, 0.114)
"""Luma weights (ITU-R 601), as Pillow has them."""


def vary_stains(
    batch: Tensor, factor: Tensor, bias: Tensor, stains: Tensor, separation: Tensor, epsilon: float
) -> Tensor:
    """Change each stain's amount to factor * amount + bias in (n, 3, h, w); `factor`, `bias` are (n, 3).

    `stains` is M and `separation` its inverse. Separating, scaling and combining are linear in
    density, so one matrix a patch does all three.
    """
    mixing = separation @ (factor[:, :, None] * stains)  # (n, 3, 3), for rows of log intensity
    offset = -(bias @ stains)[..., None]  # (n, 3, 1)
    logs = (batch + epsilon).log_().flatten(2)
    varied = torch.baddbmm(offset, mixing.transpose(1, 2), logs)
    return varied.exp_().sub_(epsilon).clamp_(0, 1).view_as(batch)


def enhance(batch: Tensor, colour: Tensor, contrast: Tensor, brightness: Tensor) -> Tensor:
    """Saturation, then contrast, then brightness as Pillow's ImageEnhance has them; factors (n,)."""
    colour, contrast, brightness = (factor[:, None, None] for factor in (colour, contrast, brightness))
    vivid = torch.bmm(_saturation(colour), batch.flatten(2)).clamp_(0, 1)
    red, green, blue = vivid.mean(dim=2).unbind(1)
    grey = (red * GREY[0] + green * GREY[1] + blue * GREY[2])[:, None, None]
    contrasted = vivid.mul_(contrast).add_(grey * (1 - contrast)).clamp_(0, 1)
    return contrasted.mul_(brightness).clamp_(0, 1).view_as(batch)


def _saturation(colour: Tensor) -> Tensor:
    """(n, 3, 3): the colour's share of a pixel as it is, the rest as its grey; `colour` is (n, 1, 1)."""
    same = torch.eye(3, device=colour.device)
    to_grey = torch.stack([torch.full((3,), weight, device=colour.device) for weight in GREY], dim=1)
    return colour * same + (1 - colour) * to_grey
