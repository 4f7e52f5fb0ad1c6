"""Attention written with Python loops, and small inputs for the executors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import formers
from contracts.specimens import LENGTHS, patterns
from formers import FormersError
from formers.attention import EXECUTORS
from formers.core import ExplicitPositions, Range
from formers.core.positions import Positions
from formers.patterns import Pattern
from helpers import sweep

SWEPT = sweep("pattern", [p.at(0).of(LENGTHS.stop - 1) for p in patterns()])
SWEPT_EXECUTORS = [name for name in EXECUTORS if name not in ("flex", "gather", "distances")]
"""FlexAttention has no backward pass on a CPU, gathering is for one query, one wants a term by distance: tests/attention sweeps each."""
EVERY = sweep("how", SWEPT_EXECUTORS)


def inputs(n: int, m: int | None = None, batch: int = 2, value_dim: int = 4, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Random q (n long), k and v (m long) of two heads that want gradients."""
    m = n if m is None else m
    shapes = ((batch, 2, n, 4), (batch, 2, m, 4), (batch, 2, m, value_dim))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def places(batch: int, positions: Positions) -> list[list[int]]:
    """Positions as lists of integers, one a row."""
    return positions.tensor().expand(batch, -1).tolist()


def by_loops(
    q: Tensor, k: Tensor, v: Tensor, pattern: Pattern,
    queries: Positions | None = None, keys: Positions | None = None, mask: Tensor | None = None, bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:  # fmt: skip
    """o_i = sum_j exp(s_ij) v_j / sum_j exp(s_ij) over the keys j that query i may see, number by number; 0 without keys."""
    batch, heads, n, dim = q.shape
    m = k.shape[2]
    scale = 1 / math.sqrt(dim) if scale is None else scale
    where = places(batch, Range(max(0, m - n), n) if queries is None else queries)
    there = places(batch, Range(0, m) if keys is None else keys)
    added = None if bias is None else bias.expand(batch, heads, n, m)
    out = []
    for b, h, i in ((b, h, i) for b in range(batch) for h in range(heads) for i in range(n)):
        total, mixed = 0.0, torch.zeros(v.shape[3], dtype=v.dtype)
        for j in range(m):
            real = there[b][j] >= 0 and (mask is None or bool(mask[b, j]))
            if not real or not pattern.allows(where[b][i], there[b][j], h):
                continue
            score = sum(q[b, h, i, c] * k[b, h, j, c] for c in range(dim)) * scale
            weight = torch.exp(score if added is None else score + added[b, h, i, j])
            total, mixed = total + weight, mixed + weight * v[b, h, j]
        out.append(mixed / total if isinstance(total, Tensor) else mixed)
    return torch.stack(out).view(batch, heads, n, v.shape[3])


def attempt(how: str, q: Tensor, k: Tensor, v: Tensor, pattern: Pattern, **options: Any) -> Tensor | None:
    """What an executor gives, or None where it says that it cannot; dense always can."""
    try:
        return formers.attend(q, k, v, pattern, how, **options)
    except FormersError as error:
        if how == "dense" or "cannot do this because" not in str(error):
            raise
        return None


def gaps(batch: int, length: int, seed: int = 0) -> ExplicitPositions:
    """Increasing positions with gaps, other ones in every row, with empty places among them."""
    steps = torch.randint(1, 3, (batch, length), generator=torch.Generator().manual_seed(seed))
    index = steps.cumsum(dim=1) - 1
    index[:, ::4] = -1
    return ExplicitPositions(index, int(index.max()) + 1)
