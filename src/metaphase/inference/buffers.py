"""Memory that is used again and again: fresh large arrays cost as much as the arithmetic on them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


class Scratch:
    """Named float32 buffers of one thread; a buffer grows to the largest size asked for."""

    def __init__(self) -> None:
        self._flat: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """A tensor of this shape with undefined content, overwritten by the next taker of the name."""
        size = math.prod(shape)
        flat = self._flat.get(name)
        if flat is None or flat.numel() < size:
            flat = self._flat[name] = torch.empty(size)
        return flat[:size].view(shape)


@dataclass(frozen=True)
class Features:
    """A feature map (rows, columns, channels), of which the first `height` x `width` are meant.

    What lies beyond is finite filler, so that a layer may read whole blocks.
    """

    data: Tensor
    height: int
    width: int

    @property
    def strides(self) -> tuple[int, int]:
        """Elements from a row to the next, and from a column to the next."""
        return self.data.stride(0), self.data.stride(1)
