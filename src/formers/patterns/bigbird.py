"""BigBird: a window, a few global blocks and a few random ones (Zaheer et al., 2020), counted in blocks of b positions.

Query block a = floor(i/b) of a row of N blocks sees the key blocks
W_a = {c : |a-c| <= (w-1)/2}                                    the window                              E130
G   = {0, ..., ceil(g/2)-1} + {N-floor(g/2), ..., N-1}          the global blocks, which see all        E131
R_a = r blocks drawn from those outside W_a and G               fewer where fewer remain                E132
S_i = {j : floor(j/b) in W_a + G + R_a, or a in G}                                                      E133

Which blocks are the last and which are drawn depends on N, the blocks of the row itself: `of(length)` sets it, to a tensor for rows of
different lengths. R_a is a function of (seed, layer, head, N, a) and of nothing else: padding, other rows and torch's
generator change nothing. It is computed, not looked up, so that all of them may be tensors on any device.
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
"""The random numbers have 32 bits, so that no product of them leaves the 64 of a tensor's integers."""

COARSE = 16
"""Blocks from this size on are the pieces of the plan; smaller ones would waste the kernel."""


class BigBird(Pattern):
    """Every block sees the `window` blocks around it, `global_blocks` (half of them first, the rest last) and `random_blocks`.

    `of(length)` sets `row_blocks` and `at(layer)` sets `layer` (0 where none is given); both stay once they are set. Behind the last
    block of its row nobody stands: `allows` is False there.
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
            raise FormersError(f"window={window} is even, but a block is in the middle of its window: give {window - 1} or {window + 1}.")
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
        if isinstance(length, int) and not torch.compiler.is_compiling():
            return _of_blocks(self, max(1, -(-length // self.block)))
        return bound(self, length, row_blocks=(length + self.block - 1) // self.block)

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        if self._needs_length:
            raise FormersError("BigBird's sets depend on how many blocks a row has: ask for those of a row of n tokens with of(n).")
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
        """The blocks drawn for block a, all different, negative where none remains: Floyd's way to draw r of F with r numbers."""
        if not self.random_blocks:
            return []
        half, low = self.window // 2, (self.global_blocks + 1) // 2
        high = _at_least(blocks - self.global_blocks // 2, low)
        # The free blocks are low ... start-1 and stop ... high-1: what is not global, without the window.
        start, stop = (_at_most(_at_least(edge, low), high) for edge in (a - half, a + half + 1))
        free = (start - low) + (high - stop)
        key: Number = 0
        for part in (self.seed & WORD, (self.seed >> 32) & WORD, self.layer or 0, head, blocks, a):
            key = mixed((key + part) & WORD)
        found: list[Number] = []
        for draw in range(self.random_blocks):
            last = free - self.random_blocks + draw
            place = (mixed((key + draw) & WORD) * (last + 1)) >> 32  # one of 0 ... last
            for other in found:
                place = place + (last - place) * (place == other)  # it was drawn before: `last` was not
            found.append((place + 1) * (last >= 0) - 1)  # E132
        return [low + place + (stop - start) * (place >= start - low) - (low + 1 + place) * (place < 0) for place in found]

    def pieces(self, n: int, head: int = 0) -> Plan:
        rest = self.behind(0, n, head)
        return super().pieces(n, head) if rest is None else (rest,)

    def behind(self, first: int, n: int, head: int) -> Round | None:
        """A round of its pairs without those of the `first` positions; None where scanning all pairs is as good."""
        return _round(self.of(n), n, head, first) if COARSE <= self.block < n else None

    def seen(self, count: int, head: int) -> Iterator[tuple[int, Numbers]]:
        """For each of the first `count` blocks that sees any, those that it sees, in order."""
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
        """Whether a query block surely sees some key blocks: without luck, or because as many are drawn as remain."""
        half, blocks = self.window // 2, self.row_blocks
        if self._is_global(a, blocks) or all(abs(a - c) <= half or self._is_global(c, blocks) for c in there):
            return True
        if blocks is None or self.window + self.global_blocks + self.random_blocks < blocks:
            return False  # more remain than are drawn
        return sum(abs(a - c) > half and not self._is_global(c, blocks) for c in range(blocks)) <= self.random_blocks


@lru_cache(maxsize=512)  # every layer asks for it in every pass
def _of_blocks(pattern: BigBird, blocks: int) -> BigBird:
    return pattern.replace(row_blocks=blocks)


@lru_cache(maxsize=512)  # they are small, and a model has one for every layer and head
def _round(pattern: BigBird, n: int, head: int, first: int) -> Round:
    with unset_fake_temporarily():  # who may see whom is a matter of numbers, which fake tensors have none of
        return of_blocks(pattern.seen(-(-n // pattern.block), head), n, pattern.block, first)


def mixed(x: Number) -> Number:
    """A number of 32 bits in which every bit depends on all of x, and no two x give the same (Wellons' lowbias32)."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & WORD
    x = ((x ^ (x >> 15)) * (0x846CA68B - 2**32)) & WORD  # the same low bits as with 0x846CA68B, in a product of 63
    return x ^ (x >> 16)


def _at_least(x: Number, low: Number) -> Number:
    return max(x, low) if isinstance(x, int) and isinstance(low, int) else x + (low - x) * (x < low)


def _at_most(x: Number, high: Number) -> Number:
    return min(x, high) if isinstance(x, int) and isinstance(high, int) else x - (x - high) * (x > high)
