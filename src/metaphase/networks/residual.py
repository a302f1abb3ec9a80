"""A detector of residual blocks: the geometry of the paper's detector, other layers in between.

It learns faster from few mitoses than the paper's chain of convolutions, and with a fifth of the parameters
(docs/model.md). Every convolution is valid; what skips a block is cropped to what the block gives.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

LOST_PX = 2
"""Pixels that two 3 x 3 convolutions take from each side."""


class ResidualBlock(nn.Module):
    """Two normalised convolutions beside a shortcut, which has weights where the width changes."""

    def __init__(self, channels: int, filters: int, slope: float) -> None:
        super().__init__()
        self.slope = slope
        self.first = nn.Conv2d(channels, filters, 3, bias=False)
        self.first_norm = nn.BatchNorm2d(filters)
        self.second = nn.Conv2d(filters, filters, 3, bias=False)
        self.second_norm = nn.BatchNorm2d(filters)
        self.shortcut: nn.Module = nn.Identity()
        self.shortcut_norm: nn.Module = nn.Identity()
        if channels != filters:
            self.shortcut = nn.Conv2d(channels, filters, 1, bias=False)
            self.shortcut_norm = nn.BatchNorm2d(filters)

    def forward(self, features: Tensor) -> Tensor:
        """Features with 4 rows and 4 columns less."""
        inner = functional.leaky_relu(self.first_norm(self.first(features)), self.slope)
        middle = features[:, :, LOST_PX:-LOST_PX, LOST_PX:-LOST_PX]
        total = self.second_norm(self.second(inner)) + self.shortcut_norm(self.shortcut(middle))
        return functional.leaky_relu(total, self.slope)


def folded_block(block: ResidualBlock) -> ResidualBlock:
    """The same block with its normalisation inside its convolutions."""
    folded = ResidualBlock(block.first.in_channels, block.first.out_channels, block.slope)
    for name in ("first", "second", "shortcut"):
        conv, norm = getattr(block, name), getattr(block, f"{name}_norm")
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            conv = torch.nn.utils.fuse_conv_bn_eval(conv, norm)
        setattr(folded, name, conv)
        setattr(folded, f"{name}_norm", nn.Identity())
    return folded.eval()
