"""The score slot: what joins the dot product before the softmax, from the queries and the positions of queries and keys."""

from __future__ import annotations

from torch import Tensor, nn

from formers.core import Context, Positions, Sizes, Slot
from formers.score.distance import ByDistance


class ScoreModule(nn.Module):
    """Changes the attention scores scale * q k^T: through the queries, through a term that is added, or both."""

    def forward(
        self, x: Tensor, q: Tensor, keys: Positions, context: Context, scale: float, step: int
    ) -> tuple[Tensor, Tensor | ByDistance | None]:
        """The queries to take the dot product with, and the term to add, already scaled, or None.

        x (batch, queries, dim) is what the sublayer was given; q (batch, heads, queries, head_dim) is projected; the queries stand at
        stream.positions. A term is a tensor that broadcasts to (batch, heads, queries, keys), or one by distance, which an executor
        computes as far as it needs it. Extra losses go into stream.losses; step is the depth step.
        """
        raise TypeError(f"{type(self).__name__} does not say what it changes: define forward(x, q, keys, stream, scale, step).")

    def reach(self, step: int) -> int | None:
        """How many places back keys may have a weight, known as a plain integer; None where there is no end.

        Older keys are not computed.
        """
        return None

    def max_reach(self, step: int) -> int | None:
        """The same for any weights that the module may get: a state keeps no older keys."""
        return self.reach(step)


class Score(Slot):
    """What is added to the attention scores."""

    def common(self, sizes: Sizes) -> nn.Module | None:
        """What the scores of all blocks of a stack share; the stack makes it once and owns it. None where they share nothing."""
        return None

    def build(self, sizes: Sizes, common: nn.Module | None = None) -> ScoreModule | None:
        """The module that computes the term, or None where nothing is added."""
        return None


class NoScore(Score):
    """The dot product alone."""
