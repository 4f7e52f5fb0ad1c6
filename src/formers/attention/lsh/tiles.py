"""Tiles of LSH attention: a few chunks of queries with the keys that they see, as views, and which of their pairs count."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from formers.attention.executors.scratch import ScratchBuffers
from formers.attention.lsh.reference import Rules
from formers.attention.lsh.schedule import RoundSchedule, Run
from formers.core.random import generator
from formers.core.tables import cached


class LSHWork(NamedTuple):
    """What both passes share."""

    rules: Rules
    dtype: torch.dtype
    """The dtype of the computation: at least float32, converted one row and head at a time."""
    limit: int
    """Pairs per tile."""
    scale: float
    dropout: float
    seed: int

    def dropout_mask(self, s: Tensor, *tile: int) -> Tensor:
        """The dropout mask of the weights s of a tile, 1/(1 - dropout) or 0; the same in both passes."""
        keyed = generator(self.seed, *tile, device=s.device)
        return torch.empty_like(s).bernoulli_(1.0 - self.dropout, generator=keyed).mul_(1.0 / (1.0 - self.dropout))


class Numbers(NamedTuple):
    """The operands of a test, for a tile."""

    kind: str
    marks: Tensor
    """(chunks, keys, 1)"""
    first: Tensor | None
    """(chunks, 1, m)"""
    second: Tensor | None


class LSHTile(NamedTuple):
    """A few chunks of queries of a run, and a part of the keys that they see."""

    queries: tuple[Tensor, ...]
    """Slices of the tensors of queries, (chunks, m, width) each."""
    keys: tuple[Tensor, ...]
    """Slices of the tensors of keys, (chunks, keys, width) each."""
    summed: tuple[tuple[Tensor, ...], ...]
    """Slices of tensors that are summed over keys, one per key chunk, since neighbours overlap: (chunks, m, width) each."""
    tests: tuple[Numbers, ...]
    fixed: Tensor | None
    """1 or 0 for the pairs of a chunk with itself, if it is in the part."""
    own: slice
    """The keys of the chunk itself."""
    merges: bool
    """Whether an earlier tile has another part of the keys of these queries."""
    number: int


@cached(64)
def _fixed(m: int, causal: bool, alone: bool, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """1 where queries (m) see keys (m, first dimension) of the same chunk, within buckets, else 0; None if all do."""
    with torch.inference_mode(False):
        key, query = torch.arange(m, device=device)[:, None], torch.arange(m, device=device)
        if causal:
            return (key < query if alone else key <= query).to(dtype)
        return (key != query).to(dtype) if alone else None


def _windows(x: Tensor, schedule: RoundSchedule, run: Run, part: tuple[int, int], m: int) -> Tensor:
    """The keys (chunks, keys, width) of a run's part, as a view of x (keys, width)."""
    step, (first, width) = x.stride(0), part
    start = (schedule.before + run.start + first) * m * step
    return x.as_strided((run.chunks, width * m, x.shape[1]), (m * step, step, 1), x.storage_offset() + start)


def _chunks(x: Tensor, run: Run, m: int) -> Tensor:
    """The queries (chunks, m, width) of a run, as a view of x (tokens, width)."""
    return x[run.start * m : (run.start + run.chunks) * m].view(run.chunks, m, x.shape[1])


def tiles_of(
    schedule: RoundSchedule, work: LSHWork, queries: Sequence[Tensor], keys: Sequence[Tensor], summed: Sequence[Tensor] = ()
) -> Iterator[LSHTile]:
    """The tiles of a schedule, with views of the tensors of its queries and keys, (tokens or keys, width) each."""
    m, number, rules = work.rules.chunk, 0, work.rules
    fixed = None if rules.across_buckets else _fixed(m, rules.causal, rules.itself == "alone", work.dtype, schedule.queries.device)
    for run in schedule.runs:
        for merges, part in enumerate(run.parts):
            each = max(1, work.limit // (m * m * part[1]))

            def of_queries(x: Tensor, run: Run = run, each: int = each) -> Sequence[Tensor]:
                return _chunks(x, run, m).split(each)  # type: ignore[no-untyped-call]

            def of_keys(x: Tensor, part: tuple[int, int] = part, run: Run = run, each: int = each) -> Sequence[Tensor]:
                return _windows(x, schedule, run, part, m).split(each)  # type: ignore[no-untyped-call]

            def turned(x: Tensor | None, run: Run = run, each: int = each) -> Sequence[Tensor | None]:
                count = -(-run.chunks // each)
                return [None] * count if x is None else [y.mT for y in of_queries(x[:, None])]

            tests = [list(zip(of_keys(t.marks[:, None]), turned(t.first), turned(t.second), strict=True)) for t in schedule.tests]
            these, those = [of_queries(x) for x in queries], [of_keys(x) for x in keys]
            ones = [[of_keys(x, (part[0] + w, 1)) for w in range(part[1])] for x in summed]
            among = part[0] <= 0 < sum(part)
            for i in range(-(-run.chunks // each)):
                numbers = tuple(Numbers(t.kind, *test[i]) for t, test in zip(schedule.tests, tests, strict=True))
                yield LSHTile(
                    tuple(x[i] for x in these), tuple(x[i] for x in those), tuple(tuple(y[i] for y in x) for x in ones),
                    numbers, fixed if among else None, slice(-part[0] * m, (1 - part[0]) * m), merges > 0, number,
                )  # fmt: skip
                number += 1


def _passes(test: Numbers, out: Tensor, other: Tensor) -> Tensor:
    """1 where a pair passes a test, else 0: marks are integers, so that differences decide it, which is faster than comparisons."""
    kind, marks, first, second = test
    if kind == "apart":
        assert first is not None
        return torch.sub(marks, first, out=out).abs_().clamp_(max=1.0)
    if kind == "outside":
        assert first is not None
        assert second is not None
        torch.maximum(torch.sub(first, marks, out=out), torch.sub(marks, second, out=other), out=out)
        return out.clamp_(0.0, 1.0)
    if first is not None:
        torch.sub(marks, first, out=out)
    if second is not None:
        torch.sub(second, marks, out=out if first is None else other)
    if first is not None and second is not None:
        torch.minimum(out, other, out=out)
    return out.clamp_(0.0, 1.0)


def pairs(tile: LSHTile, like: Tensor, scratch: ScratchBuffers) -> Tensor:
    """1 for the pairs of a tile (chunks, keys, queries) that count, else 0."""
    counts, other = scratch.take("counts", *like.shape), scratch.take("other", *like.shape)
    _passes(tile.tests[0], counts, other)
    if tile.fixed is not None:
        counts[:, tile.own].mul_(tile.fixed)
    for test in tile.tests[1:]:
        counts.mul_(_passes(test, scratch.take("more", *like.shape), other))
    return counts
