"""Timing on a noisy machine: things run alternately in one process, on one thread, in CPU time; the median counts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


def alternate(
    things: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 2, tick: Callable[[], None] | None = None
) -> dict[str, list[float]]:
    """CPU seconds of each function in each round, run alternately; `tick` is called after each run, including warm-up."""
    times: dict[str, list[float]] = {name: [] for name in things}
    with one_thread():
        for turn in range(-warmup, rounds):
            # The order is reversed every other round, so that no function always runs after the same one.
            for name in list(things) if turn < 0 or turn % 2 == 0 else reversed(list(things)):
                start = time.process_time()
                things[name]()
                seconds = time.process_time() - start
                if turn >= 0:
                    times[name].append(seconds)
                if tick is not None:
                    tick()
    return times


@contextmanager
def one_thread() -> Iterator[None]:
    """Context in which torch uses one thread: waiting threads would count as CPU time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def ratio(times: Mapping[str, list[float]], one: str, other: str) -> float:
    """How much longer `one` took than `other`: the median of the ratios of adjacent runs."""
    return statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))


def both_ways(way: Callable[[], Tensor], inputs: Sequence[Tensor], gradient: Tensor) -> object:
    """A forward pass, and the backward pass to its inputs from the gradient of its output; unused inputs have no gradient."""
    return torch.autograd.grad(way(), inputs, gradient, allow_unused=True)
