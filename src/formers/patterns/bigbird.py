"""BigBird: a window, global blocks and random blocks (Zaheer et al., 2020), in units of blocks of b positions.

Query block a = floor(i/b) of a row of N blocks sees the key blocks
W_a = {c : |a-c| <= (w-1)/2}                                    the window                              E130
G   = {0, ..., ceil(g/2)-1} + {N-floor(g/2), ..., N-1}          the global blocks, which see all        E131
R_a = r blocks drawn from those outside W_a and G               fewer where fewer remain                E132
S_i = {j : floor(j/b) in W_a + G + R_a, or a in G}                                                      E133

The last blocks and the drawn blocks depend on N, the number of blocks of the row: `of(length)` sets it, to a tensor for rows of
different lengths. R_a is a function of (seed, layer, head, N, a) only: padding, other rows and torch's generator do not change it. It is
computed, not looked up, so that its arguments may be tensors on any device.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveInt, field_validator
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from formers.core import FormersError, Range, StridedPositions
from formers.patterns.base import Integer, Pattern, bound
from formers.patterns.plan import Numbers, Plan, Round, of_blocks

Number: TypeAlias = int | Tensor
WORD = 0xFFFFFFFF
"""Random numbers have 32 bits, so that products of two fit into int64."""

COARSE = 16
"""Blocks of at least this size are the pieces of the plan; smaller matrix products would be slow."""


class BigBird(Pattern):
    """Every block sees the `window` blocks around it, `global_blocks` (half of them first, the rest last) and `random_blocks`.

    `of(length)` sets `row_blocks` and `at(layer)` sets `layer` (0 if not given); neither changes once it is set. `allows` is False for
    positions after the last block of the row.
    """

    block: PositiveInt
    window: PositiveInt = 3
    global_blocks: NonNegativeInt = 2
    random_blocks: NonNegativeInt = 3
    seed: int = 0
    layer: NonNegativeInt | None = None
    row_blocks: PositiveInt | None = None

    @field_validator("window")
    @classmethod
    def _odd(cls, window: int) -> int:
        if window % 2 == 0:
            raise FormersError(f"window={window} is even, but the window is centred on a block: give {window - 1} or {window + 1}.")
        return window

    @property
    def by_head(self) -> bool:
        return self.random_blocks > 0

    @property
    def _needs_length(self) -> bool:
        return self.row_blocks is None and (self.random_blocks > 0 or self.global_blocks > 1)

    def at(self, layer: int) -> Pattern:
        if self.layer is not None or not self.random_blocks:
            return self
        return bound(self, 0 if self.row_blocks is None else self.row_blocks, layer=layer)

    def of(self, length: int | Tensor) -> BigBird:
        if not self._needs_length:
            return self
        if isinstance(length, int) and not torch.compiler.is_dynamo_compiling():
            return _of_blocks(self, max(1, -(-length // self.block)))
        return bound(self, length, row_blocks=(length + self.block - 1) // self.block)

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        if self._needs_length:
            raise FormersError("BigBird's sets depend on the number of blocks of the row: call of(n) first, for rows of n tokens.")
        blocks = self.row_blocks
        a, c, half = i // self.block, j // self.block, self.window // 2
        near = (a - c <= half) & (c - a <= half)  # E130
        seen = near | self._is_global(a, blocks) | self._is_global(c, blocks)
        if blocks is None:
            return (a >= 0) & (c >= 0) & seen
        for drawn in self._drawn(a, head, blocks):
            seen = seen | (c == drawn)
        return (a >= 0) & (a < blocks) & (c >= 0) & (c < blocks) & seen  # E133

    def _is_global(self, c: Number, blocks: Number | None) -> bool | Tensor:
        first = c < (self.global_blocks + 1) // 2  # E131
        return first if blocks is None else first | (c >= blocks - self.global_blocks // 2)  # E131

    def _drawn(self, a: Number, head: Number, blocks: Number) -> list[Number]:
        """The blocks drawn for block a, all different, negative if none remains: Floyd's algorithm, which draws r of F with r numbers."""
        if not self.random_blocks:
            return []
        half, low = self.window // 2, (self.global_blocks + 1) // 2
        high = _at_least(blocks - self.global_blocks // 2, low)
        # The free blocks are low ... start-1 and stop ... high-1: neither global nor in the window.
        start, stop = (_at_most(_at_least(edge, low), high) for edge in (a - half, a + half + 1))
        free = (start - low) + (high - stop)
        key: Number = 0
        for part in (self.seed & WORD, (self.seed >> 32) & WORD, self.layer or 0, head, blocks, a):
            key = hash32((key + part) & WORD)
        found: list[Number] = []
        for draw in range(self.random_blocks):
            last = free - self.random_blocks + draw
            place = (hash32((key + draw) & WORD) * (last + 1)) >> 32  # one of 0 ... last
            for other in found:
                place = place + (last - place) * (place == other)  # drawn before: use `last`, which was not
            found.append((place + 1) * (last >= 0) - 1)  # E132
        return [low + place + (stop - start) * (place >= start - low) - (low + 1 + place) * (place < 0) for place in found]

    def pieces(self, n: int, head: int = 0) -> Plan:
        rest = self.round_after(0, n, head)
        return super().pieces(n, head) if rest is None else (rest,)

    def round_after(self, first: int, n: int, head: int) -> Round | None:
        """A round of its pairs without those of the `first` positions; None if scanning all pairs is as good."""
        return _round(self.of(n), n, head, first) if COARSE <= self.block < n else None

    def seen(self, count: int, head: int) -> Iterator[tuple[int, Numbers]]:
        """For each of the first `count` blocks that sees any, the sorted blocks that it sees."""
        assert not self._needs_length
        blocks = count if self.row_blocks is None else min(count, self.row_blocks)
        here, half = torch.arange(blocks, device="cpu"), self.window // 2
        sure = [c for c in range(blocks) if self._is_global(c, self.row_blocks)]
        near = [here + back for back in range(-half, half + 1)]
        drawn = [] if self.row_blocks is None else [torch.as_tensor(d) for d in self._drawn(here, head, self.row_blocks)]
        each = torch.stack([*near, *drawn, *(torch.full_like(here, c) for c in sure)], dim=1).numpy()
        for a, some in enumerate(each):
            yield a, np.arange(blocks) if a in sure else np.unique(some[(some >= 0) & (some < blocks)])

    def covers(self, queries: Range, keys: Range | StridedPositions) -> bool:
        if self._needs_length or (self.row_blocks is not None and max(queries.stop, keys.stop) > self.row_blocks * self.block):
            return False
        there = range(keys.start // self.block, (keys.stop - 1) // self.block + 1)
        return all(self._sees_all(a, there) for a in range(queries.start // self.block, (queries.stop - 1) // self.block + 1))

    def _sees_all(self, a: int, there: range) -> bool:
        """Whether a query block sees some key blocks for certain: without random blocks, or because all remaining blocks are drawn."""
        half, blocks = self.window // 2, self.row_blocks
        if self._is_global(a, blocks) or all(abs(a - c) <= half or self._is_global(c, blocks) for c in there):
            return True
        if blocks is None or self.window + self.global_blocks + self.random_blocks < blocks:
            return False  # more remain than are drawn
        return sum(abs(a - c) > half and not self._is_global(c, blocks) for c in range(blocks)) <= self.random_blocks


@lru_cache(maxsize=512)  # called by every layer in every pass
def _of_blocks(pattern: BigBird, blocks: int) -> BigBird:
    return pattern.replace(row_blocks=blocks)


@lru_cache(maxsize=512)  # small, and one per layer and head
def _round(pattern: BigBird, n: int, head: int, first: int) -> Round:
    with unset_fake_temporarily():  # fake tensors have no values, and the pattern depends on values
        return of_blocks(pattern.seen(-(-n // pattern.block), head), n, pattern.block, first)


def hash32(x: Number) -> Number:
    """A bijective 32-bit hash in which every bit depends on all bits of x (Wellons' lowbias32)."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & WORD
    x = ((x ^ (x >> 15)) * (0x846CA68B - 2**32)) & WORD  # the same low bits as 0x846CA68B, and the product fits into 63 bits
    return x ^ (x >> 16)


def _at_least(x: Number, low: Number) -> Number:
    return max(x, low) if isinstance(x, int) and isinstance(low, int) else x + (low - x) * (x < low)


def _at_most(x: Number, high: Number) -> Number:
    return min(x, high) if isinstance(x, int) and isinstance(high, int) else x - (x - high) * (x > high)
