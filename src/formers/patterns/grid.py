"""Local attention of images: queries in blocks that share one set of memory keys, in 1-D and 2-D (Image Transformer, Parmar et al., 2018).

One dimension, blocks of q queries, b = floor(i/q):
S_i = {bq-m, ..., i}                    the query's block, causally, and the m positions before it   E70

Two dimensions, position i at row y = floor(i/W) and column x = i mod W, blocks of h x w pixels, the block's corner (Y, X):
S_i = {j <= i in the query's block}                                                                   E71
    + {j at rows Y-a, ..., Y-1, columns X-c, ..., X+w+c-1}      above, and above to either side       E72
    + {j at rows Y, ..., Y+h-1, columns X-c, ..., X-1}          to the left, at all rows of the block E73

The image is generated block by block, and row by row inside a block (`LocalGrid.order`). A pixel sees only earlier generated pixels;
but a pixel to the left may be in a lower row, which is later in the row-major order of positions.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from formers.core import FormersError, Range, StridedPositions
from formers.patterns.base import Integer, Pattern
from formers.patterns.plan import Plan, own_blocks


class Blocks(Pattern):
    """Every query sees its block of `query` positions causally, and the `memory` positions before that block."""

    query: PositiveInt
    memory: NonNegativeInt

    @property
    def is_causal(self) -> bool:
        return True

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        return (j >= 0) & (j <= i) & (j >= i // self.query * self.query - self.memory)  # E70

    def covers(self, queries: Range, keys: Range | StridedPositions) -> bool:
        return keys.stop - 1 <= queries.start and keys.start >= self.oldest(queries.stop - 1)

    def pieces(self, n: int, head: int = 0) -> Plan:
        return _blocks(n, self.query, self.memory)

    @property
    def reach(self) -> int:
        return self.query - 1 + self.memory

    def oldest(self, t: int) -> int:
        return max(0, t // self.query * self.query - self.memory)


@lru_cache(maxsize=32)
def _blocks(n: int, query: int, memory: int) -> Plan:
    return (own_blocks(n, query, memory),)


class LocalGrid(Pattern):
    """Every pixel sees the earlier pixels of its block of `query` = (h, w) pixels, and the block's `memory` = (a, c): a rows above it,
    extended by c columns on both sides, and c columns to the left of it. Blocks at the edges are smaller. Positions are row-major.

    `allows` is False for positions after the last pixel; `of` and `mask` raise FormersError for a longer row.
    """

    height: PositiveInt
    width: PositiveInt
    query: tuple[PositiveInt, PositiveInt]
    memory: tuple[NonNegativeInt, NonNegativeInt]

    @property
    def is_causal(self) -> bool:
        """Whether no pixel sees a later one in row-major order: no memory on the left, or blocks one row high or as wide as the image."""
        return min(self.query[0], self.height) == 1 or self.query[1] >= self.width or self.memory[1] == 0

    @property
    def max_length(self) -> int:
        return self.height * self.width

    def of(self, length: int | Tensor) -> Pattern:
        if isinstance(length, int) and length > self.max_length:
            raise FormersError(
                f"a row of {length} positions does not fit an image of height={self.height}, width={self.width}: "
                f"give at most {self.max_length}."
            )
        return self

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        (h, w), (above, beside), pixels = self.query, self.memory, self.height * self.width
        row, column = i // self.width, i % self.width
        top, left = row // h * h, column // w * w  # the corner of the query's block
        y, x = j // self.width, j % self.width
        own = (y >= top) & (x >= left) & (x < left + w) & (j <= i)  # E71
        over = (y < top) & (y >= top - above) & (x >= left - beside) & (x < left + w + beside)  # E72
        before = (y >= top) & (y < top + h) & (x < left) & (x >= left - beside)  # E73
        return (i >= 0) & (i < pixels) & (j >= 0) & (j < pixels) & (own | over | before)

    @property
    def reach(self) -> int:
        return min(self.query[0] + self.memory[0], self.height) * self.width - 1

    def oldest(self, t: int) -> int:
        h = self.query[0]
        return max(0, t // self.width // h * h - self.memory[0]) * self.width

    def order(self) -> Tensor:
        """The positions in generation order, (height * width,): block by block, row by row inside each block."""
        (h, w), here = self.query, torch.arange(self.height * self.width)
        row, column = here // self.width, here % self.width
        block = row // h * len(range(0, self.width, w)) + column // w
        return torch.argsort(block, stable=True)  # stable: pixels of a block stay row-major
