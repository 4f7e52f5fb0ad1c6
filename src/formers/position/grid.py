"""Grid positions: a learned vector for each row, each column and each channel (Child et al., 2019, section 5.3).

x_i <- x_i + R_{floor(i/(wc))} + C_{floor(i/c) mod w} + K_{i mod c}        w columns, c channels; no K if c = 1        E88

Images are row-major with channels last. Text is laid out in rows of w tokens, where w is the stride of its pattern, so that tokens
that see each other in a column share a vector. There are far fewer vectors than positions, so each is trained more often.
"""

from __future__ import annotations

import math

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import FormersError, Positions, Sizes
from formers.position.base import Position, PositionModule


class Grid(Position):
    """Learned vectors per row, column and channel, added once; without `height`, the number of rows follows from the training length."""

    width: PositiveInt
    height: PositiveInt | None = None
    channels: PositiveInt = 1

    @property
    def bounded(self) -> bool:
        return True

    @property
    def cells(self) -> int | None:
        """The number of positions of the grid; None if it follows from the training length."""
        return None if self.height is None else self.height * self.width * self.channels

    def build(self, sizes: Sizes) -> PositionModule:
        return GridModule(sizes, self)


class GridModule(PositionModule):
    """Adds the vectors of its row, column and channel to each token."""

    def __init__(self, sizes: Sizes, part: Grid) -> None:
        super().__init__()
        self.length, self.width, self.channels = sizes.length, part.width, part.channels
        rows = part.height or math.ceil(sizes.length / (part.width * part.channels))
        self.row = nn.Parameter(torch.randn(rows, sizes.dim))
        self.column = nn.Parameter(torch.randn(part.width, sizes.dim))
        self.channel = nn.Parameter(torch.randn(part.channels, sizes.dim)) if part.channels > 1 else None
        tables = list(self.parameters())
        with torch.no_grad():
            for table in tables:  # their sum has the scale of a token embedding
                table.mul_(sizes.spread * len(tables) ** -0.5)

    def forward(self, x: Tensor, positions: Positions, step: int) -> Tensor:
        if positions.stop > self.length:
            raise FormersError(
                f"{positions.stop} tokens do not fit the position grid of length={self.length}: "
                f"give fewer tokens, or train with a larger length."
            )
        i = positions.tensor(x.device).clamp(min=0)
        place = F.embedding(i // (self.width * self.channels), self.row) + F.embedding(i // self.channels % self.width, self.column)  # E88
        if self.channel is not None:
            place = place + F.embedding(i % self.channels, self.channel)  # E88
        return x + place
