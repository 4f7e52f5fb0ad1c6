"""LSH attention on accelerators: tokens sorted by bucket, rounds as heads, one FlexAttention call, merged over the rounds.

o = sum_r exp(l_r - l) o_r        l = log sum_r exp(l_r)        over the rounds r, merged as pieces in E23

The number of launches depends on neither batch, heads nor length, and there is no wait: block lists are computed on the device. In
the order of a round the keys of a query's bucket are contiguous, so that a block of queries sees one interval of key blocks, whose ends
are non-decreasing. Dropout is exact, by a second call over the kept pairs: see executors/flex_dropout.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from formers.attention.executors import flex_dropout
from formers.attention.executors.flex_kernel import NARROWEST, MaskMod, flex_attention
from formers.attention.executors.flex_lists import ordered
from formers.attention.executors.flex_masks import number
from formers.attention.executors.tiles import wide
from formers.attention.lsh.hashing import Hashed
from formers.attention.lsh.ranks import Ranked, joined_chunks, ranked
from formers.attention.lsh.reference import Rules
from formers.attention.shared_qk import unit_keys

BLOCK = 128
"""Queries and keys per block of FlexAttention; lengths are rounded up to a multiple of it."""


def attend(q: Tensor, v: Tensor, hashed: Hashed, rules: Rules, scale: float, real: Tensor | None, dropout: float) -> Tensor:
    """Attention (batch, heads, n, value_dim) over the keys found by hashing; real (batch, n) marks real tokens, which come first."""
    tokens = ranked(hashed, rules, real, BLOCK)
    with torch.autocast(q.device.type, enabled=False):
        queries, values = tokens.by_rank(q), tokens.by_rank(v)
        keys = keys_of(queries, rules)
        queries, keys, values = (_widened(x) for x in (queries, keys, values))
        lists, n = block_lists(tokens, rules), queries.shape[2]
        out, lse = flex_attention(queries, keys, values, block_mask(lists, tokens.seen, n), scale)
        if dropout:
            seeds = flex_dropout.draw_seeds(queries.shape[0], queries.shape[1], n, q.device)
            kept = flex_dropout.kept(tokens.seen, seeds, number("threshold", flex_dropout.threshold(dropout), q.device))
            some, log_kept = flex_attention(queries, keys, values, block_mask(lists, kept, n), scale)
            out = flex_dropout.combined(some.to(lse.dtype), log_kept, lse, dropout)
        return merged(out[..., : v.shape[3]], lse, tokens, rules, v, dropout)


def keys_of(queries: Tensor, rules: Rules) -> Tensor:
    """The keys of queries, normalised in at least float32."""
    return unit_keys(queries.to(wide(queries.dtype)), rules.key_epsilon).to(queries.dtype)


def _widened(x: Tensor) -> Tensor:
    """x (..., width) with at least NARROWEST columns: further ones are zeros, which add nothing to scores."""
    return x if x.shape[-1] >= NARROWEST else F.pad(x, (0, NARROWEST - x.shape[-1]))


def merged(out: Tensor, lse: Tensor, tokens: Ranked, rules: Rules, v: Tensor, dropout: float) -> Tensor:
    """The outputs and log-sums of all rounds, by rank, merged to (batch, heads, n, value_dim), in the dtype of v.

    A token that sees no other attends to itself if the rules say "alone"; dropout drops this weight, too.
    """
    out, lse = tokens.by_token(out), tokens.by_token(lse[..., None])  # (batch, heads, rounds, n, value_dim or 1)
    none = (lse == float("-inf")).all(dim=2, keepdim=True)
    y = (torch.softmax(lse.masked_fill(none, 0.0), dim=2) * out).sum(dim=2)
    if rules.itself == "always":
        return y.to(v.dtype)
    alone = v * torch.dropout(torch.ones_like(v[..., :1]), dropout, train=True) if dropout else v
    return torch.where(none[:, :, 0], alone.to(y.dtype), y).to(v.dtype)


class BlockLists(NamedTuple):
    """The key blocks of each block of queries, and the query blocks of each block of keys, as FlexAttention needs them; all int32."""

    key_counts: Tensor
    """(batch, heads or 1, blocks)"""
    keys: Tensor
    """(batch, heads or 1, blocks, blocks): the first `key_counts` are valid."""
    query_counts: Tensor
    queries: Tensor


def block_mask(lists: BlockLists, seen: MaskMod, n: int) -> Any:
    """The mask of FlexAttention: the blocks, and the predicate that is evaluated in each of them."""
    from torch.nn.attention.flex_attention import BlockMask

    return BlockMask((n, n), lists.key_counts, lists.keys, None, None, lists.query_counts, lists.queries, None, None, (BLOCK, BLOCK), seen)


@torch.no_grad()
def block_lists(tokens: Ranked, rules: Rules) -> BlockLists:
    """The blocks with pairs that may count."""
    return _wrapping_blocks(tokens, rules) if rules.across_buckets else _intervals(tokens, rules)


def _intervals(tokens: Ranked, rules: Rules) -> BlockLists:
    """Within buckets: each block of queries sees an interval of key blocks, from the first low rank to the last high one."""
    low, high = tokens.arranged(tokens.low), tokens.arranged(tokens.high)
    blocks = low.shape[2] // BLOCK
    own = torch.arange(blocks, device=low.device, dtype=torch.int32).expand(*low.shape[:2], blocks).contiguous()
    first = low[..., ::BLOCK] // BLOCK  # every block begins with a token
    last = own if rules.causal else ((high[..., BLOCK - 1 :: BLOCK] - 1) // BLOCK).clamp(max=blocks - 1)
    # Both ends are non-decreasing, so that the blocks of queries that see a block of keys are an interval, too.
    first_query = torch.searchsorted(last, own, out_int32=True)
    last_query = torch.searchsorted(first, own, right=True, out_int32=True) - 1
    return BlockLists(*_interval(first, last, blocks), *_interval(first_query, last_query, blocks))


def _interval(first: Tensor, last: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
    """The number of blocks from first to last, and their indices, followed by others: torch needs indices for all blocks."""
    following = torch.arange(blocks, device=first.device, dtype=torch.int32)
    return last - first + 1, (first[..., None] + following).clamp(max=blocks - 1)


def _wrapping_blocks(tokens: Ranked, rules: Rules) -> BlockLists:
    """Across buckets: the blocks with chunks in each other's window, which wraps around after the chunks of a row; equal for all heads."""
    rounds, length = tokens.order.shape[2:]
    count = tokens.chunks
    if tokens.joined:
        chunks, count = joined_chunks(count, rounds, length, rules.chunk), count * rounds
    else:
        chunks = joined_chunks(count, 1, length, rules.chunk)
    low, high = chunks[:, ::BLOCK], chunks[:, BLOCK - 1 :: BLOCK]  # (batch, blocks)
    # Some distance between `least` and `least + spread` must have a remainder of at most `width`.
    width = rules.look_back + rules.look_ahead
    least = low[:, :, None] - high[:, None, :] + rules.look_ahead
    spread = (high - low)[:, :, None] + (high - low)[:, None, :]
    rest = least % count[:, None, None]
    near = ((rest <= width) | (rest + spread >= count[:, None, None]))[:, None]
    return BlockLists(*ordered(near), *ordered(near.mT))
