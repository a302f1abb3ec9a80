"""A detector in plain PyTorch float32 for devices without Triton: FFT over blocks, on any device."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor

from metaphase.inference.folding import FoldedDetector
from metaphase.inference.plain import SmallLayers, tensor_float


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
