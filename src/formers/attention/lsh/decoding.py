"""Decoding by hashing: a token reads the keys of its own buckets, and no others.

The keys of a stream are held with their buckets, and sorted by them as far as they were when last sorted; newer ones are few, and are
looked through. So a token of a stream of n costs n / buckets keys for each round, and the newest ones. Nothing here is ever changed in
place but for the buffers that caches share: two continuations of one state do not disturb each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from formers.attention.lsh.hashing import in_order
from formers.attention.lsh.reference import Rules
from formers.core import ExplicitPositions, KVCache, Positions
from formers.core.serialise import serialisable

NEW = 256
"""Keys that are looked through because they came after the last sorting, at the most: sorting them costs more."""
TOGETHER = 16
"""Queries that look their keys up at once."""


@serialisable
@dataclass(frozen=True, eq=False)
class LSHCache:
    """Unit keys and values of a stream, their buckets, and the order of the first of them."""

    cache: KVCache
    marks: KVCache
    """Buckets (batch, heads, n, rounds), as keys of a cache that has no values."""
    order: Tensor
    """(batch, heads, rounds, m): the first m tokens by bucket."""
    starts: Tensor
    """(batch, heads, rounds, buckets + 2): where each bucket begins in that order, and where the last one, of no tokens, ends."""

    @classmethod
    def of(cls, cache: KVCache, marks: KVCache, buckets: int, order: Tensor | None = None) -> LSHCache:
        """The tokens of a cache, sorted; `order` where that has been done."""
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
        """Further tokens behind; all are sorted again once many are new."""
        cache = self.cache.append(keys, values, positions)
        marks = self.marks.append(hashes.transpose(2, 3), values[..., :0], positions)
        if cache.keys.shape[2] - self.order.shape[3] > NEW:
            return LSHCache.of(cache, marks, self.starts.shape[3] - 2)
        return replace(self, cache=cache, marks=marks)

    def detach(self) -> LSHCache:
        """The same without its history of gradients."""
        return replace(self, cache=self.cache.detach())

    def reset(self, done: Tensor) -> LSHCache:
        """The same in which the rows marked in done (batch,) are empty."""
        return replace(self, cache=self.cache.reset(done), marks=self.marks.reset(done))

    def map(self, change: Callable[[Tensor], Tensor]) -> LSHCache:
        """The same with each of its tensors, batch first, changed."""
        return LSHCache(self.cache.map(change), self.marks.map(change), change(self.order), change(self.starts))


def recall(q: Tensor, held: LSHCache, rules: Rules, scale: float) -> tuple[Tensor, int]:
    """Attention (batch, heads, count, value_dim) of the last `count` tokens of a stream over their buckets; how many keys each reads."""
    parts = [_recall(q, held, rules, scale, i, min(q.shape[2], i + TOGETHER)) for i in range(0, q.shape[2], TOGETHER)]
    out = parts[0][0] if len(parts) == 1 else torch.cat([part for part, _ in parts], dim=2)
    return out, max(read for _, read in parts)


def _recall(q: Tensor, held: LSHCache, rules: Rules, scale: float, start: int, stop: int) -> tuple[Tensor, int]:
    """The same for queries start ... stop - 1 of them."""
    keys, values, marks, sorted_ = held.cache.keys, held.cache.values, held.marks.keys, held.order.shape[3]
    n, (batch, heads, _, width) = keys.shape[2], q.shape
    first = n - q.shape[2] + start  # where the first of these queries stands among the keys
    q, own = q[:, :, start:stop] * scale, marks[:, :, first : first + stop - start]  # own: (batch, heads, count, rounds)
    count, rounds = q.shape[2], marks.shape[3]
    here = torch.arange(first, first + count, device=q.device)
    nobody = _nobody(held.cache.positions)

    # The keys of the buckets, among those that are sorted.
    begin = held.starts.gather(-1, own.transpose(2, 3).long())
    size = held.starts.gather(-1, own.transpose(2, 3).long() + 1) - begin  # (batch, heads, rounds, count)
    if torch.compiler.is_compiling():
        most = sorted_  # a graph knows no numbers: there every key is looked at, and those of other buckets are shut
    else:
        most = -(-sorted_ // (held.starts.shape[3] - 2)) if isinstance(size, FakeTensor) else int(size.max())
    place = torch.arange(most, device=q.device)
    met = place < size[..., None]
    found = held.order.gather(-1, (begin[..., None] + place).clamp(max=sorted_ - 1).flatten(-2)).view(met.shape)
    found, met = (x.transpose(2, 3).flatten(3) for x in (found, met))  # (batch, heads, count, rounds * most)
    if not rules.duplicates and rounds > 1:
        met = met & ~_met_before(marks, own, found, rounds)
    if nobody is not None:
        met = met & ~nobody[:, None, None, :].expand(-1, heads, count, -1).gather(-1, found)
    met = met & ((found < here[:, None]) if rules.itself == "alone" else (found <= here[:, None]))
    where = found.flatten(2)[..., None]
    old = keys.gather(2, where.expand(-1, -1, -1, width)).view(batch, heads, count, -1, width)
    old_scores = torch.where(met, (old @ q[..., None])[..., 0], float("-inf"))

    # The newest keys, all of them.
    times = (marks[:, :, None, sorted_:] == own[:, :, :, None]).sum(dim=-1)  # (batch, heads, count, new)
    j = torch.arange(sorted_, n, device=q.device)
    times = times * ((j < here[:, None]) if rules.itself == "alone" else (j <= here[:, None]))
    if nobody is not None:
        times = times * ~nobody[:, None, None, sorted_:]
    new_scores = q @ keys[:, :, sorted_:].transpose(2, 3)
    if rules.duplicates:
        new_scores = new_scores + times.to(q.dtype).log()
    new_scores = torch.where(times > 0, new_scores, float("-inf"))

    scores = torch.cat([old_scores, new_scores], dim=-1)
    alone = ~(met.any(dim=-1, keepdim=True) | (times > 0).any(dim=-1, keepdim=True))
    weights = torch.softmax(scores.masked_fill(alone, 0.0), dim=-1)
    reads = old_scores.shape[-1]
    old_values = values.gather(2, where.expand(-1, -1, -1, values.shape[3])).view(batch, heads, count, -1, values.shape[3])
    out = (weights[..., None, :reads] @ old_values)[..., 0, :] + weights[..., reads:] @ values[:, :, sorted_:]
    return torch.where(alone, values[:, :, first : first + count], out), scores.shape[-1]


def _met_before(marks: Tensor, own: Tensor, found: Tensor, rounds: int) -> Tensor:
    """Whether keys that are found in a round were in the query's bucket in an earlier one, too."""
    batch, heads, count, _ = own.shape
    theirs = marks.gather(2, found.flatten(2)[..., None].expand(-1, -1, -1, rounds)).view(batch, heads, count, rounds, -1, rounds)
    same = theirs == own[:, :, :, None, None, :]  # (batch, heads, count, round it is found in, place, round)
    earlier = torch.ones(rounds, rounds, dtype=torch.bool, device=own.device).tril(-1)
    return (same & earlier[:, None, :]).any(dim=-1).flatten(3)


def _nobody(positions: Positions) -> Tensor | None:
    """Where no token stands, (batch, n); None where there is one everywhere."""
    return positions.index < 0 if isinstance(positions, ExplicitPositions) and positions.index.dim() == 2 else None
