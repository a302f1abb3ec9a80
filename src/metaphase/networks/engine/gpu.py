"""A detector on a GPU: half-precision products with sums in float32, batched over tiles and blocks.

The wide layer is in Fourier's form over blocks of outputs. Transforms are dense matrices, channels are
padded to what tensor cores take, and one padded channel is constantly 1 and carries the biases. Numbers are
float16 pairs (value, remainder) in two planes, or one plane where speed goes before exactness.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor

from metaphase.base.arrays import Floats, Floats32
from metaphase.networks.engine import launching
from metaphase.networks.engine.layers import (
    PIXEL_MIDDLE,
    PIXEL_STEP,
    FoldedConv,
    FoldedDetector,
    centred,
    padded,
    power_of_2,
)

CHANNEL_MULTIPLE = 8
FILTER_MULTIPLE = 64
FIRST_WIDTHS = (32, 64)
"""Filters (with the constant one) that the fused kernel of the first two layers takes."""


class GpuDetector:
    """One network, ready to compute logits of batches of tiles."""

    def __init__(self, detector: FoldedDetector, device: torch.device, outputs: int, planes: int) -> None:
        self._small = TritonLayers(detector, device, planes)
        self._wide = WideLayer(detector, device, outputs, planes)

    def logits(self, image: Tensor) -> Tensor:
        """Logits (tiles, rows, columns) of uint8 pixels (tiles, rows, columns, 3) on the device."""
        return self._wide(self._small(image))


class TritonLayers:
    """All 3 x 3 convolutions: uint8 pixels to features (planes, tiles, rows, columns, channels)."""

    def __init__(self, detector: FoldedDetector, device: torch.device, planes: int) -> None:
        first, second, *rest = detector.chain
        self.first, self.second = (
            split(weight, planes).to(device) for weight in _fused_first(centred(first), second)
        )
        self.filters = padded(second.weight.shape[0] + 1, CHANNEL_MULTIPLE)
        self.rest = [(split(_as_rows(_with_constant(conv)), planes).to(device), conv.stride) for conv in rest]
        self.slope = detector.slope

    def __call__(self, image: Tensor) -> Tensor:
        """Features of uint8 tiles on the device."""
        values = launching.first_layers(
            image, self.first, self.second, self.filters, PIXEL_STEP, PIXEL_MIDDLE, self.slope
        )
        for weight, stride in self.rest:
            values = launching.convolution(values, weight, stride, self.slope)
        return values


class FourierBlocks:
    """The transform of blocks of `outputs` x `outputs` correlation results with a kernel of `kernel` pixels.

    A block reads `size` = `outputs` + `kernel` - 1 pixels a side, an odd number: positions and frequencies
    come in pairs +-j around one middle. Positions count from the middle of the block (inputs) and from the
    middle of the outputs; the kernel's spectrum holds the difference. Frequencies are ordered 0, 1, .., half,
    -1, .., -half; those of x below 0 follow from the rest.
    """

    def __init__(self, outputs: int, kernel: int) -> None:
        if (outputs + kernel) % 2 or outputs % 2:
            raise ValueError(f"{outputs} outputs of a kernel of {kernel}: both must be even")
        self.outputs, self.kernel = outputs, kernel
        self.size = outputs + kernel - 1
        self.half = self.size // 2
        self.step = 2 * np.pi / self.size
        self.order = np.concatenate([np.arange(self.half + 1), -np.arange(1, self.half + 1)])

    def kernel_spectra(self, weight: Floats) -> Iterator[tuple[Floats32, Floats32]]:
        """Real and imaginary part (size, channels, filters) for each frequency of x from 0 on.

        `weight` is (filters, channels, y, x).
        """
        filters, channels = weight.shape[:2]
        offsets = np.arange(self.kernel) + self.outputs // 2 - self.half
        along_y = self.step * np.outer(self.order, offsets)
        cosine, sine = np.cos(along_y).astype(np.float32), np.sin(along_y).astype(np.float32)
        taps = np.ascontiguousarray(weight.transpose(3, 2, 1, 0), np.float32).reshape(self.kernel, -1)
        for frequency in range(self.half + 1):
            along_x = self.step * frequency * offsets
            parts = np.stack([np.cos(along_x), np.sin(along_x)]).astype(np.float32) @ taps
            real, imaginary = parts.reshape(2, self.kernel, -1)
            shape = (self.size, channels, filters)
            yield (
                (cosine @ real - sine @ imaginary).reshape(shape),
                (cosine @ imaginary + sine @ real).reshape(shape),
            )


class WideLayer:
    """The wide convolution and the head: features to logits, in batches of blocks."""

    def __init__(self, detector: FoldedDetector, device: torch.device, outputs: int, planes: int) -> None:
        weight = detector.wide.weight.numpy()
        self.kernel, self.plan = weight.shape[2], FourierBlocks(outputs, weight.shape[2])
        self.device, self.planes = device, planes
        self.slope, self.head_bias = detector.slope, detector.head_bias
        self.channels = padded(weight.shape[1] + 1, CHANNEL_MULTIPLE)
        self.filters = padded(weight.shape[0], FILTER_MULTIPLE)
        extra = self.filters - weight.shape[0]
        self.head = functional.pad(detector.head, (0, extra)).to(device, torch.float32)
        self.bias = functional.pad(detector.wide.bias, (0, extra)).to(device, torch.float32)
        self.padded, self.frequencies = power_of_2(self.plan.size), self.plan.half + 1
        matrices = dense_matrices(self.plan, self.padded, power_of_2(outputs))
        self.into_x, self.into_y, self.out_of_y, self.out_of_x = (
            split(torch.from_numpy(matrix), planes).to(device) for matrix in matrices
        )
        self.weight = self._spectrum(weight)

    def _spectrum(self, weight: Floats) -> Tensor:
        """(planes, frequencies of x, of y, 2, channels, filters)."""
        shape = (self.planes, self.frequencies, self.plan.size, 2, self.channels, self.filters)
        out = torch.zeros(shape, dtype=torch.float16, device=self.device)
        for frequency, parts in enumerate(self.plan.kernel_spectra(weight)):
            for part, values in enumerate(parts):
                target = out[:, frequency, :, part, : weight.shape[1], : weight.shape[0]]
                target.copy_(split(torch.from_numpy(values).to(self.device), self.planes))
        return out

    def __call__(self, features: Tensor) -> Tensor:
        """Logits (tiles, rows, columns) of features (planes, tiles, rows, columns, channels)."""
        outputs, lost = self.plan.outputs, self.kernel - 1
        tiles, height, width = features.shape[1], features.shape[2] - lost, features.shape[3] - lost
        rows, columns = -(-height // outputs), -(-width // outputs)
        missing = rows * outputs - height, columns * outputs - width
        if any(missing):
            features = functional.pad(features, (0, 0, 0, missing[1], 0, missing[0]))
        logits = self._blocks(features, (rows, columns))
        logits = logits.view(tiles, rows, columns, outputs, outputs).transpose(2, 3)
        return logits.reshape(tiles, rows * outputs, columns * outputs)[:, :height, :width]

    def _blocks(self, features: Tensor, grid: tuple[int, int]) -> Tensor:
        """Logits (blocks, rows, columns): into x, into y, products, out of y, out of x and head."""
        blocks = features.shape[1] * grid[0] * grid[1]
        size, padded, outputs = self.plan.size, self.padded, self.plan.outputs
        by_x = self._empty(padded, blocks, self.channels)
        by_x[:, :, :, size:] = 0
        launching.forward_x(features, self.into_x, by_x, outputs, size, grid)
        spectrum = self._empty(padded, blocks, self.channels)
        launching.along_y(_flat(by_x), self.into_y, _flat(spectrum))
        products = self._empty(padded, blocks, self.filters)
        products[:, :, :, size:] = 0
        launching.complex_products(spectrum, self.weight, products, size)
        rows = self._empty(outputs, blocks, self.filters)
        launching.along_y(_flat(products), self.out_of_y, _flat(rows))
        return launching.finish(rows, self.out_of_x, self.bias, self.head, self.head_bias, self.slope)

    def _empty(self, rows: int, blocks: int, channels: int) -> Tensor:
        shape = (self.planes, self.frequencies, 2, rows, blocks, channels)
        return torch.empty(shape, dtype=torch.float16, device=self.device)


def split(values: Tensor, planes: int) -> Tensor:
    """(planes, ...): values rounded to half precision, and with two planes what the rounding lost."""
    rounded = values.half()
    if planes == 1:
        return rounded[None]
    return torch.stack([rounded, (values - rounded.to(values.dtype)).half()])


def dense_matrices(
    plan: FourierBlocks, padded: int, padded_outputs: int
) -> tuple[Floats, Floats, Floats, Floats]:
    """Transforms into x, into y, out of y and out of x with real and imaginary parts as rows and columns.

    Each has a factor of 1 / sqrt(size), so that values keep their size from stage to stage.
    """
    size, half, outputs = plan.size, plan.half, plan.outputs
    norm = 1 / np.sqrt(size)
    inputs, results = np.arange(size) - half, np.arange(outputs) - outputs // 2
    into_x = np.zeros((half + 1, 2, padded))
    angle = plan.step * np.outer(np.arange(half + 1), inputs)
    into_x[:, 0, :size], into_x[:, 1, :size] = np.cos(angle) * norm, -np.sin(angle) * norm
    into_y = np.zeros((2, padded, 2, padded))
    into_y[:, :size, :, :size] = _complex_matrix(-plan.step * np.outer(plan.order, inputs)) * norm
    out_of_y = np.zeros((2, outputs, 2, padded))
    out_of_y[..., :size] = _complex_matrix(plan.step * np.outer(results, plan.order)) * norm
    out_of_x = np.zeros((padded_outputs, half + 1, 2))
    angle = plan.step * np.outer(results, np.arange(half + 1))
    twice = np.where(np.arange(half + 1) == 0, 1, 2) * norm
    out_of_x[:outputs, :, 0], out_of_x[:outputs, :, 1] = np.cos(angle) * twice, -np.sin(angle) * twice
    return (
        into_x.reshape(2 * half + 2, padded),
        into_y.reshape(2 * padded, 2 * padded),
        out_of_y.reshape(2 * outputs, 2 * padded),
        out_of_x.reshape(padded_outputs, 2 * half + 2),
    )


def _complex_matrix(angle: Floats) -> Floats:
    """exp(i angle) as (part, row, part, column)."""
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.stack([np.stack([cosine, -sine], 1), np.stack([sine, cosine], 1)])


def _with_constant(conv: FoldedConv) -> Tensor:
    """Weights padded with a channel that stays 1 and brings the bias."""
    filters, channels = conv.weight.shape[:2]
    shape = [padded(count + 1, CHANNEL_MULTIPLE) for count in (filters, channels)]
    weight = torch.zeros(*shape, 3, 3, dtype=torch.float64)
    weight[:filters, :channels] = conv.weight
    weight[:filters, channels, 1, 1] = conv.bias
    weight[filters, channels, 1, 1] = 1
    return weight


def _as_rows(weight: Tensor) -> Tensor:
    """(3, 3 channels, filters): for each row of the kernel, what lies side by side in memory."""
    return weight.permute(2, 3, 1, 0).flatten(1, 2).contiguous()


def _fused_first(first: FoldedConv, second: FoldedConv) -> tuple[Tensor, Tensor]:
    """The first two layers for `launching.first_layers`, each with the constant one after its filters."""
    filters1, filters2 = first.weight.shape[0], second.weight.shape[0]
    width = next(width for width in FIRST_WIDTHS if width > max(filters1, filters2))
    weight1 = torch.zeros(32, width, dtype=torch.float64)
    weight1[:27, :filters1] = first.weight.permute(2, 3, 1, 0).reshape(27, filters1)
    weight1[27, :filters1], weight1[27, filters1] = first.bias, 1
    weight2 = torch.zeros(9, width, width, dtype=torch.float64)
    weight2[:, :filters1, :filters2] = second.weight.permute(2, 3, 1, 0).flatten(0, 1)
    weight2[4, filters1, :filters2], weight2[4, filters1, filters2] = second.bias, 1
    return weight1, weight2


def _flat(values: Tensor) -> Tensor:
    """(planes, x, parts and rows, blocks and channels)."""
    return values.flatten(2, 3).flatten(3, 4)
