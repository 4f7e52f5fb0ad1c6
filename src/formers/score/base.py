"""The score slot: what joins the dot product before the softmax, from the queries, the keys and the positions of both."""

from __future__ import annotations

from torch import Tensor, nn

from formers.core import Positions, Sizes, Slot


class ScoreModule(nn.Module):
    """Changes the attention scores scale * q k^T: through the queries, through a term that is added, or both."""

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, queries: Positions, keys: Positions, scale: float, step: int
    ) -> tuple[Tensor, Tensor | None]:
        """The queries to take the dot product with, and the term to add, already scaled, or None.

        x (batch, queries, dim) is what the sublayer was given; q (batch, heads, queries, head_dim) and k are projected; the term
        broadcasts to (batch, heads, queries, keys); step is the depth step.
        """
        raise TypeError(f"{type(self).__name__} does not say what it changes: define forward(x, q, k, queries, keys, scale, step).")


class Score(Slot):
    """What is added to the attention scores."""

    def build(self, sizes: Sizes) -> ScoreModule | None:
        """The module that computes the term, or None where nothing is added."""
        return None


class NoScore(Score):
    """The dot product alone."""
