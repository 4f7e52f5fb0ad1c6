"""Attention over sparse patterns against torch's fused kernel over all pairs, forward and backward, alternating in one process."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from formers.attention import attend
from formers.bench.timing import alternate, ratio
from formers.patterns import BigBird, Fixed, Local, Pattern, Strided

HEADS, WIDTH = 4, 64
PATTERNS: dict[str, Pattern] = {
    "local": Local(window=256),
    "strided": Strided(stride=128),
    "fixed": Fixed(stride=128, summary=16),
    "bigbird": BigBird(block=64, window=3, global_blocks=2, random_blocks=3),
}
FLOORS = {"local": 8.0, "strided": 8.0, "fixed": 4.5, "bigbird": 5.5}
"""How many times faster than all pairs each should be at length 8,192."""
LIMITS = {f"{name}_speedup": (floor, float("inf")) for name, floor in FLOORS.items()}


def bench_attention(length: int, rounds: int) -> dict[str, Any]:
    """Seconds of a forward and backward pass of each pattern, and how many times faster than all pairs (causal, or full) it is.

    `rate` is the share of the fused kernel's own speed per pair that the pattern allows: 1 would mean that leaving pairs out costs nothing.
    """
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, length, WIDTH, requires_grad=True) for _ in range(3))
    g = torch.randn(1, HEADS, length, WIDTH)

    def both(run: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(run(), (q, k, v), g)

    things = {"causal": both(lambda: scaled_dot_product_attention(q, k, v, is_causal=True))}
    things["full"] = both(lambda: scaled_dot_product_attention(q, k, v))
    for name, pattern in PATTERNS.items():
        things[name] = both(partial(attend, q, k, v, pattern, "blocked"))
    times = alternate(things, rounds, warmup=1)
    figures: dict[str, Any] = {"length": length, **{f"{name}_seconds": statistics.median(t) for name, t in times.items()}}
    for name, pattern in PATTERNS.items():
        whole = "causal" if pattern.is_causal else "full"
        pairs = length * (length + 1) / 2 if pattern.is_causal else length * length
        figures[f"{name}_speedup"] = ratio(times, whole, name)
        figures[f"{name}_rate"] = figures[f"{name}_speedup"] * _allowed(pattern.of(length), length) / pairs
    return figures


def _allowed(pattern: Pattern, length: int) -> float:
    """The number of pairs that a pattern allows, the mean over heads, counted a few queries at a time."""
    here, head = torch.arange(length), torch.arange(HEADS)[:, None, None]
    total = 0
    for i in torch.split(here, 512):
        allowed = torch.as_tensor(pattern.allows(i[:, None], here[None, :], head))
        total += int(allowed.expand(HEADS, len(i), length).sum())
    return total / HEADS
