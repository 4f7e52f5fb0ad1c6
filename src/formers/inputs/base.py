"""The input slot: how what a model is given becomes vectors of the stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from formers.core import Positions, Slot

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)
"""The types of token ids."""


@dataclass(frozen=True)
class InputSizes:
    """What an input builds from: the width of the stream, and the number of token ids or the width of given vectors."""

    dim: int
    vocab: int | None
    features: int | None
    scale: float
    """What embedded tokens are multiplied with."""
    spread: float
    """Standard deviation of an embedded token at the start, after the scale."""
    tables: tuple[tuple[int, int], ...] = ()
    """Words and width of each table of a head that has several."""


class InputModule(nn.Module):
    """Embeds tokens or vectors; a head may share its tables."""

    weight: Tensor | None
    """The table (vocab, dim); None where there is none, or more than one."""
    tables: Sequence[Tensor] | nn.ParameterList
    """Tables (words, width) of clusters of tokens, where there is more than one."""
    projections: Sequence[Tensor] | nn.ParameterList
    """What brings the vectors of each table into the stream (dim, width)."""

    # A module that has one of these as parameters sets it itself: torch refuses a parameter whose name is a class attribute.

    def check(self, x: Tensor) -> Tensor:
        """What is given, as `forward` takes it; another shape or type is refused."""
        raise TypeError(f"{type(self).__name__} takes nothing: define check(x).")

    def forward(self, x: Tensor, positions: Positions | None = None) -> Tensor:
        """(batch, length, dim) of x (batch, length, ...) at positions, which are 0, 1, ... unless given."""
        raise TypeError(f"{type(self).__name__} embeds nothing: define forward(x, positions).")


class Untied(InputModule):
    """An input without tables that a head could share."""

    weight = None
    tables = projections = ()


class Input(Slot):
    """The way into the stream."""

    @property
    def vectors(self) -> bool:
        """Whether it takes `features` floats at each position, and not ids below `vocab`."""
        return False

    def shape(self, features: int | None) -> tuple[int, ...]:
        """The shape of what is given at each position."""
        return ()

    def build(self, sizes: InputSizes) -> InputModule:
        """The module."""
        raise TypeError(f"{type(self).__name__} builds no module: define build(sizes).")
