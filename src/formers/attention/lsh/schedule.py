"""The schedule of LSH attention: tokens sorted by bucket in each round, which pairs count, and which chunks are computed together.

Whether a query sees a key is decided by comparing the key's mark with one or two numbers of the query. Within buckets a mark is the key's
index in the order of the round: the keys that a query sees are contiguous, from the start of its bucket or of its reach. Across buckets
it is the key's position in the row. Whether a pair was already seen in an earlier round is decided by marks in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from formers.attention.lsh.reference import Rules

WIDEST = 32
"""The largest number of chunks of keys computed at once."""
NEVER = 1 << 30
"""The mark of an empty slot."""


class Run(NamedTuple):
    """Consecutive chunks of queries with the same window of key chunks."""

    start: int
    chunks: int
    parts: tuple[tuple[int, int], ...]
    """For each part of the keys: the first chunk, relative to the query's chunk, and the number of chunks."""


class Test(NamedTuple):
    """A condition for a pair, on the key's mark and one or two numbers of the query; all are integers, as floats.

    between: first < mark < second, where given; outside: mark < first or mark > second; apart: mark != first.
    """

    kind: Literal["between", "outside", "apart"]
    marks: Tensor
    """(keys,)"""
    first: Tensor | None = None
    """(tokens,)"""
    second: Tensor | None = None


class RoundSchedule(NamedTuple):
    """The tokens of a row, head and round, sorted by bucket, in whole chunks."""

    queries: Tensor
    """Indices (tokens,) into the row."""
    keys: Tensor
    """Indices of the keys into the row, including the chunks before and after those of the queries."""
    before: int
    """The number of chunks before."""
    runs: tuple[Run, ...]
    tests: tuple[Test, ...]
    """A pair counts if it passes all tests: the query sees the key, and did not see it in an earlier round."""


class Sorted(NamedTuple):
    """The tokens of each head and round, sorted by bucket and not yet cut into chunks; each field is (batch, heads, rounds, n)."""

    order: Tensor
    """The tokens, sorted by bucket."""
    place: Tensor
    """The index of each token in the order."""
    low: Tensor
    high: Tensor
    """The start and the end in the order of the keys that a query sees, by the query's index in it."""
    buckets: Tensor


def sort_by_bucket(buckets: Tensor, order: Tensor, rules: Rules) -> Sorted:
    """The start and the end of the keys of a query's bucket that are in its reach, in the order of each round."""
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


def round_schedules(found: Sorted, rules: Rules, row: int, head: int, count: int, dtype: torch.dtype) -> Iterator[RoundSchedule]:
    """The schedules of a row and head, one per round; `count` tokens are real."""
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
        after = max((first + wide - 1 for run in runs for first, wide in run.parts), default=0)
        marks = torch.arange(-before * m, (chunks + after) * m, device=own.device, dtype=dtype)
        keys = own if before == after == 0 else torch.cat([own.new_zeros(before * m), own, own.new_zeros(after * m)])
        low = _whole(found.low[row, head, r, :count] - 1, chunks * m, NEVER).to(dtype)  # padding sees no key
        high = None if rules.causal else _whole(found.high[row, head, r, :count], chunks * m).to(dtype)
        earlier = () if rules.duplicates else (_seen_within(found, rules, (row, head, s), own, keys, dtype) for s in range(r))
        yield RoundSchedule(own, keys, before, runs, (Test("between", marks, low, high), *earlier))


def _whole(x: Tensor, length: int, value: int = 0) -> Tensor:
    """x (n,), padded to a length."""
    return x if len(x) == length else torch.cat([x, x.new_full((length - len(x),), value)])


def _runs(low: Tensor, high: Tensor, rules: Rules, count: int) -> tuple[Run, ...]:
    """The chunks of a schedule, grouped by their window of key chunks."""
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
    """The window size rounded up to 1, 3 or 7 chunks, so that neighbours have the same window; unchanged if it is larger."""
    return next((far for far in (1, 3, 7) if chunks <= far), chunks)


def _parts(back: int, ahead: int) -> tuple[tuple[int, int], ...]:
    """The chunks from `back` before to `ahead` after one's own, split into parts of at most WIDEST."""
    cuts = [*range(-back, ahead + 1, WIDEST), ahead + 1]
    return tuple((a, b - a) for a, b in pairwise(cuts))


def _seen_within(found: Sorted, rules: Rules, there: tuple[int, int, int], queries: Tensor, keys: Tensor, dtype: torch.dtype) -> Test:
    """The test that pairs of one round's order were not seen in another round, within buckets."""
    if rules.reach == "bucket":
        buckets = found.buckets[there].to(dtype)
        return Test("apart", buckets[keys], buckets[queries])
    place = found.place[there]
    where = place[queries]
    low, high = found.low[there][where], found.high[there][where]
    return Test("outside", place[keys].to(dtype), low.to(dtype), (high - 1).to(dtype))


def _across(
    found: Sorted, rules: Rules, row: int, head: int, count: int, orders: list[Tensor], r: int, dtype: torch.dtype
) -> RoundSchedule:
    """The schedule of a round in which all keys of the chunks are seen; chunks at the ends wrap around, or continue in other rounds."""
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
    tests = [Test("between", marks, None, end.masked_fill(~tokens, 0))]  # padding sees no key
    if rules.itself == "alone" and not rules.causal:
        tests.append(Test("apart", marks, here))
    for s in range(0 if rules.duplicates else r):
        chunk = found.place[row, head, s] // m
        offsets = {d % chunks for d in range(-ahead, back + 1)}
        tests += [Test("apart", ((chunk[keys] + d) % chunks).to(dtype), chunk[own].to(dtype)) for d in sorted(offsets)]
    return RoundSchedule(own, keys, back, (Run(0, chunks, _parts(back, ahead)),), tuple(tests))


def _beside(c: int, chunks: int, r: int, rounds: int, wrap: str) -> tuple[int, int]:
    """The round and the index of chunk c of round r; c may be beyond its ends."""
    if wrap == "round":
        return r, c % chunks
    return ((r * chunks + c) // chunks) % rounds, c % chunks
