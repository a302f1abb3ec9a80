"""A detector of windows on the CPU: many small tiles of one size, each worker has some of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from metaphase.networks.cards import OUTPUT_STRIDE_PX, RECEPTIVE_PX
from metaphase.networks.engine.bands import JoinedBlock, JoinedConv, residual_part
from metaphase.networks.engine.cpu import WinogradBlock, Workers, empty_features
from metaphase.networks.engine.fourier import FourierConv
from metaphase.networks.engine.layers import (
    PIXEL_MIDDLE,
    PIXEL_STEP,
    Features,
    FoldedBlock,
    FoldedConv,
    FoldedDetector,
    Scratch,
    centred,
    moved,
)
from metaphase.networks.engine.small_layers import PatchConv, WinogradConv

CONVOLVED_AT_ONCE, WINDOWS_AT_ONCE = 4, 16
"""Windows a call of oneDNN, few sizes for which it makes code, and windows that a worker has at a time: the
wide layer reads its spectra once for all of them."""
FEW_WINDOWS = 8
"""Fewer than this are not worth reading spectra for."""
WINDOW_OUTPUTS = 32
"""Outputs a side of a Fourier block at most; a smaller window is one block."""

Some = Callable[[Tensor, Scratch], Tensor]
"""Logits (windows, rows, columns) of some windows."""


def shared_out(some: Some, image: Tensor, workers: Workers) -> Tensor:
    """Logits of all windows (windows, rows, columns, 3), as many for each worker."""
    rows, columns = ((side - RECEPTIVE_PX) // OUTPUT_STRIDE_PX + 1 for side in image.shape[1:3])
    out = torch.empty(len(image), rows, columns)
    count = -(-len(image) // (WINDOWS_AT_ONCE * workers.count)) * workers.count
    edges = [len(image) * number // count for number in range(count + 1)]

    def work(band: range, scratch: Scratch) -> None:
        out[band.start : band.stop] = some(image[band.start : band.stop], scratch)

    workers.run(work, [range(*edge) for edge in pairwise(edges) if edge[0] < edge[1]])
    return out


def joined_layers(
    layers: Sequence[FoldedConv | FoldedBlock], slope: float, dtype: torch.dtype
) -> list[JoinedConv | JoinedBlock]:
    """Layers in a precision, each with its leaky ReLU."""
    made: list[JoinedConv | JoinedBlock] = []
    for folded in layers:
        layer = moved(folded, torch.device("cpu"), dtype)
        if isinstance(layer, FoldedConv):
            made.append(JoinedConv(layer, nn.LeakyReLU(slope)))
        else:
            made.append(residual_part(layer, slope))
    return made


class JoinedWindows:
    """One network by oneDNN's convolutions, in a precision of choice."""

    def __init__(self, detector: FoldedDetector, workers: Workers, dtype: torch.dtype) -> None:
        first, *rest = detector.small
        assert isinstance(first, FoldedConv)
        self._layers = joined_layers([centred(first), *rest, detector.wide], detector.slope, dtype)
        self._dtype, self._workers = dtype, workers
        self._head, self._head_bias = detector.head.float(), detector.head_bias

    def logits(self, image: Tensor) -> Tensor:
        """Logits (windows, rows, columns) of uint8 pixels (windows, rows, columns, 3)."""
        return shared_out(self._some, image, self._workers)

    def _some(self, image: Tensor, _: Scratch) -> Tensor:
        return torch.cat([self._few(windows) for windows in image.split(CONVOLVED_AT_ONCE)])

    def _few(self, image: Tensor) -> Tensor:
        values = (image.permute(0, 3, 1, 2).to(self._dtype) - PIXEL_MIDDLE) * PIXEL_STEP
        for layer in self._layers:
            values = layer(values)
        return values.float().permute(0, 2, 3, 1) @ self._head + self._head_bias


class WinogradWindows:
    """One network in float32: oneDNN down to the outputs' lattice, then Winograd's and Fourier's forms.

    These have a third of the products, and are as fast as they are only for many windows at once: a few are
    convolved.
    """

    def __init__(self, detector: FoldedDetector, workers: Workers) -> None:
        strided = [getattr(layer, "stride", 1) > 1 for layer in detector.small]
        fine = len(strided) - strided[::-1].index(True)
        self._fine = joined_layers(detector.small[:fine], detector.slope, torch.float32)
        self._coarse = [_coarse_layer(layer, detector.slope) for layer in detector.small[fine:]]
        self._detector, self._workers = detector, workers
        self._wide: dict[int, FourierConv] = {}
        self._few = JoinedWindows(detector, workers, torch.float32)

    def logits(self, image: Tensor) -> Tensor:
        """Logits (windows, rows, columns) of uint8 pixels (windows, rows, columns, 3)."""
        if len(image) < FEW_WINDOWS:
            return self._few.logits(image)
        outputs = (max(image.shape[1:3]) - RECEPTIVE_PX) // OUTPUT_STRIDE_PX + 1
        some = partial(self._some, wide=self._wide_for(outputs))
        return shared_out(some, image, self._workers)

    def _wide_for(self, outputs: int) -> FourierConv:
        """The last layer; its spectra take up to a second to make, so once for each size."""
        block = min(outputs + outputs % 2, WINDOW_OUTPUTS)
        if block not in self._wide:
            self._wide[block] = FourierConv(self._detector, block)
        return self._wide[block]

    def _some(self, image: Tensor, scratch: Scratch, wide: FourierConv) -> Tensor:
        readers: list[_Following] = [*self._coarse, wide]
        features = self._features(image, readers[0])
        for layer, following in zip(self._coarse, readers[1:], strict=True):
            features = self._layer(layer, features, following, scratch)
        return self._logits(wide, features, scratch)

    def _features(self, image: Tensor, following: _Following) -> Features:
        """Maps on the outputs' lattice."""
        features: Features | None = None
        for first in range(0, len(image), CONVOLVED_AT_ONCE):
            few = slice(first, first + CONVOLVED_AT_ONCE)
            values = image[few].permute(0, 3, 1, 2).float()
            for layer in self._fine:
                values = layer(values)
            if features is None:
                _, channels, height, width = values.shape
                features = empty_features(height, width, channels, following, len(image))
            features.data[few, : values.shape[2], : values.shape[3]] = values.permute(0, 2, 3, 1)
        assert features is not None
        return features

    def _layer(self, layer: _Coarse, features: Features, following: _Following, scratch: Scratch) -> Features:
        if isinstance(layer, WinogradBlock):
            inner = self._winograd(layer.first, features, layer.second, scratch)
            return self._winograd(layer.second, inner, following, scratch, beside=features)
        if isinstance(layer, WinogradConv):
            return self._winograd(layer, features, following, scratch)
        height, width, maps = features.height, features.width, len(features.data)
        out = empty_features(height, width, layer.filters, following, maps)
        meant = features.data[:, :height, :width]
        values = layer(meant.flatten(0, 1), scratch)
        out.data[:, :height, :width] = values.view(maps, height, width, -1)
        return out

    def _winograd(
        self,
        layer: WinogradConv,
        features: Features,
        following: _Following,
        scratch: Scratch,
        beside: Features | None = None,
    ) -> Features:
        height, width = layer.out_size(features.height), layer.out_size(features.width)
        out = empty_features(height, width, layer.filters, following, len(features.data))
        for band in layer.bands(features):
            layer.compute(features, out.data, band, scratch, beside)
        return out

    def _logits(self, wide: FourierConv, features: Features, scratch: Scratch) -> Tensor:
        maps, outputs, lost = len(features.data), wide.blocks.outputs, wide.kernel - 1
        rows, columns = wide.block_count(features.height), wide.block_count(features.width)
        out = torch.empty(maps * rows, outputs, columns, outputs)
        wide.compute(features, out, range(maps), scratch)
        logits = out.view(maps, rows * outputs, columns * outputs)
        return logits[:, : features.height - lost, : features.width - lost]


_Coarse = WinogradBlock | WinogradConv | PatchConv
_Following = _Coarse | FourierConv


def _coarse_layer(layer: FoldedConv | FoldedBlock, slope: float) -> _Coarse:
    if isinstance(layer, FoldedBlock):
        return WinogradBlock(layer, slope)
    return PatchConv(layer, slope) if layer.weight.shape[2] == 1 else WinogradConv(layer, slope)
