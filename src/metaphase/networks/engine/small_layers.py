"""Small convolutions on the CPU as matrix products, on maps (rows, columns, channels) in float32."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as functional
from torch import Tensor

from metaphase.networks.architectures import LOST_PX
from metaphase.networks.engine.fourier import (
    WINOGRAD_IN,
    WINOGRAD_ONE,
    WINOGRAD_OUT,
    winograd_input,
    winograd_kernel,
    winograd_output,
)
from metaphase.networks.engine.layers import Features, FoldedConv, Scratch

BLOCKS_AT_ONCE = 400
"""Winograd blocks a product: enough rows for a fast product, few enough to stay in the cache."""
CHAIN_ROWS = 48
"""Rows that a chain of convolutions makes at once."""
JOINT_CHANNELS = 4
"""Up to this many channels, two neighbouring outputs share a patch."""


class PatchConv:
    """Gather the patch under each output, multiply by the kernel; a column of ones carries the bias.

    `joint` neighbouring outputs share one patch, which saves gathering where channels are few.
    """

    def __init__(self, conv: FoldedConv, slope: float, joint: int = 1) -> None:
        filters, channels, size, _ = conv.weight.shape
        self.size, self.stride, self.joint, self.slope, self.filters = (
            size,
            conv.stride,
            joint,
            slope,
            filters,
        )
        self.columns = size + (joint - 1) * conv.stride
        matrix = torch.zeros(size, self.columns, channels, joint, filters, dtype=torch.float64)
        for output in range(joint):
            first = output * conv.stride
            matrix[:, first : first + size, :, output] = conv.weight.permute(2, 3, 1, 0)
        flat = matrix.reshape(size * self.columns * channels, joint * filters)
        self.matrix = torch.cat([flat, conv.bias.repeat(joint)[None]]).float()

    def out_size(self, size: int) -> int:
        """Outputs along a side of `size` inputs."""
        return (size - self.size) // self.stride + 1

    def room(self, size: int) -> int:
        """Inputs that are read along a side of which `size` are meant."""
        return size

    def __call__(self, image: Tensor, scratch: Scratch) -> Tensor:
        """Outputs (rows, columns, filters) of a float32 image (rows, columns, channels)."""
        rows, columns = (self.out_size(side) for side in image.shape[:2])
        groups = -(-columns // self.joint)
        missing = (groups * self.joint - 1) * self.stride + self.size - image.shape[1]
        if missing > 0:
            image = functional.pad(image, (0, 0, 0, missing))
        row, column, _ = image.stride()
        run, inputs = self.columns * image.shape[2], len(self.matrix) - 1
        view = image.as_strided(
            (rows, groups, self.size, run),
            (self.stride * row, self.stride * self.joint * column, row, 1),
            image.storage_offset(),
        )
        patches = scratch.take("patches", rows * groups, inputs + 1)
        patches[:, inputs] = 1
        patches[:, :inputs].view(rows, groups, self.size, run).copy_(view)
        out = torch.empty(rows, groups * self.joint, self.filters)
        torch.mm(patches, self.matrix, out=out.view(rows * groups, -1))
        return functional.leaky_relu_(out, self.slope)[:, :columns]


class PatchChain:
    """Convolutions one after the other, band by band, so that the maps between them stay in the cache."""

    def __init__(self, convs: Sequence[FoldedConv], slope: float) -> None:
        self.convs = [
            PatchConv(conv, slope, 2 if conv.weight.shape[1] <= JOINT_CHANNELS else 1) for conv in convs
        ]
        self.filters = self.convs[-1].filters

    def out_size(self, size: int) -> int:
        """Outputs along a side of `size` inputs."""
        for conv in self.convs:
            size = conv.out_size(size)
        return size

    def room(self, size: int) -> int:
        """Inputs that are read along a side of which `size` are meant."""
        return size

    def bands(self, features: Features) -> list[range]:
        """Rows of outputs that are computed at once."""
        rows = self.out_size(features.height)
        return [range(first, min(rows, first + CHAIN_ROWS)) for first in range(0, rows, CHAIN_ROWS)]

    def compute(self, features: Features, out: Tensor, band: range, scratch: Scratch) -> None:
        """Fill the rows of `out` (rows, columns, filters) that belong to the band."""
        first, last = band.start, band.stop - 1
        for conv in reversed(self.convs):
            first, last = first * conv.stride, last * conv.stride + conv.size - 1
        values = features.data[first : last + 1, : features.width].float()
        for conv in self.convs:
            values = conv(values, scratch)
        out[band.start : band.stop, : values.shape[1]] = values


class WinogradConv:
    """A 3 x 3 convolution with 2.25 products an output instead of 9 (blocks of 4 x 4 outputs).

    The last one of a residual block adds, before its leaky ReLU, what enters the block, as it is or through
    the 1 x 1 convolution `shortcut`.
    """

    def __init__(self, conv: FoldedConv, slope: float, shortcut: FoldedConv | None = None) -> None:
        self.kernel = torch.from_numpy(winograd_kernel(conv.weight.numpy())).float().contiguous()
        self.bias, self.slope = conv.bias.float(), slope
        self.shortcut: Tensor | None = None
        if shortcut is not None:
            self.shortcut = shortcut.weight[:, :, 0, 0].T.float().contiguous()
            self.bias = (conv.bias + shortcut.bias).float()
        self.filters = self.kernel.shape[2]
        self.forward = torch.from_numpy(winograd_input()).float()
        self.backward = torch.from_numpy(winograd_output()).float()

    @staticmethod
    def blocks(size: int) -> int:
        """Blocks along a side of `size` inputs."""
        return -(-(size - 2) // WINOGRAD_OUT)

    def out_size(self, size: int) -> int:
        """Outputs along a side of `size` inputs."""
        return size - 2

    def room(self, size: int) -> int:
        """Inputs that whole blocks read along a side of which `size` are meant."""
        return self.blocks(size) * WINOGRAD_OUT + 2

    def bands(self, features: Features) -> list[range]:
        """Rows of blocks, or maps, that are computed at once."""
        rows, each = self.blocks(features.height), self.blocks(features.width)
        if features.data.ndim == 4:
            rows, each = len(features.data), rows * each
        step = max(1, BLOCKS_AT_ONCE // each)
        return [range(first, min(rows, first + step)) for first in range(0, rows, step)]

    def compute(
        self, features: Features, out: Tensor, band: range, scratch: Scratch, beside: Features | None = None
    ) -> None:
        """Fill the rows of `out` (rows, columns, filters) that belong to the band of blocks, or of maps.

        `beside` is what enters the residual block that this layer ends.
        """
        grid = self.blocks(features.height), self.blocks(features.width)
        products = self._products(_blocks(features.data, band, grid, WINOGRAD_IN), scratch)
        target = _blocks(out, band, grid, WINOGRAD_OUT)
        values = scratch.take("blocks", WINOGRAD_OUT**2, products.shape[1] * self.filters)
        torch.mm(self.backward, products.view(WINOGRAD_IN**2, -1), out=values)
        if beside is not None:
            self._add(values, _blocks(beside.data, band, grid, WINOGRAD_OUT, LOST_PX), scratch)
        functional.leaky_relu_(values, self.slope)
        target.copy_(values.view(target.shape))

    def _products(self, view: Tensor, scratch: Scratch) -> Tensor:
        """Transformed outputs (places of a block, blocks, filters), bias included."""
        channels, places = view.shape[-1], WINOGRAD_IN**2
        count = math.prod(view.shape[2:-1])
        pixels = scratch.take("blocks", places, count * channels)
        pixels.view(view.shape).copy_(view)
        transformed = torch.mm(
            self.forward, pixels, out=scratch.take("transformed", places, count * channels)
        )
        products = scratch.take("products", places, count, self.filters)
        torch.bmm(transformed.view(places, count, channels), self.kernel, out=products)
        products[WINOGRAD_ONE * WINOGRAD_IN + WINOGRAD_ONE] += self.bias
        return products

    def _add(self, values: Tensor, beside: Tensor, scratch: Scratch) -> None:
        """Add to the values of blocks what goes beside them."""
        if self.shortcut is None:
            values.view(beside.shape).add_(beside)
            return
        pixels = scratch.take("transformed", *beside.shape)
        pixels.copy_(beside)
        values.view(-1, self.filters).addmm_(pixels.flatten(0, -2), self.shortcut)


def _blocks(data: Tensor, band: range, grid: tuple[int, int], side: int, lost: int = 0) -> Tensor:
    """Blocks of `side` px under those of outputs, `lost` px further: (y, x, rows, columns, channels).

    Of one map, the band counts its rows of blocks; of several, it counts maps: (y, x, maps, rows, ...).
    """
    row, column = data.stride(-3), data.stride(-2)
    steps: tuple[int, ...] = (WINOGRAD_OUT * row, WINOGRAD_OUT * column)
    shape: tuple[int, ...] = (len(band), grid[1])
    if data.ndim == 4:
        steps, shape = (data.stride(0), *steps), (len(band), *grid)
    return data.as_strided(
        (side, side, *shape, data.shape[-1]),
        (row, column, *steps, 1),
        band.start * steps[0] + lost * (row + column),
    )
