"""Timing on a noisy machine: things run alternately in one process, on one thread, in CPU time; the median counts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch


def alternate(things: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 2) -> dict[str, list[float]]:
    """CPU seconds of each thing in each round, the things taking turns."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(warmup):
            for run in things.values():
                run()
        times: dict[str, list[float]] = {name: [] for name in things}
        for turn in range(rounds):
            # The order is turned around every other round, so that none always runs in another's wake.
            for name in list(things) if turn % 2 == 0 else reversed(list(things)):
                start = time.process_time()
                things[name]()
                times[name].append(time.process_time() - start)
        return times
    finally:
        torch.set_num_threads(threads)


def ratio(times: Mapping[str, list[float]], one: str, other: str) -> float:
    """How much longer `one` took than `other`: the median of the ratios of neighbours in time."""
    return statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))
