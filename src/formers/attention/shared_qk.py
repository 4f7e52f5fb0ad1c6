"""Shared-QK attention: the keys are the queries, normalised to unit length (Kitaev et al., 2020, section 2).

k_j = q_j / |q_j|        a_ij = softmax over j in S_i of q_i . k_j / sqrt(d_h)                                    E92

With `key_epsilon` keys are q_j / sqrt(|q_j|^2 + d_h epsilon): trax and transformers add an epsilon of 1e-6 to the mean square.
The score of a query with itself is the largest, so a query may attend to itself only if it sees no other key.
"""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn
from torch.nn import functional as F

from formers.attention.attend import run
from formers.attention.executors import dense
from formers.attention.executors.tiles import wide
from formers.attention.multihead import Attention, DotProduct, _Heads, initialise, next_cache
from formers.core import Context, KVCache, Sizes
from formers.core.state import expect
from formers.patterns import Local, Pattern
from formers.score.base import ScoreModule

FAR = 1 << 30
"""A window larger than any row, which fits into int32 with one more: the indices of kernels have this type."""


class SharedQK(Attention):
    """Dot-product attention over all pairs with normalised queries as keys; LSH attention approximates it."""

    scaled: bool = True
    """Whether to scale by 1/sqrt(head_dim) after normalising; transformers and trax do not (their keys have length sqrt(head_dim))."""
    bias: bool = False
    key_epsilon: NonNegativeFloat = 0.0
    """Added to the mean square of a query before it is normalised: 1e-6 in trax and transformers."""

    def build(self, sizes: Sizes, pattern: Pattern, score: ScoreModule | None = None, common: nn.Module | None = None) -> nn.Module:
        return SharedAttention(sizes, pattern, self)


class SharedHeads(_Heads):
    """The projections of attention with queries as keys."""

    name = "attention"

    def __init__(self, sizes: Sizes, scaled: bool, bias: bool) -> None:
        super().__init__(sizes, DotProduct(scaled=scaled, bias=bias))
        self.qv = nn.Linear(sizes.dim, sum(self.widths[1:]), bias=bias)
        initialise(self.qv, self.widths[1:], law=sizes.initialisation)
        initialise(self.out, [sizes.dim], sizes.gain, sizes.initialisation)

    def reach(self, step: int) -> int | None:
        """The number of distances that a score covers: there is no score."""
        return None


def unit_keys(q: Tensor, epsilon: float = 0.0) -> Tensor:
    """Keys: queries (..., width) normalised to length 1; slightly shorter with an epsilon, which is added to their mean square."""
    if not epsilon:
        return F.normalize(q, dim=-1)  # E92
    squares = q.to(wide(q.dtype)).square().sum(dim=-1, keepdim=True)
    return q * torch.rsqrt(squares + q.shape[-1] * epsilon).to(q.dtype)


class SharedAttention(SharedHeads):
    """Self-attention with queries as keys, over the tokens of x and the cached past."""

    def __init__(self, sizes: Sizes, pattern: Pattern, part: SharedQK) -> None:
        super().__init__(sizes, part.scaled, part.bias)
        self.key_epsilon = part.key_epsilon
        self.patterns = [pattern.at(step) for step in range(sizes.depth_steps)]

    def forward(self, x: Tensor, context: Context, past: KVCache | None, step: int) -> tuple[Tensor, KVCache | None]:
        pattern = self.patterns[step]
        q, v = self.split_all(self.qv(x), 2)
        k = unit_keys(q, self.key_epsilon)
        cache = KVCache(k, v, context.positions) if past is None else expect(KVCache, past).append(k, v, context.positions)
        valid = None if pattern.is_causal else context.valid
        request = self.request(without_self(pattern), context.positions, cache.positions, valid, None)
        single = sees_no_other(pattern, context, x)[:, None, :, None]
        if context.watch is not None:
            self.show(context.watch, q, cache.keys, cache.values, request, step)
            context.watch.note(self.name, step, lambda: attend_to_self(dense.weights(q, cache.keys, request), single))
        y = self.merge(torch.where(single, v, run(q, cache.keys, cache.values, request)))
        return y, next_cache(cache, pattern, context) if context.keep else None


def attend_to_self(weights: Tensor, single: Tensor) -> Tensor:
    """Weights (batch, heads, queries, keys) in which queries marked in `single` attend to themselves; the queries are the last keys."""
    queries, keys = weights.shape[2:]
    itself = torch.eye(queries, dtype=weights.dtype, device=weights.device)
    return torch.where(single, F.pad(itself, (keys - queries, 0)), weights)


def without_self(pattern: Pattern) -> Pattern:
    """All other tokens: the pattern, which is full or causal, without self."""
    return Local(window=FAR, causal=pattern.is_causal, include_self=False)


def sees_no_other(pattern: Pattern, context: Context, x: Tensor) -> Tensor:
    """The tokens (batch or 1, n) of x (batch, n, dim) that see no other token."""
    n = x.shape[1]
    if pattern.is_causal:
        return (context.positions.tensor(x.device) == 0).view(-1, n)
    if context.valid is None:
        return torch.full((1, n), n == 1, device=x.device)
    return (context.valid.sum(dim=1) == 1)[:, None].expand(-1, n)
