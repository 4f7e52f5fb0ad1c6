"""Attention whose keys are its queries, made as long as each other (Kitaev et al., 2020, section 2, "shared-QK").

k_j = q_j / |q_j|        a_ij = softmax over j in S_i of q_i . k_j / sqrt(d_h)                                    E92

With `key_epsilon` keys are q_j / sqrt(|q_j|^2 + d_h epsilon): trax and transformers add an epsilon of 1e-6 to the mean square.
A query is most like itself, so that it would look at nothing else: it does so only where it sees no other key.
"""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn
from torch.nn import functional as F

from formers.attention.attend import run
from formers.attention.executors import dense
from formers.attention.executors.tiles import wide
from formers.attention.multihead import Attention, DotProduct, _Heads, initialise, leave_behind
from formers.core import Context, ExplicitPositions, KVCache, Sizes
from formers.core.state import expect
from formers.patterns import Local, Pattern
from formers.score.base import ScoreModule

FAR = 1 << 40
"""A window that holds every token."""


class SharedQK(Attention):
    """Dot-product attention over all pairs with queries as keys: what LSH attention is near to."""

    scaled: bool = True
    """By 1/sqrt(head_dim), behind the keys' own norm; transformers' and trax's Reformer do not (their keys are sqrt(head_dim) long)."""
    bias: bool = False
    key_epsilon: NonNegativeFloat = 0.0
    """What is added to the mean square of a query before it is made a key of length 1: 1e-6 in trax and transformers."""

    def build(self, sizes: Sizes, pattern: Pattern, score: ScoreModule | None = None, common: nn.Module | None = None) -> nn.Module:
        return SharedAttention(sizes, pattern, self)


class SharedHeads(_Heads):
    """The way into heads of attention with queries as keys."""

    name = "attention"

    def __init__(self, sizes: Sizes, scaled: bool, bias: bool) -> None:
        super().__init__(sizes, DotProduct(scaled=scaled, bias=bias))
        self.qv = nn.Linear(sizes.dim, sum(self.widths[1:]), bias=bias)
        initialise(self.qv, self.widths[1:], law=sizes.initialisation)
        initialise(self.out, [sizes.dim], sizes.gain, sizes.initialisation)

    def reach(self, step: int) -> int | None:
        """How many places back a score looks: there is none."""
        return None


def unit(q: Tensor, epsilon: float = 0.0) -> Tensor:
    """Keys: the vectors (..., width) of queries at length 1; with an epsilon, which is added to their mean squares, a little shorter."""
    if not epsilon:
        return F.normalize(q, dim=-1)  # E92
    squares = q.to(wide(q.dtype)).square().sum(dim=-1, keepdim=True)
    return q * torch.rsqrt(squares + q.shape[-1] * epsilon).to(q.dtype)


class SharedAttention(SharedHeads):
    """Attention of a stream over itself and over what came before it, with queries as keys."""

    def __init__(self, sizes: Sizes, pattern: Pattern, part: SharedQK) -> None:
        super().__init__(sizes, part.scaled, part.bias)
        self.key_epsilon = part.key_epsilon
        self.patterns = [pattern.at(step) for step in range(sizes.depth_steps)]

    def forward(self, x: Tensor, context: Context, past: KVCache | None, step: int) -> tuple[Tensor, KVCache | None]:
        pattern = self.patterns[step]
        q, v = self.split_all(self.qv(x), 2)
        k = unit(q, self.key_epsilon)
        cache = KVCache(k, v, context.positions) if past is None else expect(KVCache, past).append(k, v, context.positions)
        valid = None if pattern.is_causal else context.valid
        request = self.request(others(pattern), context.positions, cache.positions, valid, None)
        single = alone(pattern, context, x.shape[1])[:, None, :, None]
        if context.watch is not None:
            self.show(context.watch, q, cache.keys, cache.values, request, step)
            context.watch.note(self.name, step, lambda: looking(dense.weights(q, cache.keys, request), single))
        y = self.merge(torch.where(single, v, run(q, cache.keys, cache.values, request)))
        return y, leave_behind(cache, pattern, context) if context.keep else None


def looking(weights: Tensor, single: Tensor) -> Tensor:
    """Weights (batch, heads, queries, keys), the queries being the last keys, of which those that are `single` look at themselves."""
    queries, keys = weights.shape[2:]
    itself = torch.eye(queries, dtype=weights.dtype, device=weights.device)
    return torch.where(single, F.pad(itself, (keys - queries, 0)), weights)


def others(pattern: Pattern) -> Pattern:
    """A pattern without the token itself."""
    return Local(window=FAR, causal=pattern.is_causal, include_self=False)


def alone(pattern: Pattern, context: Context, n: int) -> Tensor:
    """Which tokens (batch or 1, n) see no other."""
    positions, valid = context.positions, context.valid
    device = valid.device if valid is not None else positions.index.device if isinstance(positions, ExplicitPositions) else None
    if pattern.is_causal:
        where = positions.tensor(device)
        return (where == 0).view(-1, n)
    count = torch.tensor([n]) if valid is None else valid.sum(dim=1)
    return (count == 1)[:, None].expand(-1, n)
