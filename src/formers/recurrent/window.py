"""A word window instead of attention (Collobert and Weston, 2008; CS224N): one linear map of a token and its neighbours.

y_i = f(W [x_{i-k}; ...; x_{i+k}] + b)         centred; N layers see N k tokens on either side                      E143
y_i = f(W [x_{i-k}; ...; x_i] + b)             if the pattern is causal; N layers see the last N k tokens

All windows of a row are one convolution. Values outside the row are 0, and so is padding. In a causal model the state is the last k inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from formers.attention.attend import Verdict
from formers.attention.multihead import Attention
from formers.core import Context, ConvMemory, FormersError, Sizes
from formers.core.initial import draw
from formers.core.state import expect
from formers.patterns import Causal, Full, Pattern
from formers.score.base import ScoreModule

NONLINEAR: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "tanh": torch.tanh}


class Window(Attention):
    """A linear map of a token and of the `window` tokens before it and, if the pattern is not causal, after it."""

    window: PositiveInt
    activation: Literal["relu", "gelu", "tanh"] = "relu"

    @property
    def carries(self) -> bool:
        return True

    @property
    def allowed_patterns(self) -> tuple[type[Pattern], ...]:
        return (Causal, Full)

    def build(self, sizes: Sizes, pattern: Pattern, score: ScoreModule | None = None, common: nn.Module | None = None) -> nn.Module:
        return WindowLayer(sizes, self)


class WindowLayer(nn.Module):
    """A convolution over positions and an activation."""

    def __init__(self, sizes: Sizes, part: Window) -> None:
        super().__init__()
        self.window, self.causal, self.activation = part.window, sizes.causal, part.activation
        width = part.window + 1 if sizes.causal else 2 * part.window + 1
        self.weight = nn.Parameter(torch.empty(sizes.dim, sizes.dim, width))
        """W in the layout of torch's convolutions: (out, in, positions), the earliest position first."""
        self.bias = nn.Parameter(torch.zeros(sizes.dim))
        with torch.no_grad():
            draw(self.weight.flatten(1), sizes.initialisation, sizes.gain)

    def forward(self, x: Tensor, context: Context, past: ConvMemory | None, step: int) -> tuple[Tensor, ConvMemory | None]:
        """y (batch, length, dim) for x (batch, length, dim), and the last inputs if a state is requested."""
        k = self.window
        if context.watch is not None:
            about = f"all windows of {self.weight.shape[2]} tokens at once"
            context.watch.note("attention executors", step, lambda: (Verdict("convolution", True, about, None),))
        if not self.causal:
            if context.valid is not None:
                x = x.masked_fill(~context.valid[:, :, None], 0)
            return self.windows(F.pad(x, (0, 0, k, k))), None
        if not context.keep and past is None:
            return self.windows(F.pad(x, (0, 0, k, 0))), None
        before = ConvMemory.blank(x, k) if past is None else past
        if expect(ConvMemory, before).states.shape[1] != k:
            raise FormersError("the state has another window than the model: another model made it; start from initial_state(batch).")
        both = before.prepend_to(x)
        return self.windows(both), before.advanced(both, context.valid) if context.keep else None

    def windows(self, x: Tensor) -> Tensor:
        """y (batch, length, dim) of x (batch, width - 1 + length, dim)."""
        # As an image of one row in channels-last layout, which x already has: torch has a faster kernel for that.
        image = x.transpose(1, 2).unsqueeze(2)
        y = F.conv2d(image, self.weight.to(x.dtype).unsqueeze(2), self.bias.to(x.dtype)).squeeze(2).transpose(1, 2)
        return NONLINEAR[self.activation](y)  # E143
