"""Residual connections with layer normalisation, after the sum or before the sublayer.

x' = LN(x + Drop(F(x)))          post-norm (Vaswani et al., 2017)                  E11
x' = x + Drop(F(LN(x)))          pre-norm, which needs a last LN before the head   E12

LN(x) = g (x - mean(x)) / sqrt(var(x) + epsilon) + b. All norms of the stack have the same `epsilon`. `final` adds the last LN to
post-norm, or removes it from pre-norm, to match public checkpoints.

Ablations with only one of the two:

x' = x + Drop(F(x))              the residual connection alone                     E160
x' = LN(Drop(F(x)))              the norm alone, of post-norm                      E161
x' = Drop(F(LN(x)))              the norm alone, of pre-norm, with its last LN     E162

Nothing else changes: output projections are initialised as in the pre-norm or post-norm that the ablation is derived from.
"""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat
from torch import Tensor, nn

from formers.residual.base import Residual, ResidualModule

EPSILON = 1e-5
"""Added to the variance in every LayerNorm, unless a spec sets another value: torch's default."""


class _Normed(Residual):
    """The common code of pre-norm and post-norm."""

    epsilon: PositiveFloat = EPSILON
    """Added to the variance in every LayerNorm of the stack, including the final one."""
    final: bool
    """Whether there is a LayerNorm between the last block and the head."""

    def build_final(self, dim: int) -> nn.Module:
        return nn.LayerNorm(dim, self.epsilon) if self.final else nn.Identity()


class PostNorm(_Normed):
    """LN(x + Drop(F(x))), as in the 2017 paper."""

    final: bool = False

    def build(self, dim: int, dropout: float) -> ResidualModule:
        return PostNormResidual(dim, dropout, self.epsilon)


class PreNorm(_Normed):
    """x + Drop(F(LN(x))), with a final norm; initial output projections are smaller the deeper the stack (GPT-2)."""

    final: bool = True

    def build(self, dim: int, dropout: float) -> ResidualModule:
        return PreNormResidual(dim, dropout, self.epsilon)

    def gain(self, steps: int) -> float:
        return float((2 * steps) ** -0.5)


class Bare(Residual):
    """No residual connection and no norm (an ablation): x' = Drop(y)."""

    def build(self, dim: int, dropout: float) -> ResidualModule:
        return BareResidual(dropout)


class Plain(Residual):
    """A residual connection without a norm (an ablation): x + Drop(F(x))."""

    of: Literal["pre", "post"] = "pre"
    """Whether the norm was removed from pre-norm or post-norm, which determines the initial output projections."""

    def build(self, dim: int, dropout: float) -> ResidualModule:
        return PlainResidual(dropout)

    def gain(self, steps: int) -> float:
        return WHOLE[self.of].gain(steps)


class NormOnly(Residual):
    """A norm without the residual connection (an ablation): LN(Drop(F(x))), or Drop(F(LN(x))) and a last norm."""

    of: Literal["pre", "post"] = "post"
    """Whether the sum was removed from pre-norm or post-norm, which determines the place of norms and the initial output projections."""
    epsilon: PositiveFloat = EPSILON
    """Added to the variance in every LayerNorm of the stack."""
    final: bool | None = None
    """Whether there is a final norm; None: as in the residual that the sum was removed from."""

    def build(self, dim: int, dropout: float) -> ResidualModule:
        return (NormFirstResidual if self.of == "pre" else NormOnlyResidual)(dim, dropout, self.epsilon)

    def build_final(self, dim: int) -> nn.Module:
        whole = WHOLE[self.of]
        return whole.replace(epsilon=self.epsilon, final=whole.final if self.final is None else self.final).build_final(dim)

    def gain(self, steps: int) -> float:
        return WHOLE[self.of].gain(steps)


WHOLE: dict[str, _Normed] = {"pre": PreNorm(), "post": PostNorm()}


class DropoutResidual(ResidualModule):
    """A residual connection with dropout on the sublayer's output."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(dropout)

    def dropped(self, y: Tensor) -> Tensor:
        """Drop(y); in evaluation y itself, without a call of the module."""
        return self.drop(y) if self.training else y


class NormResidual(DropoutResidual):
    """A residual connection with a LayerNorm."""

    def __init__(self, dim: int, dropout: float, epsilon: float = EPSILON) -> None:
        super().__init__(dropout)
        self.norm = nn.LayerNorm(dim, epsilon)


class PostNormResidual(NormResidual):
    """LN(x + Drop(y))."""

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(x + self.dropped(y))  # E11


class PreNormResidual(NormResidual):
    """x + Drop(y), where y = F(LN(x))."""

    def prenorm(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.dropped(y)  # E12


class PlainResidual(DropoutResidual):
    """x + Drop(y)."""

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return x + self.dropped(y)  # E160


class NormOnlyResidual(NormResidual):
    """LN(Drop(y))."""

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(self.dropped(y))  # E161


class NormFirstResidual(PreNormResidual):
    """Drop(y), where y = F(LN(x))."""

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return self.dropped(y)  # E162


class BareResidual(DropoutResidual):
    """x' = Drop(y)."""

    def merge(self, x: Tensor, y: Tensor) -> Tensor:
        return self.dropped(y)
