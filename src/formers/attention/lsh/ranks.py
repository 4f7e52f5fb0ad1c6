"""Which pairs count in LSH attention, as a function of ranks: the form that accelerators need, without a Python loop or a host read.

The rank of a token is its index in the order of a round, sorted by (bucket, position). Rounds are heads: head h R + r is round r of head h.
Within buckets a query sees the ranks start <= y < stop. Across buckets it sees the keys of neighbouring chunks, which are compared by
position. A pair that an earlier round has seen does not count again, unless `duplicates`. If chunks continue in other rounds (`wrap` is
"rounds"), the rounds of a head are concatenated instead, and ranks run through all of them.

All numbers are int32, and nothing multiplies sizes: neither batch nor length can overflow them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from formers.attention.executors.flex_kernel import MaskMod, dynamic
from formers.attention.lsh.hashing import Hashed
from formers.attention.lsh.reference import Rules
from formers.attention.lsh.schedule import NEVER, sort_by_bucket


class Ranked(NamedTuple):
    """The tokens of all rounds by rank, in rows of a length rounded up, and which pairs of ranks count."""

    order: Tensor
    """(batch, heads, rounds, length) int64: the token of each rank; 0 for ranks after the last token."""
    place: Tensor
    """(batch, heads, rounds, n) int64: the rank of each token."""
    low: Tensor
    high: Tensor
    """(batch, heads, rounds, length) int32: the first rank in a query's bucket and reach, and the one after the last; non-decreasing.

    After the last token they are 0 and NEVER.
    """
    chunks: Tensor
    """(batch,) int32: the number of chunks of each row that have a real token, at least 1."""
    seen: MaskMod
    """(batch, head, query, key) -> whether the pair counts; indices are int32 that broadcast."""
    joined: bool
    """Whether the rounds of a head are concatenated in one row, instead of being heads of their own."""

    def arranged(self, x: Tensor) -> Tensor:
        """x (batch, heads, rounds, length, ...) as rows of attention: rounds as heads, or concatenated."""
        return x.flatten(2, 3) if self.joined else x.flatten(1, 2)

    def by_rank(self, x: Tensor) -> Tensor:
        """The vectors x (batch, heads, n, width) of tokens by rank, arranged as rows of attention."""
        index = self.order[..., None].expand(*self.order.shape, x.shape[3])
        return self.arranged(x[:, :, None].expand(-1, -1, self.order.shape[2], -1, -1).gather(3, index))

    def by_token(self, x: Tensor) -> Tensor:
        """The inverse of `by_rank`: (batch, heads, rounds, n, width), for each round."""
        x = x.reshape(*self.order.shape, x.shape[-1])
        return x.gather(3, self.place[..., None].expand(*self.place.shape, x.shape[4]))


@torch.no_grad()
def ranked(hashed: Hashed, rules: Rules, real: Tensor | None, multiple: int) -> Ranked:
    """The ranks of hashed tokens, with rows rounded up to a multiple; real (batch, n) marks real tokens, which come first."""
    batch, _, rounds, n = hashed.order.shape
    device, more = hashed.order.device, -n % multiple
    found = sort_by_bucket(hashed.buckets, hashed.order, rules)
    lengths = torch.full((batch,), n, dtype=torch.int32, device=device) if real is None else real.sum(dim=1, dtype=torch.int32)
    chunks = ((lengths + (rules.chunk - 1)) // rules.chunk).clamp(min=1)
    low, high, order = found.low, found.high, hashed.order
    if torch.compiler.is_compiling() or more:  # a graph must not depend on the remainder
        low, high, order = F.pad(low, (0, more)), F.pad(high, (0, more), value=NEVER), F.pad(order, (0, more))
    joined = rules.across_buckets and rules.wrap == "rounds"
    make = _within if not rules.across_buckets else _across_rounds if joined else _across
    seen = make(_Sorted(hashed.buckets, order, found.place, low, high, lengths, chunks), rules, rounds)
    return Ranked(order, found.place.long(), low, high, chunks, seen, joined)


def captured(x: Tensor) -> Tensor:
    """x (batch, ...) or (batch, ..., ranks) itself, marked so that a kernel that captures it is compiled once for all sizes of these."""
    return dynamic(x, 0) if x.dim() == 1 else dynamic(x, 0, x.dim() - 1)


class _Sorted(NamedTuple):
    """What the predicates are made from; shapes as in Ranked."""

    buckets: Tensor
    order: Tensor
    place: Tensor
    low: Tensor
    high: Tensor
    lengths: Tensor
    """(batch,): the number of real tokens."""
    chunks: Tensor

    def in_rounds(self, x: Tensor, rounds: int) -> tuple[Tensor, ...]:
        """x (batch, heads, rounds, n) of each of the first `rounds` rounds, by the ranks of every round, with rounds as heads."""
        each = (x[:, :, e, None].expand(-1, -1, self.order.shape[2], -1) for e in range(rounds))
        return tuple(captured(y.gather(3, self.order).flatten(1, 2)) for y in each)


def _within(found: _Sorted, rules: Rules, rounds: int) -> MaskMod:
    """Whether pairs count, within buckets: a query sees the ranks from start to stop."""
    rank = torch.arange(found.order.shape[3], device=found.order.device, dtype=torch.int32)
    start, stop = found.low, found.high
    if rules.causal:  # the keys of a bucket are sorted by position
        stop = (rank + (0 if rules.itself == "alone" else 1)).expand(stop.shape)
    stop = stop.masked_fill(rank >= found.lengths[:, None, None, None], 0)  # padding sees no key
    start, stop = captured(start.flatten(1, 2)), captured(stop.flatten(1, 2))
    other = rules.itself == "alone" and not rules.causal
    again = None if rules.duplicates or rounds == 1 else _again_within(found, rules, rounds)

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        here = (key >= start[batch, head, query]) & (key < stop[batch, head, query])
        if other:
            here = here & (key != query)
        return here if again is None else here & ~again(batch, head, query, key)

    return seen


def _again_within(found: _Sorted, rules: Rules, rounds: int) -> MaskMod:
    """Whether an earlier round has seen a pair of one bucket."""
    if rules.reach == "bucket":
        marks = found.in_rounds(found.buckets, rounds - 1)
        tests = tuple(_same(mark) for mark in marks)
    else:
        places = found.in_rounds(found.place, rounds - 1)
        lows, highs = (found.in_rounds(x.gather(3, found.place.long()), rounds - 1) for x in (found.low, found.high))
        tests = tuple(_between(*numbers) for numbers in zip(places, lows, highs, strict=True))
    return _in_earlier_rounds(tests, rounds)


def _same(mark: Tensor) -> MaskMod:
    return lambda batch, head, query, key: mark[batch, head, query] == mark[batch, head, key]


def _between(place: Tensor, low: Tensor, high: Tensor) -> MaskMod:
    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        there = place[batch, head, key]
        return (there >= low[batch, head, query]) & (there < high[batch, head, query])

    return seen


def _in_earlier_rounds(tests: tuple[MaskMod, ...], rounds: int) -> MaskMod:
    """Whether a pair passes the test of a round before the one of its head."""

    def again(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        number = head % rounds
        found = tests[0](batch, head, query, key) & (number > 0)
        for e in range(1, len(tests)):
            found = found | (tests[e](batch, head, query, key) & (number > e))
        return found

    return again


def _across(found: _Sorted, rules: Rules, rounds: int) -> MaskMod:
    """Whether pairs count, across buckets: the chunks of a query's window wrap around in its round."""
    chunk, near, visible = rules.chunk, _near(found.chunks, rules), _by_position(found, rules, found.order.flatten(1, 2))
    again = None
    if not rules.duplicates and rounds > 1:
        chunks = found.in_rounds(found.place // chunk, rounds - 1)
        again = _in_earlier_rounds(tuple(_near_in(numbers, near) for numbers in chunks), rounds)

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        here = near(batch, query // chunk, key // chunk) & visible(batch, head, query, key)
        return here if again is None else here & ~again(batch, head, query, key)

    return seen


def _across_rounds(found: _Sorted, rules: Rules, rounds: int) -> MaskMod:
    """Whether pairs count, across buckets, if the chunks of a query's window continue in other rounds; duplicates count."""
    numbers = captured(joined_chunks(found.chunks, rounds, found.order.shape[3], rules.chunk))
    near, visible = _near(found.chunks * rounds, rules), _by_position(found, rules, found.order.flatten(2, 3))

    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return near(batch, numbers[batch, query], numbers[batch, key]) & visible(batch, head, query, key)

    return seen


def joined_chunks(count: Tensor, rounds: int, length: int, chunk: int) -> Tensor:
    """The chunk (batch, rounds * length) int32 of each rank, if the `count` chunks of each round follow those of the round before."""
    rank, number = (torch.arange(n, device=count.device, dtype=torch.int32) for n in (length, rounds))
    return (number[:, None] * count[:, None, None] + rank // chunk).flatten(1)


def _near(count: Tensor, rules: Rules) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """(batch, chunk of the query, chunk of the key) -> whether the key's chunk is in the query's window, which wraps around."""
    ahead, width, count = rules.look_ahead, rules.look_back + rules.look_ahead, captured(count)

    def near(batch: Tensor, query: Tensor, key: Tensor) -> Tensor:
        chunks = count[batch]
        return (query - key + ahead + chunks) % chunks <= width  # chunks is added because remainders of negative numbers differ

    return near


def _near_in(chunks: Tensor, near: Callable[[Tensor, Tensor, Tensor], Tensor]) -> MaskMod:
    return lambda batch, head, query, key: near(batch, chunks[batch, head, query], chunks[batch, head, key])


def _by_position(found: _Sorted, rules: Rules, order: Tensor) -> MaskMod:
    """Whether a real query may see a real key, by their positions; order (batch, heads, ranks) has the token of each rank."""
    length = found.order.shape[3]
    rank = torch.arange(order.shape[2], device=order.device, dtype=torch.int32) % length
    padding = (rank >= found.lengths[:, None])[:, None]
    where = order.to(torch.int32)
    end = where + (0 if rules.itself == "alone" else 1) if rules.causal else torch.full_like(where, length)
    where, end = captured(where.masked_fill(padding, NEVER)), captured(end.masked_fill(padding, 0))
    other = rules.itself == "alone" and not rules.causal

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        position = where[batch, head, key]
        here = position < end[batch, head, query]
        return here & (position != where[batch, head, query]) if other else here

    return visible
