"""The score slot: a term added to the logits before the softmax, from the queries and from the positions of both sides."""

from __future__ import annotations

from torch import Tensor, nn

from formers.core import Positions, Sizes, Slot


class ScoreModule(nn.Module):
    """Computes a term of the attention scores."""

    def forward(self, q: Tensor, queries: Positions, keys: Positions) -> Tensor:
        """The term, broadcasting to (batch, heads, queries, keys), of projected queries q (batch, heads, queries, head_dim)."""
        raise TypeError(f"{type(self).__name__} does not say what it adds: define forward(q, queries, keys).")


class Score(Slot):
    """What is added to the attention scores."""

    def build(self, sizes: Sizes) -> ScoreModule | None:
        """The module that computes the term, or None where nothing is added."""
        return None


class NoScore(Score):
    """The dot product alone."""
