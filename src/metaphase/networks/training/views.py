"""What a network is shown of a batch beyond augmentation, and what it should say about it.

Where mitoses come as small crops laid side by side, the tissue around a mitosis ends at a seam or at the edge
of the image, and its negatives, which lie beside it, have that close by. A network then tells them by it.
With seams in patches of both classes it has to look at the cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Generator, Tensor

from metaphase.base.arrays import Integers
from metaphase.images.stain.augmentation import StainMixer, appearance_of
from metaphase.networks.architectures import patch_probability
from metaphase.networks.checkpoints import load_model
from metaphase.networks.training.data import PatchSet, rows_on

# ---- what a network should say about a batch ----

Answers = Callable[[Tensor, Integers], Tensor]
"""Wanted probabilities (n,) for augmented images (n, 3, h, w) that are the given rows of the patch set."""


def stored_answers(targets: npt.NDArray[np.float32], device: torch.device) -> Answers:
    """A column of the patch set, whatever augmentation made of the patch: labels, or soft targets."""
    stored = torch.from_numpy(targets).to(device)

    def look_up(_images: Tensor, rows: Integers) -> Tensor:
        return stored[rows_on(device, rows)]

    return look_up


def teacher_answers(models: Sequence[str], device: torch.device, *, compiled: bool = False) -> Answers:
    """The mean probability that teachers give to the very image that the student sees.

    Stored soft targets say little where the teachers know the patches by heart; turned and stained anew, a
    patch is one that they have not seen, and their doubts about it teach.
    """
    networks = [load_model(model, device)[0] for model in models]
    teachers = [network.to(memory_format=torch.channels_last).eval() for network in networks]  # type: ignore[call-overload]

    asked = [torch.compile(teacher, dynamic=False) if compiled else teacher for teacher in teachers]

    @torch.no_grad()
    def ask(images: Tensor, _rows: Integers) -> Tensor:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
            said = [patch_probability(teacher(images)) for teacher in asked]
        return torch.stack(said).mean(dim=0)

    return ask


# ---- made-up seams ----

LEAST_PX = 14.0
"""A seam is at least this far from the centre ..."""
FURTHEST = 0.6
"""... and at most this share of the patch's side: some fall outside, and then there is none."""
GLASS_SHARE = 0.5
"""Share of the seams behind which there is nothing."""
WHITE = 255


@torch.no_grad()
def with_seams(pixels: Tensor, share: float, generator: Generator) -> Tensor:
    """Patches (n, side, side, 3) of bytes, a share of which end at a vertical and a horizontal line, each at
    a position of its own; beyond these lie the pixels of another patch of the batch, or white."""
    count, side = pixels.shape[:2]
    unit = torch.rand((6, count), generator=generator, device=pixels.device)
    reach = LEAST_PX + unit[:2] * (FURTHEST * side - LEAST_PX)
    sign = torch.where(unit[2:4] < 0.5, -1.0, 1.0)
    position = torch.arange(side, device=pixels.device) - (side - 1) / 2
    beyond = sign[:, :, None] * position > reach[:, :, None]
    foreign = beyond[0][:, :, None] | beyond[1][:, None, :]
    foreign &= (unit[4] < share)[:, None, None]
    glass = (unit[5] < GLASS_SHARE)[:, None, None, None]
    order = torch.randperm(count, generator=generator, device=pixels.device)
    other = pixels[order].masked_fill_(glass, WHITE)
    return torch.where(foreign[..., None], other, pixels)


# ---- stain mixing between the slides of a patch set ----

PATCHES_A_SLIDE, PIXEL_STEP = 24, 4
"""Patches, and every how many pixels of them, from which a slide's appearance is taken."""

Mix = Callable[[Tensor, Integers, Generator], Tensor]
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

    def mix(pixels: Tensor, rows: Integers, generator: Generator) -> Tensor:
        mixed: Tensor = mixer(pixels, slides[rows_on(device, rows)], generator)
        return mixed

    return mix
