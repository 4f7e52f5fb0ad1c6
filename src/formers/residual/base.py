"""The residual slot: the norm before a sublayer F, and how its output y = F(prenorm(x)) is merged with x."""

from __future__ import annotations

from torch import Tensor, nn

from formers.core import Slot


class ResidualModule(nn.Module):
    """The residual connection of one sublayer F: x' = merge(x, F(prenorm(x)))."""

    def prenorm(self, x: Tensor) -> Tensor:
        """The input of the sublayer."""
        return x

    @property
    def has_prenorm(self) -> bool:
        """Whether the input of the sublayer differs from x."""
        return type(self).prenorm is not ResidualModule.prenorm

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        """The output of the residual connection, from its input x and the sublayer's output y."""
        return y


class Residual(Slot):
    """How the output of a sublayer is added to its input."""

    def build(self, dim: int, dropout: float) -> ResidualModule:
        """The residual connection of one sublayer."""
        raise TypeError(f"{type(self).__name__} builds no module: define build(dim, dropout).")

    def build_final(self, dim: int) -> nn.Module:
        """The module between the last block and the head."""
        return nn.Identity()

    def width(self, dim: int) -> int:
        """The width of the output of `build_final`, the input of the head or of a decoder."""
        return dim

    def gain(self, steps: int) -> float:
        """The factor on the initial output projections of a stack of `steps` blocks."""
        return 1.0
