"""Networks that learn every cell of windows: teachers from labels, students from labels and teachers.

All networks of one training see the same windows. A step's random numbers come from (seed, step), and budgets
are counted in steps, so that a training that was killed and resumed ends with the same weights, bit for bit
on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import get_ema_multi_avg_fn

from metaphase.base.errors import TrainingError
from metaphase.base.files import atomic_path
from metaphase.base.stages import Report
from metaphase.networks.engine.peaks import smoothed
from metaphase.networks.training.answers import (
    TEACHER_SMOOTH_UM,
    dense_logits,
    errors_of,
    middle_cells,
    teachers_answer,
)
from metaphase.networks.training.images import MPP
from metaphase.networks.training.progress import Progress, Timer, load_state, save_state, set_rate
from metaphase.networks.training.windows import ANY, CELL_PX, YES, Views, WindowBatch

EMA, WEIGHT_DECAY, WARM_STEPS = 0.999, 1e-4, 200
"""Of the running mean of weights; of AdamW; steps over which the learning rate rises."""
REPORT_EVERY_S = 1.0


class Learner(nn.Module):
    """A network, the running mean of its weights, and an offset for each laboratory.

    The offset keeps how often a laboratory's windows show mitoses from being learnt from its looks. It
    belongs to the lesson: a network answers about new laboratories without it.
    """

    GAIN = 10.0

    def __init__(self, network: nn.Module, laboratories: int) -> None:
        super().__init__()
        self.network = network
        self.mean = deepcopy(network).eval().requires_grad_(False)
        self.offset = nn.Parameter(torch.zeros(laboratories, device=next(network.parameters()).device))

    def forward(self, images: Tensor, laboratory: Tensor) -> Tensor:
        """Logits as they are compared with what is wanted."""
        return dense_logits(self.network, images) + self.GAIN * self.offset[laboratory][:, None, None]

    @torch.no_grad()
    def follow(self, steps: int) -> None:
        """Move the mean towards the weights."""
        keep = min(EMA, steps / (steps + 10))
        means, values = self.mean.state_dict().values(), self.network.state_dict().values()
        averaged = []
        for mean, value in zip(means, values, strict=True):
            if value.dtype.is_floating_point:
                averaged.append((mean, value))
            else:
                mean.copy_(value)
        get_ema_multi_avg_fn(keep)(*map(list, zip(*averaged, strict=True)), steps)


@dataclass(frozen=True)
class Lesson:
    """Settings of how networks learn windows."""

    steps: int
    learning_rate: float = 1e-3
    trust: float = 0.7
    """How far teachers are followed rather than labels, where both speak ..."""
    trust_at_mitoses: float = 0.7
    """... and where the label is a mitosis."""
    mine_at: tuple[float, ...] = (0.35, 0.7)
    """Shares of the steps after which networks look for their errors, unless a pair's own answers lead."""
    views: int = 1
    """Of a window by which teachers answer."""

    def rate_at(self, step: int) -> float:
        """Rises for some steps, then falls as a cosine."""
        rising = min(1.0, (step + 1) / min(WARM_STEPS, max(1, self.steps // 5)))
        return float(self.learning_rate * rising * max(0.01, 0.5 * (1 + np.cos(np.pi * step / self.steps))))


def weighted(logits: Tensor, wanted: Tensor, counts: Tensor) -> Tensor:
    """Cross-entropy in which cells that are, or are taken for, mitoses weigh more."""
    weight = counts * (1 + 20 * torch.maximum(wanted, torch.sigmoid(logits.detach())))
    each = functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    return (weight * each).sum() / weight.sum().clamp(min=1)


@dataclass
class DenseTraining:
    """Networks that learn side by side from the same windows, and where they stand."""

    networks: dict[str, nn.Module]
    views: Views
    lesson: Lesson
    teachers: Sequence[nn.Module]
    folder: Path
    """Where the state to resume from lies while they learn."""
    made_from: Any
    """The account of what decides the weights."""
    checkpoint_minutes: float = 1.0

    def __post_init__(self) -> None:
        self.state = self.folder / "state.safetensors"
        laboratories = len(self.views.windows.laboratories)
        self.each = {name: Learner(network, laboratories) for name, network in self.networks.items()}
        self.learners = nn.ModuleDict(self.each)
        learnt = [value for value in self.learners.parameters() if value.requires_grad]
        on_gpu = learnt[0].is_cuda
        self.optimizer = torch.optim.AdamW(
            learnt, self.lesson.learning_rate, weight_decay=WEIGHT_DECAY, fused=on_gpu
        )
        self.loss = torch.zeros((), device=learnt[0].device)
        self.progress = Progress(self.made_from)
        shares = self.lesson.mine_at if self.views.windows.answers is None else ()
        self.mine_at = {round(share * self.lesson.steps) for share in shares}

    def finish(self, report: Report) -> dict[str, nn.Module]:
        """The running means after all steps; goes on where an earlier call was stopped."""
        self._resume()
        tell, keep = Timer(REPORT_EVERY_S), Timer(60 * self.checkpoint_minutes)
        while self.progress.step < self.lesson.steps:
            step = self.progress.step
            if step in self.mine_at:
                report("looking for errors in the training images", step, self.lesson.steps)
                self._mine(step)
            self._step(step)
            self.progress.step += 1
            if tell.is_due():
                self._check()
                shown = f"{', '.join(self.networks)}  loss {float(self.loss):.4f}"
                report(shown, self.progress.step, self.lesson.steps)
            if keep.is_due():
                save_state(self.state, self.learners, self.optimizer, self.loss, self.progress)
        self._check()
        self.views.close()
        return {name: learner.mean for name, learner in self.each.items()}

    def forget(self) -> None:
        """Remove what only a stopped training needs."""
        for path in (self.state, *self.folder.glob("errors-*.npz")):
            path.unlink(missing_ok=True)

    def _step(self, step: int) -> None:
        batch = self.views(step)
        torch.manual_seed(
            int(np.random.SeedSequence((self.views.windows.seed, step, 2)).generate_state(1)[0])
        )
        wanted, counts = self._wanted(batch)
        set_rate(self.optimizer, self.lesson.rate_at(step))
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros_like(self.loss)
        for learner in self.each.values():
            learner.network.train()
            logits = learner(batch.pixels, batch.laboratory)
            rows = min(logits.shape[1], wanted.shape[1])
            loss = weighted(
                middle_cells(logits, rows), middle_cells(wanted, rows), middle_cells(counts, rows)
            )
            loss.backward()
            total += loss.detach()
        self.optimizer.step()
        for learner in self.each.values():
            learner.follow(step + 1)
        self.loss.lerp_(total, 1.0 if step == 0 else 0.02)

    def _wanted(self, batch: WindowBatch) -> tuple[Tensor, Tensor]:
        """What cells should say, and how much each counts."""
        cells, lesson = batch.cells, self.lesson
        yes = (cells == YES).float()
        if batch.answers is None and not self.teachers:
            return yes, (cells != ANY).float()
        if batch.answers is not None:
            answers = batch.answers
        else:
            sigma = TEACHER_SMOOTH_UM / (MPP * CELL_PX)
            answers = teachers_answer(self.teachers, batch.pixels, lesson.views)
            answers = torch.sigmoid(smoothed(torch.logit(answers, 1e-6), sigma))
            cells, yes = (middle_cells(values, answers.shape[1]) for values in (cells, yes))
        labels = torch.where(cells == ANY, answers, yes)
        trust = torch.where(cells == YES, lesson.trust_at_mitoses, lesson.trust)
        trust = trust.masked_fill(batch.sure[:, None, None], 0.0)
        return torch.lerp(labels, answers, trust), torch.ones_like(answers)

    def _mine(self, step: int) -> None:
        """Search the training images with all networks; the errors are kept for a resumed run."""
        windows = self.views.windows
        hard = errors_of([learner.mean for learner in self.each.values()], windows.images, windows.device)
        with atomic_path(self._errors(step)) as part, part.open("wb") as file:
            counts = np.array([len(points) for points in hard])
            np.savez_compressed(file, allow_pickle=False, counts=counts, points=np.concatenate(hard))
        self.views.remember(hard)

    def _resume(self) -> None:
        if not self.state.exists():
            return
        self.progress = load_state(self.state, self.learners, self.optimizer, self.loss, self.made_from)
        steps = [int(path.stem.removeprefix("errors-")) for path in self.folder.glob("errors-*.npz")]
        mined = [step for step in steps if step < self.progress.step]
        if mined:
            with np.load(self._errors(max(mined))) as kept:
                self.views.remember(np.split(kept["points"], np.cumsum(kept["counts"])[:-1]))

    def _errors(self, step: int) -> Path:
        return self.folder / f"errors-{step}.npz"

    def _check(self) -> None:
        if not bool(self.loss.isfinite()):
            raise TrainingError(
                f"the loss became NaN after {self.progress.step} steps",
                path=self.folder,
                next_step=f"lower learning_rate (now {self.lesson.learning_rate:g}) and use a new folder",
            )
