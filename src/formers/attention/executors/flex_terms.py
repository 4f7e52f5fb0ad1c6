"""Terms by distance for FlexAttention: relative scores and learned spans as functions of a pair's indices.

s_ij = scale q_i . k_j + p_{i, i-j}        p_{i, x} = q'_i . t_x + l_x        -fore <= x < reach

p (batch, heads, queries, distances) is one product, and the only tensor of this size in the forward pass: the kernel reads p_{i, i-j} where
it computes the pair, and its backward pass writes the gradient of p. Each element belongs to one pair, so that no two pairs add to one
element. Levels of minus infinity mask their pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from formers.attention.executors.flex_kernel import MaskMod, ScoreMod, dynamic
from formers.attention.executors.flex_lists import Band
from formers.attention.executors.flex_masks import number
from formers.attention.executors.tiles import wide
from formers.core.precision import without_autocast
from formers.score import ByDistance


def band(term: ByDistance) -> Band:
    """The distances that a term covers."""
    return Band(term.reach, 0 if term.ahead is None else term.ahead.shape[1])


def term_score(term: ByDistance, offset: int, device: torch.device) -> ScoreMod:
    """The function that adds a term to a score; `offset` is the distance from the first query back to the first key."""
    reach, fore = band(term)
    last, last_query = number("last distance", reach + fore - 1, device), number("last query", term.queries.length - 1, device)
    return added(dynamic(by_distance(term), 0, 2, 3), number("offset", offset, device), number("fore", fore, device), last, last_query)


def by_distance(term: ByDistance) -> Tensor:
    """p (batch, heads, queries, fore + reach), from the furthest key ahead to the furthest back, in at least float32."""
    # Half precision is converted before the product: gradients of p are added in its dtype, and few devices add half precision atomically.
    term = term.to(wide(term.q.dtype))
    table, level = term.table, term.level
    if term.ahead is not None:
        table = torch.cat([term.ahead.flip(1), table], dim=1)
        level = None if level is None else F.pad(level, (term.ahead.shape[1], 0))
    with without_autocast(term.q):
        p = term.q @ table.mT
    # In place, and p is no view: a compiled FlexAttention gives captured views no gradient (torch 2.13).
    return p if level is None else p.add_(level)


def added(p: Tensor, offset: Tensor, fore: Tensor, last: Tensor, last_query: Tensor) -> ScoreMod:
    """The score plus p at the pair's distance; indices outside p, which are those of masked pairs and padding, are limited to it."""

    def score(s: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        x = torch.minimum((query - key + offset + fore).clamp(min=0), last)
        return s + p[batch, head, torch.minimum(query, last_query), x]

    return score


def in_band(mask: MaskMod, term: ByDistance, offset: int, device: torch.device) -> MaskMod:
    """A mask with the pairs at distances that a term covers."""
    return _in_band(mask, *(number(*x, device) for x in (("reach", band(term).reach), ("fore", band(term).fore), ("offset", offset))))


def _in_band(mask: MaskMod, reach: Tensor, fore: Tensor, offset: Tensor) -> MaskMod:
    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        x = query - key + offset
        return mask(batch, head, query, key) & (x < reach) & (x + fore >= 0)

    return seen
