"""Residual connections with layer normalisation, after the sum or before the sublayer.

x' = LN(x + Drop(F(x)))          post-norm (Vaswani et al., 2017)                  E11
x' = x + Drop(F(LN(x)))          pre-norm, which needs a last LN before the head   E12

and, to see what each of the two is for, one without the other:

x' = x + Drop(F(x))              the residual connection alone                     E160
x' = LN(Drop(F(x)))              the norm alone, of post-norm                      E161
x' = Drop(F(LN(x)))              of pre-norm, with its last LN                     E162

What is taken away is all that changes: output projections start as those of the norm that it is taken from.
"""

from __future__ import annotations

from typing import Literal

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


class Plain(Residual):
    """A residual connection without a norm (an ablation): x + Drop(F(x))."""

    of: Literal["pre", "post"] = "pre"
    """What the norm was taken from: output projections start as those of it."""

    def build(self, dim: int, dropout: float) -> Join:
        return PlainJoin(dropout)

    def gain(self, steps: int) -> float:
        return WHOLE[self.of].gain(steps)


class NormOnly(Residual):
    """A norm without the residual connection (an ablation): LN(Drop(F(x))), or Drop(F(LN(x))) and a last norm."""

    of: Literal["pre", "post"] = "post"
    """What the sum was taken from: norms stay where they stood, and output projections start as they did."""

    def build(self, dim: int, dropout: float) -> Join:
        return NormFirstJoin(dim, dropout) if self.of == "pre" else NormOnlyJoin(dim, dropout)

    def final(self, dim: int) -> nn.Module:
        return WHOLE[self.of].final(dim)

    def gain(self, steps: int) -> float:
        return WHOLE[self.of].gain(steps)


WHOLE: dict[str, Residual] = {"pre": PreNorm(), "post": PostNorm()}


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


class PlainJoin(DropJoin):
    """x + Drop(y)."""

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.dropped(y)  # E160


class NormOnlyJoin(DropJoin):
    """LN(Drop(y))."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__(dropout)
        self.norm = nn.LayerNorm(dim)

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(self.dropped(y))  # E161


class NormFirstJoin(PreNormJoin):
    """Drop(y), where y = F(LN(x))."""

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        return self.dropped(y)  # E162
