"""CNN1 and CNN2 on every candidate of a slide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import nn

from metaphase.base.arrays import RGB, Integers
from metaphase.base.provenance import FileContent, Ingredients
from metaphase.labels.phh3.cases import (
    CANDIDATES,
    Classified,
    read_candidates,
    read_classified,
    write_classified,
)
from metaphase.labels.phh3.config import CLASSES, Phh3Error
from metaphase.networks.architectures import centre_crop, patch_probability
from metaphase.networks.cards import ModelCard, named_model
from metaphase.networks.checkpoints import choose_device, load_model
from metaphase.slides import Slide, SlideSource, cut_squares

BLOCK_PX = 512
"""Candidates of one block of this side (patch pixels) are read together: tiles are decoded once."""
BATCH = 256
Progress = Callable[[int, int], None]
"""Called with candidates finished and candidates in all."""


@dataclass(frozen=True, eq=False)
class Classifier:
    """A loaded CNN1 or CNN2."""

    name: str
    network: nn.Sequential
    card: ModelCard
    device: torch.device

    @property
    def decision(self) -> float:
        """Least probability of a yes, tuned on the validation cases."""
        return self.card.thresholds["patches"].delta

    def account(self) -> dict[str, Any]:
        """What decides its answers."""
        return {"network": self.card.identity, "decision": self.decision}

    @torch.inference_mode()
    def __call__(self, patches: RGB) -> npt.NDArray[np.float32]:
        """Probability of class 1 for each patch (n, side, side, 3)."""
        images = centre_crop(torch.from_numpy(patches).to(self.device), self.card.patch_px)
        answers: npt.NDArray[np.float32] = patch_probability(self.network(images)).cpu().numpy()
        return answers


@dataclass(frozen=True)
class CandidatesClassified(Ingredients, stage="PHH3 classification"):
    """What decides a network's column."""

    slide: SlideSource
    candidates: FileContent
    network: Classifier


def load_classifier(name: str, path: str | Path, device: str | None = None) -> Classifier:
    """Load CNN1 or CNN2, from its file or by a bundled name; a model of something else is a `Phh3Error`."""
    chosen = choose_device(device)
    path = named_model(path)
    network, card = load_model(path, chosen)
    if card.family != "classifier" or card.classes != CLASSES[name] or "patches" not in card.thresholds:
        raise Phh3Error(
            f"is {card.name!r}, a {card.family} of {' and '.join(card.classes)}, and not {name}",
            path=path,
            next_step=f"give the model that metaphase phh3 train-{name} made",
        )
    return Classifier(name, network.to(memory_format=torch.channels_last), card, chosen)  # type: ignore[call-overload]


def classify_case(
    slide_path: str | Path,
    folder: str | Path,
    case: str,
    classifiers: list[Classifier],
    *,
    mpp: float | None = None,
    progress: Progress | None = None,
) -> tuple[Classified, bool]:
    """Ask about the candidates in a case's folder, and write answers and mitoses; says whether it had to.

    Columns that the same network made of the same slide and candidates are kept.
    """
    folder, source = Path(folder), SlideSource(Path(slide_path), mpp)
    table = read_candidates(folder)
    answers = _kept(folder, table)
    candidates = FileContent(folder / CANDIDATES)
    keys = {one.name: CandidatesClassified(source, candidates, one).key for one in classifiers}
    due = [one for one in classifiers if answers.keys.get(one.name) != keys[one.name]]
    if not due:
        return answers, False
    with source.open() as slide:
        columns = classify_candidates(slide, table, due, progress)
    answers = replace(
        answers,
        table=answers.table.assign(**columns),
        keys=answers.keys | keys,
        decisions=answers.decisions | {one.name: one.decision for one in due},
    )
    write_classified(folder, case, answers)
    return answers, True


def classify_candidates(
    slide: Slide, table: pd.DataFrame, classifiers: list[Classifier], progress: Progress | None = None
) -> dict[str, npt.NDArray[np.float32]]:
    """Probabilities of each candidate by each network's name."""
    if len({(one.card.patch_px, one.card.mpp) for one in classifiers}) > 1:
        raise Phh3Error("CNN1 and CNN2 want different patches", next_step="train both at one resolution")
    columns = {one.name: np.zeros(len(table), np.float32) for one in classifiers}
    card = classifiers[0].card
    points = table[["x", "y"]].to_numpy(float)
    done = 0
    for rows, patches in batched(
        cut_squares(slide, points, card.patch_px, card.mpp, block_px=BLOCK_PX), BATCH
    ):
        for one in classifiers:
            columns[one.name][rows] = one(patches)
        done += len(rows)
        if progress is not None:
            progress(done, len(table))
    return columns


def batched(groups: Iterator[tuple[Integers, RGB]], size: int) -> Iterator[tuple[Integers, RGB]]:
    """Gather small groups into batches of about `size`, and cut large ones."""
    rows: list[Integers] = []
    patches: list[RGB] = []
    waiting = 0
    for numbers, pixels in groups:
        rows, patches = [*rows, numbers], [*patches, pixels]
        waiting += len(numbers)
        if waiting >= size:
            yield from _cut_up(np.concatenate(rows), np.concatenate(patches), size)
            rows, patches, waiting = [], [], 0
    if waiting:
        yield np.concatenate(rows), np.concatenate(patches)


def _cut_up(rows: Integers, patches: RGB, size: int) -> Iterator[tuple[Integers, RGB]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size], patches[start : start + size]


def _kept(folder: Path, table: pd.DataFrame) -> Classified:
    """Earlier columns of these very candidates, or none."""
    try:
        answers = read_classified(folder)
    except Phh3Error:
        return Classified(table, {}, {})
    known = all(name in answers.table for name in answers.keys)
    return answers if known else Classified(table, {}, {})
