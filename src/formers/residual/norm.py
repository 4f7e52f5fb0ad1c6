"""Residual connections with layer normalisation, after the sum or before the sublayer.

x' = LN(x + Drop(F(x)))          post-norm (Vaswani et al., 2017)                  E11
x' = x + Drop(F(LN(x)))          pre-norm, which needs a last LN before the head   E12

LN(x) = g (x - mean(x)) / sqrt(var(x) + epsilon) + b. `epsilon` is that of all norms of the stack. `final` adds the last LN to post-norm,
or leaves it out of pre-norm, as public checkpoints have it.

And, to see what each of the two is for, one without the other:

x' = x + Drop(F(x))              the residual connection alone                     E160
x' = LN(Drop(F(x)))              the norm alone, of post-norm                      E161
x' = Drop(F(LN(x)))              of pre-norm, with its last LN                     E162

What is taken away is all that changes: output projections start as those of the norm that it is taken from.
"""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat
from torch import Tensor, nn

from formers.residual.base import Residual, ResidualModule

EPSILON = 1e-5
"""What every LayerNorm adds to the variance unless a spec says otherwise: torch's."""


class _Normed(Residual):
    """What pre-norm and post-norm have in common."""

    epsilon: PositiveFloat = EPSILON
    """What every LayerNorm of the stack, the final one among them, adds to the variance."""
    final: bool
    """Whether a LayerNorm stands between the last block and the head."""

    def build_final(self, dim: int) -> nn.Module:
        return nn.LayerNorm(dim, self.epsilon) if self.final else nn.Identity()


class PostNorm(_Normed):
    """LN(x + Drop(F(x))): the 2017 paper's."""

    final: bool = False

    def build(self, dim: int, dropout: float) -> ResidualModule:
        return PostNormResidual(dim, dropout, self.epsilon)


class PreNorm(_Normed):
    """x + Drop(F(LN(x))), with the final norm it needs; output projections start smaller the deeper the stack (GPT-2)."""

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
    """What the norm was taken from: output projections start as those of it."""

    def build(self, dim: int, dropout: float) -> ResidualModule:
        return PlainResidual(dropout)

    def gain(self, steps: int) -> float:
        return WHOLE[self.of].gain(steps)


class NormOnly(Residual):
    """A norm without the residual connection (an ablation): LN(Drop(F(x))), or Drop(F(LN(x))) and a last norm."""

    of: Literal["pre", "post"] = "post"
    """What the sum was taken from: norms stay where they stood, and output projections start as they did."""
    epsilon: PositiveFloat = EPSILON
    """What every LayerNorm of the stack adds to the variance."""
    final: bool | None = None
    """Whether there is a final norm; None: as where the sum was taken from."""

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
