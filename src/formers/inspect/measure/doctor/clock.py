"""Time on a device. Work on an accelerator is asynchronous: a clock is read only after the device has finished."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from formers.core.devices import capabilities

RUNS = 5
"""Runs after the first one, of which the median is taken."""


class Times(NamedTuple):
    """Seconds of the first run, which may compile kernels, and the median of later ones."""

    first: float
    later: float


def finish(device: torch.device) -> None:
    """Waits until a device has finished its work."""
    if capabilities(device).host:
        return
    try:
        torch.accelerator.synchronize(device)
    except RuntimeError:  # a backend in Python; an error of a kernel is raised again
        torch.get_device_module(device).synchronize()


def timed(run: Callable[[], object], device: torch.device, runs: int = RUNS) -> Times:
    """The times of a function that computes on a device."""
    first, *later = (_seconds(run, device) for _ in range(runs + 1))
    return Times(first, statistics.median(later))


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    finish(device)
    start = time.perf_counter()
    run()
    finish(device)
    return time.perf_counter() - start
