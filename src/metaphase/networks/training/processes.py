"""One process or several (PyTorch's own launcher, `torchrun`): who am I, and what do the others have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn

from metaphase.networks.checkpoints import choose_device


@dataclass(frozen=True)
class Team:
    """This process's position among those that train together."""

    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def wrap(self, network: nn.Module) -> nn.Module:
        """The network with gradients averaged over the team."""
        if self.size == 1:
            return network
        if self.device.type == "cuda":
            network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
        return nn.parallel.DistributedDataParallel(network)

    def gather(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Values of all processes that took every `size`-th item, put back in order."""
        if self.size == 1:
            return values
        shares: list[npt.NDArray[np.float32]] = [values] * self.size
        dist.all_gather_object(shares, values)
        out = np.empty(sum(map(len, shares)), np.float32)
        for rank, share in enumerate(shares):
            out[rank :: self.size] = share
        return out


@contextmanager
def join_team(device: str | None = None) -> Iterator[Team]:
    """The team that the environment describes; a single process without a launcher."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    chosen = choose_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if size == 1:
        yield Team(0, 1, chosen)
        return
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)  # collective operations use the current device
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield Team(rank, size, chosen)
    finally:
        dist.destroy_process_group()
