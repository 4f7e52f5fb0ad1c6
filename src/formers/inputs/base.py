"""The input slot: from the model's input to vectors of the model width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from formers.core import Positions, Slot

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)
"""The accepted dtypes of token ids."""


@dataclass(frozen=True)
class InputSizes:
    """Sizes for building an input: the model width, and the vocabulary size or the width of input vectors."""

    dim: int
    vocab: int | None
    features: int | None
    scale: float
    """The factor on embedded tokens."""
    spread: float
    """Initial standard deviation of an embedded token, after the scale."""
    tables: tuple[tuple[int, int], ...] = ()
    """Words and width of each table, for a head with several."""


class InputModule(nn.Module):
    """Embeds tokens or vectors; a head may share its tables."""

    weight: Tensor | None
    """The table (vocab, dim); None if there is none, or more than one."""
    tables: Sequence[Tensor] | nn.ParameterList
    """Tables (words, width) of clusters of tokens, if there is more than one."""
    projections: Sequence[Tensor] | nn.ParameterList
    """The projection (dim, width) of the vectors of each table to the model width."""

    # A module that has one of these as a parameter sets it itself: torch rejects a parameter whose name is a class attribute.

    def check(self, x: Tensor) -> Tensor:
        """The input in the form that `forward` takes; raises FormersError for another shape or dtype."""
        raise TypeError(f"{type(self).__name__} does not check its input: define check(x).")

    def check_ids(self, x: Tensor) -> None:
        """Raises FormersError for ids that are out of range. It reads values: it is called on the host. Vectors have no ids."""

    def forward(self, x: Tensor, positions: Positions | None = None) -> Tensor:
        """(batch, length, dim) for x (batch, length, ...) at positions, by default 0, 1, ..."""
        raise TypeError(f"{type(self).__name__} embeds nothing: define forward(x, positions).")


class Untied(InputModule):
    """An input without tables that a head could share."""

    weight = None
    tables = projections = ()


class Input(Slot):
    """How the model's input is embedded."""

    @property
    def vectors(self) -> bool:
        """Whether the input has `features` floats per position, instead of ids below `vocab`."""
        return False

    def shape(self, features: int | None) -> tuple[int, ...]:
        """The shape of the input at each position."""
        return ()

    def build(self, sizes: InputSizes) -> InputModule:
        """The module."""
        raise TypeError(f"{type(self).__name__} builds no module: define build(sizes).")
