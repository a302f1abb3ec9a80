"""All that a training run needs to go on after being killed, in one safetensors file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from metaphase.artifacts import atomic_path
from metaphase.errors import TrainingError


@dataclass
class Progress:
    """Where a run stands."""

    config: dict[str, Any]
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
    path: Path, network: nn.Module, optimizer: torch.optim.Optimizer, loss_sum: Tensor, config: dict[str, Any]
) -> Progress:
    """Put a run back to where it stood; a run of another configuration is refused."""
    try:
        with safe_open(path, framework="pt") as file:
            progress = Progress(**json.loads(file.metadata()["progress"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- not a dict
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise TrainingError(
            f"the state of the run is damaged ({error})", path=path, next_step="remove it to start again"
        ) from error
    _check_same_run(path, progress.config, config)
    network.load_state_dict(
        {
            name.removeprefix("network."): tensor
            for name, tensor in tensors.items()
            if name.startswith("network.")
        }
    )
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
    changed = sorted(key for key in now if json.loads(json.dumps(now[key])) != before.get(key))
    if changed:
        raise TrainingError(
            f"the folder holds a run with another {changed[0]}",
            path=path.parent,
            next_step="train into another folder, or remove this one",
        )
