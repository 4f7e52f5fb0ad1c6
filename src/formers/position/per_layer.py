"""Learned positions in every layer: a separate table for each depth step (Al-Rfou et al., 2018, section 2.1).

x_i <- x_i + P^(t)_i        before step t = 0 ... N-1        P in R^{N x length x d}          E30

Deep stacks lose position information unless it is added again. The tables limit the length of rows. Initially the vectors of all
layers together have the scale of a token embedding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from formers.core import Positions, Sizes
from formers.position.base import Position, PositionModule
from formers.position.learned import rows_at


class PerLayer(Position):
    """A learned vector per position and layer, added to the input of that layer; positions beyond the tables are an error."""

    @property
    def bounded(self) -> bool:
        return True

    @property
    def every_step(self) -> bool:
        return True

    def build(self, sizes: Sizes) -> PositionModule:
        return PerLayerModule(sizes)


class PerLayerModule(PositionModule):
    """Adds row i of the step's table to the token at position i."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tables = nn.Parameter(torch.randn(sizes.depth_steps, sizes.length, sizes.dim) * (sizes.spread * sizes.depth_steps**-0.5))

    def forward(self, x: Tensor, positions: Positions, step: int) -> Tensor:
        return x + rows_at(self.tables[step], positions)  # E30
