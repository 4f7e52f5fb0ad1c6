"""Factorised attention: two small sets that together reach everything in two layers (Child et al., 2019, the Sparse Transformer).

Strided, with stride l:
A(1)_i = {i-l+1, ..., i}                            the last l keys: Local(window=l)
A(2)_i = {j <= i : (i-j) mod l = 0}                 every l-th key before: Column               E80
S_i    = A(1)_i + A(2)_i                            merged                                      E81

Fixed, with blocks of l positions whose last c are summaries:
A(1)_i = {j <= i : floor(j/l) = floor(i/l)}         the own block: Blocks(query=l, memory=0)
A(2)_i = {j <= i : j mod l >= l-c or j = i}         the summaries: Summary                      E82
S_i    = A(1)_i + A(2)_i                            merged                                      E83

With A(1) in one layer and A(2) in the next, every position reaches every later one. Strided works in either order, fixed in this one only.
Self is in every set: without it the paper's A(2) leaves the first l-c queries of a fixed pattern without any key.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from pydantic import PositiveInt, model_validator
from torch import Tensor
from typing_extensions import Self

from formers.core import FormersError, Range
from formers.patterns.base import Integer, Pattern
from formers.patterns.grid import Blocks
from formers.patterns.local import Local
from formers.patterns.plan import Plan, band, columns, own_blocks, summaries


class Column(Pattern):
    """Every query sees itself and each `stride`-th key before it: strided attention's A(2)."""

    stride: PositiveInt

    @property
    def is_causal(self) -> bool:
        return True

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        return (j >= 0) & (j <= i) & ((i - j) % self.stride == 0)  # E80

    def covers(self, queries: Range, keys: Range) -> bool:
        return self.stride == 1 and keys.stop - 1 <= queries.start

    def pieces(self, n: int, head: int = 0) -> Plan:
        return _column(n, self.stride)


class Strided(Pattern):
    """Every query sees the last `stride` keys, self among them, and each `stride`-th key before it: both parts merged."""

    stride: PositiveInt

    @property
    def is_causal(self) -> bool:
        return True

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        back = i - j
        return (j >= 0) & (back >= 0) & ((back < self.stride) | (back % self.stride == 0))  # E81

    def covers(self, queries: Range, keys: Range) -> bool:
        near = self.stride == 1 or queries.stop - 1 - keys.start < self.stride
        return near and keys.stop - 1 <= queries.start

    def pieces(self, n: int, head: int = 0) -> Plan:
        return _strided(n, self.stride)

    def parts(self) -> tuple[Pattern, ...]:
        """A(1), A(2): for layers by turns, Alternate(*parts), or for heads of their own, PerHead(*parts)."""
        return Local(window=self.stride), Column(stride=self.stride)


class Summary(Pattern):
    """Every query sees itself, and the last `summary` cells of every block of `stride`: fixed attention's A(2).

    With `subblocks` = n, head m takes the (m mod n)-th run of `summary` cells, counted from the end of the block.
    """

    stride: PositiveInt
    summary: PositiveInt
    subblocks: PositiveInt = 1

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _check(self.stride, self.summary, self.subblocks)
        return self

    @property
    def is_causal(self) -> bool:
        return True

    @property
    def by_head(self) -> bool:
        return self.subblocks > 1

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        return (j >= 0) & (j <= i) & (_is_summary(self, j, head) | (j == i))  # E82

    def keeps(self, position: Integer, t: int) -> bool | Tensor:
        return (position >= t) | (position % self.stride >= _first_summary(self))

    def covers(self, queries: Range, keys: Range) -> bool:
        return self.summary == self.stride and keys.stop - 1 <= queries.start

    def pieces(self, n: int, head: int = 0) -> Plan:
        return _summary(n, self.stride, self.summary, head % self.subblocks)

    def oldest(self, t: int) -> int:
        return min(t, _first_summary(self))


class Fixed(Pattern):
    """Every query sees its own block of `stride` causally, and the last `summary` cells of every earlier block: both parts merged.

    With `subblocks` = n, head m takes the (m mod n)-th run of `summary` cells, counted from the end of the block.
    """

    stride: PositiveInt
    summary: PositiveInt
    subblocks: PositiveInt = 1

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _check(self.stride, self.summary, self.subblocks)
        return self

    @property
    def is_causal(self) -> bool:
        return True

    @property
    def by_head(self) -> bool:
        return self.subblocks > 1

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        own = i // self.stride == j // self.stride
        return (j >= 0) & (j <= i) & (own | _is_summary(self, j, head))  # E83

    def keeps(self, position: Integer, t: int) -> bool | Tensor:
        return (position >= t // self.stride * self.stride) | (position % self.stride >= _first_summary(self))

    def covers(self, queries: Range, keys: Range) -> bool:
        own = self.summary == self.stride or keys.start >= (queries.stop - 1) // self.stride * self.stride
        return own and keys.stop - 1 <= queries.start

    def pieces(self, n: int, head: int = 0) -> Plan:
        return _fixed(n, self.stride, self.summary, head % self.subblocks)

    def oldest(self, t: int) -> int:
        return 0 if t < self.stride else _first_summary(self)

    def parts(self) -> tuple[Pattern, ...]:
        """A(1), A(2), in the order that connects all: for layers by turns, Alternate(*parts), or for heads, PerHead(*parts)."""
        return (
            Blocks(query=self.stride, memory=0),
            Summary(stride=self.stride, summary=self.summary, subblocks=self.subblocks),
        )


def _check(stride: int, summary: int, subblocks: int) -> None:
    """Refuses summaries that do not fit into their block."""
    if summary > stride:
        raise FormersError(f"summary={summary} does not fit into a block of stride={stride}: give at most {stride}.")
    if subblocks * summary > stride:
        raise FormersError(
            f"subblocks={subblocks} of summary={summary} do not fit into a block of stride={stride}: give at most {stride // summary}."
        )


def _is_summary(pattern: Summary | Fixed, position: Integer, head: int | Tensor) -> bool | Tensor:
    """Whether a position is a summary of its block for a head."""
    end = pattern.stride - head % pattern.subblocks * pattern.summary
    cell = position % pattern.stride
    return (cell >= end - pattern.summary) & (cell < end)


def _first_summary(pattern: Summary | Fixed) -> int:
    """The first cell of a block that is a summary for any head."""
    return pattern.stride - pattern.subblocks * pattern.summary


@lru_cache(maxsize=32)
def _column(n: int, stride: int) -> Plan:
    return (columns(n, stride, own=True),)


@lru_cache(maxsize=32)
def _strided(n: int, stride: int) -> Plan:
    return band(n, stride), columns(n, stride)


@lru_cache(maxsize=32)
def _fixed(n: int, stride: int, summary: int, skip: int) -> Plan:
    return own_blocks(n, stride), *summaries(n, stride, summary, skip)


@lru_cache(maxsize=32)
def _summary(n: int, stride: int, summary: int, skip: int) -> Plan:
    """As fixed attention, but of its own block a query sees itself and the summaries before it only."""
    cell = np.arange(min(stride, n))
    end = stride - skip * summary
    seen = ((cell >= end - summary) & (cell < end) & (cell <= cell[:, None])) | (cell == cell[:, None])
    own = tuple(piece._replace(causal=False, mask=seen[: piece.queries.size, : piece.keys.size]) for piece in own_blocks(n, stride))
    return own, *summaries(n, stride, summary, skip)
