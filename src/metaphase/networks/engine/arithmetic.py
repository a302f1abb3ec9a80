"""Which arithmetic a network is computed in: the fastest that runs here and says the same as float32."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import scipy

from metaphase.base.arrays import RGB
from metaphase.networks.cards import OUTPUT_STRIDE_PX, RECEPTIVE_PX
from metaphase.networks.engine.settings import Precision

if TYPE_CHECKING:
    import torch
    from torch import Tensor

TOLERANCE = {"auto": 0.4, "fast": 1.0}
"""Largest difference in logits to plain float32, at any of 2,500 positions of tissue, with which faster
 arithmetic is used. Smoothing averages most of it away (`recipes/breast/arithmetic.py`)."""
TRIED_PX = RECEPTIVE_PX + OUTPUT_STRIDE_PX * 49
_BLOBS_PX = ((4, 0.5), (12, 1.0), (40, 1.0))
"""Sizes of what a picture of tissue is made of, with weights."""
_BLUE, _PINK, _NOISE = (95.0, 60.0, 140.0), (235.0, 190.0, 215.0), 4.0

_log = logging.getLogger(__name__)


class PreparedNetwork(Protocol):
    """A network whose layers are prepared for one precision."""

    def logits(self, image: Tensor) -> Tensor:
        """Logits (tiles, rows, columns) of uint8 pixels (tiles, rows, columns, 3) on the device."""


Ways = Sequence[tuple[str, Callable[[], PreparedNetwork]]]
"""Arithmetic in words, fastest first, with what makes a detector of it."""


def fastest(
    ways: Ways, exact: PreparedNetwork, device: torch.device, precision: Precision
) -> tuple[PreparedNetwork, str]:
    """The first of some ways that runs here and agrees with plain float32, with its name."""
    for words, make in [] if precision == "float32" else ways:
        try:
            detector = make()
            difference = largest_difference(detector, exact, device)
        except Exception as error:  # noqa: BLE001 -- a compiler, a driver or a small GPU may refuse in many ways
            _log.warning("%s does not run here (%s)", words, error)
            continue
        if difference <= TOLERANCE[precision]:
            return detector, words
        level = logging.WARNING if precision == "fast" else logging.INFO
        _log.log(level, "%s on this device is off by %.2g in logits", words, difference)
    return exact, "float32"


def largest_difference(
    detector: PreparedNetwork, exact: PreparedNetwork, device: torch.device, other: torch.device | None = None
) -> float:
    """In logits, on a small image that looks like tissue; the exact one may be on another device."""
    import torch

    image = torch.from_numpy(tissue_like(TRIED_PX))[None]
    logits, expected = detector.logits(image.to(device)), exact.logits(image.to(other or device))
    return float((logits.cpu() - expected.cpu()).abs().max())


def tissue_like(side_px: int, seed: int = 0) -> RGB:
    """Cell-sized blobs in H&E colours with finer structure and sensor noise."""
    rng = np.random.default_rng(seed)
    field = np.zeros((side_px, side_px))
    for step, weight in _BLOBS_PX:
        coarse = rng.normal(size=[side_px // step + 2] * 2)
        field += (
            weight
            * scipy.ndimage.zoom(coarse, step, order=1, grid_mode=True, mode="nearest")[:side_px, :side_px]
        )
    mix = 1 / (1 + np.exp(-3 * field))[..., None]
    noise = rng.normal(0, _NOISE, (side_px, side_px, 1))
    image = mix * np.array(_BLUE) + (1 - mix) * np.array(_PINK) + noise
    return np.asarray(np.clip(image, 0, 255), np.uint8)
