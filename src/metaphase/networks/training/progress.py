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
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from metaphase.base.errors import TrainingError
from metaphase.base.files import atomic_path
from metaphase.base.foreign import parsing
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
        from torch.utils.tensorboard.writer import SummaryWriter

        epoch = int(history[-1]["epoch"])
        with SummaryWriter(str(folder / "tensorboard"), purge_step=epoch) as writer:
            for name, value in history[-1].items():
                writer.add_scalar(name, value, epoch)


def write_curves(folder: Path, history: list[dict[str, float]]) -> None:
    """Write `curves.png`: loss, F1 and learning rate by epoch. It takes longer than a short epoch."""
    table = pd.DataFrame(history)
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(9, 3), layout="constrained")
        panels = figure.subplots(1, 3)
        for panel, column in zip(panels, ("loss", "f1", "learning_rate"), strict=True):
            panel.plot(table["epoch"], table[column], marker=".")
            panel.set(xlabel="epoch", title={"f1": "validation F1"}.get(column, column.replace("_", " ")))
        panels[2].set_yscale("log")
        best = table.iloc[int(table["f1"].argmax())]
        panels[1].plot(best["epoch"], best["f1"], "o", color="tab:red")
        with atomic_path(folder / "curves.png") as temporary:
            figure.savefig(temporary, dpi=120)


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

    made_from: Any
    """The account of what decides the weights, as plain values."""
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
    made_from: Any,
) -> Progress:
    """Put a run back to where it stood; a run of other ingredients is refused."""
    damaged = parsing(
        path, "the state of the run is damaged", next_step="remove it to start again", error=TrainingError
    )
    with damaged, safe_open(path, framework="pt") as file:
        progress = Progress(**json.loads(file.metadata()["progress"]))
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- not a dict
    now = json.loads(json.dumps(made_from))
    if progress.made_from != now:
        raise TrainingError(
            f"the folder holds another run: {differences(progress.made_from, now)}",
            path=path.parent,
            next_step="train into another folder, or remove this one",
        )
    own = {name: tensor for name, tensor in tensors.items() if name.startswith("network.")}
    network.load_state_dict({name.removeprefix("network."): tensor for name, tensor in own.items()})
    _load_optimizer(optimizer, tensors)
    loss_sum.copy_(tensors["loss_sum"])
    return progress


def _load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Moments lie in memory as their weights (channels last), as fused optimisers on a GPU insist."""
    states: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".", 2)
            states.setdefault(int(number), {})[key] = tensor
    if not states:
        return
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
    for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
        for key, value in optimizer.state[weight].items():
            if value.shape == weight.shape:
                optimizer.state[weight][key] = torch.empty_like(weight).copy_(value)


def set_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Go on at another learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
