"""Where the tokens of a round stand once they are sorted by bucket, which of them meet, and which chunks are computed against which.

A key is met if its *mark* lies between two numbers of the query. Within buckets a mark is the key's place in the order of the round: the
keys that a query meets stand side by side, from where its bucket begins, or its reach ends. Across buckets it is the key's position in the
row. Whether a pair has met in an earlier round is told by marks in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from formers.attention.lsh.reference import Rules

WIDEST = 32
"""Chunks of keys that are met at once, at the most."""
NEVER = 1 << 30
"""The mark of a place where no token stands."""


class Run(NamedTuple):
    """Chunks of queries, one behind the other, that look equally far."""

    start: int
    chunks: int
    parts: tuple[tuple[int, int], ...]
    """Of each part of the keys the first chunk, counted from the query's own, and the number of chunks."""


class Test(NamedTuple):
    """Whether a pair counts, by the key's mark and one or two of the query's: all are whole numbers, as floats.

    between: first < mark < second, where there are such; outside: not so, but mark < first or mark > second; apart: mark is not first.
    """

    kind: Literal["between", "outside", "apart"]
    marks: Tensor
    """(places,)"""
    first: Tensor | None = None
    """(tokens,)"""
    second: Tensor | None = None


class Lane(NamedTuple):
    """The tokens of a row, a head and a round in the order of their buckets, whole chunks of them."""

    queries: Tensor
    """Places (tokens,) in the row."""
    keys: Tensor
    """Places in the row of the keys, with the chunks that stand before and behind the queries' own."""
    before: int
    """How many chunks stand before."""
    runs: tuple[Run, ...]
    tests: tuple[Test, ...]
    """All of which a pair passes if it counts: that it meets, and that it has not met in an earlier round."""


class Sorted(NamedTuple):
    """All lanes at once, before they are cut: (batch, heads, rounds, n) each."""

    order: Tensor
    place: Tensor
    """Of each token in the order."""
    low: Tensor
    high: Tensor
    """Where what a query meets begins and ends in the order, by the query's place in it."""
    buckets: Tensor


def sort_out(buckets: Tensor, order: Tensor, rules: Rules) -> Sorted:
    """Where the keys of a query's bucket that are in its reach begin and end, in the order of each round."""
    n = order.shape[-1]
    i = torch.arange(n, device=order.device, dtype=torch.int32)
    place = torch.empty_like(order, dtype=torch.int32).scatter_(-1, order, i.expand(order.shape))
    by_order = buckets.gather(-1, order)
    new = by_order[..., 1:] != by_order[..., :-1]
    low, high = i.expand(order.shape).clone(), (i + 1).expand(order.shape).clone()
    low[..., 1:].masked_fill_(~new, 0)
    low = low.cummax(dim=-1).values
    high[..., :-1].masked_fill_(~new, NEVER)
    high = high.flip(-1).cummin(dim=-1).values.flip(-1)
    if rules.reach == "chunk":
        chunk = i // rules.chunk
        low = torch.maximum(low, (chunk - rules.look_back) * rules.chunk)
        high = torch.minimum(high, (chunk + 1 + rules.look_ahead) * rules.chunk)
    return Sorted(order, place, low, high, buckets)


def lanes(found: Sorted, rules: Rules, row: int, head: int, count: int, dtype: torch.dtype) -> Iterator[Lane]:
    """The rounds of a row's head, of which `count` tokens are real."""
    m, rounds = rules.chunk, found.order.shape[2]
    chunks = -(-count // m)
    orders = [_whole(found.order[row, head, r, :count], chunks * m) for r in range(rounds)]
    for r in range(rounds):
        own = orders[r]
        if rules.across_buckets:
            yield _across(found, rules, row, head, count, orders, r, dtype)
            continue
        runs = _runs(found.low[row, head, r, :count], found.high[row, head, r, :count], rules, count)
        before = max((-first for run in runs for first, _ in run.parts), default=0)
        behind = max((first + wide - 1 for run in runs for first, wide in run.parts), default=0)
        marks = torch.arange(-before * m, (chunks + behind) * m, device=own.device, dtype=dtype)
        keys = own if before == behind == 0 else torch.cat([own.new_zeros(before * m), own, own.new_zeros(behind * m)])
        low = _whole(found.low[row, head, r, :count] - 1, chunks * m, NEVER).to(dtype)  # a query that is no token meets nobody
        high = None if rules.causal else _whole(found.high[row, head, r, :count], chunks * m).to(dtype)
        earlier = () if rules.duplicates else (_met_within(found, rules, (row, head, s), own, keys, dtype) for s in range(r))
        yield Lane(own, keys, before, runs, (Test("between", marks, low, high), *earlier))


def _whole(x: Tensor, length: int, value: int = 0) -> Tensor:
    """x (n,), filled up to a length."""
    return x if len(x) == length else torch.cat([x, x.new_full((length - len(x),), value)])


def _runs(low: Tensor, high: Tensor, rules: Rules, count: int) -> tuple[Run, ...]:
    """The chunks of a lane by how far they look."""
    m = rules.chunk
    chunks = -(-count // m)
    ahead = 0 if rules.causal else rules.look_ahead
    if rules.reach == "chunk":
        back = min(rules.look_back, chunks - 1)
        return (Run(0, chunks, _parts(back, min(ahead, chunks - 1))),)
    firsts = (low[::m] // m).tolist()
    lasts = [] if rules.causal else ((_whole(high, chunks * m, count)[m - 1 :: m].clamp(max=count) - 1) // m).tolist()
    looks = [(_even(c - first), 0 if rules.causal else _even(lasts[c] - c)) for c, first in enumerate(firsts)]
    runs: list[Run] = []
    start = 0
    for c in range(1, chunks + 1):
        if c == chunks or looks[c] != looks[start]:
            runs.append(Run(start, c - start, _parts(*looks[start])))
            start = c
    return tuple(runs)


def _even(chunks: int) -> int:
    """How far to look so that neighbours look equally far, as long as that is not much further: 1, 3, 7, or what is asked for."""
    return next((far for far in (1, 3, 7) if chunks <= far), chunks)


def _parts(back: int, ahead: int) -> tuple[tuple[int, int], ...]:
    """The chunks from `back` before to `ahead` behind one's own in parts; the own chunk is the last of one, or followed by others."""
    cuts = [*range(-back, ahead + 1, WIDEST), ahead + 1]
    return tuple((a, b - a) for a, b in pairwise(cuts))


def _met_within(found: Sorted, rules: Rules, there: tuple[int, int, int], queries: Tensor, keys: Tensor, dtype: torch.dtype) -> Test:
    """Whether pairs of one round's order have not met in another, within buckets."""
    if rules.reach == "bucket":
        buckets = found.buckets[there].to(dtype)
        return Test("apart", buckets[keys], buckets[queries])
    place = found.place[there]
    where = place[queries]
    low, high = found.low[there][where], found.high[there][where]
    return Test("outside", place[keys].to(dtype), low.to(dtype), (high - 1).to(dtype))


def _across(found: Sorted, rules: Rules, row: int, head: int, count: int, orders: list[Tensor], r: int, dtype: torch.dtype) -> Lane:
    """The lane of a round in which all keys of the chunks are met; its ends look at the other end, or at the rounds beside it."""
    m, rounds, own = rules.chunk, len(orders), orders[r]
    chunks = len(own) // m
    tokens = torch.arange(chunks * m, device=own.device) < count
    back, ahead = rules.look_back, rules.look_ahead
    if rules.wrap == "round":
        back = min(back, chunks - 1)
        ahead = min(ahead, chunks - 1 - back)
    sources = [_beside(c, chunks, r, rounds, rules.wrap) for c in range(-back, chunks + ahead)]
    keys = torch.cat([orders[s][c * m : (c + 1) * m] for s, c in sources])
    real = torch.cat([tokens[c * m : (c + 1) * m] for _, c in sources])
    marks, here = keys.to(dtype).masked_fill(~real, NEVER), own.to(dtype)
    end = torch.full_like(here, count) if not rules.causal else here if rules.itself == "alone" else here + 1
    tests = [Test("between", marks, None, end.masked_fill(~tokens, 0))]  # a query that is no token meets nobody
    if rules.itself == "alone" and not rules.causal:
        tests.append(Test("apart", marks, here))
    for s in range(0 if rules.duplicates else r):
        chunk = found.place[row, head, s] // m
        offsets = {d % chunks for d in range(-ahead, back + 1)}
        tests += [Test("apart", ((chunk[keys] + d) % chunks).to(dtype), chunk[own].to(dtype)) for d in sorted(offsets)]
    return Lane(own, keys, back, (Run(0, chunks, _parts(back, ahead)),), tuple(tests))


def _beside(c: int, chunks: int, r: int, rounds: int, wrap: str) -> tuple[int, int]:
    """The round and the number of the chunk at place c of round r, which may lie beyond its ends."""
    if wrap == "round":
        return r, c % chunks
    return ((r * chunks + c) // chunks) % rounds, c % chunks
