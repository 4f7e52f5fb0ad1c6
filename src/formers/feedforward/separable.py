"""The transition by separable convolutions (Dehghani et al., 2018, section 2.1; tensor2tensor's sepconv_relu_sepconv).

(D_k x)_{i,c} = sum_{m=0}^{k-1} w_{m,c} x_{i-l+m, c}                       depthwise: each channel alone, over k positions       E102
C_k(x) = D_k(x) W + b                                                      then pointwise: each position alone                   E103
T(x) = C_5(Drop(f(C_3(x))))                                                to `hidden` channels and back                         E104

Of the window of k positions l stand before position i: all k-1 others where the model is causal, else floor((k-1)/2), which puts i in the
middle. What lies outside the row is 0, at both convolutions. So is padding, which a centred window would see otherwise: the model would
learn from it how long the row is.

A causal stream leaves behind the last k-1 inputs of both convolutions.
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
    """Two separable convolutions over positions with a non-linearity between, causal where the pattern is."""

    hidden: PositiveInt
    kernels: tuple[PositiveInt, PositiveInt] = (3, 5)
    """How many positions each convolution looks at."""
    activation: Literal["relu", "gelu", "gelu-tanh", "gelu-sigmoid"] = "relu"
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Of the hidden activations, beside the dropout of the sublayer's answer."""

    def build(self, sizes: Sizes) -> nn.Module:
        return SeparableConvTransition(sizes, self)


@serialisable
@dataclass(frozen=True, eq=False)
class ConvMemories:
    """What both convolutions of a transition were given last."""

    first: ConvMemory
    second: ConvMemory

    def reset(self, done: Tensor) -> ConvMemories:
        """The tails in which the rows marked in done (batch,) are zeros."""
        return ConvMemories(self.first.reset(done), self.second.reset(done))

    def map(self, change: Callable[[Tensor], Tensor]) -> ConvMemories:
        """The tails with each of their tensors, batch first, changed."""
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
        """y (batch, length, dim), and what a continuation needs."""
        if past is not None and not isinstance(past, ConvMemories):
            raise FormersError("the state has other sublayers than the model: it is of another; use initial_state.")
        inner, first = self.into(x, context, None if past is None else past.first)
        inner = dropped(ACTIVATIONS[self.activation](inner), self.dropout, self.training)
        y, second = self.out(inner, context, None if past is None else past.second)  # E104
        return y, None if first is None or second is None else ConvMemories(first, second)


class Separable(nn.Module):
    """A convolution of each channel alone over `kernel` positions, then a linear map of each position alone."""

    def __init__(self, width: int, out: int, kernel: int, causal: bool) -> None:
        super().__init__()
        self.depthwise = nn.Parameter(torch.empty(width, kernel))
        self.pointwise = nn.Linear(width, out)
        self.kernel, self.causal = kernel, causal

    def forward(self, x: Tensor, context: Context, past: ConvMemory | None) -> tuple[Tensor, ConvMemory | None]:
        """y (batch, length, out) of x (batch, length, width), and the last inputs, where the stream may go on."""
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
    """Windows of x (batch, kernel - 1 + length, width), weighted by weight (width, kernel): (batch, length, width)."""
    if x.shape[1] == weight.shape[1]:  # one token: a convolution would take longer to be called than to compute
        return (x * weight.t()).sum(dim=1, keepdim=True)
    # As an image of one row whose channels lie side by side, which x is already: torch's kernel for that is several times as fast as
    # the one for rows, and nothing is transposed.
    image = x.transpose(1, 2).unsqueeze(2)
    return F.conv2d(image, weight[:, None, None], groups=len(weight)).squeeze(2).transpose(1, 2)  # E102
