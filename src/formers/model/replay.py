"""Repeating a computation exactly: the states of the random number generators, and of autocast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states


class Randomness(NamedTuple):
    """The states of torch's global generators, on the CPU and on a tensor's device."""

    cpu: Tensor
    device: str
    devices: list[int]
    states: list[Tensor]

    @classmethod
    def now(cls, x: Tensor) -> Randomness:
        """The current states."""
        return cls(torch.get_rng_state(), x.device.type, *get_device_states(x))

    def restore(self) -> None:
        """Sets the generators to these states."""
        torch.set_rng_state(self.cpu)
        if self.devices:
            set_device_states(self.devices, self.states, device_type=self.device)


class Casting(NamedTuple):
    """The autocast settings of a device type."""

    device: str
    dtype: torch.dtype
    enabled: bool
    cached: bool

    @classmethod
    def now(cls, x: Tensor) -> list[Casting]:
        """The current settings, for the CPU and for a tensor's device."""
        kinds = [kind for kind in dict.fromkeys((x.device.type, "cpu")) if torch.amp.is_autocast_available(kind)]
        cached = torch.is_autocast_cache_enabled()
        return [cls(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), cached) for kind in kinds]


@contextmanager
def replaying(x: Tensor, castings: Sequence[Casting]) -> Iterator[None]:
    """A context with these autocast settings; at its end the generators are reset to their states before it."""
    before = Randomness.now(x)
    with ExitStack() as stack:
        stack.callback(before.restore)
        for casting in castings:
            autocast = torch.autocast(casting.device, dtype=casting.dtype, enabled=casting.enabled, cache_enabled=casting.cached)
            stack.enter_context(autocast)
        yield
