"""What a network should say about a batch: labels, stored probabilities, or its teachers' answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from metaphase.learning.data import rows_on
from metaphase.learning.sampling import Rows
from metaphase.networks import load_model, probability

Answers = Callable[[Tensor, Rows], Tensor]
"""Wanted probabilities (n,) for augmented images (n, 3, h, w) that are the given rows of the patch set."""


def stored_answers(targets: npt.NDArray[np.float32], device: torch.device) -> Answers:
    """A column of the patch set, whatever augmentation made of the patch: labels, or soft targets."""
    stored = torch.from_numpy(targets).to(device)

    def look_up(_images: Tensor, rows: Rows) -> Tensor:
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
    def ask(images: Tensor, _rows: Rows) -> Tensor:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
            said = [probability(teacher(images)).flatten() for teacher in asked]
        return torch.stack(said).mean(dim=0)

    return ask
