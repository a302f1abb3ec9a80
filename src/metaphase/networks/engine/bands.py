"""Networks of cells on a CPU, in bands of rows: what is wide between two layers stays in the cache."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import pairwise

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from metaphase.networks.architectures import LOST_PX, InvertedBlock, ResidualBlock
from metaphase.networks.cards import OUTPUT_STRIDE_PX
from metaphase.networks.engine.cpu import Workers
from metaphase.networks.engine.layers import CellDetector, FoldedBlock, FoldedConv, Scratch

BAND_BYTES = 10_000_000
"""Of the widest map inside a band."""
PACKED_SIZES = 8
"""Sizes of maps for which a convolution keeps its weights in order."""

# ---- layers that know which rows they need ----


class JoinedConv:
    """A valid convolution and its activation in one go, where oneDNN is there: a quarter less time."""

    def __init__(
        self, conv: FoldedConv, after: nn.Module | None = None, groups: int = 1, joined: bool | None = None
    ) -> None:
        self.filters, _, self.size, _ = conv.weight.shape
        self.weight, self.bias, self.stride, self.groups = conv.weight, conv.bias, conv.stride, groups
        self.after = after if isinstance(after, nn.ReLU6 | nn.LeakyReLU) else None
        self.joined = joins_activations() if joined is None else joined
        self._packed: dict[torch.Size, Tensor] = {}

    def out_size(self, size: int) -> int:
        """Outputs along a side of `size` inputs."""
        return (size - self.size) // self.stride + 1

    def needed(self, rows: range) -> range:
        """Inputs under some outputs."""
        return range(rows.start * self.stride, (rows.stop - 1) * self.stride + self.size)

    def __call__(self, values: Tensor) -> Tensor:
        """Outputs of (tiles, channels, rows, columns)."""
        if not self.joined:
            out = functional.conv2d(values, self.weight, self.bias, self.stride, groups=self.groups)
            return out if self.after is None else self.after(out)
        sides = [0, 0], [self.stride] * 2, [1, 1], self.groups
        packed = self._packed.get(values.shape[2:])
        if packed is None:
            packed = self._pack(values, *sides)
        result: Tensor = torch.ops.mkldnn._convolution_pointwise(
            values, packed, self.bias, *sides, *_named(self.after), ""
        )
        return result

    def _pack(self, values: Tensor, *sides: list[int] | int) -> Tensor:
        """Weights in the order that oneDNN wants for maps of such a size; of another one it is very slow."""
        if len(self._packed) >= PACKED_SIZES:
            self._packed.clear()
        packed: Tensor = torch.ops.mkldnn._reorder_convolution_weight(self.weight, *sides, list(values.shape))
        self._packed[values.shape[2:]] = packed
        return packed


def _named(after: nn.Module | None) -> tuple[str, list[float]]:
    """An activation as oneDNN knows it."""
    if isinstance(after, nn.ReLU6):
        return "hardtanh", [0.0, 6.0]
    return ("leaky_relu", [after.negative_slope]) if isinstance(after, nn.LeakyReLU) else ("none", [])


class JoinedBlock:
    """Convolutions one after the other, beside a shortcut where `lost_px` are cropped from its sides."""

    def __init__(
        self,
        convs: Sequence[JoinedConv],
        lost_px: int,
        shortcut: JoinedConv | None = None,
        after: nn.LeakyReLU | None = None,
    ) -> None:
        self.convs, self.lost_px, self.shortcut, self.after = convs, lost_px, shortcut, after

    def __call__(self, values: Tensor) -> Tensor:
        """Outputs of (tiles, channels, rows, columns)."""
        inner = values
        for conv in self.convs:
            inner = conv(inner)
        if not self.lost_px:
            return inner
        middle = slice(self.lost_px, -self.lost_px)
        beside = values[:, :, middle, middle]
        total = inner.add_(beside if self.shortcut is None else self.shortcut(beside))
        return total if self.after is None else functional.leaky_relu_(total, self.after.negative_slope)


class Trim:
    """Takes features from each side: which rows are computed decides it, and nothing is left to do."""

    def __init__(self, before: int, behind: int) -> None:
        self.before, self.behind = before, behind

    def out_size(self, size: int) -> int:
        """What is left of a side."""
        return size - self.before - self.behind

    def needed(self, rows: range) -> range:
        """The same ones, counted before the trim."""
        return range(rows.start + self.before, rows.stop + self.before)

    def __call__(self, values: Tensor) -> Tensor:
        """As they are."""
        return values


Part = JoinedConv | JoinedBlock | Trim


def parts_of(layers: Sequence[nn.Module]) -> Iterator[Part]:
    """A network's layers, activations joined to the convolutions before them."""
    for layer, after in zip(layers, [*layers[1:], None], strict=True):
        if isinstance(layer, nn.Conv2d):
            yield JoinedConv(_as_folded(layer), after, layer.groups)
        elif isinstance(layer, InvertedBlock):
            inner = [part for part in parts_of(layer.steps()) if isinstance(part, JoinedConv)]
            yield JoinedBlock(inner, layer.lost_px)
        elif isinstance(layer, ResidualBlock):
            yield _residual(layer)
        elif isinstance(layer, nn.ZeroPad2d):
            yield Trim(-layer.padding[0], -layer.padding[1])
        elif not isinstance(layer, nn.ReLU6 | nn.LeakyReLU):
            raise TypeError(f"{type(layer).__name__} cannot be computed in bands")


def _residual(block: ResidualBlock) -> JoinedBlock:
    shortcut = _as_folded(block.shortcut) if isinstance(block.shortcut, nn.Conv2d) else None
    return residual_part(
        FoldedBlock(_as_folded(block.first), _as_folded(block.second), shortcut), block.slope
    )


def residual_part(block: FoldedBlock, slope: float) -> JoinedBlock:
    """A residual block of any network."""
    after = nn.LeakyReLU(slope)
    shortcut = None if block.shortcut is None else JoinedConv(block.shortcut)
    return JoinedBlock([JoinedConv(block.first, after), JoinedConv(block.second)], LOST_PX, shortcut, after)


def _as_folded(conv: nn.Conv2d) -> FoldedConv:
    assert conv.bias is not None
    return FoldedConv(conv.weight, conv.bias, conv.stride[0])


@cache
def joins_activations() -> bool:
    """Whether the operator that PyTorch's own compiler uses is there and does what it should."""
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(0)
        small, each, last = nn.Conv2d(3, 8, 3, 2), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 2, 1)
        layers = [small, nn.ReLU6(), each, nn.LeakyReLU(), last]
        image = 10 * torch.rand(1, 3, 20, 20)
        values = image.contiguous(memory_format=torch.channels_last)
        try:
            for conv, after in zip(layers[::2], [*layers[1::2], None], strict=True):
                assert isinstance(conv, nn.Conv2d)
                values = JoinedConv(_as_folded(conv), after, conv.groups, joined=True)(values)
        except (RuntimeError, AttributeError, NotImplementedError):
            return False
        return bool(torch.allclose(values, nn.Sequential(*layers)(image), atol=1e-4))


# ---- bands ----


class Chain:
    """Layers that a band goes through at once, from one map that is kept to the next."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.steps = [step for part in parts for step in _steps(part)]
        self.filters = [step.filters for step in self.steps if isinstance(step, JoinedConv)][-1]

    def out_size(self, size: int) -> int:
        """Outputs along a side of `size` inputs."""
        for step in self.steps:
            size = step.out_size(size)
        return size

    def bands(self, height: int, width: int, number_bytes: int, workers: int) -> list[range]:
        """Rows of outputs that are computed at once: as many bands for each worker, all about as high."""
        largest = 0
        for step in self.steps:
            height, width = step.out_size(height), step.out_size(width)
            if isinstance(step, JoinedConv):
                largest = max(largest, step.filters * height * width * number_bytes)
        count = min(height, -(-largest // (BAND_BYTES * workers)) * workers)
        edges = [height * number // count for number in range(count + 1)]
        return [range(first, last) for first, last in pairwise(edges)]

    def compute(self, features: Tensor, out: Tensor, band: range, _: Scratch) -> None:
        """Fill the rows of `out` that belong to the band, both (1, channels, rows, columns)."""
        rows, columns = self._needed(band), self._needed(range(out.shape[3]))
        values = features[:, :, rows.start : rows.stop, columns.start : columns.stop]
        values = values.to(out.dtype).contiguous(memory_format=torch.channels_last)
        for part in self.parts:
            values = part(values)
        out[:, :, band.start : band.stop] = values

    def _needed(self, outputs: range) -> range:
        for step in reversed(self.steps):
            outputs = step.needed(outputs)
        return outputs


def _steps(part: Part) -> Sequence[JoinedConv | Trim]:
    return part.convs if isinstance(part, JoinedBlock) else [part]


def chains(parts: Iterable[Part]) -> list[Chain]:
    """A network as chains: all that works on finer maps than outputs are, then each block or convolution.

    What sees one pixel only joins what is before it.
    """
    groups: list[list[Part]] = [[]]
    stride = 1
    for part in parts:
        steps = [step for step in _steps(part) if isinstance(step, JoinedConv)]
        if stride >= OUTPUT_STRIDE_PX and any(step.size > 1 for step in steps):
            groups.append([])
        groups[-1].append(part)
        stride *= math.prod(step.stride for step in steps)
    return [Chain(group) for group in groups]


class BandedCells(CellDetector):
    """A `swift` or `lite` network whose bands are computed by workers of one thread each."""

    def __init__(self, network: nn.Sequential, workers: Workers, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(network, torch.device("cpu"), dtype)
        self._workers = workers
        self._chains = chains(parts_of(list(self._layers)))

    def _answers(self, pixels: Tensor) -> Tensor:
        return torch.cat([self._tile(tile) for tile in pixels.split(1)])

    def _tile(self, values: Tensor) -> Tensor:
        for chain in self._chains:
            height, width = values.shape[2:]
            bands = chain.bands(height, width, self._dtype.itemsize, self._workers.count)
            shape = (1, chain.filters, chain.out_size(height), chain.out_size(width))
            out = torch.empty(shape, dtype=self._dtype, memory_format=torch.channels_last)
            self._workers.run(partial(chain.compute, values, out), bands)
            values = out
        return values
