"""Stain mixing between the slides of a patch set."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Generator, Tensor

from metaphase.learning.data import PatchSet, rows_on
from metaphase.learning.sampling import Rows
from metaphase.stain.augmentation import StainMixer, appearance_of

PATCHES_A_SLIDE, PIXEL_STEP = 24, 4
"""Patches, and every how many pixels of them, from which a slide's appearance is taken."""

Mix = Callable[[Tensor, Rows, Generator], Tensor]
"""Mixed images of pixels that are the given rows of the set."""


def stain_mixer(patches: PatchSet, share: float, device: torch.device) -> Mix:
    """Mixes patches in the colours of the set's slides, whose appearances are taken from their patches."""
    numbers, names = patches.index["slide"].factorize()
    rng = np.random.default_rng(0)
    appearances = []
    for number in range(len(names)):
        rows = np.flatnonzero(numbers == number)
        chosen = np.sort(rng.choice(rows, min(PATCHES_A_SLIDE, len(rows)), replace=False))
        appearances.append(appearance_of(patches.take(chosen)[:, ::PIXEL_STEP, ::PIXEL_STEP]))
    mixer = StainMixer(appearances, share).to(device)
    slides = torch.from_numpy(numbers.astype(np.int64)).to(device)

    def mix(pixels: Tensor, rows: Rows, generator: Generator) -> Tensor:
        mixed: Tensor = mixer(pixels, slides[rows_on(device, rows)], generator)
        return mixed

    return mix
