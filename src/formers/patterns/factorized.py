"""Factorised attention: two sparse sets that connect all positions in two layers (Sparse Transformer, Child et al., 2019).

Strided, with stride l:
A(1)_i = {i-l+1, ..., i}                            the last l keys: Local(window=l)
A(2)_i = {j <= i : (i-j) mod l = 0}                 every l-th key before: Column               E80
S_i    = A(1)_i + A(2)_i                            merged                                      E81

Fixed, with blocks of l positions whose last c are summaries:
A(1)_i = {j <= i : floor(j/l) = floor(i/l)}         the query's block: Blocks(query=l, memory=0)
A(2)_i = {j <= i : j mod l >= l-c or j = i}         the summaries: Summary                      E82
S_i    = A(1)_i + A(2)_i                            merged                                      E83

With A(1) in one layer and A(2) in the next, information flows from every position to every later one. Strided works in either order,
fixed only in this order. Self is in every set: the paper's A(2) without it leaves the first l-c queries of a fixed pattern without keys.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from pydantic import PositiveInt, model_validator
from torch import Tensor
from typing_extensions import Self

from formers.core import FormersError, Range, StridedPositions
from formers.core.positions import StaticPositions, strided_positions
from formers.patterns.base import Integer, Pattern
from formers.patterns.grid import Blocks
from formers.patterns.local import Local
from formers.patterns.plan import GroupedPositions, Piece, Plan, Round, band, columns, own_blocks, summaries


class Column(Pattern):
    """Every query sees itself and each `stride`-th key before it: A(2) of strided attention."""

    stride: PositiveInt

    @property
    def is_causal(self) -> bool:
        return True

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        return (j >= 0) & (j <= i) & ((i - j) % self.stride == 0)  # E80

    def covers(self, queries: Range, keys: Range | StridedPositions) -> bool:
        if isinstance(keys, StridedPositions):
            return _in_columns(self.stride, queries, keys)
        if queries.length == keys.length == 1:
            return bool(self.allows(queries.start, keys.start))
        return self.stride == 1 and keys.stop - 1 <= queries.start

    def reads(self, t: int) -> StaticPositions:
        return strided_positions(t % self.stride, 1, self.stride, Range(t, 1))

    def pieces(self, n: int, head: int = 0) -> Plan:
        return _column(n, self.stride)


class Strided(Pattern):
    """Every query sees the last `stride` keys, including itself, and each `stride`-th key before it: A(1) and A(2) merged."""

    stride: PositiveInt

    @property
    def is_causal(self) -> bool:
        return True

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        back = i - j
        return (j >= 0) & (back >= 0) & ((back < self.stride) | (back % self.stride == 0))  # E81

    def covers(self, queries: Range, keys: Range | StridedPositions) -> bool:
        if isinstance(keys, StridedPositions):
            return _in_columns(self.stride, queries, keys)
        # Inside the last query's window; a single query also sees the first key of its column.
        near = self.stride == 1 or queries.stop - 1 - keys.start < self.stride + (queries.length == 1)
        return near and keys.stop - 1 <= queries.start

    def reads(self, t: int) -> StaticPositions:
        first = max(0, t - self.stride + 1)
        return strided_positions(t % self.stride, 1, self.stride, Range(first, t + 1 - first))

    def pieces(self, n: int, head: int = 0) -> Plan:
        return _strided(n, self.stride)

    def parts(self) -> tuple[Pattern, ...]:
        """A(1), A(2): for alternate layers, Alternate(*parts); for different heads, PerHead(*parts)."""
        return Local(window=self.stride), Column(stride=self.stride)


class _Summaries(Pattern):
    """The common code of Summary and Fixed.

    With `subblocks` = n, head m uses the (m mod n)-th run of `summary` cells, counted from the end of the block.
    """

    stride: PositiveInt
    summary: PositiveInt
    subblocks: PositiveInt = 1

    @model_validator(mode="after")
    def _fits(self) -> Self:
        stride, summary, subblocks = self.stride, self.summary, self.subblocks
        if summary > stride:
            raise FormersError(f"summary={summary} does not fit into a block of stride={stride}: give at most {stride}.")
        if subblocks * summary > stride:
            raise FormersError(
                f"subblocks={subblocks} of summary={summary} do not fit into a block of stride={stride}: give at most {stride // summary}."
            )
        return self

    @property
    def is_causal(self) -> bool:
        return True

    @property
    def by_head(self) -> bool:
        return self.subblocks > 1

    def _covers_strided(self, queries: Range, keys: StridedPositions) -> bool:
        """Whether every query sees the repeated runs of strided keys; False if unknown."""
        before = keys.start + (keys.count - 1) * keys.period + keys.width - 1 <= queries.start
        return before and keys.period % self.stride == 0 and self._are_summaries(keys.start, keys.start + keys.width)

    @property
    def _first(self) -> int:
        """The first cell of a block that is a summary for any head."""
        return self.stride - self.subblocks * self.summary

    def _is_summary(self, position: Integer, head: int | Tensor) -> bool | Tensor:
        """Whether a position is a summary of its block for a head."""
        end = self.stride - head % self.subblocks * self.summary
        cell = position % self.stride
        return (cell >= end - self.summary) & (cell < end)

    def _are_summaries(self, start: int, stop: int) -> bool:
        """Whether positions start ... stop-1 are summaries for every head; False if unknown."""
        if start >= stop or self.summary == self.stride:
            return True
        cell = start % self.stride
        return self.subblocks == 1 and cell >= self._first and cell + stop - start <= self.stride

    def _with_summaries(self, near: Range) -> StaticPositions:
        """The summaries, for any head, of the blocks that begin before the positions `near`, and `near`."""
        return strided_positions(self._first, self.subblocks * self.summary, self.stride, near)


class Summary(_Summaries):
    """Every query sees itself, and the last `summary` cells of every block of `stride`: A(2) of fixed attention.

    With `subblocks` = n, head m uses the (m mod n)-th run of `summary` cells, counted from the end of the block.
    """

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        return (j >= 0) & (j <= i) & (self._is_summary(j, head) | (j == i))  # E82

    def covers(self, queries: Range, keys: Range | StridedPositions) -> bool:
        if isinstance(keys, StridedPositions):
            return self._covers_strided(queries, keys)
        own = queries.length == 1 and keys.stop - 1 == queries.start  # a single query sees itself
        return self._are_summaries(keys.start, keys.stop - own) and keys.stop - 1 <= queries.start

    def cached(self, t: int) -> StaticPositions:
        return self._with_summaries(Range(t, 0))

    def reads(self, t: int) -> StaticPositions:
        return self._with_summaries(Range(t, 1))

    def pieces(self, n: int, head: int = 0) -> Plan:
        return _summary(n, self.stride, self.summary, self.stride - head % self.subblocks * self.summary)

    def oldest(self, t: int) -> int:
        return min(t, self._first)


class Fixed(_Summaries):
    """Every query sees its block of `stride` causally, and the last `summary` cells of every earlier block: A(1) and A(2) merged.

    With `subblocks` = n, head m uses the (m mod n)-th run of `summary` cells, counted from the end of the block.
    """

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        own = i // self.stride == j // self.stride
        return (j >= 0) & (j <= i) & (own | self._is_summary(j, head))  # E83

    def covers(self, queries: Range, keys: Range | StridedPositions) -> bool:
        if isinstance(keys, StridedPositions):
            return self._covers_strided(queries, keys)
        own = (queries.stop - 1) // self.stride * self.stride
        return self._are_summaries(keys.start, min(keys.stop, own)) and keys.stop - 1 <= queries.start

    def cached(self, t: int) -> StaticPositions:
        return self._with_summaries(Range(t // self.stride * self.stride, t % self.stride))

    def reads(self, t: int) -> StaticPositions:
        return self._with_summaries(Range(t // self.stride * self.stride, t % self.stride + 1))

    def pieces(self, n: int, head: int = 0) -> Plan:
        return _fixed(n, self.stride, self.summary, self.stride - head % self.subblocks * self.summary)

    def oldest(self, t: int) -> int:
        return 0 if t < self.stride else self._first

    def parts(self) -> tuple[Pattern, ...]:
        """A(1), A(2), in the order that connects all positions: for alternate layers, Alternate(*parts); for heads, PerHead(*parts)."""
        return (
            Blocks(query=self.stride, memory=0),
            Summary(stride=self.stride, summary=self.summary, subblocks=self.subblocks),
        )


def _in_columns(stride: int, queries: Range, keys: StridedPositions) -> bool:
    """Whether all strided keys are in the column of a single query."""
    before = keys.start + (keys.count - 1) * keys.period <= queries.start
    alone = queries.length == keys.width == 1
    return before and alone and keys.period % stride == 0 and (queries.start - keys.start) % stride == 0


@lru_cache(maxsize=32)
def _column(n: int, stride: int) -> Plan:
    return (columns(n, stride, own=True),)


@lru_cache(maxsize=32)
def _strided(n: int, stride: int) -> Plan:
    return band(n, stride - 1), columns(n, stride)


@lru_cache(maxsize=32)
def _fixed(n: int, stride: int, summary: int, end: int) -> Plan:
    return own_blocks(n, stride), *summaries(n, stride, summary, end)


@lru_cache(maxsize=32)
def _summary(n: int, stride: int, summary: int, end: int) -> Plan:
    """The plan of Summary: as for Fixed, but inside its block a query sees only itself and the summaries before it."""
    cell = np.arange(stride)
    seen = ((cell >= end - summary) & (cell < end) & (cell <= cell[:, None])) | (cell == cell[:, None])
    whole, rest = divmod(n, stride)
    blocks = GroupedPositions(0, whole, stride, stride), GroupedPositions(whole * stride, 1, rest, stride)
    own = tuple(Piece(block, block, seen[: block.size, : block.size]) for block in blocks if block.groups and block.size)
    return Round(own), *summaries(n, stride, summary, end)
