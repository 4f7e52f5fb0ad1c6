"""Data-parallel training in several processes started by torchrun: each process reads its rows of the batch, gradients are averaged.

    torchrun --nproc-per-node 2 -m formers train decoder --data my.txt --out runs/mine

The batch of a step does not depend on the number of processes, so a run may be resumed with another number.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from formers.core import FormersError
from formers.core.devices import capabilities

TIMEOUT = timedelta(minutes=30)
"""Timeout of a process that waits for the others."""


@dataclass(frozen=True)
class World:
    """The number of processes, and the rank of this one."""

    rank: int = 0
    size: int = 1
    local: int = 0
    """This process's local rank on its machine: its GPU."""
    restarts: int = 0
    """The number of times torchrun has restarted the processes."""

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether this is the only process."""
        return self.size == 1

    def total(self, values: Sequence[float]) -> list[float]:
        """Each value, summed over all processes."""
        if self.alone:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64)  # on the CPU, by gloo: no device waits
        torch.distributed.all_reduce(sums)
        return sums.tolist()

    def wait(self) -> None:
        """A barrier: returns when all processes have reached it."""
        if not self.alone:
            self.total([0.0])

    def first_says(self, *values: float) -> list[float]:
        """The values of the first process."""
        return self.total([value if self.first else 0.0 for value in values])

    def rows(self, batch: int, pieces: int) -> list[slice]:
        """The rows of a batch that this process reads, in micro-batches of nearly equal size; none is empty."""
        count = self.size * pieces
        if batch < count:
            raise FormersError(f"batch={batch} is too small for {self.size} processes of {pieces} micro-batches: use at least {count}.")
        cuts = [batch * i // count for i in range(count + 1)]
        mine = range(self.rank * pieces, (self.rank + 1) * pieces)
        return [slice(cuts[i], cuts[i + 1]) for i in mine]

    def wrap(self, module: nn.Module, device: torch.device, idle: bool = False) -> nn.Module:
        """The module with gradients averaged over the processes; idle: whether a step may leave some parameters without a gradient."""
        if self.alone:
            return module
        where = None if device.index is None or capabilities(device).host else [device]
        return nn.parallel.DistributedDataParallel(module, device_ids=where, find_unused_parameters=idle)

    def quiet(self, module: Any, last: bool) -> AbstractContextManager[Any]:
        """Context in which gradients are not averaged, unless this is the last micro-batch."""
        return nullcontext() if self.alone or last else module.no_sync()


ALONE = World()
"""The only process of a run without torchrun."""


def world() -> World:
    """The processes that torchrun started; one without it."""
    read = {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT")}
    rank, size, local, restarts = (int(value) if value.isdigit() else 0 for value in read.values())
    return World(rank, max(size, 1), local, restarts)


def join(world: World, device: torch.device) -> bool:
    """Initialises the process group; returns whether this call did so, in which case the caller must call `leave`."""
    if world.alone or torch.distributed.is_initialized():
        return False
    # torchrun's store may outlive a restart: without a new name, processes would wait for those that have died.
    store, rank, size = next(rendezvous("env://", timeout=TIMEOUT))
    mine = PrefixStore(f"formers-{world.restarts}", store)
    torch.distributed.init_process_group(backends(device), store=mine, rank=rank, world_size=size, timeout=TIMEOUT)
    return True


def leave() -> None:
    """Destroys the process group, after what wrapped modules left of it: reference cycles would end after the group."""
    gc.collect()
    torch.distributed.destroy_process_group()


def backends(device: torch.device) -> str:
    """The backends of torch.distributed: gloo for numbers of the host, and the device's own for gradients, such as nccl."""
    if capabilities(device).host:
        return "gloo"
    return f"cpu:gloo,{device.type}:{torch.distributed.get_default_backend_for_device(device)}"
