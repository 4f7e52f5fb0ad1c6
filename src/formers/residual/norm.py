"""Residual connections with layer normalisation, after the sum or before the sublayer.

x' = LN(x + Drop(F(x)))          post-norm (Vaswani et al., 2017)                  E11
x' = x + Drop(F(LN(x)))          pre-norm, which needs a last LN before the head   E12
"""

from __future__ import annotations

from torch import Tensor, nn

from formers.residual.base import DropJoin, Join, Residual


class PostNorm(Residual):
    """LN(x + Drop(F(x))): the 2017 paper's."""

    def build(self, dim: int, dropout: float) -> Join:
        return PostNormJoin(dim, dropout)


class PreNorm(Residual):
    """x + Drop(F(LN(x))), with the final norm it needs; output projections start smaller the deeper the stack (GPT-2)."""

    def build(self, dim: int, dropout: float) -> Join:
        return PreNormJoin(dim, dropout)

    def final(self, dim: int) -> nn.Module:
        return nn.LayerNorm(dim)

    def gain(self, steps: int) -> float:
        return float((2 * steps) ** -0.5)


class PostNormJoin(DropJoin):
    """LN(x + Drop(y))."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__(dropout)
        self.norm = nn.LayerNorm(dim)

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(x + self.dropped(y))  # E11


class PreNormJoin(DropJoin):
    """x + Drop(y), where y = F(LN(x))."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__(dropout)
        self.norm = nn.LayerNorm(dim)

    def enter(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.dropped(y)  # E12
