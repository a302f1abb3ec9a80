"""The paper's networks, and detectors of other blocks. Builders hold the numbers; modules get layers.

Images are float tensors (N, 3, H, W) in [0, 1]; outputs are logits (N, 2, h, w), class 1 is "yes". Every
convolution is valid: the first output of a patch of `PATCH_PX` is the patch's, and on a larger image each
output equals what the patch around it would give. What skips a block is cropped to what the block gives.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from metaphase.base.errors import ModelError
from metaphase.base.foreign import plugins
from metaphase.networks.cards import PATCH_PX, NetworkSpec

# ---- a detector of residual blocks ----

LOST_PX = 2
"""Pixels that two 3 x 3 convolutions take from each side."""


class ResidualBlock(nn.Module):
    """Two normalised convolutions beside a shortcut, which has weights where the width changes."""

    NORMALISED = (("first", "first_norm"), ("second", "second_norm"), ("shortcut", "shortcut_norm"))
    """Convolutions, and what normalises each."""

    def __init__(self, channels: int, filters: int, slope: float) -> None:
        super().__init__()
        self.shape = channels, filters, slope
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
        inner = functional.leaky_relu_(self.first_norm(self.first(features)), self.slope)
        middle = features[:, :, LOST_PX:-LOST_PX, LOST_PX:-LOST_PX]
        total = self.second_norm(self.second(inner)) + self.shortcut_norm(self.shortcut(middle))
        return functional.leaky_relu_(total, self.slope)


# ---- a detector of inverted blocks, as in EfficientNet-Lite ----


class InvertedBlock(nn.Module):
    """Widen, filter each channel by itself, narrow; beside a shortcut where the block changes no size.

    Submodules have the names of the published weights. What is seen is padded in teachers only.
    """

    NORMALISED = (("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2"))
    """Convolutions, and what normalises each."""

    def __init__(
        self, channels: int, inner: int, filters: int, size: int, stride: int, padding: int = 0
    ) -> None:
        super().__init__()
        self.shape = channels, inner, filters, size, stride
        self.has_shortcut = stride == 1 and channels == filters
        self.lost_px = size // 2 - padding if self.has_shortcut else 0
        """Taken from each side of the shortcut; 0 where there is none."""
        self._expand_conv: nn.Module = nn.Identity()
        self._bn0: nn.Module = nn.Identity()
        self.widened: nn.Module = nn.Identity()
        if inner != channels:
            self._expand_conv = nn.Conv2d(channels, inner, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(inner, EFFICIENT_EPSILON)
            self.widened = nn.ReLU6(inplace=True)
        self._depthwise_conv = nn.Conv2d(inner, inner, size, stride, padding, groups=inner, bias=False)
        self._bn1: nn.Module = nn.BatchNorm2d(inner, EFFICIENT_EPSILON)
        self.filtered = nn.ReLU6(inplace=True)
        self._project_conv = nn.Conv2d(inner, filters, 1, bias=False)
        self._bn2: nn.Module = nn.BatchNorm2d(filters, EFFICIENT_EPSILON)

    def steps(self) -> list[nn.Module]:
        """What is done one after the other, beside the shortcut."""
        return [step for step in self.children() if not isinstance(step, nn.Identity)]

    def forward(self, features: Tensor) -> Tensor:
        """Features with `size - 1` rows and columns less, before the stride."""
        inner = features
        for step in self.steps():
            inner = step(inner)
        lost = slice(self.lost_px, -self.lost_px or None)
        return inner + features[:, :, lost, lost] if self.has_shortcut else inner


def folded_block(block: ResidualBlock | InvertedBlock) -> nn.Module:
    """The same block with its normalisation inside its convolutions."""
    folded = type(block)(*block.shape)
    for conv, norm in block.NORMALISED:
        old, normed = getattr(block, conv), getattr(block, norm)
        if isinstance(old, nn.Conv2d) and isinstance(normed, nn.BatchNorm2d):
            old = torch.nn.utils.fuse_conv_bn_eval(old, normed)
        setattr(folded, conv, old)
        setattr(folded, norm, nn.Identity())
    return folded.eval()


# ---- the networks. Builders hold the numbers ----


PIXEL_CENTRE, PIXEL_SPREAD = 0.5, 0.25
"""Images are brought to about zero mean and unit spread as the first step."""
LEAKY_SLOPE = 0.01
EFFICIENT_EPSILON = 1e-3
"""Of batch normalisation in EfficientNet."""
DROPOUT = 0.5


DETECTOR_LAYERS = (
    (32, 3, 1),
    (32, 3, 2),
    (64, 3, 1),
    (64, 3, 2),
    (128, 3, 1),
    (128, 3, 1),
    (256, 3, 1),
    (256, 3, 1),
    (512, 14, 1),
)
"""The paper's architecture table: filters, size and stride."""
RESIDUAL_FILTERS = (32, 64, 128, 256)
RESIDUAL_WIDE, RESIDUAL_WIDE_SIZE = 256, 9
LITE_STEM, LITE_HEAD = 32, 192
LITE_TRIM = (-2, -1, -2, -1)
"""What the stem's features lose at each side: a cell sees 91 px, and its outputs lie in their middle."""


LITE_BLOCKS = (
    (1, 16, 3, 1),
    (6, 24, 3, 2),
    (6, 24, 3, 1),
    (6, 40, 5, 1),
    (6, 40, 5, 1),
    (6, 80, 3, 2),
    (6, 80, 3, 1),
    (6, 80, 3, 1),
)
"""The first eight of EfficientNet-Lite0: widening, filters, size and stride. The fourth has a stride of 2
there, so that what follows sees more."""
CLASSIFIER_FILTERS = (64, 128, 256, 512, 1024)
CLASSIFIER_DENSE = 2048


class PixelScale(nn.Module):
    """[0, 1] to about zero mean and unit spread."""

    def forward(self, images: Tensor) -> Tensor:
        """Shift and scale the input by stored constants."""
        return (images - PIXEL_CENTRE) / PIXEL_SPREAD


class WideConv2d(nn.Conv2d):
    """A convolution whose filters may be as large as its input, where it is one matrix product.

    Libraries treat 14 x 14 filters as an odd convolution: on patches, training the whole network is 2.5 times
    as fast on an H200, and this layer alone 5 to 10 times on a CPU.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 -- the name that nn.Conv2d has
        """One output where the input is as large as the filters, else the usual convolution."""
        if tuple(input.shape[2:]) != tuple(self.kernel_size):
            return super().forward(input)
        pixels = input.permute(0, 2, 3, 1).flatten(1)
        filters = self.weight.permute(0, 2, 3, 1).flatten(1)
        return functional.linear(pixels, filters, self.bias)[:, :, None, None]


class Subcells(nn.Module):
    """A head whose cells of 8 px answer four times, once for each output in them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.answer = nn.Conv2d(channels, 8, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Logits (n, 2, 2 rows, 2 columns)."""
        return functional.pixel_shuffle(self.answer(features), 2)


def build_network(spec: NetworkSpec) -> nn.Sequential:
    """A freshly initialised network; one of another package need not be a sequence of layers."""
    if spec.family in _BUILDERS:
        network = _BUILDERS[spec.family](spec)
        network.apply(_initialise)
        return network
    added = plugins("metaphase.networks")
    if spec.family not in added:
        raise ModelError(
            f"the network {spec.family!r} cannot be built here",
            next_step="install the package that defines it; your own must be defined in this program",
        )
    built: nn.Sequential = added[spec.family](spec)
    return built


def build_detector(spec: NetworkSpec) -> nn.Sequential:
    """CNN3, CNN4 and CNN5: strided convolutions instead of pooling, output stride 4."""
    layers: list[nn.Module] = [PixelScale()]
    channels = 3
    for full, size, stride in DETECTOR_LAYERS:
        filters = _width(spec, full)
        layers += _activated(spec, channels, filters, size, stride)
        channels = filters
    return nn.Sequential(*layers, nn.Dropout(DROPOUT), nn.Conv2d(channels, 2, 1))


def build_residual(spec: NetworkSpec) -> nn.Sequential:
    """A detector of residual blocks, with the output stride and receptive field of the paper's."""
    first, second, third, fourth = (_width(spec, filters) for filters in RESIDUAL_FILTERS)
    wide = _width(spec, RESIDUAL_WIDE)
    return nn.Sequential(
        PixelScale(),
        *_activated(spec, 3, first, 3, 1),
        *_activated(spec, first, second, 3, 2),
        ResidualBlock(second, second, LEAKY_SLOPE),
        *_activated(spec, second, third, 3, 2),
        ResidualBlock(third, third, LEAKY_SLOPE),
        ResidualBlock(third, fourth, LEAKY_SLOPE),
        ResidualBlock(fourth, fourth, LEAKY_SLOPE),
        *_activated(spec, fourth, third, 1, 1),
        *_activated(spec, third, wide, RESIDUAL_WIDE_SIZE, 1),
        nn.Dropout(DROPOUT),
        nn.Conv2d(wide, 2, 1),
    )


def build_lite(spec: NetworkSpec) -> nn.Sequential:
    """The beginning of EfficientNet-Lite0, whose published weights fit, on cells of 2 um."""
    channels = _width(spec, LITE_STEM)
    stem = [nn.Conv2d(3, channels, 3, 2, bias=False), nn.BatchNorm2d(channels, EFFICIENT_EPSILON)]
    blocks = []
    for widen, full, size, stride in LITE_BLOCKS:
        filters = _width(spec, full)
        blocks.append(InvertedBlock(channels, widen * channels, filters, size, stride))
        channels = filters
    head = _width(spec, LITE_HEAD)
    return nn.Sequential(
        PixelScale(),
        *stem,
        nn.ReLU6(inplace=True),
        nn.ZeroPad2d(LITE_TRIM),
        *blocks,
        *_activated(spec, channels, head, 1, 1),
        Subcells(head),
    )


def build_classifier(spec: NetworkSpec) -> nn.Sequential:
    """CNN1 and CNN2: five pairs of convolution and max-pooling, then two dense layers (1 x 1 here)."""
    layers: list[nn.Module] = [PixelScale()]
    channels = 3
    for filters in CLASSIFIER_FILTERS:
        width = _width(spec, filters)
        layers += [*_convolution(spec, channels, width, 3, 1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    hidden = _width(spec, CLASSIFIER_DENSE)
    dense = [nn.Conv2d(channels, hidden, 1), nn.ReLU(), nn.Dropout(DROPOUT), nn.Conv2d(hidden, 2, 1)]
    return nn.Sequential(*layers, *dense)


_BUILDERS = {
    "detector": build_detector,
    "residual": build_residual,
    "lite": build_lite,
    "classifier": build_classifier,
}


def probability(logits: Tensor) -> Tensor:
    """Probability of class 1, (N, h, w), from logits (N, 2, h, w)."""
    return torch.softmax(logits.float(), dim=1)[:, 1]


def centre_crop(pixels: Tensor, side: int = PATCH_PX) -> Tensor:
    """uint8 (n, h, w, 3) to float (n, 3, side, side) in [0, 1], from the middle."""
    top, left = (pixels.shape[1] - side) // 2, (pixels.shape[2] - side) // 2
    crop = pixels[:, top : top + side, left : left + side].permute(0, 3, 1, 2)
    return crop.to(torch.float32, memory_format=torch.channels_last).div_(255)


def is_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no weight is NaN or infinite."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def patch_probability(logits: Tensor) -> Tensor:
    """Probability of class 1, (N,), from the logits of patches: their first output is theirs."""
    return probability(logits[:, :, 0, 0])


def parameter_count(network: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


def fold_normalisation(network: nn.Sequential) -> nn.Sequential:
    """The same function without batch normalisation and pixel scaling, for inference."""
    layers: list[nn.Module] = []
    for layer in network.eval():
        if isinstance(layer, nn.BatchNorm2d):
            layers[-1] = torch.nn.utils.fuse_conv_bn_eval(_convolution_of(layers), layer)
        elif isinstance(layer, ResidualBlock | InvertedBlock):
            layers.append(folded_block(layer))
        elif not isinstance(layer, PixelScale | nn.Dropout):
            layers.append(layer)
    first = _fold_pixel_scale(_convolution_of(layers[:1]))
    return nn.Sequential(first, *layers[1:]).eval()


def _convolution_of(layers: list[nn.Module]) -> nn.Conv2d:
    layer = layers[-1]
    if not isinstance(layer, nn.Conv2d):
        raise TypeError(f"expected a convolution, got {type(layer).__name__}")
    return layer


def _fold_pixel_scale(conv: nn.Conv2d) -> nn.Conv2d:
    folded = nn.Conv2d(conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride)  # type: ignore[arg-type]
    folded = folded.to(conv.weight.device, conv.weight.dtype)
    with torch.no_grad():
        folded.weight.copy_(conv.weight / PIXEL_SPREAD)
        bias = torch.zeros_like(conv.weight[:, 0, 0, 0]) if conv.bias is None else conv.bias
        folded.bias.copy_(bias - conv.weight.sum((1, 2, 3)) * PIXEL_CENTRE / PIXEL_SPREAD)  # type: ignore[union-attr]
    return folded


def _width(spec: NetworkSpec, filters: int) -> int:
    return max(1, int(spec.gamma * filters + 1e-9))


def _activated(spec: NetworkSpec, channels: int, filters: int, size: int, stride: int) -> list[nn.Module]:
    return [*_convolution(spec, channels, filters, size, stride), nn.LeakyReLU(LEAKY_SLOPE)]


def _convolution(spec: NetworkSpec, channels: int, filters: int, size: int, stride: int) -> list[nn.Module]:
    kind = nn.Conv2d if size <= 5 else WideConv2d
    if spec.normalisation == "none":
        return [kind(channels, filters, size, stride)]
    return [kind(channels, filters, size, stride, bias=False), nn.BatchNorm2d(filters)]


def _initialise(module: nn.Module) -> None:
    """He initialisation: keeps the signal's size through a deep network without normalisation."""
    if isinstance(module, nn.Conv2d) and not module.weight.is_meta:  # torch would load its compiler for that
        nn.init.kaiming_normal_(module.weight, a=LEAKY_SLOPE, nonlinearity="leaky_relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
