"""The transition between attentions, applied to each position alone."""

from formers.feedforward.base import FeedForward, NoFeedForward
from formers.feedforward.dense import Dense

__all__ = ["Dense", "FeedForward", "NoFeedForward"]
