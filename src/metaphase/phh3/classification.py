"""CNN1 and CNN2 on every candidate of a slide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import nn

from metaphase.learning.patches import Patches
from metaphase.learning.processes import choose_device
from metaphase.learning.training import centre_crop
from metaphase.networks import ModelCard, load_model, probability
from metaphase.phh3 import searching
from metaphase.phh3.errors import Phh3Error
from metaphase.phh3.scores import Scores, read_scores, write_scores
from metaphase.records import file_fingerprint
from metaphase.slides import Slide, cut_squares, open_slide

BLOCK_PX = 512
"""Candidates of one block of this side (patch pixels) are read together: tiles are decoded once."""
BATCH = 256
Rows = npt.NDArray[np.int64]
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
        return self.card.thresholds["patches"].parameters["delta"]

    @torch.inference_mode()
    def __call__(self, patches: Patches) -> npt.NDArray[np.float32]:
        """Probability of class 1 for each patch (n, side, side, 3)."""
        images = centre_crop(torch.from_numpy(patches).to(self.device), self.card.patch_px)
        answers: npt.NDArray[np.float32] = probability(self.network(images)).flatten().cpu().numpy()
        return answers


def load_classifier(name: str, path: str | Path, device: str | None = None) -> Classifier:
    """Load CNN1 or CNN2; a model that was made for something else is a `Phh3Error`."""
    chosen = choose_device(device)
    network, card = load_model(path, chosen)
    if card.family != "classifier" or card.name != name or "patches" not in card.thresholds:
        raise Phh3Error(
            f"is {card.name!r}, a {card.family}, and not {name}",
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
) -> tuple[Scores, bool]:
    """Score the candidates in a case's folder and write scores and mitoses; returns whether there was work.

    Columns that the same weights made for the same candidates are kept.
    """
    folder = Path(folder)
    table = searching.read_candidates(folder)
    candidates = file_fingerprint(folder / searching.TABLE)
    scores = _kept_scores(folder, table, candidates)
    due = [one for one in classifiers if scores.weights.get(one.name) != one.card.weights_sha256]
    if not due:
        return scores, False
    with open_slide(slide_path, mpp=mpp) as slide:
        columns = score_candidates(slide, table, due, progress)
    scores = replace(
        scores,
        table=scores.table.assign(**columns),
        weights=scores.weights | {one.name: one.card.weights_sha256 for one in due},
        decisions=scores.decisions | {one.name: one.decision for one in due},
    )
    write_scores(folder, case, scores)
    return scores, True


def score_candidates(
    slide: Slide, table: pd.DataFrame, classifiers: list[Classifier], progress: Progress | None = None
) -> dict[str, npt.NDArray[np.float32]]:
    """Probabilities of each candidate by each network's name."""
    if len({(one.card.patch_px, one.card.mpp) for one in classifiers}) > 1:
        raise Phh3Error("CNN1 and CNN2 want different patches", next_step="train both at one resolution")
    columns = {one.name: np.zeros(len(table), np.float32) for one in classifiers}
    card = classifiers[0].card
    points = table[["x", "y"]].to_numpy(float)
    done = 0
    for rows, patches in batched(cut_by_block(slide, points, card.patch_px, card.mpp), BATCH):
        for one in classifiers:
            columns[one.name][rows] = one(patches)
        done += len(rows)
        if progress is not None:
            progress(done, len(table))
    return columns


def cut_by_block(
    slide: Slide, points: npt.NDArray[np.float64], side_px: int, mpp: float
) -> Iterator[tuple[Rows, Patches]]:
    """Patches (n, side, side, 3) centred on level-0 `points` to the nearest pixel, block by block."""
    corners = np.rint(points / (mpp / slide.mpp) - side_px / 2).astype(np.int64)
    return cut_squares(slide, corners, side_px, mpp, block_px=BLOCK_PX)


def batched(groups: Iterator[tuple[Rows, Patches]], size: int) -> Iterator[tuple[Rows, Patches]]:
    """Gather small groups into batches of about `size`, and cut large ones."""
    rows: list[Rows] = []
    patches: list[Patches] = []
    waiting = 0
    for numbers, pixels in groups:
        rows, patches = [*rows, numbers], [*patches, pixels]
        waiting += len(numbers)
        if waiting >= size:
            yield from _cut_up(np.concatenate(rows), np.concatenate(patches), size)
            rows, patches, waiting = [], [], 0
    if waiting:
        yield np.concatenate(rows), np.concatenate(patches)


def _cut_up(rows: Rows, patches: Patches, size: int) -> Iterator[tuple[Rows, Patches]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size], patches[start : start + size]


def _kept_scores(folder: Path, table: pd.DataFrame, candidates: str) -> Scores:
    """Earlier scores of these very candidates, or none."""
    try:
        scores = read_scores(folder)
    except Phh3Error:
        return Scores(table, {}, {}, candidates)
    known = all(name in scores.table for name in scores.weights)
    return scores if known else Scores(table, {}, {}, candidates)
