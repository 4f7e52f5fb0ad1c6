"""The position slot: what is added to x at depth step t, computed from the positions of its tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from formers.core import Positions, Sizes, Slot


class PositionModule(nn.Module):
    """Adds positions to x; this base class adds nothing."""

    @property
    def undecayed(self) -> tuple[str, ...]:
        """The parameters without weight decay: the tables of vectors, i.e. all parameters of the module itself."""
        return tuple(self._parameters)

    def forward(self, x: Tensor, positions: Positions, step: int) -> Tensor:
        """x (batch, length, dim) with its positions added for depth step `step`."""
        return x

    def shifted(self, positions: Positions, batch: int, device: torch.device, starts: dict[int, Tensor]) -> Positions:
        """The positions to use in this pass, at all of its steps; `starts` contains the random starts drawn so far in the pass."""
        return positions

    def step_vector(self, step: int, x: Tensor) -> Tensor | None:
        """The vector (dim) added to all tokens of x at a step, if everything else it adds is the same at every step; None otherwise."""
        return None


class Position(Slot):
    """How positions are added to the model's input."""

    @property
    def absolute(self) -> bool:
        """Whether the model is trained only on positions below its training length; generation then slides a window beyond it."""
        return True

    def trained_positions(self, length: int) -> int:
        """The number of positions that training on rows of `length` tokens covers; absolute positions beyond it are untrained."""
        return length

    @property
    def bounded(self) -> bool:
        """Whether positions come from a table of limited size; longer rows are an error."""
        return False

    def table_length(self, length: int) -> int:
        """If bounded, the number of positions in the table, for a training length."""
        return length

    @property
    def every_step(self) -> bool:
        """Whether positions are added at every depth step, and not only before the first block."""
        return False

    def build(self, sizes: Sizes) -> PositionModule:
        """The module that adds the positions."""
        return PositionModule()


class NoPosition(Position):
    """No positions: permuted tokens then give permuted outputs, unless the pattern or the score depends on the order."""

    @property
    def absolute(self) -> bool:
        return False
