"""LSH decoding: a token attends only to the keys of its buckets.

The cache has the keys with their buckets, and the order by bucket of all keys up to the last sorting; newer keys are all compared. So
with n cached tokens, a new token reads n / buckets keys per round, plus the newest ones. Nothing is changed in place except the buffers
that caches share: two continuations of one state are independent.

Off the host the bucket sizes are not read, since that waits for the device: all keys are read, and those of other buckets are masked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.nn import functional as F

from formers.attention.lsh.hashing import in_order
from formers.attention.lsh.reference import Rules
from formers.core import ExplicitPositions, KVCache, Positions
from formers.core.devices import on_host
from formers.core.serialise import serialisable

NEW = 256
"""The largest number of unsorted keys, all of which are compared; with more, all keys are sorted again."""
TOGETHER = 16
"""The number of queries computed at once."""


@serialisable
@dataclass(frozen=True, eq=False)
class LSHCache:
    """Unit keys and values of the past tokens, their buckets, and the order of the first of them."""

    cache: KVCache
    marks: KVCache
    """Buckets (batch, heads, n, rounds), stored as the keys of a cache without values."""
    order: Tensor
    """(batch, heads, rounds, m): the first m tokens by bucket."""
    starts: Tensor
    """(batch, heads, rounds, buckets + 2): the start of each bucket in that order; the last bucket is that of padding, and its end."""

    @classmethod
    def of(cls, cache: KVCache, marks: KVCache, buckets: int, order: Tensor | None = None) -> LSHCache:
        """The sorted cache of some tokens; `order` if they are already sorted."""
        hashes = marks.keys.transpose(2, 3)
        order = in_order(hashes).order if order is None else order
        edges = torch.arange(buckets + 2, device=order.device, dtype=hashes.dtype)
        edges = edges.expand(*order.shape[:3], -1).contiguous()
        return cls(cache, marks, order, torch.searchsorted(hashes.gather(-1, order).contiguous(), edges))

    @property
    def keys(self) -> Tensor:
        """(batch, heads, n, head_dim)"""
        return self.cache.keys

    @property
    def values(self) -> Tensor:
        """(batch, heads, n, value_dim)"""
        return self.cache.values

    def append(self, keys: Tensor, values: Tensor, hashes: Tensor, positions: Positions) -> LSHCache:
        """The cache with further tokens appended; all are sorted again if many are unsorted."""
        cache = self.cache.append(keys, values, positions)
        marks = self.marks.append(hashes.transpose(2, 3), values[..., :0], positions)
        if on_host(keys) and cache.keys.shape[2] - self.order.shape[3] > NEW:  # off the host the order is not used
            return LSHCache.of(cache, marks, self.starts.shape[3] - 2)
        return replace(self, cache=cache, marks=marks)

    def detach(self) -> LSHCache:
        """The detached cache."""
        return replace(self, cache=self.cache.detach())

    def reset(self, done: Tensor) -> LSHCache:
        """The cache with the rows marked in done (batch,) emptied."""
        return replace(self, cache=self.cache.reset(done), marks=self.marks.reset(done))

    def map(self, change: Callable[[Tensor], Tensor]) -> LSHCache:
        """The cache with `change` applied to each of its tensors, batch first."""
        return LSHCache(self.cache.map(change), self.marks.map(change), change(self.order), change(self.starts))


def attend_buckets(q: Tensor, held: LSHCache, rules: Rules, scale: float) -> tuple[Tensor, int]:
    """Attention (batch, heads, count, value_dim) of the last `count` tokens over the keys of their buckets, and the keys read per token."""
    parts = [_attend_some(q, held, rules, scale, i, min(q.shape[2], i + TOGETHER)) for i in range(0, q.shape[2], TOGETHER)]
    out = parts[0][0] if len(parts) == 1 else torch.cat([part for part, _ in parts], dim=2)
    return out, max(read for _, read in parts)


def attend_all(q: Tensor, held: LSHCache, rules: Rules, scale: float) -> tuple[Tensor, int]:
    """What `attend_buckets` computes, by masked attention over all cached keys: no value is read from the device."""
    marks, count, n = held.marks.keys, q.shape[2], held.keys.shape[2]
    here, there = torch.arange(n - count, n, device=q.device)[:, None], torch.arange(n, device=q.device)
    may = there < here if rules.itself == "alone" else there <= here
    empty = _empty_slots(held.cache.positions)
    if empty is not None:
        may = may & ~empty[:, None, None, :]
    times = torch.zeros(*q.shape[:3], n, dtype=torch.int32, device=q.device)
    for r in range(marks.shape[3]):
        times += marks[:, :, n - count :, None, r] == marks[:, :, None, :, r]
    seen = (times > 0) & may
    seen = seen | ((there == here) & ~seen.any(dim=-1, keepdim=True))
    mask = times.clamp(min=1).to(q.dtype).log().masked_fill(~seen, float("-inf")) if rules.duplicates else seen
    return F.scaled_dot_product_attention(q, held.keys.to(q.dtype), held.values.to(q.dtype), attn_mask=mask, scale=scale), n


def _attend_some(q: Tensor, held: LSHCache, rules: Rules, scale: float, start: int, stop: int) -> tuple[Tensor, int]:
    """The same for the queries start ... stop - 1."""
    keys, values, marks, sorted_ = held.cache.keys, held.cache.values, held.marks.keys, held.order.shape[3]
    n, (batch, heads, _, width) = keys.shape[2], q.shape
    first = n - q.shape[2] + start  # the index of the first of these queries among the keys
    q, own = q[:, :, start:stop] * scale, marks[:, :, first : first + stop - start]  # own: (batch, heads, count, rounds)
    count, rounds = q.shape[2], marks.shape[3]
    here = torch.arange(first, first + count, device=q.device)
    empty = _empty_slots(held.cache.positions)

    # The keys of the same buckets, among the sorted ones.
    begin = held.starts.gather(-1, own.transpose(2, 3).long())
    size = held.starts.gather(-1, own.transpose(2, 3).long() + 1) - begin  # (batch, heads, rounds, count)
    if torch.compiler.is_compiling():
        most = sorted_  # in a graph sizes are unknown: every key is read, and those of other buckets are masked
    else:
        most = -(-sorted_ // (held.starts.shape[3] - 2)) if isinstance(size, FakeTensor) else int(size.max())
    place = torch.arange(most, device=q.device)
    seen = place < size[..., None]
    found = held.order.gather(-1, (begin[..., None] + place).clamp(max=sorted_ - 1).flatten(-2)).view(seen.shape)
    found, seen = (x.transpose(2, 3).flatten(3) for x in (found, seen))  # (batch, heads, count, rounds * most)
    if not rules.duplicates and rounds > 1:
        seen = seen & ~_seen_before(marks, own, found, rounds)
    if empty is not None:
        seen = seen & ~empty[:, None, None, :].expand(-1, heads, count, -1).gather(-1, found)
    seen = seen & ((found < here[:, None]) if rules.itself == "alone" else (found <= here[:, None]))
    where = found.flatten(2)[..., None]
    old = keys.gather(2, where.expand(-1, -1, -1, width)).view(batch, heads, count, -1, width)
    old_scores = torch.where(seen, (old @ q[..., None])[..., 0], float("-inf"))

    # The unsorted keys, all of them.
    times = (marks[:, :, None, sorted_:] == own[:, :, :, None]).sum(dim=-1)  # (batch, heads, count, new)
    j = torch.arange(sorted_, n, device=q.device)
    times = times * ((j < here[:, None]) if rules.itself == "alone" else (j <= here[:, None]))
    if empty is not None:
        times = times * ~empty[:, None, None, sorted_:]
    new_scores = q @ keys[:, :, sorted_:].transpose(2, 3)
    if rules.duplicates:
        new_scores = new_scores + times.to(q.dtype).log()
    new_scores = torch.where(times > 0, new_scores, float("-inf"))

    scores = torch.cat([old_scores, new_scores], dim=-1)
    alone = ~(seen.any(dim=-1, keepdim=True) | (times > 0).any(dim=-1, keepdim=True))
    weights = torch.softmax(scores.masked_fill(alone, 0.0), dim=-1)
    reads = old_scores.shape[-1]
    old_values = values.gather(2, where.expand(-1, -1, -1, values.shape[3])).view(batch, heads, count, -1, values.shape[3])
    out = (weights[..., None, :reads] @ old_values)[..., 0, :] + weights[..., reads:] @ values[:, :, sorted_:]
    return torch.where(alone, values[:, :, first : first + count], out), scores.shape[-1]


def _seen_before(marks: Tensor, own: Tensor, found: Tensor, rounds: int) -> Tensor:
    """Whether keys found in a round were in the query's bucket in an earlier one."""
    batch, heads, count, _ = own.shape
    theirs = marks.gather(2, found.flatten(2)[..., None].expand(-1, -1, -1, rounds)).view(batch, heads, count, rounds, -1, rounds)
    same = theirs == own[:, :, :, None, None, :]  # (batch, heads, count, round of the find, index, round)
    earlier = torch.ones(rounds, rounds, dtype=torch.bool, device=own.device).tril(-1)
    return (same & earlier[:, None, :]).any(dim=-1).flatten(3)


def _empty_slots(positions: Positions) -> Tensor | None:
    """The empty slots (batch, n); None if there are none."""
    return positions.index < 0 if isinstance(positions, ExplicitPositions) and positions.index.dim() == 2 else None
