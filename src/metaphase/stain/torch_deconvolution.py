"""Torch twins of `metaphase.stain.deconvolution`, for batches on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from metaphase.stain.deconvolution import EPSILON, HE_RESIDUAL, StainMatrix


def separate(batch: Tensor, matrix: StainMatrix = HE_RESIDUAL, *, epsilon: float = EPSILON) -> Tensor:
    """Stain amounts (n, 3, h, w) of a float batch (n, 3, h, w) in [0, 1]."""
    return _mix(-(batch + epsilon).log(), torch.from_numpy(matrix.inverse))


def combine(stains: Tensor, matrix: StainMatrix = HE_RESIDUAL, *, epsilon: float = EPSILON) -> Tensor:
    """RGB (n, 3, h, w) in [0, 1] of stain amounts (n, 3, h, w): the inverse of `separate`."""
    density = _mix(stains, torch.from_numpy(matrix.array))
    return (torch.exp(-density) - epsilon).clamp(0, 1)


def _mix(planes: Tensor, matrix: Tensor) -> Tensor:
    """Row vectors along the channel axis, times `matrix`."""
    return torch.einsum("nchw,cd->ndhw", planes, matrix.to(planes))
