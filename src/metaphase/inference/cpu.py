"""A detector on the CPU: layers as float32 matrix products, one thread a worker, all workers on one tile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from metaphase.inference.buffers import Features, Scratch
from metaphase.inference.folding import FoldedDetector
from metaphase.inference.fourier_layer import FourierConv
from metaphase.inference.small_layers import PatchConv, WinogradConv
from metaphase.inference.transforms import WINOGRAD_OUT

FRONT_ROWS = 48
"""Feature rows that a worker makes at once from pixels."""
JOINT_CHANNELS = 4
"""Up to this many channels, two neighbouring outputs share a patch."""


class Workers:
    """Threads that share one piece of work; each has its own scratch memory and one arithmetic thread."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))
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
        last_strided = max((i for i, conv in enumerate(detector.small) if conv.stride > 1), default=0)
        front, rest = detector.small[: last_strided + 1], detector.small[last_strided + 1 :]
        self.front = [
            PatchConv(conv, detector.slope, 2 if conv.weight.shape[1] <= JOINT_CHANNELS else 1)
            for conv in front
        ]
        self.rest = [WinogradConv(conv, detector.slope) for conv in rest]
        self.wide = FourierConv(detector, outputs)
        self._after_front: list[WinogradConv | FourierConv] = [*self.rest, self.wide]

    def logits(self, image: Tensor) -> Tensor:
        """Logits (tiles, rows, columns) of uint8 pixels (tiles, rows, columns, 3)."""
        return torch.stack([self._tile(tile) for tile in image])

    def _tile(self, image: Tensor) -> Tensor:
        features = self._front(image)
        for conv, following in zip(self.rest, self._after_front[1:], strict=True):
            out = _empty_features(features.height - 2, features.width - 2, conv.filters, following)
            self._workers.run(partial(conv.compute, features, out.data), conv.bands(features))
            features = out
        return self._logits(features)

    def _front(self, image: Tensor) -> Features:
        """Pixels to features, band by band, so that the full-resolution maps stay in the cache."""
        sides = list(image.shape[:2])
        for conv in self.front:
            sides = [conv.out_size(side) for side in sides]
        features = _empty_features(sides[0], sides[1], self.front[-1].filters, self._after_front[0])

        def band(rows: range, scratch: Scratch) -> None:
            first, last = rows.start, rows.stop - 1
            for conv in reversed(self.front):
                first, last = first * conv.stride, last * conv.stride + conv.size - 1
            values = image[first : last + 1].float()
            for conv in self.front:
                values = conv(values, scratch)
            features.data[rows.start : rows.stop, : sides[1]] = values

        self._workers.run(
            band, [range(r, min(sides[0], r + FRONT_ROWS)) for r in range(0, sides[0], FRONT_ROWS)]
        )
        return features

    def _logits(self, features: Features) -> Tensor:
        rows, columns = self.wide.block_count(features.height), self.wide.block_count(features.width)
        outputs, lost = self.wide.blocks.outputs, self.wide.kernel - 1
        out = torch.empty(rows, outputs, columns, outputs)
        self._workers.run(partial(self.wide.compute, features, out), self.wide.bands(features))
        logits = out.view(rows * outputs, columns * outputs)
        return logits[: features.height - lost, : features.width - lost]


def _empty_features(
    height: int, width: int, channels: int, following: WinogradConv | FourierConv
) -> Features:
    """Room for a map, and zeros beyond it as far as whole blocks of this and the following layer reach."""
    rows, columns = (max(side + WINOGRAD_OUT, following.room(side)) for side in (height, width))
    return Features(torch.zeros(rows, columns, channels), height, width)
