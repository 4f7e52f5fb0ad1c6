"""Which tokens one operation of a layer connects, for each kind of attention: what path lengths are computed from (paths.py).

A part of your own whose operations connect other tokens than its pattern allows registers a function: `@attention_links.register`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch

import torch
from torch import Tensor

from formers.attention import LSH, Attention, LowRank
from formers.attention.lsh.hashing import fixed_rotations, hashes, in_order
from formers.attention.lsh.reference import pair_counts
from formers.core import Sizes
from formers.core.random import generator
from formers.patterns import Pattern
from formers.recurrent import Aligned, Pondering, Recurrent, Window


@singledispatch
def attention_links(attention: Attention, sizes: Sizes, pattern: Pattern, length: int, layer: int) -> Tensor:
    """Where one operation of a layer carries information from token j to token i: (length, length) bool, rows i; in any head."""
    return pattern.mask(length, sizes.heads, layer).any(dim=0)


@attention_links.register
def _(attention: LSH, sizes: Sizes, pattern: Pattern, length: int, layer: int) -> Tensor:
    """The pairs that share a bucket, for random queries and the rotations of evaluation."""
    q = torch.randn(1, sizes.heads, length, sizes.head_dim, generator=generator(attention.seed, "links", layer))
    factors, rounds = attention.factors(sizes.length), attention.evaluation_rounds or attention.rounds
    directions = fixed_rotations(sizes.heads, sizes.head_dim, rounds, sum(factors) // 2, attention.seed, layer)
    met = pair_counts(in_order(hashes(q, directions, factors)), attention.rules(pattern.at(layer).is_causal))
    return met[0].any(dim=0)


@attention_links.register
def _(attention: LowRank, sizes: Sizes, pattern: Pattern, length: int, layer: int) -> Tensor:
    """All pairs: every query sees every projected key, which are made of all tokens."""
    return torch.ones(length, length, dtype=torch.bool)


@attention_links.register
def _(attention: Recurrent, sizes: Sizes, pattern: Pattern, length: int, layer: int) -> Tensor:
    """Adjacent tokens, in the directions in which rows are read."""
    links = _previous(length)
    return links if attention.direction == "forward" else links | links.T


@attention_links.register(Pondering)
@attention_links.register(Aligned)
def _(attention: Pondering | Aligned, sizes: Sizes, pattern: Pattern, length: int, layer: int) -> Tensor:
    """A token and the next; the steps that only ponder connect nothing."""
    return _previous(length)


@attention_links.register
def _(attention: Window, sizes: Sizes, pattern: Pattern, length: int, layer: int) -> Tensor:
    """The tokens of a window."""
    here = torch.arange(length)
    back = here[:, None] - here
    return (back <= attention.window) & (back >= (0 if sizes.causal else -attention.window))


@singledispatch
def cross_links(attention: Attention, length: int, source: int, ends: Sequence[int]) -> Tensor:
    """Where one operation carries information from a source token j to token i: (length, source) bool. Cross-attention connects all.

    ends: the source tokens whose final states a recurrent decoder starts from.
    """
    return torch.ones(length, source, dtype=torch.bool)


@cross_links.register
def _(attention: Aligned, length: int, source: int, ends: Sequence[int]) -> Tensor:
    """All pairs with an alignment; without one, final states reach the first token alone."""
    links = torch.full((length, source), attention.alignment != "none")
    links[0, list(ends)] = True
    return links


@singledispatch
def final_tokens(attention: Attention, length: int) -> tuple[int, ...]:
    """The tokens of a row after which an encoder's final states are taken, for a decoder to start from."""
    return ()


@final_tokens.register
def _(attention: Recurrent, length: int) -> tuple[int, ...]:
    return (length - 1,) if attention.direction == "forward" else (length - 1, 0)


@final_tokens.register
def _(attention: Pondering, length: int) -> tuple[int, ...]:
    return (length - 1,)


def _previous(length: int) -> Tensor:
    """Each token with itself and the one before it, (length, length)."""
    here = torch.arange(length)
    back = here[:, None] - here
    return (back == 0) | (back == 1)
