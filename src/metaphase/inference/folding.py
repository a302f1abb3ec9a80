"""A detector brought into the form that the engine computes: plain convolutions of 0..255 pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from metaphase.errors import ModelError
from metaphase.networks import fold_normalisation
from metaphase.networks.residual import ResidualBlock

PIXEL_MAX = 255.0
PIXEL_MIDDLE, PIXEL_STEP = 128.0, 1 / 64
"""Half precision takes pixels as (value - middle) x step, which is exact."""


@dataclass(frozen=True)
class FoldedConv:
    """A valid convolution: weight (filters, channels, size, size), bias (filters,)."""

    weight: Tensor
    bias: Tensor
    stride: int = 1


@dataclass(frozen=True)
class FoldedBlock:
    """Two convolutions beside a shortcut, which is a 1 x 1 convolution or nothing at all."""

    first: FoldedConv
    second: FoldedConv
    shortcut: FoldedConv | None = None


@dataclass(frozen=True)
class FoldedDetector:
    """Small convolutions and residual blocks, one wide convolution, and a weighted sum.

    Leaky ReLU follows each convolution, and in a block the sum. The head gives the logit of "yes" against
    "no": softmax over two classes is its sigmoid.
    """

    small: tuple[FoldedConv | FoldedBlock, ...]
    wide: FoldedConv
    head: Tensor
    head_bias: float
    slope: float

    @property
    def chain(self) -> tuple[FoldedConv, ...]:
        """The small convolutions of a detector without blocks, the paper's; else empty."""
        plain = tuple(layer for layer in self.small if isinstance(layer, FoldedConv))
        return plain if len(plain) == len(self.small) else ()


def fold_detector(network: nn.Sequential) -> FoldedDetector:
    """Fold normalisation, pixel scale and the two classes of a detector, in double precision.

    Raises `ModelError` for any other kind of network, and for weights that are not finite.
    """
    folded = fold_normalisation(network)
    *body, last = folded
    activations = [layer for layer in body if isinstance(layer, nn.LeakyReLU)]
    fits = isinstance(last, nn.Conv2d) and last.weight.shape[0] == 2 and last.kernel_size == (1, 1)
    if not fits or not activations:
        raise _other_kind()
    slope = float(activations[0].negative_slope)
    first, *middle, wide = _body(body, slope)
    if not isinstance(first, FoldedConv) or not isinstance(wide, FoldedConv):
        raise _other_kind()
    first = FoldedConv(first.weight / PIXEL_MAX, first.bias, first.stride)
    head = _folded(last)
    difference = head.weight[1, :, 0, 0] - head.weight[0, :, 0, 0]
    bias = float(head.bias[1] - head.bias[0])
    _check_finite(list(folded.parameters()))
    return FoldedDetector((first, *middle), wide, difference, bias, slope)


def centred(conv: FoldedConv) -> FoldedConv:
    """The first layer for centred pixels."""
    bias = conv.bias + conv.weight.sum((1, 2, 3)) * PIXEL_MIDDLE
    return FoldedConv(conv.weight / PIXEL_STEP, bias, conv.stride)


def _body(layers: list[nn.Module], slope: float) -> list[FoldedConv | FoldedBlock]:
    """Convolutions, each with its leaky ReLU, and residual blocks."""
    folded: list[FoldedConv | FoldedBlock] = []
    following = iter(layers)
    for layer in following:
        if isinstance(layer, ResidualBlock):
            folded.append(_folded_block(layer))
            activation_slope = layer.slope
        else:
            folded.append(_folded(layer))
            activation_slope = getattr(next(following, None), "negative_slope", math.nan)
        if activation_slope != slope:
            raise _other_kind()
    if len(folded) < 2:
        raise _other_kind()
    return folded


def _folded_block(block: ResidualBlock) -> FoldedBlock:
    plain = isinstance(block.shortcut, nn.Identity)
    shortcut = None if plain else _folded(block.shortcut)
    return FoldedBlock(_folded(block.first), _folded(block.second), shortcut)


def _folded(layer: nn.Module) -> FoldedConv:
    if not isinstance(layer, nn.Conv2d):
        raise _other_kind()
    weight = layer.weight.detach().double().cpu()
    bias = torch.zeros(len(weight), dtype=torch.float64) if layer.bias is None else layer.bias.detach()
    return FoldedConv(weight, bias.double().cpu(), layer.stride[0])


def _other_kind() -> ModelError:
    return ModelError(
        "the engine runs detectors, and this network is of another kind",
        next_step="use a model whose card says family 'detector' or 'residual'",
    )


def _check_finite(tensors: Sequence[Tensor]) -> None:
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
        raise ModelError("the weights hold NaN or infinity", next_step="train or fetch the model again")
