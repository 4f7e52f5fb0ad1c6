"""LSH attention in chunks by plain operations, for accelerators without FlexAttention: reach "chunk" only.

Tokens are sorted by bucket and split into chunks. A chunk of queries is multiplied with the chunks of keys of its window. Rows, heads,
rounds and chunks are all in the batch dimension, so that the number of operations depends on none of them, and nothing is read from the
device. Scores are products in the dtype of the inputs; their softmax and the merging of rounds are in at least float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from formers.attention.executors.tiles import wide
from formers.attention.lsh.batched import keys_of, merged
from formers.attention.lsh.hashing import Hashed
from formers.attention.lsh.ranks import Ranked, ranked
from formers.attention.lsh.reference import Rules


def attend(q: Tensor, v: Tensor, hashed: Hashed, rules: Rules, scale: float, real: Tensor | None, dropout: float) -> Tensor:
    """Attention (batch, heads, n, value_dim) over the keys found by hashing; real (batch, n) marks real tokens, which come first."""
    m, tokens = rules.chunk, ranked(hashed, rules, real, rules.chunk)
    where, counts = windows(tokens, rules)
    with torch.autocast(q.device.type, enabled=False):
        queries, values = tokens.by_rank(q), tokens.by_rank(v)
        keys = _of_windows(keys_of(queries, rules), where, m)
        seen = counts & _pairs(tokens, queries, where, m)
        scores = (queries.view(*queries.shape[:2], -1, m, queries.shape[3]) @ keys.mT).to(wide(q.dtype)) * scale
        some = seen.any(dim=-1, keepdim=True)
        scores = scores.masked_fill(~seen, float("-inf")).masked_fill(~some, 0.0)  # a query without keys has a gradient of 0
        lse = scores.logsumexp(dim=-1).masked_fill(~some[..., 0], float("-inf"))
        weights = torch.softmax(scores, dim=-1).masked_fill(~some, 0.0)
        if dropout:
            weights = torch.dropout(weights, dropout, train=True)
        out = weights.to(v.dtype) @ _of_windows(values, where, m)
        return merged(out.flatten(2, 3), lse.flatten(2, 3), tokens, rules, v, dropout)


@torch.no_grad()
def windows(tokens: Ranked, rules: Rules) -> tuple[Tensor, Tensor]:
    """The key chunks (batch or 1, chunks, window) of each chunk of queries, and which of them count (batch or 1, 1, chunks, 1, keys)."""
    m, (rounds, length) = rules.chunk, tokens.order.shape[2:]
    each, device = length // m, tokens.order.device
    offset = torch.arange(-rules.look_back, rules.look_ahead + 1, device=device)
    own = torch.arange(each, device=device)[:, None]
    if not rules.across_buckets:
        where = (own + offset)[None]
        there = (where >= 0) & (where < each)
        where = where.clamp(0, each - 1)
    elif not tokens.joined:
        count = tokens.chunks[:, None, None].long()
        where = (own + offset) % count
        # A window that is wider than the row ends before it repeats.
        there = (torch.arange(len(offset), device=device) < count).expand_as(where)
    else:
        count = tokens.chunks[:, None, None, None].long()
        number = torch.arange(rounds, device=device)[:, None, None] * count + own + offset
        number = number % (count * rounds)
        where = (number // count * each + number % count).flatten(1, 2)
        there = torch.ones_like(where, dtype=torch.bool)
    return where, there[..., None].expand(*there.shape, m).flatten(2)[:, None, :, None]


def _of_windows(x: Tensor, where: Tensor, m: int) -> Tensor:
    """The vectors (batch, heads, chunks, keys, width) of the windows, from x (batch, heads, ranks, width)."""
    batch, heads, ranks, width = x.shape
    index = where.flatten(1)[:, None, :, None].expand(batch, heads, -1, m * width)
    return x.reshape(batch, heads, ranks // m, m * width).gather(2, index).view(batch, heads, where.shape[1], -1, width)


@torch.no_grad()
def _pairs(tokens: Ranked, queries: Tensor, where: Tensor, m: int) -> Tensor:
    """Whether (batch, heads, chunks, m, keys) the pairs of chunks and their windows count."""
    device, (batch, heads, ranks, _) = queries.device, queries.shape
    row, head, query = (torch.arange(n, device=device, dtype=torch.int32) for n in (batch, heads, ranks))
    key = (where[..., None] * m + torch.arange(m, device=device)).flatten(2).to(torch.int32)
    return tokens.seen(row[:, None, None, None, None], head[:, None, None, None], query.view(-1, m, 1), key[:, None, :, None])
