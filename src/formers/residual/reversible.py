"""The reversible residual (Gomez et al., 2017), as the Reformer uses it (Kitaev et al., 2020, section 3).

x_1 = x_2 = x                               two streams, copies of the embedded input
(x_1, x_2) <- (x_2, x_1 + Drop(F(LN(x_2))))  every sublayer F is a half step                           E95

Attention and feed-forward in turn are the paper's Y_1 = X_1 + Attn(LN X_2), Y_2 = X_2 + FF(LN Y_1). Where there are three sublayers
the streams go on alternating, as in trax. A half step is undone by x_1 = x'_2 - Drop(F(LN(x_2))), because x_2 is still there. So the
backward pass computes all states back from the last two, and none of them are kept (model/reversible.py).
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from formers.residual.base import Residual, ResidualModule
from formers.residual.norm import EPSILON, PreNorm, PreNormResidual


class Reversible(Residual):
    """Two streams that take turns; training keeps the activations of one sublayer, whatever the depth, and computes each twice.

    It works with dropout, autocast, memories, shared blocks and DistributedDataParallel. What needs the states that it frees is refused:
    positions added at every step, losses of layers in between, and adaptive depth. With FSDP2 it must not be used (blocks that are shared
    got wrong gradients without a word): take PreNorm and `model.checkpointing()` there.
    """

    ends: Literal["mean", "concat", "sum"] = "mean"
    """How two streams become what the final norm is given: their mean, as in reformer-pytorch; side by side, as in trax and transformers,
    so that the norm and the head are twice as wide; or their sum, which behind a norm is the mean but for the norm's epsilon."""

    epsilon: PositiveFloat = EPSILON
    """What every LayerNorm of the stack, the final one among them, adds to the variance."""
    final: bool = True
    """Whether a LayerNorm stands between the last block and the head."""

    def build(self, dim: int, dropout: float) -> ResidualModule:
        return PreNormResidual(dim, dropout, self.epsilon)

    def build_final(self, dim: int) -> nn.Module:
        return nn.LayerNorm(self.width(dim), self.epsilon) if self.final else nn.Identity()

    def width(self, dim: int) -> int:
        return 2 * dim if self.ends == "concat" else dim

    def gain(self, steps: int) -> float:
        return PreNorm().gain(steps)

    def end(self, first: Tensor, second: Tensor) -> Tensor:
        """What the final norm is given of the two streams (batch, length, dim)."""
        if self.ends == "concat":
            return torch.cat([first, second], dim=-1)
        both = first + second
        return both / 2 if self.ends == "mean" else both
