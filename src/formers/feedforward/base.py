"""The feed-forward slot."""

from __future__ import annotations

from torch import nn

from formers.core import Sizes, Slot


class FeedForward(Slot):
    """The transition of a block."""

    def build(self, sizes: Sizes) -> nn.Module | None:
        """The sublayer, or None where there is none; its forward is forward(x, stream, past, step) -> (y, what it leaves behind)."""
        return None


class NoFeedForward(FeedForward):
    """Attention alone (an ablation): without it a block is linear in its values."""
