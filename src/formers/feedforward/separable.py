"""Feed-forward by separable convolutions (Dehghani et al., 2018, section 2.1; tensor2tensor's sepconv_relu_sepconv).

(D_k x)_{i,c} = sum_{m=0}^{k-1} w_{m,c} x_{i-l+m, c}                       depthwise: per channel, over k positions       E102
C_k(x) = D_k(x) W + b                                                      then pointwise: per position                   E103
T(x) = C_5(Drop(f(C_3(x))))                                                to `hidden` channels and back                         E104

The window of k positions contains l positions before i: all k-1 others in a causal model, else floor((k-1)/2), which centres it on i.
Values outside the row are 0 in both convolutions. So is padding: otherwise a centred window would see it, and the model could learn the
length of the row from it.

In a causal model the state is the last k-1 inputs of both convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import Context, ConvMemory, FormersError, Sizes
from formers.core.initial import draw, draw_filters
from formers.core.serialise import serialisable
from formers.feedforward.base import FeedForward
from formers.feedforward.dense import ACTIVATIONS, dropped


class SeparableConv(FeedForward):
    """Two separable convolutions over positions with an activation between, causal if the pattern is."""

    hidden: PositiveInt
    kernels: tuple[PositiveInt, PositiveInt] = (3, 5)
    """The kernel size of each convolution, in positions."""
    activation: Literal["relu", "gelu", "gelu-tanh", "gelu-sigmoid"] = "relu"
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """The dropout rate of the hidden activations; the output of the sublayer has the dropout of the residual."""

    def build(self, sizes: Sizes) -> nn.Module:
        return SeparableConvTransition(sizes, self)


@serialisable
@dataclass(frozen=True, eq=False)
class ConvMemories:
    """The last inputs of both convolutions."""

    first: ConvMemory
    second: ConvMemory

    def reset(self, done: Tensor) -> ConvMemories:
        """The memories with the rows marked in done (batch,) set to zero."""
        return ConvMemories(self.first.reset(done), self.second.reset(done))

    def map(self, change: Callable[[Tensor], Tensor]) -> ConvMemories:
        """The memories with `change` applied to each of their tensors, batch first."""
        return ConvMemories(self.first.map(change), self.second.map(change))


class SeparableConvTransition(nn.Module):
    """C_5(Drop(f(C_3(x))))."""

    def __init__(self, sizes: Sizes, part: SeparableConv) -> None:
        super().__init__()
        self.activation, self.dropout = part.activation, part.dropout
        (first, second), law = part.kernels, sizes.initialisation
        self.into = Separable(sizes.dim, part.hidden, first, sizes.causal)
        self.out = Separable(part.hidden, sizes.dim, second, sizes.causal)
        for module, gain in ((self.into, 1.0), (self.out, sizes.gain)):
            draw_filters(module.depthwise, law)
            draw(module.pointwise.weight, law, gain)
            nn.init.zeros_(module.pointwise.bias)

    def forward(self, x: Tensor, context: Context, past: ConvMemories | None, step: int) -> tuple[Tensor, ConvMemories | None]:
        """y (batch, length, dim), and the state."""
        if past is not None and not isinstance(past, ConvMemories):
            raise FormersError("the state has other sublayers than the model: another model made it; start from initial_state(batch).")
        inner, first = self.into(x, context, None if past is None else past.first)
        inner = dropped(ACTIVATIONS[self.activation](inner), self.dropout, self.training)
        y, second = self.out(inner, context, None if past is None else past.second)  # E104
        return y, None if first is None or second is None else ConvMemories(first, second)


class Separable(nn.Module):
    """A depthwise convolution over `kernel` positions, then a linear map of each position."""

    def __init__(self, width: int, out: int, kernel: int, causal: bool) -> None:
        super().__init__()
        self.depthwise = nn.Parameter(torch.empty(width, kernel))
        self.pointwise = nn.Linear(width, out)
        self.kernel, self.causal = kernel, causal

    def forward(self, x: Tensor, context: Context, past: ConvMemory | None) -> tuple[Tensor, ConvMemory | None]:
        """y (batch, length, out) of x (batch, length, width), and the last inputs if a state is requested."""
        others = self.kernel - 1
        if not self.causal:
            if context.valid is not None:
                x = x.masked_fill(~context.valid[:, :, None], 0)
            return self._convolve(F.pad(x, (0, 0, others // 2, others - others // 2))), None
        if not context.keep and past is None:
            return self._convolve(F.pad(x, (0, 0, others, 0))), None
        before = ConvMemory.blank(x, others) if past is None else past
        both = before.prepend_to(x)
        return self._convolve(both), before.advanced(both, context.valid) if context.keep else None

    def _convolve(self, x: Tensor) -> Tensor:
        """y (batch, length, out) of x (batch, kernel - 1 + length, width)."""
        return self.pointwise(depthwise(x, self.depthwise.to(x.dtype)))  # E103


def depthwise(x: Tensor, weight: Tensor) -> Tensor:
    """The depthwise convolution (batch, length, width) of x (batch, kernel - 1 + length, width) with weight (width, kernel)."""
    if x.shape[1] == weight.shape[1]:  # one token: calling a convolution takes longer than computing it
        return (x * weight.t()).sum(dim=1, keepdim=True)
    # As an image of one row in channels-last layout, which x already has: torch's kernel for that is several times as fast as its
    # 1-D convolution, and nothing is transposed.
    image = x.transpose(1, 2).unsqueeze(2)
    return F.conv2d(image, weight[:, None, None], groups=len(weight)).squeeze(2).transpose(1, 2)  # E102
