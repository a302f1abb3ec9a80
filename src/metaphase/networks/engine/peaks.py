"""Logit maps on a device: smoothed, and their positions as arrays."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from metaphase.networks.engine.positions import Peaks, logits_at, peaks_from, smoothing_reach


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
    places = peak.nonzero(as_tuple=True)
    rows = [*places, *logits_at(logits, places, between)]
    values = torch.stack([each.float() for each in rows]).cpu().numpy()
    return peaks_from(values[:3].astype(np.int64), values[3:])
