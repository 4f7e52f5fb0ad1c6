"""The position slot: what is added to x at depth step t, from the positions of its tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from formers.core import Positions, Sizes, Slot


class PositionModule(nn.Module):
    """Adds positions to a stream; this one adds nothing."""

    @property
    def undecayed(self) -> tuple[str, ...]:
        """The parameters that weight decay leaves alone: the tables of vectors, which all of a position's own parameters are."""
        return tuple(self._parameters)

    def forward(self, x: Tensor, positions: Positions, step: int) -> Tensor:
        """x (batch, length, dim) with its positions added, as the member does at depth step `step`."""
        return x

    def shifted(self, positions: Positions, batch: int, device: torch.device, starts: dict[int, Tensor]) -> Positions:
        """Where the tokens of this pass are said to stand, at all of its steps; `starts` is what the pass has drawn for that so far."""
        return positions

    def step_vector(self, step: int, x: Tensor) -> Tensor | None:
        """What it adds to every token of x alike at a step, (dim), if all else that it adds is the same at every step; None if not."""
        return None


class Position(Slot):
    """How positions enter the stream."""

    @property
    def absolute(self) -> bool:
        """Whether the model has only ever seen positions below its training length, so that generation slides beyond it."""
        return True

    def trained_positions(self, length: int) -> int:
        """How many positions a training on rows of a length meets; where they are absolute, no more can be read well."""
        return length

    @property
    def bounded(self) -> bool:
        """Whether there is a table that ends, at the training length or not far behind it, so that nothing longer can be read at all."""
        return False

    def table_length(self, length: int) -> int:
        """Where it is bounded, how many positions it has vectors for at a training length."""
        return length

    @property
    def every_step(self) -> bool:
        """Whether positions are added at every depth step, and not only before the first block."""
        return False

    def build(self, sizes: Sizes) -> PositionModule:
        """The module that adds the positions."""
        return PositionModule()


class NoPosition(Position):
    """No positions: self-attention then sees a set, unless pattern or score tell the order."""

    @property
    def absolute(self) -> bool:
        return False
