"""Learned positions: a table with one vector for each position below the training length.

x_i <- x_i + P_i        P in R^{length x d}                                        E8

The table limits the length of rows: there is no vector for a position beyond it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from formers.core import FormersError, Positions, Range, Sizes
from formers.position.base import Position, PositionModule


class Learned(Position):
    """A learned vector per position, added once, before the first layer; positions beyond the table are an error."""

    @property
    def bounded(self) -> bool:
        return True

    def build(self, sizes: Sizes) -> PositionModule:
        return LearnedModule(sizes)


class LearnedModule(PositionModule):
    """Adds row i of the table to the token at position i."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(sizes.length, sizes.dim) * sizes.spread)

    def forward(self, x: Tensor, positions: Positions, step: int) -> Tensor:
        return x + rows_at(self.table, positions)  # E8


def rows_at(table: Tensor, positions: Positions) -> Tensor:
    """The rows of a table (length, dim) at positions; raises FormersError for positions beyond its end."""
    if positions.stop > len(table):
        raise FormersError(
            f"{positions.stop} tokens do not fit the learned position table of length={len(table)}: "
            f"give fewer tokens, train with a larger length, or use position=sinusoidal."
        )
    if isinstance(positions, Range):
        return table[positions.start : positions.stop]
    return table[positions.tensor(table.device).clamp(min=0)]
