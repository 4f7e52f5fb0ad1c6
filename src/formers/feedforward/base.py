"""The feed-forward slot."""

from __future__ import annotations

from torch import nn

from formers.core import Sizes, Slot


class FeedForward(Slot):
    """The transition of a block."""

    @property
    def mixes(self) -> bool:
        """Whether the answer at a position depends on others, so that no position can be computed alone."""
        return False

    def build(self, sizes: Sizes) -> nn.Module | None:
        """The sublayer, or None where there is none; its forward is forward(x, stream, past, step) -> (y, what it leaves behind)."""
        return None


class NoFeedForward(FeedForward):
    """Attention alone (an ablation): without it a block is linear in its values."""
