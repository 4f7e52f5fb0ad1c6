"""Axial positions: a vector for each row and each column of a grid, concatenated (the Reformer's code; after Ho et al., 2019).

x_i <- x_i + [A_{floor(i/n2)} ; B_{i mod n2}]        A in R^{n1 x d1}, B in R^{n2 x d2}, d1 + d2 = d        E98

A learned table of 65,536 positions has 65,536 vectors; 256 rows and 256 columns have 512 vectors of half the width, each trained more
often. By default the training length determines the shape: nearly square, with as few unused positions as possible.
"""

from __future__ import annotations

import math

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import FormersError, Positions, Range, Sizes
from formers.position.base import Position, PositionModule


class Axial(Position):
    """Learned vectors of the row and the column, concatenated, added once; positions outside the grid are an error."""

    shape: tuple[PositiveInt, PositiveInt] | None = None
    """Rows and columns, n1 x n2; by default computed from the training length."""
    dims: tuple[PositiveInt, PositiveInt] | None = None
    """The widths of the row vectors and the column vectors, which sum to dim; by default halves."""

    @property
    def bounded(self) -> bool:
        return True

    def table_length(self, length: int) -> int:
        return math.prod(self.shape or near_square(length))

    def widths(self, dim: int) -> tuple[int, int]:
        """d1 and d2 for a model width."""
        return self.dims or (dim // 2, dim - dim // 2)

    def build(self, sizes: Sizes) -> PositionModule:
        return AxialModule(sizes, self.shape or near_square(sizes.length), self.widths(sizes.dim))


def near_square(length: int) -> tuple[int, int]:
    """Rows n1 and columns n2 of a grid for a length, n1 <= n2 <= 4 n1: the fewest cells, and among those the most square."""
    grids = [(rows, columns) for rows in range(math.isqrt(length), 0, -1) if (columns := -(-length // rows)) <= 4 * rows]
    return min(grids, key=lambda grid: (math.prod(grid), grid[1]))


class AxialModule(PositionModule):
    """Adds the concatenated vectors of its row and column to each token."""

    def __init__(self, sizes: Sizes, shape: tuple[int, int], dims: tuple[int, int]) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.randn(shape[0], dims[0]) * sizes.spread)
        self.column = nn.Parameter(torch.randn(shape[1], dims[1]) * sizes.spread)

    def forward(self, x: Tensor, positions: Positions, step: int) -> Tensor:
        rows, columns = len(self.row), len(self.column)
        if positions.stop > rows * columns:
            shape = near_square(positions.stop)
            raise FormersError(
                f"{positions.stop} tokens do not fit the axial positions, {rows} x {columns} = {rows * columns}: "
                f"give fewer tokens, train with a larger length or with shape=({shape[0]}, {shape[1]}), or use position=sinusoidal."
            )
        # Under torch.compile a comparison with the length would be a graph of its own.
        if isinstance(positions, Range) and not torch.compiler.is_compiling() and positions.length >= columns:
            return x + self._whole(positions)
        i = positions.tensor(x.device).clamp(min=0)
        return x + torch.cat([F.embedding(i // columns, self.row), F.embedding(i % columns, self.column)], dim=-1)  # E98

    def _whole(self, positions: Range) -> Tensor:
        """The vectors (length, dim) of a long range: whole rows, cut at both ends, so that the gradient is a sum and not a scatter."""
        columns = len(self.column)
        first, last = positions.start // columns, -(-positions.stop // columns)
        row = self.row[first:last, None].expand(-1, columns, -1)
        column = self.column.expand(last - first, -1, -1)
        grid = torch.cat([row, column], dim=-1).flatten(0, 1)  # E98
        return grid[positions.start - first * columns :][: positions.length]
