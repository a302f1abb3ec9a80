"""Stain mixing: a patch in the colours of another slide, so that no stain goes with one class or laboratory.

A slide's appearance is the mean and the spread of its stained pixels' density. A linear map takes the
appearance of a patch's slide to that of another one; how far it goes is drawn for each patch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor, nn

from metaphase.base.arrays import RGB, Floats
from metaphase.images.stain.pixels import STAINED_OD, WHITE, optical_density

LEAST_PIXELS = 1000
"""Stained pixels that an appearance needs."""
LEAST_VARIANCE = 1e-5
"""Added to the variances, so that a slide of one colour can be mapped too."""


@dataclass(frozen=True)
class Appearance:
    """Density (base 10) of a slide's stained pixels in red, green and blue."""

    mean: Floats
    root: Floats
    """Square root of the covariance."""
    inverse: Floats
    """Inverse of the root."""


def appearance_of(pixels: RGB) -> Appearance | None:
    """The appearance of RGB pixels (..., 3); None where too few of them are stained."""
    density = optical_density(pixels).reshape(-1, 3)
    stained = density[density.mean(axis=1) > STAINED_OD].astype(np.float64)
    if len(stained) < LEAST_PIXELS:
        return None
    values, vectors = np.linalg.eigh(np.cov(stained.T) + LEAST_VARIANCE * np.eye(3))
    root = np.sqrt(values.clip(min=LEAST_VARIANCE))
    return Appearance(stained.mean(axis=0), vectors * root @ vectors.T, vectors / root @ vectors.T)


class StainMixer(nn.Module):
    """Shows a share of the patches in the colours of other slides.

    Slides are numbered as in `appearances`; those without one are neither changed nor imitated.
    """

    means: Tensor
    roots: Tensor
    inverses: Tensor
    imitated: Tensor

    def __init__(self, appearances: Sequence[Appearance | None], share: float) -> None:
        super().__init__()
        self.share = share
        known = [number for number, found in enumerate(appearances) if found is not None]
        same = Appearance(np.zeros(3), np.eye(3), np.eye(3))
        filled = [found or same for found in appearances]
        for name, arrays in (
            ("means", [found.mean for found in filled]),
            ("roots", [found.root for found in filled]),
            ("inverses", [found.inverse for found in filled]),
        ):
            self.register_buffer(name, torch.tensor(np.array(arrays), dtype=torch.float32), persistent=False)
        self.register_buffer("imitated", torch.tensor(known, dtype=torch.int64), persistent=False)

    @torch.no_grad()
    def forward(self, batch: Tensor, slides: Tensor, generator: Generator) -> Tensor:
        """uint8 (n, h, w, 3) of the numbered slides (n,) to float (n, 3, h, w) in [0, 1]."""
        planes = batch.permute(0, 3, 1, 2).float()
        if not len(self.imitated):
            return planes.div_(WHITE)
        unit = torch.rand((3, len(batch)), generator=generator, device=batch.device)
        chosen = (unit[0] * len(self.imitated)).long().clamp_(max=len(self.imitated) - 1)
        mixed = (unit[1] < self.share) & torch.isin(slides, self.imitated)
        weight = torch.where(mixed, unit[2], 0.0)
        matrix, offset = self._map(slides, self.imitated[chosen], weight)
        density = planes.add_(1).div_(WHITE + 1).log10_().neg_().flatten(2)
        shifted = torch.baddbmm(offset[:, :, None], matrix, density)
        light = torch.pow(10, shifted.neg_()).mul_(WHITE + 1).sub_(1).div_(WHITE)
        return light.clamp_(0, 1).view(planes.shape)

    def _map(self, slides: Tensor, others: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Matrix (n, 3, 3) and offset (n, 3): between no change and the other slide's appearance."""
        weight = weight[:, None, None]
        same = torch.eye(3, device=weight.device)
        matrix = torch.lerp(same, self.roots[others] @ self.inverses[slides], weight)
        wanted = torch.lerp(self.means[slides], self.means[others], weight[:, 0])
        return matrix, wanted - (matrix @ self.means[slides][:, :, None])[:, :, 0]
