"""Gaussian blur with a sigma of its own for each patch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

NEGLIGIBLE = 1e-10
"""Weights below are 0: they would end up as denormal numbers, which are slow."""


def blur(batch: Tensor, sigma_px: Tensor) -> Tensor:
    """Blur (n, c, s, s) with `sigma_px` (n,); edges are mirrored.

    Along each axis blurring is a product with one matrix a patch, which batches well whatever the
    sigmas are, and sigma 0 is the identity exactly.
    """
    count, channels, size, _ = batch.shape
    gather = _gathering(sigma_px, size)
    across = torch.bmm(batch.reshape(count, channels * size, size), gather)
    turned = across.view(count, channels, size, size).transpose(2, 3)
    down = torch.bmm(turned.reshape(count, channels * size, size), gather)
    return down.view(count, channels, size, size).transpose(2, 3)


def _gathering(sigma_px: Tensor, size: int) -> Tensor:
    """(n, s, s): column i holds the weights with which pixel i gathers the pixels of its line."""
    spread = (2 * sigma_px[:, None] ** 2).clamp(min=torch.finfo(sigma_px.dtype).tiny)
    distance = torch.arange(1 - size, 2 * size, device=sigma_px.device)
    bell = torch.exp(-(distance**2) / spread)  # (n, 3 s - 1), distances 1 - s ... 2 s - 1
    bell = functional.threshold(bell, NEGLIGIBLE, 0)
    windows = bell.unfold(1, size, 1)  # window k holds the distances k + 1 - s ... k
    direct = windows[:, :size].flip(2)  # row i: i - j
    left = windows[:, size : 2 * size]  # row i: i + 1 + j, the line mirrored at its left end
    weights = direct + left + left.flip(1, 2)
    return weights / weights.sum(dim=1, keepdim=True)
