"""A detector brought into the form that the engine computes: plain convolutions of 0..255 pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from metaphase.errors import ModelError
from metaphase.networks import fold_normalisation

PIXEL_MAX = 255.0


@dataclass(frozen=True)
class FoldedConv:
    """A valid convolution: weight (filters, channels, size, size), bias (filters,)."""

    weight: Tensor
    bias: Tensor
    stride: int = 1


@dataclass(frozen=True)
class FoldedDetector:
    """Small convolutions, one wide one, and a weighted sum; leaky ReLU after each convolution.

    The head gives the logit of "yes" against "no": softmax over two classes is its sigmoid.
    """

    small: tuple[FoldedConv, ...]
    wide: FoldedConv
    head: Tensor
    head_bias: float
    slope: float


def fold_detector(network: nn.Sequential) -> FoldedDetector:
    """Fold normalisation, pixel scale and the two classes of a detector, in double precision.

    Raises `ModelError` for any other kind of network, and for weights that are not finite.
    """
    layers = list(fold_normalisation(network))
    *body, last = layers
    convolutions, activations = body[0::2], body[1::2]
    fits = isinstance(last, nn.Conv2d) and last.weight.shape[0] == 2 and last.kernel_size == (1, 1)
    if not fits or len(convolutions) < 2 or not all(isinstance(layer, nn.LeakyReLU) for layer in activations):
        raise ModelError(
            "the engine runs detectors, and this network is of another kind",
            next_step="use a model whose card says family 'detector'",
        )
    folded = [_folded(layer) for layer in convolutions]
    folded[0] = FoldedConv(folded[0].weight / PIXEL_MAX, folded[0].bias, folded[0].stride)
    head = _folded(last)
    difference = head.weight[1, :, 0, 0] - head.weight[0, :, 0, 0]
    bias = float(head.bias[1] - head.bias[0])
    slope = float(activations[0].negative_slope)  # type: ignore[arg-type]
    _check_finite([*(conv.weight for conv in folded), *(conv.bias for conv in folded), difference])
    return FoldedDetector(tuple(folded[:-1]), folded[-1], difference, bias, slope)


def _folded(layer: nn.Module) -> FoldedConv:
    if not isinstance(layer, nn.Conv2d):
        raise ModelError(
            f"the engine knows no {type(layer).__name__} inside a detector",
            next_step="use a model whose card says family 'detector'",
        )
    weight = layer.weight.detach().double().cpu()
    bias = torch.zeros(len(weight), dtype=torch.float64) if layer.bias is None else layer.bias.detach()
    return FoldedConv(weight, bias.double().cpu(), layer.stride[0])


def _check_finite(tensors: list[Tensor]) -> None:
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
        raise ModelError("the weights hold NaN or infinity", next_step="train or fetch the model again")
