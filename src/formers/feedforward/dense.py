"""The position-wise feed-forward network (Vaswani et al., 2017, section 3.3).

FFN(x) = f(x W_1 + b_1) W_2 + b_2            f = ReLU (the paper) or GELU            E9
f(x) = x sigma(1.702 x)                      gelu-sigmoid (Child et al., 2019)       E86
FFN(x) = (silu(x W_g) * x W_1) W_2           SwiGLU (Shazeer, 2020), without biases  E10
FFN(x) = Drop(f(x W_1 + b_1)) W_2 + b_2      `dropout`, on the input of W_2          E36
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from formers.core import Context, Sizes
from formers.core.initial import draw
from formers.feedforward.base import FeedForward

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "gelu-sigmoid": lambda x: x * torch.sigmoid(1.702 * x),  # E86
}


class Dense(FeedForward):
    """Two linear maps with an activation between; `gelu-tanh` is GPT-2's approximation, `gelu-sigmoid` the Sparse Transformer's."""

    hidden: PositiveInt
    activation: Literal["relu", "gelu", "gelu-tanh", "gelu-sigmoid", "swiglu"] = "relu"
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """The dropout rate of the hidden activations; the output of the sublayer has the dropout of the residual."""

    def build(self, sizes: Sizes) -> nn.Module:
        if self.activation == "swiglu":
            return GatedFeedForward(sizes, self.hidden, self.dropout)
        return DenseFeedForward(sizes, self.hidden, self.activation, self.dropout)


class Transition(nn.Module):
    """A sublayer that computes each position separately."""

    dropout: float

    def compute(self, x: Tensor) -> Tensor:
        """y (batch, length, dim) of x (batch, length, dim)."""
        raise NotImplementedError

    def forward(self, x: Tensor, context: Context, past: None, step: int) -> tuple[Tensor, None]:
        """y (batch, length, dim); there is no state."""
        return self.compute(x), None


class DenseFeedForward(Transition):
    """f(x W_1 + b_1) W_2 + b_2."""

    def __init__(self, sizes: Sizes, hidden: int, activation: str, dropout: float) -> None:
        super().__init__()
        self.activation, self.dropout = activation, dropout
        self.into = nn.Linear(sizes.dim, hidden)
        self.out = nn.Linear(hidden, sizes.dim)
        for linear, gain in ((self.into, 1.0), (self.out, sizes.gain)):
            draw(linear.weight, sizes.initialisation, gain)
            nn.init.zeros_(linear.bias)

    def compute(self, x: Tensor) -> Tensor:
        inner = ACTIVATIONS[self.activation](self.into(x))
        return self.out(dropped(inner, self.dropout, self.training))  # E9


class GatedFeedForward(Transition):
    """(silu(x W_g) * x W_1) W_2."""

    def __init__(self, sizes: Sizes, hidden: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.into = nn.Linear(sizes.dim, 2 * hidden, bias=False)
        self.out = nn.Linear(hidden, sizes.dim, bias=False)
        for weight in torch.split(self.into.weight, hidden):
            draw(weight, sizes.initialisation)
        draw(self.out.weight, sizes.initialisation, sizes.gain)

    def compute(self, x: Tensor) -> Tensor:
        gate, value = self.into(x).chunk(2, dim=-1)
        return self.out(dropped(F.silu(gate) * value, self.dropout, self.training))  # E10


def dropped(inner: Tensor, rate: float, training: bool) -> Tensor:
    """Drop(inner) in training; otherwise inner itself, without a call."""
    return F.dropout(inner, rate) if rate and training else inner  # E36
