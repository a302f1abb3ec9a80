"""Weights as EfficientNet-Lite0's are published, drawn at random."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCKS = (
    (32, 1, 16, 3), (16, 6, 24, 3), (24, 6, 24, 3), (24, 6, 40, 5), (40, 6, 40, 5), (40, 6, 80, 3),
    (80, 6, 80, 3), (80, 6, 80, 3), (80, 6, 112, 5), (112, 6, 192, 5),
)  # fmt: skip
"""Channels, widening, filters and size."""


def random_weights() -> dict[str, Tensor]:
    """The blocks that teachers use, and one more."""
    generator = torch.Generator().manual_seed(0)
    weights: dict[str, Tensor] = {}

    def layer(name: str, norm: str, filters: int, channels: int, size: int) -> None:
        spread = (2 / (channels * size**2)) ** 0.5
        weights[f"{name}.weight"] = spread * torch.randn(filters, channels, size, size, generator=generator)
        for part, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            weights[f"{norm}.{part}"] = torch.full((filters,), value)
        weights[f"{norm}.num_batches_tracked"] = torch.tensor(0)

    layer("_conv_stem", "_bn0", 32, 3, 3)
    for number, (channels, widen, filters, size) in enumerate(BLOCKS):
        block, inner = f"_blocks.{number}.", channels * widen
        if widen > 1:
            layer(f"{block}_expand_conv", f"{block}_bn0", inner, channels, 1)
        layer(f"{block}_depthwise_conv", f"{block}_bn1", inner, 1, size)
        layer(f"{block}_project_conv", f"{block}_bn2", filters, inner, 1)
    return weights
