"""Elastic displacement (Simard et al. 2003): noise in [-1, 1] a pixel, smoothed, times alpha.

A sum of some thousand uniform numbers is normal, and a field smoothed with sigma holds no detail finer
than that. So the field is drawn from the distribution that it has: normal numbers on a coarse lattice
of nodes, 0.75 sigma apart, each spread by the same Gaussian. Mean, variance and correlation agree
with the smoothed pixel noise of an endless image to 1e-6, at a tenth of the work, and there is no
border effect. Two matrix products turn the nodes into the field.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

NODE_SPACING = 0.75
"""Distance of nodes in units of sigma; wider ones would show as a lattice."""
REACH = 4.0
"""Nodes outside the patch count up to this many sigma away."""
UNIFORM_VARIANCE = 1 / 3


def node_spread(size_px: int, sigma_px: float) -> Tensor:
    """(size, k): what each of k standard normal nodes gives to each pixel along one axis."""
    spacing = NODE_SPACING * sigma_px
    count = math.ceil((size_px - 1 + 2 * REACH * sigma_px) / spacing) + 1
    nodes = (torch.arange(count, dtype=torch.float64) - (count - 1) / 2) * spacing
    pixels = torch.arange(size_px, dtype=torch.float64) - (size_px - 1) / 2
    bell = torch.exp(-0.5 * ((pixels[:, None] - nodes) / sigma_px) ** 2)
    height = UNIFORM_VARIANCE**0.25 * math.sqrt(spacing) / (math.sqrt(2 * math.pi) * sigma_px)
    return torch.mul(bell, height).float()


def displacement(nodes: Tensor, spread: Tensor, alpha_px: float) -> Tensor:
    """Displacements (n, 2, size, size) in pixels from standard normal nodes (n, 2, k, k)."""
    return alpha_px * (spread @ nodes @ spread.T)
