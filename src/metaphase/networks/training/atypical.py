"""A network that tells atypical figures, asked about patients that it did not see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit
from scipy.stats import mannwhitneyu
from torch import Tensor, nn
from torch.nn import functional

from metaphase.base.arrays import Floats, Integers, Mask
from metaphase.base.errors import TrainingError
from metaphase.detections.table import MITOSIS
from metaphase.images.stain.augmentation import Augmentation, StainMixer
from metaphase.networks.cards import PATCH_PX
from metaphase.networks.training.answers import dense_logits
from metaphase.networks.training.dense import Learner, Lesson
from metaphase.networks.training.images import LabelledImage
from metaphase.networks.training.progress import set_rate
from metaphase.networks.training.windows import ViewConfig, WindowSampler

FIGURE_PX, FOLDS, ANSWERED_AT_ONCE = 128, 5, 512
WARNING = 0.05
"""How far labels are from certain: pathologists differ about many figures."""


@dataclass(frozen=True)
class Figures:
    """Squares around all mitoses of which somebody said whether they are atypical."""

    pixels: Tensor
    laboratory: Tensor
    atypical: Mask
    patient: npt.NDArray[np.str_]
    odds: Floats
    """How often each is drawn: laboratories and answers alike."""

    @classmethod
    def of(cls, windows: WindowSampler) -> Figures:
        """Those of the images that windows are cut from."""
        rows = [
            (number, position, flag)
            for number, image in enumerate(windows.images)
            for position, flag in zip(image.of(MITOSIS), image.atypical, strict=True)
            if not np.isnan(flag)
        ]
        atypical = np.array([flag > 0 for _, _, flag in rows], np.bool_)
        if not atypical.any() or atypical.all():
            raise TrainingError(
                "the training images name no atypical and typical figures to learn from",
                next_step="fill the reference table's column atypical (1 or 0), or set atypical_steps = 0",
            )
        numbers = [number for number, _, _ in rows]
        corner = np.array([np.round(position[::-1] - FIGURE_PX / 2) for _, position, _ in rows], np.int64)
        size = np.array([windows.images[number].pixels.shape[:2] for number in numbers], np.int64)
        pixels = windows.pixels.cut(numbers, corner, np.zeros_like(size), size, FIGURE_PX)
        laboratory = windows.laboratory[numbers]
        group = 2 * laboratory + atypical
        odds = 1 / np.bincount(group)[group]
        patient = np.array([windows.images[number].patient for number in numbers])
        return cls(pixels, torch.from_numpy(laboratory).to(windows.device), atypical, patient, odds)


def learnt_figures(
    images: Sequence[LabelledImage],
    start: Callable[[], nn.Module],
    view: ViewConfig,
    lesson: Lesson,
    seed: int,
    device: torch.device,
    progress: Callable[[float], None],
) -> tuple[nn.Module, Figures, Floats]:
    """A network that learnt all figures of the images, and the logit of each figure by one that did not see
    its patient. Each begins as `start` gives it; `progress` hears how many of `FOLDS` + 1 are taught."""
    flagged = [image for image in images if not np.isnan(image.atypical).all()]
    windows = WindowSampler(flagged, device, seed)
    figures = Figures.of(windows)
    mixer = StainMixer(windows.appearances, view.stain_mix).to(device)
    patients, index = np.unique(figures.patient, return_inverse=True)
    fold = np.random.default_rng(0).permutation(len(patients))[index] % FOLDS
    logits = np.zeros(len(fold))

    def taught(number: int) -> nn.Module:
        learner = Learner(start(), 1)
        torch.manual_seed(seed)
        for step in _learn(learner, figures, np.flatnonzero(fold != number), mixer, view, lesson, seed):
            progress(number + (step + 1) / lesson.steps)
        return learner.mean

    for number in np.unique(fold):
        left_out = fold == number
        chosen = torch.from_numpy(left_out).to(device)
        logits[left_out] = figure_logits(taught(int(number)), figures.pixels[chosen])
    return taught(FOLDS), figures, logits


def _learn(
    learner: Learner,
    figures: Figures,
    numbers: Integers,
    mixer: StainMixer,
    view: ViewConfig,
    lesson: Lesson,
    seed: int,
) -> Iterator[int]:
    """The number of each step on some of the figures, once it is done."""
    device = figures.pixels.device
    augment = Augmentation(view.augment, replace(view.augmentation, size_px=PATCH_PX)).to(device)
    generator = torch.Generator(device).manual_seed(seed)
    rng = np.random.default_rng(seed)
    odds = figures.odds[numbers] / figures.odds[numbers].sum()
    wanted = torch.from_numpy(WARNING + (1 - 2 * WARNING) * figures.atypical.astype(np.float32)).to(device)
    network = learner.network
    optimizer = torch.optim.AdamW(network.parameters(), lesson.learning_rate, weight_decay=1e-4)
    for step in range(lesson.steps):
        drawn = torch.from_numpy(rng.choice(numbers, view.batch, p=odds)).to(device)
        with torch.no_grad():
            images = augment(mixer(figures.pixels[drawn], figures.laboratory[drawn], generator), generator)
        network.train()
        logits = dense_logits(network, images.contiguous(memory_format=torch.channels_last))[:, 0, 0]
        set_rate(optimizer, lesson.rate_at(step))
        optimizer.zero_grad(set_to_none=True)
        functional.binary_cross_entropy_with_logits(logits, wanted[drawn]).backward()
        optimizer.step()
        learner.follow(step + 1)
        yield step


@torch.inference_mode()
def figure_logits(network: nn.Module, pixels: Tensor) -> Floats:
    """Logits of figures, the mean of the two that a mirror gives."""
    first = (FIGURE_PX - PATCH_PX) // 2
    parts = []
    for batch in pixels[:, first : first + PATCH_PX, first : first + PATCH_PX].split(ANSWERED_AT_ONCE):
        images = (batch.permute(0, 3, 1, 2) / 255).contiguous(memory_format=torch.channels_last)
        parts.append((dense_logits(network, images) + dense_logits(network, images.flip(3)))[:, 0, 0] / 2)
    return torch.cat(parts).double().cpu().numpy()


def atypical_figures(logits: Floats, right: Any, patients: Any) -> dict[str, Any]:
    """ROC AUC with its interval over patients, balanced accuracy, and how far chances are off."""
    rows = [np.flatnonzero(patients == name) for name in np.unique(patients)]
    rng, drawn = np.random.default_rng(0), []
    for _ in range(300):
        at = np.concatenate([rows[number] for number in rng.integers(len(rows), size=len(rows))])
        if right[at].any() and not right[at].all():
            drawn.append(_auc(logits[at], right[at]))
    low, high = np.quantile(drawn, [0.025, 0.975]) if drawn else (np.nan, np.nan)
    chance = expit(logits)
    yes = chance >= right.mean()
    groups = [group for group in np.array_split(np.argsort(chance), 10) if len(group)]
    error = np.mean([abs(chance[group].mean() - right[group].mean()) for group in groups])
    return {
        "figures": len(right),
        "atypical": int(right.sum()),
        "auc": f"{_auc(logits, right):.3f} [{low:.3f}, {high:.3f}]",
        "balanced_accuracy": round(float((yes[right].mean() + (~yes[~right]).mean()) / 2), 3),
        "calibration_error": round(float(error), 3),
    }


def _auc(values: Floats, right: Any) -> float:
    return float(mannwhitneyu(values[right], values[~right]).statistic / (right.sum() * (~right).sum()))
