"""A detector by PyTorch's own convolutions, in a precision of choice: for GPUs and networks with blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as functional
from torch import Tensor

from metaphase.inference.folding import (
    PIXEL_MIDDLE,
    PIXEL_STEP,
    FoldedBlock,
    FoldedConv,
    FoldedDetector,
    centred,
)
from metaphase.networks.residual import LOST_PX


class PlainDetector:
    """One network, ready to compute logits of batches of tiles.

    `dtype` is that of weights and features; float32 products are rounded to TensorFloat-32 on a GPU.
    """

    def __init__(self, detector: FoldedDetector, device: torch.device, dtype: torch.dtype) -> None:
        first, *rest = detector.small
        if not isinstance(first, FoldedConv):
            raise TypeError("a detector begins with a convolution")
        layers = [centred(first), *rest, detector.wide]
        self._dtype = dtype
        self._layers = SmallLayers(layers, detector.slope, device, dtype)
        self._head, self._head_bias = detector.head.to(device, torch.float32), detector.head_bias

    def logits(self, image: Tensor) -> Tensor:
        """Logits (tiles, rows, columns) of uint8 pixels (tiles, rows, columns, 3) on the device."""
        with tensor_float(True):
            pixels = (image.permute(0, 3, 1, 2).to(self._dtype) - PIXEL_MIDDLE) * PIXEL_STEP
            values = self._layers(pixels.contiguous(memory_format=torch.channels_last))
            return torch.cat([self._sum(tile) for tile in values])

    def _sum(self, values: Tensor) -> Tensor:
        """Logits (1, rows, columns) of the last features (filters, rows, columns) of one tile, in float32."""
        with tensor_float(False):
            return (values.float().permute(1, 2, 0) @ self._head + self._head_bias)[None]


class SmallLayers:
    """Convolutions and residual blocks with their leaky ReLU, on (tiles, channels, rows, columns)."""

    def __init__(
        self,
        layers: Sequence[FoldedConv | FoldedBlock],
        slope: float,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._layers = [_moved(layer, device, dtype) for layer in layers]
        self._slope = slope

    def __call__(self, values: Tensor) -> Tensor:
        """Features after the last layer."""
        for layer in self._layers:
            values = (
                self._block(values, layer) if isinstance(layer, FoldedBlock) else _convolved(values, layer)
            )
            functional.leaky_relu_(values, self._slope)
        return values

    def _block(self, values: Tensor, block: FoldedBlock) -> Tensor:
        """The sum of a residual block, still without its leaky ReLU."""
        inner = functional.leaky_relu_(_convolved(values, block.first), self._slope)
        middle = values[:, :, LOST_PX:-LOST_PX, LOST_PX:-LOST_PX]
        if block.shortcut is not None:
            middle = _convolved(middle, block.shortcut)
        return _convolved(inner, block.second).add_(middle)


def _convolved(values: Tensor, conv: FoldedConv) -> Tensor:
    return functional.conv2d(values, conv.weight, conv.bias, conv.stride)


def _moved(
    layer: FoldedConv | FoldedBlock, device: torch.device, dtype: torch.dtype
) -> FoldedConv | FoldedBlock:
    """The same layer on a device, in another precision."""
    if isinstance(layer, FoldedConv):
        return _moved_conv(layer, device, dtype)
    shortcut = None if layer.shortcut is None else _moved_conv(layer.shortcut, device, dtype)
    first, second = (_moved_conv(conv, device, dtype) for conv in (layer.first, layer.second))
    return FoldedBlock(first, second, shortcut)


def _moved_conv(conv: FoldedConv, device: torch.device, dtype: torch.dtype) -> FoldedConv:
    weight = conv.weight.to(device, dtype).contiguous(memory_format=torch.channels_last)
    return FoldedConv(weight, conv.bias.to(device, dtype), conv.stride)


@contextmanager
def tensor_float(allowed: bool) -> Iterator[None]:
    """Whether products of float32 numbers on a GPU may be rounded to TensorFloat-32."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
