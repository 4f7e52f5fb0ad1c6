"""What it takes to compute something a second time and get the same: the states of random numbers, and autocast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states


class Randomness(NamedTuple):
    """The states of torch's global random numbers, on the CPU and on a tensor's device."""

    cpu: Tensor
    device: str
    devices: list[int]
    states: list[Tensor]

    @classmethod
    def now(cls, x: Tensor) -> Randomness:
        """The states as they are."""
        return cls(torch.get_rng_state(), x.device.type, *get_device_states(x))

    def restore(self) -> None:
        """Lets random numbers go on from these states."""
        torch.set_rng_state(self.cpu)
        if self.devices:
            set_device_states(self.devices, self.states, device_type=self.device)


class Casting(NamedTuple):
    """What autocast does to the operations of a kind of device."""

    device: str
    dtype: torch.dtype
    enabled: bool
    cached: bool

    @classmethod
    def now(cls, x: Tensor) -> list[Casting]:
        """What it does, on the CPU and on a tensor's device."""
        kinds = [kind for kind in dict.fromkeys((x.device.type, "cpu")) if torch.amp.is_autocast_available(kind)]
        cached = torch.is_autocast_cache_enabled()
        return [cls(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), cached) for kind in kinds]


@contextmanager
def replaying(x: Tensor, castings: Sequence[Casting]) -> Iterator[None]:
    """Within it autocast is as it was; behind it random numbers go on as if nothing had been drawn."""
    before = Randomness.now(x)
    with ExitStack() as stack:
        stack.callback(before.restore)
        for casting in castings:
            autocast = torch.autocast(casting.device, dtype=casting.dtype, enabled=casting.enabled, cache_enabled=casting.cached)
            stack.enter_context(autocast)
        yield
