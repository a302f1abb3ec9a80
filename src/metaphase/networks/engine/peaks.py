"""Logit maps on a device: smoothed, and their positions as arrays."""

from __future__ import annotations

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor
from torch.nn import functional

from metaphase.networks.engine.positions import Peaks, smoothing_reach


def smoothed(logits: Tensor, sigma: float) -> Tensor:
    """Logits of the mean probability around each position of (maps, rows, columns), by a Gaussian of `sigma`.

    The result is smaller by `smoothing_reach` on each side. Yes and no are averaged apart, so that very
    certain positions do not round to 1.
    """
    reach = smoothing_reach(sigma)
    if reach == 0:
        return logits
    positions = torch.arange(-reach, reach + 1, device=logits.device, dtype=torch.float32)
    weights = torch.exp(-(positions**2) / (2 * sigma**2))
    weights = weights / weights.sum()
    both = torch.stack([torch.sigmoid(logits), torch.sigmoid(-logits)]).flatten(0, 1)[:, None]
    rows = functional.conv2d(both, weights[None, None, :, None])
    yes, no = functional.conv2d(rows, weights[None, None, None, :])[:, 0].chunk(2)
    tiny = torch.finfo(torch.float32).tiny
    return torch.log(yes.clamp_min(tiny)) - torch.log(no.clamp_min(tiny))


def collect(logits: Tensor, peak: Tensor, *, between: bool = True) -> Peaks:
    """The positions as arrays; a parabola through the neighbours puts each `between` outputs."""
    index, row, column = peak.nonzero(as_tuple=True)
    middle = logits[index, row, column]
    if not between:
        down = right = torch.zeros_like(middle)
    else:
        down = _offset(logits[index, row - 1, column], middle, logits[index, row + 1, column])
        right = _offset(logits[index, row, column - 1], middle, logits[index, row, column + 1])
    rows = [index, row, column, down, right, middle]
    values = torch.stack([values.float() for values in rows]).cpu().double().numpy()
    output = values[1:3].T.astype(np.int64)
    y, x = values[1:3] + values[3:5]
    return Peaks(values[0].astype(np.int64), output, y, x, expit(values[5]).astype(np.float32))


def _offset(before: Tensor, middle: Tensor, after: Tensor) -> Tensor:
    """Where the parabola through three neighbours has its top, -0.5 to 0.5."""
    bend = 2 * middle - before - after
    return torch.where(bend > 0, (after - before) / (2 * bend), 0.0).clamp(-0.5, 0.5)
