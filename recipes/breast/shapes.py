"""Networks that answer densely: teachers on ImageNet's weights; students that see 97 px, without padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from metaphase.networks.architectures import (
    LEAKY_SLOPE,
    InvertedBlock,
    PixelScale,
    ResidualBlock,
    Subcells,
    build_network,
)
from metaphase.networks.cards import OUTPUT_STRIDE_PX, RECEPTIVE_PX, Family, NetworkSpec

# ---- teachers ----

STRIDED = (24, 40, 80, 192)
"""Widths of EfficientNet-Lite's stages that begin by halving the resolution; it is halved once before."""
LAST_WIDTH = 112
"""Stages up to this width are used: what they see is enough for a cell and its surroundings."""
TAPS = (24, 40, 112)
"""Widths whose last features, at strides 4, 8 and 16, come together."""
BN_EPSILON = 1e-3


class Inverted(nn.Module):
    """Expand, filter each channel, project; names as in the published weights."""

    def __init__(self, channels: int, inner: int, filters: int, size: int, stride: int) -> None:
        super().__init__()
        self.adds = stride == 1 and channels == filters
        if inner != channels:
            self._expand_conv = nn.Conv2d(channels, inner, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(inner, BN_EPSILON)
        self._depthwise_conv = nn.Conv2d(inner, inner, size, stride, size // 2, groups=inner, bias=False)
        self._bn1 = nn.BatchNorm2d(inner, BN_EPSILON)
        self._project_conv = nn.Conv2d(inner, filters, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(filters, BN_EPSILON)

    def forward(self, features: Tensor) -> Tensor:
        """Features of the block."""
        inner = features
        if hasattr(self, "_expand_conv"):
            inner = functional.relu6(self._bn0(self._expand_conv(inner)))
        inner = functional.relu6(self._bn1(self._depthwise_conv(inner)))
        inner = self._bn2(self._project_conv(inner))
        total: Tensor = features + inner if self.adds else inner
        return total


class Teacher(nn.Module):
    """EfficientNet-Lite, its features brought together at a stride of 4 px: one logit a cell of 4 x 4 px."""

    def __init__(self, weights: Mapping[str, Tensor], width: int = 96, pretrained: bool = True) -> None:
        super().__init__()
        self.scale = PixelScale()
        stem = weights["_conv_stem.weight"]
        self._conv_stem = nn.Conv2d(3, stem.shape[0], 3, 2, 1, bias=False)
        self._bn0 = nn.BatchNorm2d(stem.shape[0], BN_EPSILON)
        self._blocks = nn.ModuleList()
        self.taps: dict[int, int] = {}
        channels = stem.shape[0]
        while f"_blocks.{len(self._blocks)}._depthwise_conv.weight" in weights:
            number = len(self._blocks)
            inner, _, size, _ = weights[f"_blocks.{number}._depthwise_conv.weight"].shape
            filters = weights[f"_blocks.{number}._project_conv.weight"].shape[0]
            if filters > LAST_WIDTH:
                break
            stride = 2 if filters in STRIDED and filters != channels else 1
            self._blocks.append(Inverted(channels, inner, filters, size, stride))
            channels = filters
            if filters in TAPS:
                self.taps[filters] = number
        self.lateral = nn.ModuleList(nn.Conv2d(filters, width, 1) for filters in TAPS)
        self.joined = nn.Sequential(
            nn.Conv2d(width, width, 3, 1, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1),
            nn.ReLU(),
        )
        self.head = nn.Conv2d(width, 1, 1)
        nn.init.constant_(self.head.bias, -4.0)  # type: ignore[arg-type]
        if pretrained:
            self.load_state_dict(
                {name: value for name, value in weights.items() if name in self.state_dict()}, strict=False
            )

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, rows / 4, columns / 4)."""
        features = functional.relu6(self._bn0(self._conv_stem(self.scale(images))))
        found = []
        for number, block in enumerate(self._blocks):
            features = block(features)
            if number in self.taps.values():
                found.append(features)
        total = self.lateral[-1](found[-1])
        for lateral, tap in zip(reversed(self.lateral[:-1]), reversed(found[:-1]), strict=True):
            total = functional.interpolate(
                total, size=tap.shape[2:], mode="bilinear", align_corners=False
            ) + lateral(tap)
        logits: Tensor = self.head(self.joined(total))
        return logits[:, 0]


class Offset(nn.Module):
    """An offset for each domain, so that how often its windows show mitoses is not learnt from its looks.

    It belongs to the lesson: a network answers about new laboratories without it.
    """

    def __init__(self, domains: int, gain: float = 10.0) -> None:
        super().__init__()
        self.value, self.gain = nn.Parameter(torch.zeros(domains)), gain

    def forward(self, logits: Tensor, domain: Tensor) -> Tensor:
        """Logits (n, rows, columns) of windows of these domains."""
        return logits + self.gain * self.value[domain][:, None, None]


# ---- students ----


def _normed(channels: int, filters: int, size: int, stride: int, dilation: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(channels, filters, size, stride, dilation=dilation, bias=False)
    return [conv, nn.BatchNorm2d(filters), nn.LeakyReLU(LEAKY_SLOPE)]


def _block(channels: int, filters: int) -> ResidualBlock:
    return ResidualBlock(channels, filters, LEAKY_SLOPE)


def coarse(a: int, b: int, c: int, d: int) -> nn.Sequential:
    """At 0.5 um/px; most layers work at 2 um. Sees 94 px."""
    return nn.Sequential(
        PixelScale(), nn.AvgPool2d(2), *_normed(3, a, 3, 2), _block(a, b), *_normed(b, c, 3, 2),
        _block(c, c), _block(c, d),
        *_normed(d, d, 1, 1), Subcells(d),
    )  # fmt: skip


def half(a: int, b: int, c: int, d: int) -> nn.Sequential:
    """At 0.5 um/px, layers at 1 um, the context 2 um apart. Sees 94 px."""
    return nn.Sequential(
        PixelScale(), nn.AvgPool2d(2), *_normed(3, a, 3, 1), *_normed(a, b, 3, 2),
        _block(b, b), _block(b, c), _block(c, d),
        *_normed(d, d, 3, 1, 2), *_normed(d, d, 3, 1, 2), nn.Conv2d(d, 2, 1),
    )  # fmt: skip


def packaged(family: Family, gamma: float) -> nn.Sequential:
    """A shape that the package trains and runs."""
    return build_network(NetworkSpec(family, gamma, "batch"))


def with_imagenet(student: nn.Sequential, weights: Mapping[str, Tensor]) -> nn.Sequential:
    """A `lite` student that begins with the published weights of EfficientNet-Lite0; others as they are."""
    blocks = [layer for layer in student if isinstance(layer, InvertedBlock)]
    if not blocks:
        return student
    student[1].load_state_dict(_under("_conv_stem.", weights))
    student[2].load_state_dict(_under("_bn0.", weights))
    for number, block in enumerate(blocks):
        block.load_state_dict(_under(f"_blocks.{number}.", weights))
    return student


def _under(prefix: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


STUDENTS: dict[str, Callable[[], nn.Sequential]] = {
    "lite": partial(packaged, "lite", 1.0),
    "residual": partial(packaged, "residual", 0.75),
    "residual-0.5": partial(packaged, "residual", 0.5),
    "half": partial(half, 32, 64, 96, 128),
    "swift-1.5": partial(packaged, "swift", 1.5),
    "swift-1": partial(packaged, "swift", 1.0),
    "swift-0.6": partial(packaged, "swift", 0.6),
    "coarse-large": partial(coarse, 48, 96, 160, 256),
    "coarse": partial(coarse, 32, 64, 96, 128),
    "coarse-small": partial(coarse, 24, 48, 64, 96),
    "coarse-tiny": partial(coarse, 16, 32, 48, 64),
}


def said(student: nn.Module, images: Tensor) -> Tensor:
    """Logits (n, rows, columns), as many as a detector gives that sees 97 px; the first means pixel 50."""
    rows, columns = ((side - RECEPTIVE_PX) // OUTPUT_STRIDE_PX + 1 for side in images.shape[2:])
    logits: Tensor = student(images)
    return (logits[:, 1] - logits[:, 0])[:, :rows, :columns].float()


def multiply_adds(network: nn.Module, side: int = 512) -> float:
    """Multiplications a pixel, layer by layer as they stand."""
    total = 0

    def count(layer: Any, _given: Any, out: Tensor) -> None:
        nonlocal total
        total += out[0, 0].numel() * layer.weight.numel()

    hooks = [
        layer.register_forward_hook(count) for layer in network.modules() if isinstance(layer, nn.Conv2d)
    ]
    with torch.no_grad():
        network.eval()(torch.zeros(1, 3, side, side))
    for hook in hooks:
        hook.remove()
    return total / side**2
