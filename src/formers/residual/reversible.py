"""The reversible residual (Gomez et al., 2017), as the Reformer uses it (Kitaev et al., 2020, section 3).

x_1 = x_2 = x                               two halves, both copies of the embedded input
(x_1, x_2) <- (x_2, x_1 + Drop(F(LN(x_2))))  every sublayer F is a half step                           E95

With attention and feed-forward in turn this is the paper's Y_1 = X_1 + Attn(LN X_2), Y_2 = X_2 + FF(LN Y_1). With three sublayers the
halves keep alternating, as in trax. A half step is inverted by x_1 = x'_2 - Drop(F(LN(x_2))), because x_2 is part of its output. So the
backward pass recomputes all states from the last two, and the forward pass saves none of them (model/reversible.py).
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from formers.residual.base import Residual, ResidualModule
from formers.residual.norm import EPSILON, PreNorm, PreNormResidual


class Reversible(Residual):
    """Two alternating halves; training stores the activations of only one sublayer, at any depth, and computes each sublayer twice.

    It works with dropout, autocast, memories, shared blocks and DistributedDataParallel. Parts that need the freed states are rejected:
    positions added at every step, losses of intermediate layers, and adaptive depth. Do not use it with FSDP2, where shared blocks got
    wrong gradients without an error: use PreNorm and `model.checkpointing()` there.
    """

    ends: Literal["mean", "concat", "sum"] = "mean"
    """How the two halves are combined before the final norm: their mean, as in reformer-pytorch; concatenated, as in trax and transformers,
    so that the norm and the head have twice the width; or their sum, which after a norm equals the mean except for the norm's epsilon."""

    epsilon: PositiveFloat = EPSILON
    """Added to the variance in every LayerNorm of the stack, including the final one."""
    final: bool = True
    """Whether there is a LayerNorm between the last block and the head."""

    def build(self, dim: int, dropout: float) -> ResidualModule:
        return PreNormResidual(dim, dropout, self.epsilon)

    def build_final(self, dim: int) -> nn.Module:
        return nn.LayerNorm(self.width(dim), self.epsilon) if self.final else nn.Identity()

    def width(self, dim: int) -> int:
        return 2 * dim if self.ends == "concat" else dim

    def gain(self, steps: int) -> float:
        return PreNorm().gain(steps)

    def end(self, first: Tensor, second: Tensor) -> Tensor:
        """The input of the final norm, from the two halves (batch, length, dim)."""
        if self.ends == "concat":
            return torch.cat([first, second], dim=-1)
        both = first + second
        return both / 2 if self.ends == "mean" else both
