"""A low-rank attention sublayer beside a dense one, forward and backward, alternating in one process: how both grow with the length."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from formers.attention import Attention, DotProduct, LowRank
from formers.bench.timing import alternate, both_ways, ratio
from formers.core import Context, FormersError, Range, Sizes
from formers.patterns import Full

DIM, HEADS = 256, 4
LENGTHS = (512, 1024, 2048, 4096)
LIMITS = {"lowrank_slope": (0.0, 1.2), "speedup": (3.0, float("inf"))}
"""Of the lengths above: time that is linear in the length, and at the longest of them at least 3 times faster."""


def bench_linformer(lengths: Sequence[int] = LENGTHS, rank: int = 64, rounds: int = 5) -> dict[str, float]:
    """Seconds of each at each length, the slopes of log seconds over log length, and the speed-up at the longest."""
    lengths = sorted(set(lengths))
    if len(lengths) < 2 or rank > lengths[0]:
        raise FormersError(f"lengths {lengths} and rank={rank} make no slope: give two different lengths at least, of at least the rank.")
    torch.manual_seed(0)
    things: dict[str, Callable[[], object]] = {}
    for n in lengths:
        for name, part in (("dense", DotProduct()), ("lowrank", LowRank(rank=rank))):
            things[f"{name}_{n}"] = _both(part, n)
    times = alternate(things, rounds, warmup=1)
    seconds = {name: statistics.median(t) for name, t in times.items()}
    slopes = {f"{name}_slope": _slope(lengths, [seconds[f"{name}_{n}"] for n in lengths]) for name in ("dense", "lowrank")}
    last = lengths[-1]
    return {
        "rank": rank,
        **{f"{name}_seconds": value for name, value in seconds.items()},
        **slopes,
        "speedup": ratio(times, f"dense_{last}", f"lowrank_{last}"),
    }


def _both(part: Attention, n: int) -> Callable[[], object]:
    """A forward and a backward pass of a sublayer over a row of n tokens."""
    sizes = Sizes(DIM, HEADS, DIM // HEADS, DIM // HEADS, length=n, depth_steps=1, dropout=0.0, attention_dropout=0.0)
    layer: nn.Module = part.build(sizes, Full())
    x, stream = torch.randn(1, n, DIM, requires_grad=True), Context(Range(0, n))
    wanted = (x, *layer.parameters())
    weight = torch.randn(1, n, DIM)
    return partial(both_ways, lambda: layer(x, stream, None, 0)[0], wanted, weight)


def _slope(lengths: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of the straight line nearest to the points (log length, log seconds)."""
    return statistics.linear_regression([math.log(n) for n in lengths], [math.log(t) for t in seconds]).slope
