"""A second look: another network has its say about the few places that a first one points to."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from metaphase.networks.cards import OUTPUT_STRIDE_PX, RECEPTIVE_PX
from metaphase.networks.engine.arithmetic import Detector
from metaphase.networks.engine.peaks import collect, is_peak, logit_of, smoothed
from metaphase.networks.engine.places import BORDER, Peaks, smoothing_reach

MOVES = 3
"""Outputs by which a maximum may move when the second network has its say."""
MARGIN = MOVES - BORDER
"""Outputs that a tile needs at each side beyond those of a search with one look."""
AT_ONCE_PX = {"cpu": 1_000_000, "cuda": 30_000_000}
"""Pixels of windows computed at once."""


class SecondLook:
    """Mean logits of two networks around places, as if both had searched everything."""

    def __init__(self, detector: Detector, floor: float, device: torch.device) -> None:
        self._detector, self.floor, self._device = detector, floor, device

    def peaks(self, image: Tensor, logits: Tensor, first: Peaks, sigma: float, floor: float) -> Peaks:
        """What becomes of the places that the first network points to, from a probability of `floor` on.

        `image` (tiles, rows, columns, 3) and `logits` (tiles, rows, columns) are those of whole tiles; places
        are counted in the first network's smoothed maps, which lack `MARGIN` and the smoothing's reach.
        """
        if not len(first.map_index):
            return first
        reach = smoothing_reach(sigma)
        places = torch.from_numpy(np.column_stack([first.map_index, first.output])).to(self._device)
        places[:, 1:] += MARGIN + reach
        at_once = max(1, AT_ONCE_PX[self._device.type] // self._side_px(reach) ** 2)
        maps = [smoothed(self._combined(image, logits, part, reach), sigma) for part in places.split(at_once)]
        return _tops(torch.cat(maps), first, floor)

    def _combined(self, image: Tensor, logits: Tensor, places: Tensor, reach: int) -> Tensor:
        """(n, side, side) mean logits of both around each place."""
        outputs = torch.arange(-reach - MOVES, reach + MOVES + 1, device=self._device)
        pixels = torch.arange(self._side_px(reach), device=self._device)
        corner = OUTPUT_STRIDE_PX * (places[:, 1:] + outputs[0])
        seen = _windows(image, places[:, 0], corner, pixels)
        return (_windows(logits, places[:, 0], places[:, 1:], outputs) + self._detector.logits(seen)) / 2

    def _side_px(self, reach: int) -> int:
        return RECEPTIVE_PX + OUTPUT_STRIDE_PX * 2 * (reach + MOVES)


def _windows(values: Tensor, index: Tensor, corner: Tensor, steps: Tensor) -> Tensor:
    """Squares (n, side, side, ...) of (maps, rows, columns, ...) at corners (n, 2)."""
    rows, columns = (corner[:, axis, None] + steps for axis in (0, 1))
    return values[index[:, None, None], rows[:, :, None], columns[:, None, :]]


def _tops(maps: Tensor, first: Peaks, floor: float) -> Peaks:
    """The highest maximum of each small map; the highest value of one that rises towards its border.

    Its output remains the first network's, by which a place belongs to one tile.
    """
    inner = maps.masked_fill(~is_peak(maps, floor), -torch.inf).flatten(1)
    chosen = torch.where(inner.amax(1) > -torch.inf, inner.argmax(1), maps.flatten(1).argmax(1))
    kept = (maps.flatten(1).amax(1) >= logit_of(floor)).cpu().numpy()
    side = maps.shape[1]
    peak = torch.zeros_like(maps, dtype=torch.bool)
    number = torch.arange(len(maps), device=maps.device)
    peak[number, chosen // side, chosen % side] = True
    padded = torch.nn.functional.pad(maps[None], (BORDER,) * 4, mode="replicate")[0]
    found = collect(padded, torch.nn.functional.pad(peak, (BORDER,) * 4))
    which = found.map_index
    shift = first.output[which] - MOVES - BORDER
    moved = (found.row + shift[:, 0], found.column + shift[:, 1], found.probability)
    keep = kept[which]
    return Peaks(first.map_index[which][keep], first.output[which][keep], *(each[keep] for each in moved))
