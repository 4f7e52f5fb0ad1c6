"""BigBird: a window, a few global blocks and a few random ones (Zaheer et al., 2020), counted in blocks of b positions.

Query block a = floor(i/b) of a row of N blocks sees the key blocks
W_a = {c : |a-c| <= (w-1)/2}                                    the window                              E130
G   = {0, ..., ceil(g/2)-1} + {N-floor(g/2), ..., N-1}          the global blocks, which see all        E131
R_a = r blocks drawn from those outside W_a and G               fewer where fewer remain                E132
S_i = {j : floor(j/b) in W_a + G + R_a, or a in G}                                                      E133

Which blocks are the last and which are drawn depends on N, the blocks of the row itself: `of(length)` says it. R_a is a function of (seed,
layer, head, N) and of nothing else: padding, other rows and torch's generator change nothing.
"""

from __future__ import annotations

import torch
from pydantic import NonNegativeInt, PositiveInt, field_validator
from torch import Tensor

from formers.core import FormersError, Range
from formers.core.random import generator
from formers.core.tables import kept
from formers.patterns.base import Integer, Pattern, heads_in


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

    def at(self, layer: int) -> Pattern:
        return self.replace(layer=layer) if self.layer is None and self.random_blocks else self

    def of(self, length: int) -> Pattern:
        return self.replace(row_blocks=max(1, -(-length // self.block))) if self.row_blocks is None else self

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        blocks = self._blocks()
        a, c = i // self.block, j // self.block
        near = abs(a - c) <= self.window // 2  # E130
        seen = near | self._is_global(a) | self._is_global(c)
        if self.random_blocks:
            drawn = _drawn(self.seed, self.layer or 0, heads_in(head), blocks, self.window, self.global_blocks, self.random_blocks)
            seen = seen | _look_up(drawn, head, a, c)
        return (a >= 0) & (a < blocks) & (c >= 0) & (c < blocks) & seen  # E133

    def covers(self, queries: Range, keys: Range) -> bool:
        if self.row_blocks is None or max(queries.stop, keys.stop) > self.row_blocks * self.block:
            return False
        there = range(keys.start // self.block, (keys.stop - 1) // self.block + 1)
        return all(self._sees_all(a, there) for a in range(queries.start // self.block, (queries.stop - 1) // self.block + 1))

    def _sees_all(self, a: int, there: range) -> bool:
        """Whether a query block surely sees some key blocks: without luck, or because as many are drawn as remain."""
        half, blocks = self.window // 2, self._blocks()
        if self._is_global(a) or all(abs(a - c) <= half or self._is_global(c) for c in there):
            return True
        enough = self.window + self.global_blocks + self.random_blocks >= blocks  # else more remain than are drawn
        return enough and sum(abs(a - c) > half and not self._is_global(c) for c in range(blocks)) <= self.random_blocks

    def _is_global(self, c: Integer) -> bool | Tensor:
        return (c < (self.global_blocks + 1) // 2) | (c >= self._blocks() - self.global_blocks // 2)  # E131

    def _blocks(self) -> int:
        if self.row_blocks is None:
            raise FormersError("BigBird's sets depend on how many blocks a row has: ask for those of a row of n tokens with of(n).")
        return self.row_blocks


@kept(64)
def _drawn(seed: int, layer: int, heads: int, blocks: int, window: int, global_blocks: int, random_blocks: int) -> Tensor:
    """Which blocks are drawn for which, (heads, blocks, blocks) bool."""
    with torch.inference_mode(False):
        here = torch.arange(blocks, device="cpu")
        free = (here[:, None] - here).abs() > window // 2
        free &= (here >= (global_blocks + 1) // 2) & (here < blocks - global_blocks // 2)
        keyed = [generator(seed, "bigbird", layer, head, blocks) for head in range(heads)]
        lots = torch.stack([torch.rand(blocks, blocks, dtype=torch.float64, generator=g, device="cpu") for g in keyed])
        lots = lots.masked_fill(~free, 2.0)  # who is not free stands behind all who are
        rank = lots.argsort(dim=-1, stable=True).argsort(dim=-1)
        return (rank < random_blocks) & free  # E132


def _look_up(table: Tensor, head: int | Tensor, a: Integer, c: Integer) -> bool | Tensor:
    """table[head, a, c], at its edge for blocks outside of it."""
    if isinstance(head, int) and isinstance(a, int) and isinstance(c, int):
        last = table.shape[1] - 1
        return bool(table[head, min(max(a, 0), last), min(max(c, 0), last)])
    place = next(t for t in (a, c, head) if isinstance(t, Tensor)).device
    rows, columns = (torch.as_tensor(t, device=place).clamp(0, table.shape[1] - 1) for t in (a, c))
    return table.to(place)[torch.as_tensor(head, device=place), rows, columns]
