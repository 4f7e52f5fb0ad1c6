"""The feed-forward network in chunks of positions, for long rows (Kitaev et al., 2020, section 3).

FFN(x) = [FFN(x_0 ... x_c-1); FFN(x_c ... x_2c-1); ...]        c positions at a time        E96

Each position is computed separately, so that the result is that of E9 and E10. The hidden activations, which are several times as wide
as the model, exist for one chunk at a time, also in the backward pass: it recomputes each chunk, which adds a third to the work.
"""

from __future__ import annotations

from pydantic import PositiveInt
from torch import Tensor

from formers.core import Context, Sizes
from formers.core.chunks import in_chunks
from formers.feedforward.dense import Dense, DenseFeedForward, GatedFeedForward, Transition


class Chunked(Dense):
    """The same function and weights as Dense, computed for `chunk` tokens of every row at a time."""

    chunk: PositiveInt = 1024

    def build(self, sizes: Sizes) -> Sliced:
        module = (
            SlicedGated(sizes, self.hidden, self.dropout)
            if self.activation == "swiglu"
            else SlicedDense(sizes, self.hidden, self.activation, self.dropout)
        )
        module.chunk = self.chunk
        return module


class Sliced(Transition):
    """A feed-forward network computed chunk by chunk along the length."""

    chunk: int
    """Tokens of every row per chunk; a caller that splits rows itself must pass at most this many."""

    def forward(self, x: Tensor, context: Context, past: None, step: int) -> tuple[Tensor, None]:
        return in_chunks(self.compute, (x,), self.chunk, dim=1, draws=self.training and self.dropout > 0), None  # E96


class SlicedDense(Sliced, DenseFeedForward):
    """f(x W_1 + b_1) W_2 + b_2, chunk by chunk."""


class SlicedGated(Sliced, GatedFeedForward):
    """(silu(x W_g) * x W_1) W_2, chunk by chunk."""
