"""The score slot: terms added to the dot product before the softmax, from the queries and the positions of queries and keys."""

from __future__ import annotations

from torch import Tensor, nn

from formers.core import Context, Positions, Sizes, Slot
from formers.score.distance import ByDistance


class ScoreModule(nn.Module):
    """Changes the attention scores scale * q k^T: by changing the queries, by adding a term, or both."""

    def forward(
        self, x: Tensor, q: Tensor, keys: Positions, context: Context, scale: float, step: int
    ) -> tuple[Tensor, Tensor | ByDistance | None]:
        """The queries for the dot product, and the scaled term to add, or None.

        x (batch, queries, dim) is the input of the sublayer, q (batch, heads, queries, head_dim) the projected queries at
        context.positions. A term is a tensor that broadcasts to (batch, heads, queries, keys), or a ByDistance, which an executor evaluates
        only where needed. Extra losses are added to context.losses; step is the depth step.
        """
        raise TypeError(f"{type(self).__name__} computes no scores: define forward(x, q, keys, context, scale, step).")

    def reach(self, step: int) -> int | None:
        """The number of distances, counted from 0, with a non-zero weight, as a plain integer; None if unlimited.

        Keys further back are not computed.
        """
        return None

    def max_reach(self, step: int) -> int | None:
        """The largest `reach` that the module can have with any weights: a state keeps no keys further back."""
        return self.reach(step)


class Score(Slot):
    """What is added to the attention scores."""

    def common(self, sizes: Sizes) -> nn.Module | None:
        """The module shared by the scores of all blocks of a stack; the stack builds and owns it. None if nothing is shared."""
        return None

    def build(self, sizes: Sizes, common: nn.Module | None = None) -> ScoreModule | None:
        """The module that computes the term; None if nothing is added."""
        return None


class NoScore(Score):
    """The dot product only."""
