"""The feed-forward slot."""

from __future__ import annotations

from torch import nn

from formers.core import Sizes, Slot


class FeedForward(Slot):
    """The feed-forward sublayer of a block."""

    def build(self, sizes: Sizes) -> nn.Module | None:
        """The sublayer, with forward(x, context, past, step) -> (y, state); None if there is none."""
        return None


class NoFeedForward(FeedForward):
    """Attention only (an ablation): without a feed-forward sublayer, a block is linear in its values."""
