"""A detector on the CPU: layers as float32 matrix products, one thread a worker, all workers on one tile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import takewhile
from typing import Protocol

import torch
import torch.nn.functional as functional
from torch import Tensor

from metaphase.networks.engine.fourier import WINOGRAD_OUT, FourierConv
from metaphase.networks.engine.layers import (
    Features,
    FoldedBlock,
    FoldedConv,
    FoldedDetector,
    Scratch,
    SmallLayers,
    tensor_float,
)
from metaphase.networks.engine.small_layers import PatchChain, WinogradConv

# ---- a detector in plain PyTorch float32 for devices without Triton ----


class PortableDetector:
    """One network, ready to compute logits of batches of tiles."""

    def __init__(self, detector: FoldedDetector, device: torch.device, outputs: int) -> None:
        self._small = SmallLayers(detector.small, detector.slope, device, torch.float32)
        self._slope, self._head_bias = detector.slope, detector.head_bias
        self._head = detector.head.to(device, torch.float32)
        self._bias = detector.wide.bias.to(device, torch.float32)
        weight = detector.wide.weight.to(device, torch.float32)
        self._kernel, self._outputs = weight.shape[2], outputs
        self._size = outputs + self._kernel - 1
        spectrum = torch.fft.rfft2(weight, s=(self._size, self._size)).conj()
        self._spectrum = spectrum.permute(2, 3, 1, 0).flatten(0, 1).contiguous()

    def logits(self, image: Tensor) -> Tensor:
        """Logits (tiles, rows, columns) of uint8 pixels (tiles, rows, columns, 3) on the device."""
        with tensor_float(False):
            values = self._small(image.permute(0, 3, 1, 2).float())
            return torch.cat([self._wide(tile) for tile in values])

    def _wide(self, features: Tensor) -> Tensor:
        """Logits (1, rows, columns) of the features (channels, rows, columns) of one tile."""
        outputs, size, lost = self._outputs, self._size, self._kernel - 1
        channels, height, width = features.shape[0], features.shape[1] - lost, features.shape[2] - lost
        rows, columns = -(-height // outputs), -(-width // outputs)
        features = functional.pad(features, (0, columns * outputs - width, 0, rows * outputs - height))
        channel, row, column = features.stride()
        blocks = features.as_strided(
            (rows, columns, channels, size, size), (outputs * row, outputs * column, channel, row, column)
        )
        spectrum = torch.fft.rfft2(blocks.reshape(rows * columns, channels, size, size))
        products = torch.bmm(spectrum.permute(2, 3, 0, 1).flatten(0, 1), self._spectrum)
        products = products.view(size, size // 2 + 1, rows * columns, -1).permute(2, 3, 0, 1)
        values = torch.fft.irfft2(products, s=(size, size))[..., :outputs, :outputs]
        values = functional.leaky_relu_(values + self._bias[:, None, None], self._slope)
        logits = torch.einsum("bfyx,f->byx", values, self._head) + self._head_bias
        logits = logits.view(rows, columns, outputs, outputs).transpose(1, 2)
        return logits.reshape(1, rows * outputs, columns * outputs)[:, :height, :width]


# ---- a detector on the CPU ----


class WinogradBlock:
    """The two convolutions of a residual block."""

    def __init__(self, block: FoldedBlock, slope: float) -> None:
        self.first = WinogradConv(block.first, slope)
        self.second = WinogradConv(block.second, slope, block.shortcut)
        self.room = self.first.room


Layer = PatchChain | WinogradConv | WinogradBlock


class Reader(Protocol):
    """A layer that reads whole blocks."""

    @property
    def room(self) -> Callable[[int], int]:
        """Inputs that are read along a side of which some are meant."""


class Workers:
    """Threads that share one piece of work; each has its own scratch memory and one arithmetic thread."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count, "network", torch.set_num_threads, (1,))
        self._local = threading.local()

    def run(self, work: Callable[[range, Scratch], None], bands: list[range]) -> None:
        """Do all bands; the first error is raised."""

        def one(band: range) -> None:
            if not hasattr(self._local, "scratch"):
                self._local.scratch = Scratch()
            with torch.inference_mode():
                work(band, self._local.scratch)

        for _ in self._pool.map(one, bands):
            pass

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


class CpuDetector:
    """One network, ready to compute logits."""

    def __init__(self, detector: FoldedDetector, outputs: int, workers: Workers) -> None:
        self._workers = workers
        self.layers = small_layers(detector)
        self.wide = FourierConv(detector, outputs)

    def logits(self, image: Tensor) -> Tensor:
        """Logits (tiles, rows, columns) of uint8 pixels (tiles, rows, columns, 3)."""
        return torch.stack([self._tile(tile) for tile in image])

    def _tile(self, image: Tensor) -> Tensor:
        features = Features(image, *image.shape[:2])
        for layer, following in zip(self.layers, [*self.layers[1:], self.wide], strict=True):
            if isinstance(layer, WinogradBlock):
                features = self._block(layer, features, following)
            else:
                features = self._features(layer, layer.compute, features, following)
        return self._logits(features)

    def _block(self, block: WinogradBlock, features: Features, following: Layer | FourierConv) -> Features:
        inner = self._features(block.first, block.first.compute, features, block.second)
        compute = partial(block.second.compute, beside=features)
        return self._features(block.second, compute, inner, following)

    def _features(
        self,
        layer: PatchChain | WinogradConv,
        compute: Callable[[Features, Tensor, range, Scratch], None],
        features: Features,
        following: Layer | FourierConv,
    ) -> Features:
        """What a layer makes of features, with room for what the following one reads."""
        height, width = layer.out_size(features.height), layer.out_size(features.width)
        out = empty_features(height, width, layer.filters, following)
        self._workers.run(partial(compute, features, out.data), layer.bands(features))
        return out

    def _logits(self, features: Features) -> Tensor:
        rows, columns = self.wide.block_count(features.height), self.wide.block_count(features.width)
        outputs, lost = self.wide.blocks.outputs, self.wide.kernel - 1
        out = torch.empty(rows, outputs, columns, outputs)
        self._workers.run(partial(self.wide.compute, features, out), self.wide.bands(features))
        logits = out.view(rows * outputs, columns * outputs)
        return logits[: features.height - lost, : features.width - lost]


def small_layers(detector: FoldedDetector) -> list[Layer]:
    """Chains of patches up to the last strided convolution and for 1 x 1 ones, Winograd for the others."""
    layers: list[Layer] = []
    waiting: list[FoldedConv] = []
    for index, layer in enumerate(detector.small):
        if isinstance(layer, FoldedBlock):
            layers.append(WinogradBlock(layer, detector.slope))
            continue
        waiting.append(layer)
        if _strided_follows(detector.small[index + 1 :]):
            continue
        if index == 0 or layer.stride > 1 or layer.weight.shape[2] == 1:
            layers.append(PatchChain(waiting, detector.slope))
        else:
            layers.append(WinogradConv(layer, detector.slope))
        waiting = []
    return layers


def _strided_follows(layers: Sequence[FoldedConv | FoldedBlock]) -> bool:
    """Whether a strided convolution comes before any residual block."""
    plain = takewhile(lambda layer: isinstance(layer, FoldedConv), layers)
    return any(isinstance(layer, FoldedConv) and layer.stride > 1 for layer in plain)


def empty_features(height: int, width: int, channels: int, following: Reader, maps: int = 0) -> Features:
    """Room for a map or several, and zeros as far as whole blocks of this and the following layer reach."""
    rows, columns = (max(side + WINOGRAD_OUT, following.room(side)) for side in (height, width))
    return Features(torch.zeros(*[maps] * bool(maps), rows, columns, channels), height, width)
