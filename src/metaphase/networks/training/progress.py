"""What a run keeps: how good it is on held-out patches, its history, and the state to resume from."""

from __future__ import annotations

import importlib.util
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from matplotlib.figure import Figure
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from metaphase.base.errors import TrainingError
from metaphase.base.files import atomic_path
from metaphase.base.provenance import differences

# ---- how good a network is on held-out patches ----


@dataclass(frozen=True)
class BestF1:
    """The highest F1 over all thresholds, and the lowest probability that counts as positive there."""

    f1: float
    threshold: float
    precision: float
    recall: float


def best_f1(probabilities: npt.NDArray[np.floating], labels: npt.NDArray[np.integer]) -> BestF1:
    """Sweep every threshold at once. Without any positive the F1 is 0."""
    order = np.argsort(-probabilities, kind="stable")
    ranked, hits = probabilities[order], np.cumsum(labels[order] == 1)
    positives = int((labels == 1).sum())
    if positives == 0:
        return BestF1(0.0, 1.0, 0.0, 0.0)
    called = np.arange(1, len(ranked) + 1)
    last_of_ties = np.append(ranked[1:] != ranked[:-1], True)
    f1 = np.where(last_of_ties, 2 * hits / (called + positives), -1.0)
    best = int(f1.argmax())
    precision, recall = hits[best] / called[best], hits[best] / positives
    return BestF1(float(f1[best]), float(ranked[best]), float(precision), float(recall))


# ---- what happened in a run ----


def write_history(folder: Path, history: list[dict[str, float]]) -> None:
    """Write `history.csv` anew, and add the newest epoch to TensorBoard."""
    with atomic_path(folder / "history.csv") as temporary:
        pd.DataFrame(history).to_csv(temporary, index=False)
    if importlib.util.find_spec("tensorboard"):
        _add_to_tensorboard(folder / "tensorboard", history[-1])


def write_curves(folder: Path, history: list[dict[str, float]]) -> None:
    """Write `curves.png`; drawing takes longer than a short epoch does on a GPU."""
    with atomic_path(folder / "curves.png") as temporary:
        draw_curves(pd.DataFrame(history)).savefig(temporary, dpi=120)


def draw_curves(table: pd.DataFrame) -> Figure:
    """Loss, F1 and learning rate by epoch."""
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(9, 3), layout="constrained")
        panels = figure.subplots(1, 3)
        for panel, column in zip(panels, ("loss", "f1", "learning_rate"), strict=True):
            panel.plot(table["epoch"], table[column], marker=".")
            panel.set(xlabel="epoch", title={"f1": "validation F1"}.get(column, column.replace("_", " ")))
        panels[2].set_yscale("log")
        best = table.iloc[int(table["f1"].argmax())]
        panels[1].plot(best["epoch"], best["f1"], "o", color="tab:red")
    return figure


def _add_to_tensorboard(folder: Path, row: dict[str, float]) -> None:
    from torch.utils.tensorboard.writer import SummaryWriter

    epoch = int(row["epoch"])
    with SummaryWriter(str(folder), purge_step=epoch) as writer:
        for name, value in row.items():
            writer.add_scalar(name, value, epoch)


class Timer:
    """Tells when so many seconds have gone by again."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._last = seconds, time.monotonic()

    def is_due(self) -> bool:
        """Whether they have; then they are counted anew."""
        if time.monotonic() - self._last < self._seconds:
            return False
        self._last = time.monotonic()
        return True


# ---- all that a training run needs to go on after being killed ----


@dataclass
class Progress:
    """How far a training is."""

    made_from: dict[str, Any]
    """The account of what decides the weights."""
    epoch: int = 0
    step: int = 0
    """Steps of this epoch that are done."""
    best_f1: float = -1.0
    history: list[dict[str, float]] = field(default_factory=list)


def save_state(
    path: Path,
    network: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    loss_sum: Tensor,
    progress: Progress,
) -> None:
    """Write weights, optimiser (a finished run needs none), running loss and progress, atomically."""
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    for number, values in (optimizer.state_dict()["state"] if optimizer else {}).items():
        tensors |= {f"optimizer.{number}.{key}": value for key, value in values.items()}
    tensors["loss_sum"] = loss_sum
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_path(path) as temporary:
        save_file(on_cpu, temporary, metadata={"progress": json.dumps(asdict(progress))})


def load_state(
    path: Path,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_sum: Tensor,
    made_from: dict[str, Any],
) -> Progress:
    """Put a run back to where it stood; a run of other ingredients is refused."""
    try:
        with safe_open(path, framework="pt") as file:
            progress = Progress(**json.loads(file.metadata()["progress"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- not a dict
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise TrainingError(
            f"the state of the run is damaged ({error})", path=path, next_step="remove it to start again"
        ) from error
    _check_same_run(path, progress.made_from, made_from)
    own = {name: tensor for name, tensor in tensors.items() if name.startswith("network.")}
    network.load_state_dict({name.removeprefix("network."): tensor for name, tensor in own.items()})
    _load_optimizer(optimizer, tensors)
    loss_sum.copy_(tensors["loss_sum"])
    return progress


def _load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    states: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".", 2)
            states.setdefault(int(number), {})[key] = tensor
    if states:
        optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
        _lay_out_as_weights(optimizer)


def _lay_out_as_weights(optimizer: torch.optim.Optimizer) -> None:
    """Moments in the memory order of their weights (channels last), as fused optimisers on a GPU insist."""
    for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
        for key, value in optimizer.state[weight].items():
            if value.shape == weight.shape:
                optimizer.state[weight][key] = torch.empty_like(weight).copy_(value)


def _check_same_run(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    reason = differences(json.loads(json.dumps(before)), json.loads(json.dumps(now)))
    if reason:
        raise TrainingError(
            f"the folder holds another run: {reason}",
            path=path.parent,
            next_step="train into another folder, or remove this one",
        )
