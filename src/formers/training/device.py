"""The device to compute on, and its memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

from formers.core import FormersError
from formers.core.devices import capabilities


def pick_device(name: str, local: int | None = None) -> torch.device:
    """The device of a name, such as cpu, cuda, cuda:1 or mps; auto takes an accelerator if there is one.

    It becomes the current device of its type before anything is allocated, so that nothing is allocated on another. local: the local rank
    of one of several processes, each of which has its own device.
    """
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    try:
        device = torch.device(("cpu" if found is None else found.type) if name == "auto" else name)
        if device.type == "cpu":
            return torch.device("cpu")
        if found is None or device.type != found.type:
            raise FormersError(_absent(name))
    except (RuntimeError, TypeError):  # no name of a device
        raise FormersError(_absent(name)) from None
    count = torch.accelerator.device_count()
    if local is not None and device.index is not None:
        raise FormersError(f"device={name!r} is one device for several processes: give {device.type}, for a device each.")
    index = device.index if device.index is not None else local or 0
    if index >= count:
        there = "is one" if count == 1 else f"are {count}"
        fix = f"use {device.type}:0{'' if count == 1 else f' ... {device.type}:{count - 1}'}" if local is None else "start fewer processes"
        raise FormersError(f"device={f'{device.type}:{index}'!r} is not available, there {there}: {fix}.")
    torch.accelerator.set_device_index(index)
    return torch.device(device.type, index)


def _absent(name: object) -> str:
    return f"device={name!r} is not available: use cpu, or auto for the best available device."


def peak_device_memory(device: torch.device) -> int | None:
    """The most bytes that tensors on a device took since `reset_peak`; None on the host, or where torch does not count them."""
    return None if capabilities(device).host else _if_counted(torch.accelerator.max_memory_allocated, device)


def reset_peak(device: torch.device) -> None:
    """Resets the peak memory of a device."""
    if not capabilities(device).host:
        _if_counted(torch.accelerator.reset_peak_memory_stats, device)


def _if_counted(function: Callable[[torch.device], int | None], device: torch.device) -> int | None:
    try:
        return function(device)
    except (RuntimeError, NotImplementedError):  # a device whose allocator keeps no statistics, such as MPS
        return None
