"""Two-dimensional local attention in generation order (Parmar et al., 2018): `LocalGrid` as a causal pattern over a sequence of cells.

S_t = {s <= t : pixel(s) is in the set that LocalGrid gives pixel(t)}        E75

The sequence is the image block by block, row by row inside a block, cell by cell inside a pixel (`core.Raster`). Everything that
LocalGrid allows was generated before: the earlier pixels of the block, and the memory above and to the left. The memory extends to the
right only above the block, because the pixels to the right of the block belong to later blocks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from formers.core import FormersError, Raster
from formers.core.tables import cached
from formers.patterns.base import Integer, Pattern
from formers.patterns.grid import LocalGrid
from formers.patterns.plan import GROUP, Numbers, Piece, Plan, Round, SelectedPositions

CPU = torch.device("cpu")


class OrderedGrid(Pattern):
    """The pattern LocalGrid over positions in the generation order of its image; `channels` cells per pixel."""

    grid: LocalGrid
    channels: PositiveInt = 1

    @property
    def raster(self) -> Raster:
        """The generation order: block by block."""
        (h, w), grid = self.grid.query, self.grid
        return Raster(height=grid.height, width=grid.width, channels=self.channels, block=(min(h, grid.height), min(w, grid.width)))

    @property
    def is_causal(self) -> bool:
        return True

    @property
    def max_length(self) -> int:
        return self.grid.max_length * self.channels

    def of(self, length: int | Tensor) -> Pattern:
        if isinstance(length, int) and length > self.max_length:
            raise FormersError(
                f"a row of {length} positions does not fit an image of height={self.grid.height}, width={self.grid.width}, "
                f"channels={self.channels}: give at most {self.max_length}."
            )
        return self

    def allows(self, i: Integer, j: Integer, head: int | Tensor = 0) -> bool | Tensor:
        inside = (j >= 0) & (j <= i) & (i < self.max_length)
        return inside & self.grid.allows(self._pixel(i), self._pixel(j), head)  # E75

    def _pixel(self, t: Integer) -> Integer:
        """The row-major index of the pixel at a position; -1 if the position is outside the image."""
        if isinstance(t, Tensor):
            order = self._order(t.device)
            return torch.where((t >= 0) & (t < self.max_length), order[t.clamp(0, self.max_length - 1)], -1)
        return int(pixel_order(self.grid, self.channels, CPU)[t]) if 0 <= t < self.max_length else -1

    def _order(self, device: torch.device) -> Tensor:
        """The row-major index of the pixel of every position, (cells,) on a device."""
        if torch.compiler.is_dynamo_compiling():
            return order_in_graph([self.grid.height, self.grid.width, *self.grid.query], self.channels).to(device)
        return pixel_order(self.grid, self.channels, device)

    @property
    def reach(self) -> int:
        rows = self._rows_of_blocks
        return min(rows * self.grid.query[0] * self.grid.width * self.channels, self.max_length) - 1

    @property
    def _rows_of_blocks(self) -> int:
        """The largest number of rows of blocks that a query sees, including its own."""
        return 1 + math.ceil(self.grid.memory[0] / self.grid.query[0])

    def oldest(self, t: int) -> int:
        each = self.grid.query[0] * self.grid.width * self.channels  # cells of a row of blocks
        return max(0, min(t, self.max_length - 1) // each - self._rows_of_blocks + 1) * each

    def pieces(self, n: int, head: int = 0) -> Plan:
        return super().pieces(n, head) if n != self.max_length else _plan(self)


@cached(32)
def pixel_order(grid: LocalGrid, channels: int, device: torch.device) -> Tensor:
    """The row-major index of the pixel of every position, (cells,) on a device."""
    with torch.inference_mode(False):
        return (OrderedGrid(grid=grid, channels=channels).raster.order() // channels).to(device)


def _order_in_graph(grid: Sequence[int], channels: int) -> Tensor:
    """`pixel_order` of a grid of (height, width, height of a block, width of a block)."""
    height, width, *query = grid
    return pixel_order(LocalGrid(height=height, width=width, query=tuple(query), memory=(0, 0)), channels, CPU).clone()


order_in_graph = torch.library.custom_op(
    "formers::pixel_order", _order_in_graph, mutates_args=(), schema="(int[] grid, int channels) -> Tensor"
)
"""The order of pixels inside a graph of torch.compile, which cannot trace the arithmetic of `Raster`."""


@order_in_graph.register_fake
def _order_shape(grid: Sequence[int], channels: int) -> Tensor:
    return torch.empty(grid[0] * grid[1] * channels, dtype=torch.int64)


@lru_cache(maxsize=16)
def _plan(pattern: OrderedGrid) -> Plan:
    """A plan with groups of queries per block of the image: all keys of the block's memory unmasked, then the block itself, causal."""
    raster, grid, cells = pattern.raster, pattern.grid, pattern.channels
    assert raster.block is not None
    (h, w), (above, beside) = raster.block, grid.memory
    place = np.empty((grid.height, grid.width), dtype=np.int64)  # the index of each pixel in generation order
    pixels = raster.replace(channels=1).cell(np.arange(raster.pixels))
    place[pixels.row, pixels.column] = np.arange(raster.pixels)
    alike: dict[tuple[int, int, int], list[tuple[Numbers, Numbers]]] = defaultdict(list)
    for top in range(0, grid.height, h):
        for left in range(0, grid.width, w):
            over = place[max(0, top - above) : top, max(0, left - beside) : left + w + beside]
            before = place[top : top + h, max(0, left - beside) : left]
            own = np.sort(place[top : top + h, left : left + w], axis=None)
            memory = np.sort(np.concatenate([over.ravel(), before.ravel()]))
            each = max(1, GROUP // cells)
            for first in range(0, len(own), each):
                queries = own[first : first + each]
                alike[len(queries), first, len(memory)].append((queries, np.concatenate([memory, own[: first + len(queries)]])))
    pieces = []
    for (size, _, _), groups in alike.items():
        asking, seen = (SelectedPositions(np.stack(each), cells) for each in zip(*groups, strict=True))
        pieces.append(Piece(asking, seen, np.tri(size * cells, dtype=bool)))
    return (Round(tuple(pieces)),)
